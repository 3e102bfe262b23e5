"""Hooks the plugin into vLLM: which functions are wrapped, where, and what is told if that cannot be.

vLLM loads general plugins in every process, so each wraps what that process will use, and only there:

- where engine arguments become a configuration (API servers): ``EngineArgs.create_speculative_config``, so
  that an engine without a table starts with one that names every length, or vLLM would capture no graphs
  for them and its scheduler would have no lookup;
- where an engine core lives: ``Scheduler.__init__``, to start the plugin's runtime for it, and
  ``EngineCore.step``, whose first call is the moment to record GPU spans (no step is in flight, and the
  executor is there), after which the engine has its own method back.

A process that only loads a model (tensor parallel workers, the registry's helper) wraps nothing. All wrapped
functions do what they did, then ours, and nothing of ours raises into them. Checked against the sources of
vLLM 0.32 and 0.33: ``vllm/plugins``, ``vllm/engine/arg_utils.py``, ``vllm/v1/engine/core.py``,
``vllm/v1/core/sched``.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabletune import graphs, tables
from tabletune.documents import Document
from tabletune_plugin import following, runtime, settings, states
from tabletune_plugin.engine import arguments, facts, steps, versions
from tabletune_plugin.runtime import Runtime
from tabletune_plugin.settings import Settings
from tabletune_plugin.states import Engine

logger = logging.getLogger("tabletune")

STARTUP = "_tabletune_startup"
"""Attribute of vLLM's speculative config where the plugin gave it its table: the user's own table that it
replaced, or ``None``. It travels with the configuration to the engine core's process."""

PARALLEL = "_tabletune_parallel"
"""Attribute of vLLM's speculative config with the data parallel size, where that is above 1: vLLM takes the
table away there, and the cores of a dense model no longer know why (each is one of its own to them)."""

FOREIGN = "_tabletune_foreign"
"""Attribute of vLLM's speculative config with the name of the scheduler class, where that is not built on
vLLM's: it would serve the start-up table, and nobody could replace it. This is told where the configuration
is made; an engine core knows of such a scheduler at its first request only."""

_RUNTIME = "_tabletune_runtime"
_HOOKED = "_tabletune_hooked"

START_READ_SECONDS = 2.0
"""Most that the server's start waits for the document, which may be on a file system that hangs."""


def install() -> None:
    """Wrap what this process will use of vLLM; again does nothing. Says why where vLLM is not known.

    Raises nothing that is foreseen.
    """
    _log_as_vllm()
    try:
        versions.require_supported(versions.installed())
    except versions.UnsupportedEngineError as error:
        _inactive_process(states.UNSUPPORTED_VERSION, error.reason)
        return
    try:
        if "vllm.engine.arg_utils" in sys.modules:
            _hook_arguments()
        if "vllm.v1.engine.core" in sys.modules:
            _hook_engine_core()
    except versions.UnsupportedEngineError as error:
        _inactive_process(states.HOOKS_DIFFER, error.reason)


def _log_as_vllm() -> None:
    """Have TableTune's messages look like vLLM's, and go where they go.

    vLLM sets up its own logger only, and in an API server later than it loads plugins. So ours becomes its
    child, and follows whatever is set up.
    """
    logger.parent = logging.getLogger("vllm")
    # The parent's level. Setting it also forgets what was enabled under the old one.
    logger.setLevel(logging.NOTSET)


_process_runtime: Runtime | None = None
_process_lock = threading.Lock()


def _inactive_process(reason: str, message: str) -> None:
    """Say why there is nothing, on the metrics port too; of several processes one gets the port."""
    global _process_runtime
    with _process_lock:
        if _process_runtime is None:
            runtime.log_inactive(reason, message)
            _process_runtime = Runtime.inactive(_settings(), reason, message)


def _settings() -> Settings:
    """Read the environment, and complain of it: where an engine core is, so that it is told once."""
    found, complaints = settings.read(os.environ)
    for complaint in complaints:
        logger.warning("TableTune: %s", complaint)
    return found


# Where arguments become a configuration


def _hook_arguments() -> None:
    versions.require_arguments_hook()
    engine_args = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    original = engine_args.create_speculative_config
    if hasattr(original, _HOOKED):
        return

    @functools.wraps(original)
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        try:
            _hook_engine_core()
            parallel = kwargs.get("target_parallel_config") or args[-1]
            _prepare(config, self.max_num_seqs, parallel, self.scheduler_cls)
            if foreign := getattr(config, FOREIGN, ""):
                _inactive_process(*_unknown_scheduler(foreign))
        except versions.UnsupportedEngineError as error:
            _inactive_process(states.HOOKS_DIFFER, error.reason)
        except Exception:
            logger.exception("TableTune could not prepare the engine; serving goes on without it")
        return config

    setattr(create_speculative_config, _HOOKED, True)
    engine_args.create_speculative_config = create_speculative_config


