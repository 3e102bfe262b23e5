"""How the plugin gets into vLLM, on modules that look like vLLM's."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tabletune import documents, tables
from tabletune_plugin import runtime, states
from tabletune_plugin.engine import arguments, facts, hooking
from tabletune_plugin.runtime import Runtime
from tests.plugin import engines, hanging
from tests.plugin.test_steps import returned, scheduled
from tests.plugin.test_versions import SchedulerOutput, SpecDecodingStats


@dataclass
class SpeculativeConfig:
    method: str = "ngram"
    model: str | None = None
    num_speculative_tokens: int = 2
    num_speculative_tokens_per_batch_size: list[list[int]] | None = None


def build_dynamic_sd_schedule_lookup(
    num_speculative_tokens_per_batch_size: list[list[int]],
    vllm_max_batch_size: int,
    vllm_num_speculative_tokens: int,
) -> list[int]:
    ranges = [(first, last, length) for first, last, length in num_speculative_tokens_per_batch_size]
    dense = tables.lookup(ranges, vllm_max_batch_size)
    return [min(length, vllm_num_speculative_tokens) for length in dense]


def vllm_modules() -> dict[str, dict[str, Any]]:
    """Return the modules' members, the classes fresh, since tests wrap their methods."""

    @dataclass
    class EngineArgs:
        config: SpeculativeConfig | None
        max_num_seqs: int | None = 4
        scheduler_cls: str | type | None = None

        def create_speculative_config(
            self, target_model_config: object, target_parallel_config: object
        ) -> SpeculativeConfig | None:
            return self.config

    class Scheduler:
        def __init__(self, vllm_config: Any, log_stats: bool = True) -> None:
            self.vllm_config = vllm_config
            self.log_stats = log_stats
            self.waiting: list[str] = []
            self.num_spec_tokens = 0
            self.stopped = False
            self.dynamic_sd_lookup: list[int] | None = None
            speculative = vllm_config.speculative_config
            if speculative is not None:
                self.num_spec_tokens = speculative.num_speculative_tokens
                table = speculative.num_speculative_tokens_per_batch_size
                if table:
                    self.dynamic_sd_lookup = build_dynamic_sd_schedule_lookup(table, 4, self.num_spec_tokens)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
            return {}

        def shutdown(self) -> None:
            self.stopped = True

    class EngineCore:
        def __init__(self, vllm_config: Any, scheduler: Any, asynchronous: bool = False) -> None:
            self.vllm_config = vllm_config
            self.model_executor = Executor()
            self.scheduler = scheduler(vllm_config=vllm_config)
            self.step_fn = self.step_with_batch_queue if asynchronous else self.step
            self.steps: list[str] = []

        def step(self) -> str:
            self.steps.append("step")
            return "stepped"

        def step_with_batch_queue(self) -> str:
            self.steps.append("queue")
            return "queued"

    return {
        "vllm.config": {"SpeculativeConfig": SpeculativeConfig},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
        "vllm.v1.core.sched.output": {"SchedulerOutput": SchedulerOutput},
        "vllm.v1.engine.core": {"EngineCore": EngineCore},
        "vllm.v1.spec_decode.dynamic.utils": {
            "build_dynamic_sd_schedule_lookup": build_dynamic_sd_schedule_lookup
        },
        "vllm.v1.spec_decode.metrics": {"SpecDecodingStats": SpecDecodingStats},
    }


class Executor:
    """Workers without a GPU."""

    def __init__(self) -> None:
        self.calls = 0

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = ()) -> list[bool]:
        self.calls += 1
        return [False, False]


