"""The threads of the plugin in one engine core: the controller's, and those that serve metrics.

The engine adapter starts one when vLLM has made its scheduler, in the process that will step it; so there is
exactly one per engine core, however many API servers and workers there are. All threads are daemons: a dying
engine is not kept alive, and they are not needed to end well. What runs on the engine's own thread is
:meth:`Runtime.on_step` alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from tabletune import correcting
from tabletune_plugin import metrics, serving
from tabletune_plugin.controller import Controller
from tabletune_plugin.engine.steps import Step
from tabletune_plugin.settings import Settings
from tabletune_plugin.states import Engine, Report
from tabletune_plugin.steering import Steering, Tap
from tabletune_plugin.tallying import Tally

logger = logging.getLogger("tabletune")

STOP_SECONDS = 1.0
"""Most that a shutdown waits for the controller."""
FIRST_TICK_SECONDS = 2.0
"""Most that the engine's start waits for the first look at the file. Afterwards it waits for nothing."""


class Runtime:
    """All that runs for one engine core, or, without one, what says why nothing does."""

    def __init__(self, settings: Settings, report: Callable[[], Report]) -> None:
        self._settings, self._report = settings, report
        self._controller: Controller | None = None
        self._tally: Tally | None = None
        self._steering: Steering | None = None
        self._tap: Tap | None = None
        self._control_seconds = 0.0
        self._engine: Engine | None = None
        self._looked_at: float | None = None
        self._stopping = threading.Event()
        self._ticked = threading.Event()
        self._thread: threading.Thread | None = None
        self._server: serving.Server | None = None

    @classmethod
    def inactive(cls, settings: Settings, reason: str, message: str) -> Runtime:
        """Return a runtime that only says why the plugin does nothing."""
        report = Report(active=False, reason=reason, message=message)
        runtime = cls(settings, lambda: report)
        runtime._serve()
        return runtime

    @classmethod
    def start(
        cls,
        engine: Engine,
        settings: Settings,
        tap: Tap,
        *,
        measures_spans: Callable[[], bool],
    ) -> Runtime:
        """Return the running runtime of an engine core; the table is in force, if there was one in time."""
        tally = Tally(
            engine.max_num_seqs,
            engine.longest,
            uniform_drafts=engine.uniform_drafts,
            asynchronous=engine.asynchronous,
            gpu_span_ms=tap.gpu_span_ms,
        )
        steering = Steering(tap, correcting.quantile_for(engine.fingerprint.drafter_method))
        controller = Controller(
            engine, settings, tally, steering, measures_spans=measures_spans, wall_clock=time.time
        )
        controller.start()
        runtime = cls(settings, lambda: controller.report)
        runtime._engine, runtime._controller = engine, controller
        runtime._tally, runtime._steering, runtime._tap = tally, steering, tap
        runtime._looked_at = time.time()
        runtime._thread = threading.Thread(target=runtime._run, name="tabletune-control", daemon=True)
        runtime._thread.start()
        runtime._ticked.wait(FIRST_TICK_SECONDS)
        runtime._serve()
        return runtime

    def on_step(self, step: Step) -> None:
        """Take in one step; on the engine's thread."""
        if self._tally is not None and self._steering is not None:
            self._tally.add(step)
            self._steering.add(step)

    def stop(self) -> None:
        """End the threads and give the port back; waits a moment for them."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=STOP_SECONDS)

    @property
    def report(self) -> Report:
        """What the plugin does at present."""
        return self._report()

    def snapshot(self) -> metrics.Snapshot:
        """Return all that metrics and ``/debug/table`` show, of one moment."""
        steering = self._steering
        return metrics.Snapshot(
            report=self._report(),
            engine=self._engine,
            settings=self._settings,
            totals=self._tally.totals() if self._tally is not None else None,
            explorations=steering.explorations if steering is not None else 0,
            looked_at=self._looked_at,
            own_seconds=self._own_seconds(),
        )

    def _own_seconds(self) -> Mapping[str, float]:
        tap = self._tap
        if tap is None:
            return {}
        return {
            metrics.SCHEDULER: tap.own_seconds,
            metrics.SPANS: tap.span_seconds(),
            metrics.CONTROL: self._control_seconds,
        }

    def _run(self) -> None:
        controller = self._controller
        while controller is not None and not self._stopping.is_set():
            try:
                controller.tick(time.monotonic())
                self._looked_at = time.time()
            except Exception:
                # The controller handles its own; this is what it could not even tell.
                logger.debug("TableTune's controller could not handle its failure", exc_info=True)
            # Of this thread alone, since it began. The engine's thread may have to wait for it.
            self._control_seconds = time.thread_time()
            self._ticked.set()
            self._stopping.wait(self._settings.poll_seconds)

    def _serve(self) -> None:
        port = self._settings.metrics_port
        if port == 0:
            return
        try:
            self._server = serving.Server(port, self.snapshot)
            self._server.start()
        except Exception:
            logger.exception("TableTune cannot serve metrics; serving goes on")


def log_inactive(reason: str, message: str) -> None:
    """Warn that the plugin does nothing."""
    logger.warning("TableTune is inactive (%s): %s. Serving goes on unchanged.", reason, message.rstrip("."))