def _prepare(config: Any, max_num_seqs: int | None, parallel: Any, scheduler: str | type | None) -> None:
    """Give vLLM's speculative ``config`` the start-up table, unless something speaks against it."""
    if config is None or hasattr(config, STARTUP):
        return
    if parallel.data_parallel_size > 1:
        setattr(config, PARALLEL, parallel.data_parallel_size)
        return  # the engine core says why
    if parallel.pipeline_parallel_size > 1:
        return
    if foreign := _foreign(scheduler):
        setattr(config, FOREIGN, foreign)
        return
    chosen, _ = settings.read(os.environ)
    users = config.num_speculative_tokens_per_batch_size
    if users is not None and not chosen.replace_table:
        return
    document = _document(chosen.table)
    longest = config.num_speculative_tokens
    usable = {length for length in document.profile.draft_lengths if length <= longest} if document else ()
    # Also the length that vLLM would use without a table, which is served until there is a document.
    lengths = sorted({*(usable or range(longest + 1)), longest})
    # Of more lengths than batch sizes the longest, that one among them.
    fitting = lengths if max_num_seqs is None else lengths[-max_num_seqs:]
    table = arguments.startup_table(fitting, max_num_seqs)
    setattr(config, STARTUP, users)
    config.num_speculative_tokens_per_batch_size = table
    logger.info(
        "TableTune starts the engine for draft lengths %s", sorted({length for _, _, length in table})
    )


def _document(path: Path) -> Document | None:
    """Return the document at ``path``; ``None`` where there is none, which is told."""
    try:
        document = following.read(path, START_READ_SECONDS)
    except TimeoutError:
        logger.warning(
            "TableTune could not read %s within %.0f s; the start goes on", path, START_READ_SECONDS
        )
        return None
    if document is None:
        logger.info("TableTune found no document at %s yet", path)
    return document


def _foreign(scheduler: str | type | None) -> str:
    """Return the name of a ``--scheduler-cls`` that is not built on vLLM's scheduler; empty where it is."""
    if scheduler is None:
        return ""
    if isinstance(scheduler, str):
        module, _, name = scheduler.rpartition(".")
        try:
            scheduler = getattr(importlib.import_module(module), name)
        except Exception:
            return ""  # vLLM will say so
    own = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    built_on_it = isinstance(scheduler, type) and issubclass(scheduler, own)
    return "" if built_on_it else getattr(scheduler, "__qualname__", str(scheduler))


# Where an engine core lives


def _hook_engine_core() -> None:
    versions.require_hooks()
    versions.require_engine_hooks()
    scheduler_class = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    core_class = importlib.import_module("vllm.v1.engine.core").EngineCore
    if hasattr(scheduler_class.__init__, _HOOKED):
        return
    original = scheduler_class.__init__

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            _start(self)
        except Exception:
            logger.exception("TableTune could not start; serving goes on without it")

    setattr(construct, _HOOKED, True)
    scheduler_class.__init__ = construct
    for name in ("step", "step_with_batch_queue"):
        setattr(core_class, name, _at_first_step(name, getattr(core_class, name)))