class Vllm:
    """The modules that look like vLLM's, and engines of theirs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cores: list[Any] = []

    @property
    def engine_args(self) -> Any:
        return sys.modules["vllm.engine.arg_utils"].EngineArgs

    @property
    def scheduler(self) -> Any:
        return sys.modules["vllm.v1.core.sched.scheduler"].Scheduler

    @property
    def engine_core(self) -> Any:
        return sys.modules["vllm.v1.engine.core"].EngineCore

    def configure(self, speculative: SpeculativeConfig | None = None, **changes: Any) -> Any:
        """Return a ``VllmConfig`` as a front end makes it."""
        parallel = SimpleNamespace(
            data_parallel_size=changes.pop("data_parallel_size", 1),
            pipeline_parallel_size=changes.pop("pipeline_parallel_size", 1),
            tensor_parallel_size=1,
            world_size=1,
        )
        args = self.engine_args(
            speculative, changes.pop("max_num_seqs", 4), changes.pop("scheduler_cls", None)
        )
        made = args.create_speculative_config(target_model_config=None, target_parallel_config=parallel)
        if made is not None and parallel.data_parallel_size > 1:
            made.num_speculative_tokens_per_batch_size = None  # as vLLM does
        assert not changes
        return SimpleNamespace(
            speculative_config=made,
            parallel_config=parallel,
            model_config=SimpleNamespace(model="org/model", dtype="torch.float32", quantization=None),
            scheduler_config=SimpleNamespace(
                max_num_seqs=4, max_num_batched_tokens=2_048, async_scheduling=False
            ),
            compilation_config=SimpleNamespace(
                cudagraph_mode=SimpleNamespace(name="NONE"), cudagraph_capture_sizes=[]
            ),
            use_v2_model_runner=False,
        )

    def start(self, config: Any, scheduler: Any = None, **options: Any) -> Any:
        """Return an engine core of ``config``."""
        self.cores.append(self.engine_core(config, scheduler or self.scheduler, **options))
        return self.cores[-1]

    def report(self, core: Any) -> states.Report:
        running = vars(core.scheduler)[hooking._RUNTIME]
        report: states.Report = (running if isinstance(running, Runtime) else running._runtime).report
        return report

    def stop(self) -> None:
        for core in self.cores:
            running = vars(core.scheduler).get(hooking._RUNTIME)
            if running is not None:
                running.stop()


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Vllm]:
    path = tmp_path / "table.json"
    path.write_bytes(documents.dump(engines.document()))
    monkeypatch.setenv("TABLETUNE_TABLE", str(path))
    monkeypatch.setenv("TABLETUNE_METRICS_PORT", "0")
    # What these wait for comes; where the machine pauses, later.
    monkeypatch.setattr(hooking, "START_READ_SECONDS", 60.0)
    monkeypatch.setattr(runtime, "FIRST_TICK_SECONDS", 60.0)
    set_version(monkeypatch, "0.33.0")
    monkeypatch.setattr(facts, "_device", lambda: ("CPU", ""))
    monkeypatch.setattr(hooking, "_process_runtime", None)
    for name, members in vllm_modules().items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            package = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    made = Vllm(path)
    yield made
    made.stop()
    if hooking._process_runtime is not None:
        hooking._process_runtime.stop()


def set_version(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found if name == "vllm" else "2.11.0")


# The start-up table


def test_engine_starts_with_every_length_of_the_document(vllm: Vllm) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig())
    assert config.speculative_config.num_speculative_tokens_per_batch_size == [
        [1, 2, 0],
        [3, 3, 1],
        [4, 4, 2],
    ]


def test_longer_lengths_than_the_engines_are_left_out_and_its_own_is_there(vllm: Vllm) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(num_speculative_tokens=1))
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert {length for _, _, length in table} == {0, 1}
    config = vllm.configure(SpeculativeConfig(num_speculative_tokens=3))
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert {length for _, _, length in table} == {0, 1, 2, 3}


def test_without_a_document_every_length_is_started_for(vllm: Vllm) -> None:
    vllm.path.unlink()
    hooking.install()
    config = vllm.configure(SpeculativeConfig(num_speculative_tokens=3))
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert {length for _, _, length in table} == {0, 1, 2, 3}


@pytest.mark.parametrize("most", [1, 2, 3, 4, 256])
def test_engine_of_few_requests_starts_with_the_longest_lengths(vllm: Vllm, most: int) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(num_speculative_tokens=3), max_num_seqs=most)
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    lookup = tables.lookup([(first, last, length) for first, last, length in table], most)
    assert table[-1][1] == most
    assert set(lookup[1:]) == set([0, 1, 2, 3][-most:])


def test_engine_of_an_unknown_number_of_requests_starts_with_every_length(vllm: Vllm) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(num_speculative_tokens=3), max_num_seqs=None)
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert table == arguments.startup_table([0, 1, 2, 3], None)


def test_users_own_table_is_kept(vllm: Vllm) -> None:
    hooking.install()
    users = [[1, 4, 1]]
    config = vllm.configure(SpeculativeConfig(num_speculative_tokens_per_batch_size=users))
    assert config.speculative_config.num_speculative_tokens_per_batch_size is users
    core = vllm.start(config)
    report = vllm.report(core)
    assert (report.active, report.reason) == (False, states.USER_TABLE)
    assert core.scheduler.dynamic_sd_lookup == [0, 1, 1, 1, 1]


def test_users_own_table_is_replaced_if_asked_and_back_while_there_is_no_document(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLETUNE_REPLACE_TABLE", "1")
    hooking.install()
    users = [[1, 2, 1], [3, 4, 0]]
    core = vllm.start(vllm.configure(SpeculativeConfig(num_speculative_tokens_per_batch_size=users)))
    assert core.scheduler.dynamic_sd_lookup == [0, 2, 2, 1, 0]
    assert vllm.report(core).reason == states.FOLLOWING
    vllm.path.unlink()
    core = vllm.start(vllm.configure(SpeculativeConfig(num_speculative_tokens_per_batch_size=users)))
    assert core.scheduler.dynamic_sd_lookup == [0, 1, 1, 0, 0]
    assert vllm.report(core).reason == states.NO_DOCUMENT


@pytest.mark.parametrize("changes", [{"data_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_parallel_engines_get_no_table(vllm: Vllm, changes: dict[str, int]) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(), **changes)
    assert config.speculative_config.num_speculative_tokens_per_batch_size is None


def test_failure_to_prepare_is_not_vllms(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(arguments, "startup_table", fail)
    hooking.install()
    config = vllm.configure(SpeculativeConfig())
    assert config.speculative_config.num_speculative_tokens_per_batch_size is None
    assert "serving goes on without it" in caplog.text


def test_hanging_file_system_holds_the_start_up_for_the_limit_only(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(hooking, "START_READ_SECONDS", 0.3)
    hooking.install()
    with hanging.mounted(tmp_path / "mount") as mount, caplog.at_level(logging.INFO, "tabletune"):
        monkeypatch.setenv("TABLETUNE_TABLE", str(mount / "table.json"))
        began = time.monotonic()
        config = vllm.configure(SpeculativeConfig(num_speculative_tokens=3))
        # It came back at all: the file system never answers.
        assert time.monotonic() - began >= 0.3
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert {length for _, _, length in table} == {0, 1, 2, 3}
    assert "TableTune could not read" in caplog.text


# The engine core


def test_table_is_in_force_before_the_first_step(vllm: Vllm) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))
    assert core.scheduler.dynamic_sd_lookup == [0, 2, 2, 1, 0]
    assert (vllm.report(core).active, vllm.report(core).reason) == (True, states.FOLLOWING)


def test_without_a_document_the_engine_drafts_its_one_length(vllm: Vllm) -> None:
    vllm.path.unlink()
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))
    assert core.scheduler.dynamic_sd_lookup == [0, 2, 2, 2, 2]


def test_steps_are_counted(vllm: Vllm) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))
    for _ in range(3):
        core.scheduler.update_from_output(scheduled({"a": 1}), returned())
    totals = vars(core.scheduler)[hooking._RUNTIME]._runtime.snapshot().totals
    assert sum(total[0] for total in totals.steps.values()) == 3


@pytest.mark.parametrize(("asynchronous", "result"), [(False, "stepped"), (True, "queued")])
def test_first_step_asks_for_spans_and_gives_the_engine_its_own_step_back(
    vllm: Vllm, asynchronous: bool, result: str
) -> None:
    plain_step = vllm.engine_core.step_with_batch_queue if asynchronous else vllm.engine_core.step
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()), asynchronous=asynchronous)
    assert core.step_fn() == result
    assert core.model_executor.calls == 1
    assert core.step_fn.__func__ is plain_step
    assert core.step_fn() == result
    assert core.model_executor.calls == 1
    assert len(core.steps) == 2


def test_step_that_was_wrapped_by_others_stays_theirs(vllm: Vllm) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))
    inner = core.step_fn

    def theirs() -> Any:
        return inner()

    core.step_fn = theirs
    for _ in range(3):
        assert core.step_fn() == "stepped"
    assert core.step_fn is theirs
    assert core.model_executor.calls == 1


def test_spans_that_cannot_be_recorded_do_not_stop_the_step(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("worker gone")

    core.model_executor.collective_rpc = fail
    assert core.step_fn() == "stepped"
    assert "TableTune cannot record GPU spans" in caplog.text
    assert "worker gone" in caplog.text


def test_messages_go_where_vllms_do_though_that_is_set_up_later(vllm: Vllm) -> None:
    theirs, ours = logging.getLogger("vllm"), logging.getLogger("tabletune")
    before, level = (theirs.handlers[:], theirs.propagate, ours.parent), theirs.level
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    try:
        hooking.install()
        theirs.handlers, theirs.propagate = [handler], False
        theirs.setLevel(logging.INFO)
        ours.info("told")
        ours.debug("not told")
        assert found == ["told"]
    finally:
        theirs.handlers, theirs.propagate, ours.parent = before
        theirs.setLevel(level)


def test_installing_again_wraps_nothing_again(vllm: Vllm) -> None:
    hooking.install()
    before = vllm.scheduler.__init__, vllm.engine_core.step, vllm.engine_args.create_speculative_config
    hooking.install()
    vllm.configure(SpeculativeConfig())
    after = vllm.scheduler.__init__, vllm.engine_core.step, vllm.engine_args.create_speculative_config
    assert before == after


def test_process_that_makes_no_engine_is_left_alone(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    before = vllm.scheduler.__init__
    monkeypatch.delitem(sys.modules, "vllm.engine.arg_utils")
    monkeypatch.delitem(sys.modules, "vllm.v1.engine.core")
    scheduler = vllm.scheduler
    hooking.install()
    assert scheduler.__init__ is before


def test_front_end_hooks_the_engine_core_when_it_makes_a_configuration(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM has not imported the engine core yet when it loads plugins in an API server.
    core_module = sys.modules["vllm.v1.engine.core"]
    monkeypatch.delitem(sys.modules, "vllm.v1.engine.core")
    hooking.install()
    before = vllm.scheduler.__init__
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.core", core_module)
    vllm.configure(SpeculativeConfig())
    assert vllm.scheduler.__init__ is not before


def test_shutdown_ends_the_threads_and_is_still_vllms(vllm: Vllm) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))
    core.scheduler.shutdown()
    assert core.scheduler.stopped


def test_every_engine_core_has_one_runtime(vllm: Vllm) -> None:
    hooking.install()
    one, other = (vllm.start(vllm.configure(SpeculativeConfig())) for _ in range(2))
    assert vars(one.scheduler)[hooking._RUNTIME] is not vars(other.scheduler)[hooking._RUNTIME]


def test_scheduler_made_by_a_subclass_has_one_runtime(vllm: Vllm) -> None:
    hooking.install()

    class AsyncScheduler(vllm.scheduler):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    core = vllm.start(vllm.configure(SpeculativeConfig()), AsyncScheduler)
    assert vllm.report(core).reason == states.FOLLOWING


def test_engine_that_counts_nothing_is_followed(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLETUNE_MODE", "adapt")
    hooking.install()

    def without_statistics(vllm_config: Any) -> Any:
        return vllm.scheduler(vllm_config, log_stats=False)

    core = vllm.start(vllm.configure(SpeculativeConfig()), without_statistics)
    assert vllm.report(core).reason == states.STATISTICS_OFF


# Reasons to do nothing


def inactive(vllm: Vllm, core: Any, caplog: pytest.LogCaptureFixture) -> str:
    report = vllm.report(core)
    assert not report.active
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"TableTune is inactive ({report.reason})" in warning.getMessage()
    assert core.step_fn() == "stepped"
    return report.reason


def test_engine_without_speculation_is_left_alone(vllm: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(None))
    assert inactive(vllm, core, caplog) == states.NO_SPECULATIVE_CONFIG
    assert "update_from_output" not in vars(core.scheduler)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"data_parallel_size": 2}, "DataParallel"), ({"pipeline_parallel_size": 2}, "PipelineParallel")],
)
def test_parallel_engines_are_left_alone(
    vllm: Vllm, caplog: pytest.LogCaptureFixture, changes: dict[str, int], reason: str
) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig(), **changes))
    assert inactive(vllm, core, caplog) == reason
    assert core.scheduler.dynamic_sd_lookup is None


def test_core_of_a_dense_model_among_several_ranks_knows_why(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(), data_parallel_size=2)
    config.parallel_config.data_parallel_size = 1  # as vLLM does in the core's process
    assert inactive(vllm, vllm.start(config), caplog) == "DataParallel"


def test_method_that_vllm_takes_the_table_from_is_left_alone(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(method="suffix"))
    config.speculative_config.num_speculative_tokens_per_batch_size = None
    core = vllm.start(config)
    assert inactive(vllm, core, caplog) == "MethodWithoutTable"
    assert core.scheduler.dynamic_sd_lookup is None


@pytest.mark.parametrize("users", [None, [[1, 4, 1]]], ids=["no table", "a table"])
def test_method_that_takes_no_length_never_serves_the_startup_table(
    vllm: Vllm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    users: list[list[int]] | None,
) -> None:
    monkeypatch.setenv("TABLETUNE_REPLACE_TABLE", "1")
    hooking.install()
    asked = SpeculativeConfig(method="suffix", num_speculative_tokens_per_batch_size=users)
    core = vllm.start(vllm.configure(asked))
    assert core.scheduler.dynamic_sd_lookup == ([0, 1, 1, 1, 1] if users else [0, 2, 2, 2, 2])
    assert inactive(vllm, core, caplog) == "MethodWithoutTable"


class Foreign:
    """A scheduler that somebody wrote after vLLM's."""

    def __init__(self, vllm_config: Any) -> None:
        speculative = vllm_config.speculative_config
        self.num_spec_tokens = speculative.num_speculative_tokens
        table = speculative.num_speculative_tokens_per_batch_size
        self.dynamic_sd_lookup = build_dynamic_sd_schedule_lookup(table, 4, 2) if table else None


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by class"])
@pytest.mark.parametrize("users", [None, [[1, 4, 1]]], ids=["no table", "a table"])
def test_scheduler_that_is_not_built_on_vllms_is_started_as_the_user_asked(
    vllm: Vllm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: bool,
    users: list[list[int]] | None,
) -> None:
    monkeypatch.setenv("TABLETUNE_REPLACE_TABLE", "1")
    hooking.install()
    asked = SpeculativeConfig(num_speculative_tokens_per_batch_size=users)
    chosen = f"{__name__}.Foreign" if named else Foreign
    config = vllm.configure(asked, scheduler_cls=chosen)
    assert config.speculative_config.num_speculative_tokens_per_batch_size is users
    core = vllm.start(config, Foreign)
    assert core.step_fn() == "stepped"
    # Told where the configuration was made, and once.
    assert hooking._process_runtime is not None
    assert hooking._process_runtime.report.reason == states.UNKNOWN_SCHEDULER
    (warning,) = caplog.messages
    assert "(UnknownScheduler)" in warning
    assert "Foreign, which is not built on vLLM's" in warning
    assert core.scheduler.dynamic_sd_lookup == ([0, 1, 1, 1, 1] if users else None)


