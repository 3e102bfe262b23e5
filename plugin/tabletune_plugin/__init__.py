"""What of TableTune runs inside vLLM: the engine adapter, shared with the profiler."""
