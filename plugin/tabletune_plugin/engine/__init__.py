"""All that TableTune knows of vLLM's internals.

The profiler and the plugin both measure through this package, so that a profile and live traffic are
the same numbers; nothing else of TableTune imports vLLM or torch. Everything that leaves it is plain
(numbers, strings, the core's documents). When a new vLLM version breaks something, the mend is here:

- ``versions``: which vLLM is installed, which are supported, and the checks made before anything is touched;
- ``arguments``: the arguments of ``vllm serve``, parsed by vLLM's own parser, made into its configuration;
  the start-up table;
- ``facts``: what a configuration means for a table: fingerprint, graph settings, obstacles;
- ``steps``: the tap on the scheduler: the lookup, and one record per step's result;
- ``spans``: the time of a step on the GPU, by CUDA events read without a synchronisation;
- ``drafters``: steps without the drafter's pass, to time what an engine without one would take;
- ``hooking``: how the plugin gets into a vLLM that somebody else started;
- ``driving``: an engine core run in this process, step by step.

Importing this package imports none of vLLM; the functions do, when called.
"""