def test_foreign_scheduler_around_vllms_own_is_left_alone_too(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(), scheduler_cls=Foreign)
    core = vllm.start(config)
    assert core.step_fn() == "stepped"
    assert hooking._RUNTIME not in vars(core.scheduler)
    (warning,) = caplog.messages
    assert "(UnknownScheduler)" in warning


def test_scheduler_that_a_platform_chose_does_not_serve_the_startup_table(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()), Foreign)
    assert core.scheduler.dynamic_sd_lookup == [0, 0, 0, 1, 2]
    assert core.step_fn() == "stepped"
    assert core.scheduler.dynamic_sd_lookup == [0, 2, 2, 2, 2]
    assert inactive(vllm, core, caplog) == states.UNKNOWN_SCHEDULER


def test_scheduler_that_shares_nothing_with_vllms_is_left_alone(
    vllm: Vllm, caplog: pytest.LogCaptureFixture
) -> None:
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()), lambda vllm_config: SimpleNamespace())
    assert core.step_fn() == "stepped"
    assert inactive(vllm, core, caplog) == states.UNKNOWN_SCHEDULER


@pytest.mark.parametrize("scheduler", ["no.such.module.Scheduler", "nonsense", "os.path"])
def test_scheduler_that_is_not_there_is_for_vllm_to_say(vllm: Vllm, scheduler: str) -> None:
    hooking.install()
    config = vllm.configure(SpeculativeConfig(), scheduler_cls=scheduler)
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert (table is None) == (scheduler == "os.path")


