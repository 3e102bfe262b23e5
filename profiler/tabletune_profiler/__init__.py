"""The command line of TableTune, and the profiler that runs in the Job."""