def _at_first_step(name: str, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``original`` with what is to be done before an engine core's first step."""

    @functools.wraps(original)
    def first_step(self: Any) -> Any:
        plain_step = original.__get__(self)
        try:
            # vLLM bound this wrapper when the core was made; from the next step on it calls its own.
            if getattr(self.step_fn, "__func__", None) is first_step:
                self.step_fn = plain_step
            _before_first_step(self)
        except Exception:
            logger.exception("TableTune could not prepare the engine's first step; serving goes on")
        return plain_step()

    first_step.__name__ = name
    return first_step


def _before_first_step(core: Any) -> None:
    running = getattr(core.scheduler, _RUNTIME, None)
    if isinstance(running, _Hook):
        running.record_spans(core.model_executor)
    elif running is None and not hasattr(core.vllm_config.speculative_config, FOREIGN):
        _take_back(core.scheduler, core.vllm_config)
        reason, message = _unknown_scheduler(type(core.scheduler).__qualname__)
        runtime.log_inactive(reason, message)
        setattr(core.scheduler, _RUNTIME, Runtime.inactive(_settings(), reason, message))


def _take_back(scheduler: Any, config: Any) -> None:
    """Give a scheduler that is not to be served what the user asked for in place of a start-up table.

    That one is made for capturing graphs and not for serving. A scheduler that a platform put in place of
    vLLM's may have no lookup, or one of its own by another name, which nobody can give back.
    """
    lookup = getattr(scheduler, "dynamic_sd_lookup", None)
    if hasattr(config.speculative_config, STARTUP) and isinstance(lookup, list):
        scheduler.dynamic_sd_lookup = list(_own_lookup(scheduler, config))


def _unknown_scheduler(name: str) -> tuple[str, str]:
    return states.UNKNOWN_SCHEDULER, f"the scheduler is a {name}, which is not built on vLLM's"


class _Hook:
    """One scheduler, its tap and the runtime behind it."""

    def __init__(self, scheduler: Any, engine: Engine, chosen: Settings) -> None:
        self._spans: bool | None = None
        self._runtime: Runtime | None = None
        self.tap = steps.attach(scheduler, self._on_step)
        try:
            self._runtime = Runtime.start(
                engine,
                chosen,
                self.tap,
                measures_spans=lambda: bool(self._spans),
            )
        except Exception:
            self.tap.detach()
            raise

    def _on_step(self, step: steps.Step) -> None:
        if self._runtime is not None:
            self._runtime.on_step(step)

    def record_spans(self, executor: Any) -> None:
        """Have the workers record GPU spans, once."""
        if self._spans is None:
            self._spans = False
            try:
                self._spans = self.tap.record_spans(executor)
            except Exception:
                logger.exception(
                    "TableTune cannot record GPU spans: step times are not compared with a profile of spans;"
                    " serving goes on"
                )

    def stop(self) -> None:
        """End the threads."""
        if self._runtime is not None:
            self._runtime.stop()


def _start(scheduler: Any) -> None:
    """Start the runtime for ``scheduler``, or say why not."""
    config = scheduler.vllm_config
    if hasattr(scheduler, _RUNTIME) or hasattr(config.speculative_config, FOREIGN):
        return
    chosen = _settings()
    found = _obstacle(scheduler, config)
    if found is not None:
        _take_back(scheduler, config)
        runtime.log_inactive(*found)
        setattr(scheduler, _RUNTIME, Runtime.inactive(chosen, *found))
    else:
        try:
            engine = _engine(scheduler, config, chosen)
            for warning in engine.warnings:
                logger.warning("TableTune: %s", warning)
            hook = _Hook(scheduler, engine, chosen)
            setattr(scheduler, _RUNTIME, hook)
        except Exception as error:
            logger.exception("TableTune could not start; serving goes on without it")
            _take_back(scheduler, config)
            message = f"{type(error).__name__}: {error}"
            setattr(scheduler, _RUNTIME, Runtime.inactive(chosen, states.START_FAILED, message))
    _stop_at_shutdown(scheduler)


def _stop_at_shutdown(scheduler: Any) -> None:
    original, running = scheduler.shutdown, getattr(scheduler, _RUNTIME)

    def shutdown(*args: Any, **kwargs: Any) -> Any:
        try:
            running.stop()
        except Exception:
            logger.debug("TableTune's threads could not be ended", exc_info=True)
        return original(*args, **kwargs)

    scheduler.shutdown = shutdown


def _obstacle(scheduler: Any, config: Any) -> tuple[str, str] | None:
    """Return reason and message where the engine cannot be served with a table."""
    if config.speculative_config is None:
        return states.NO_SPECULATIVE_CONFIG, "vLLM was started without a speculative config"
    ranks = getattr(config.speculative_config, PARALLEL, 1)
    if ranks > 1:
        return states.DATA_PARALLEL, f"data_parallel_size is {ranks}, with which vLLM ignores a table"
    for obstacle in facts.obstacles(config):
        if obstacle.severity is facts.Severity.REFUSED:
            return obstacle.name, f"{obstacle.reason} {obstacle.remedy}"
    if scheduler.dynamic_sd_lookup is None:
        return states.NO_LOOKUP, "the scheduler has no lookup, although the configuration allows for one"
    return None


def _engine(scheduler: Any, config: Any, chosen: Settings) -> Engine:
    speculative = config.speculative_config
    fingerprint = facts.fingerprint(config)
    longest = scheduler.num_spec_tokens
    uniform_graphs = fingerprint.runner == "V2" and fingerprint.cudagraph_mode in graphs.UNIFORM_MODES
    captured = sorted(set(scheduler.dynamic_sd_lookup[1:]))
    return Engine(
        fingerprint=fingerprint,
        max_num_seqs=len(scheduler.dynamic_sd_lookup) - 1,
        longest=longest,
        lengths=tuple(captured) if uniform_graphs else tuple(range(longest + 1)),
        own_lookup=_own_lookup(scheduler, config),
        users_table=not hasattr(speculative, STARTUP) and not chosen.replace_table,
        asynchronous=bool(config.scheduler_config.async_scheduling),
        uniform_drafts=facts.drafts_are_uniform(config),
        statistics=bool(scheduler.log_stats),
        warnings=tuple(
            f"{obstacle.reason} {obstacle.remedy}"
            for obstacle in facts.obstacles(config)
            if obstacle.severity is facts.Severity.WARNING
        ),
    )


def _own_lookup(scheduler: Any, config: Any) -> tuple[int, ...]:
    """Return the lookup that the engine would have without TableTune."""
    last, longest = len(scheduler.dynamic_sd_lookup) - 1, config.speculative_config.num_speculative_tokens
    if not hasattr(config.speculative_config, STARTUP):
        return tuple(scheduler.dynamic_sd_lookup)
    users = getattr(config.speculative_config, STARTUP)
    if users is None:
        return (0, *(longest,) * last)
    return tuple(min(length, longest) for length in tables.lookup([tuple(entry) for entry in users], last))