def test_scheduler_built_on_vllms_is_served(vllm: Vllm) -> None:
    hooking.install()

    class Theirs(vllm.scheduler):  # type: ignore[misc, name-defined]
        pass

    core = vllm.start(vllm.configure(SpeculativeConfig(), scheduler_cls=Theirs), Theirs)
    assert vllm.report(core).reason == states.FOLLOWING


def test_unknown_version_is_left_alone(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_version(monkeypatch, "0.99.0")
    before = vllm.scheduler.__init__, vllm.engine_core.step, vllm.engine_args.create_speculative_config
    hooking.install()
    hooking.install()
    after = vllm.scheduler.__init__, vllm.engine_core.step, vllm.engine_args.create_speculative_config
    assert before == after
    assert hooking._process_runtime is not None
    assert hooking._process_runtime.report.reason == states.UNSUPPORTED_VERSION
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("vllm.engine.arg_utils", "EngineArgs", "create_speculative_config"),
        ("vllm.v1.core.sched.scheduler", "Scheduler", "update_from_output"),
        ("vllm.v1.core.sched.scheduler", "Scheduler", "shutdown"),
        ("vllm.v1.engine.core", "EngineCore", "step_with_batch_queue"),
    ],
)
def test_hooks_that_differ_are_told_and_nothing_is_wrapped(
    vllm: Vllm, caplog: pytest.LogCaptureFixture, module: str, name: str, method: str
) -> None:
    found = vars(sys.modules[module])[name]
    setattr(found, method, lambda self, other: None)
    wrapped = vllm.scheduler.__init__
    hooking.install()
    assert hooking._process_runtime is not None
    assert hooking._process_runtime.report.reason == states.HOOKS_DIFFER
    assert vllm.scheduler.__init__ is wrapped
    assert method in caplog.text


