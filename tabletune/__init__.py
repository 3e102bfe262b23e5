"""The core of TableTune: the documents and the pure computation on them.

Profiler, plugin and operator all build on this package, and it builds on none of them: it imports
neither kopf, kubernetes, vllm nor torch, reads no clock, no file and no environment variable.
"""

__version__ = "0.1.0"