def test_constructor_that_makes_no_lookup_differs(vllm: Vllm) -> None:
    class Scheduler(vllm.scheduler):  # type: ignore[misc, name-defined]
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config = vllm_config

    vars(sys.modules["vllm.v1.core.sched.scheduler"])["Scheduler"] = Scheduler
    hooking.install()
    assert hooking._process_runtime is not None
    report = hooking._process_runtime.report
    assert report.reason == states.HOOKS_DIFFER
    assert "self.dynamic_sd_lookup" in report.message


def test_runtime_that_cannot_start_leaves_the_engine_its_own_length(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    hooking.install()
    config = vllm.configure(SpeculativeConfig())
    monkeypatch.setattr(Runtime, "start", fail)
    core = vllm.start(config)
    # Not the start-up table, which is for capturing graphs only.
    assert core.scheduler.dynamic_sd_lookup == [0, 2, 2, 2, 2]
    assert "serving goes on without it" in caplog.text
    assert core.step_fn() == "stepped"
    assert vllm.report(core).reason == states.START_FAILED
    assert "update_from_output" not in vars(core.scheduler) or (
        core.scheduler.update_from_output == vllm.scheduler.update_from_output.__get__(core.scheduler)
    )


def test_bad_setting_is_told_and_the_engine_starts(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TABLETUNE_HALF_LIFE", "soon")
    hooking.install()
    core = vllm.start(vllm.configure(SpeculativeConfig()))
    assert vllm.report(core).active
    assert "TABLETUNE_HALF_LIFE is 'soon'" in caplog.text
