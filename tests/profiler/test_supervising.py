"""Real processes, with a stand-in for the engine that lives and dies as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tabletune_profiler import messages, supervising
from tabletune_profiler.messages import AcceptanceProgress
from tabletune_profiler.supervising import EngineLostError, EngineProcess, RefusedError
from tests.profiler import stand_ins

TIMEOUT = 60.0
"""Seconds, for answers that come at once on an idle machine."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an engine that ends by itself do so, however slow the machine is."""
    monkeypatch.setattr(supervising, "ENDING_SECONDS", TIMEOUT)
    monkeypatch.setattr(supervising, "SHUTDOWN_SECONDS", TIMEOUT)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def process(log: Path) -> Iterator[EngineProcess]:
    with EngineProcess(log, stand_ins.StandIn) as process:
        yield process
    assert not alive(process.pid)


def tell(*words: str) -> messages.Configure:
    return messages.Configure(words, None)


def ask(process: EngineProcess, *words: str, timeout: float = TIMEOUT) -> list[messages.Message]:
    return list(process.ask(tell(*words), timeout))


def lost(process: EngineProcess, *words: str, timeout: float = TIMEOUT) -> EngineLostError:
    with pytest.raises(EngineLostError) as caught:
        ask(process, *words, timeout=timeout)
    return caught.value


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int, seconds: float = TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


# An engine that lives


def test_commands_are_answered_one_after_the_other(process: EngineProcess) -> None:
    assert ask(process, "count", "3") == [AcceptanceProgress(done, 3) for done in range(3)]
    assert ask(process, "count", "0") == []
    # In a process of its own, and a group of its own, so that Ctrl-C does not reach it.
    assert ask(process, "pid") == [AcceptanceProgress(process.pid, process.pid)]
    assert process.pid != os.getpid()


def test_what_the_engine_prints_goes_to_the_log(process: EngineProcess, log: Path) -> None:
    ask(process, "print", "line", "2")
    assert set(log.read_text().splitlines()) == {"line 0", "line 1", "to standard error"}


def test_closing_lets_the_engine_shut_down_in_order(log: Path) -> None:
    with EngineProcess(log, stand_ins.StandIn) as process:
        ask(process, "count", "1")
    assert log.read_text() == "shut down in order\n"
    process.close()  # again, which is no trouble


def test_refusal_says_why_and_the_process_lives_on(process: EngineProcess) -> None:
    refusals = {"arguments": "no.", "start": "no.", "unsupported": "no. Install another."}
    for kind, told in refusals.items():
        with pytest.raises(RefusedError) as caught:
            ask(process, "refuse", kind, "no.")
        assert (caught.value.kind, str(caught.value)) == (kind, told)
    assert len(ask(process, "count", "2")) == 2


# An engine that does not


def test_exit_is_told_with_its_code_and_the_last_words(process: EngineProcess) -> None:
    error = lost(process, "exit", "3")
    assert error.what == "the engine died: with exit code 3"
    assert error.last_words == "the reason"
    assert lost(process, "count", "1").what == error.what  # and again, whoever asks


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SIGSEGV", "the engine died: by SIGSEGV"),
        ("SIGKILL", "the engine died: by SIGKILL (the kernel's memory limit, or somebody's kill)"),
    ],
)
def test_signal_is_told_by_name(process: EngineProcess, name: str, told: str) -> None:
    assert lost(process, "signal", name).what == told


def test_hung_engine_is_told_and_gone_at_once(process: EngineProcess) -> None:
    ask(process, "count", "1")
    assert lost(process, "sleep", "600", timeout=0.3).what == "the engine hung: nothing heard for 0.3 s"
    assert not alive(process.pid)


def waited(process: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long each message is waited for at most, from now on."""
    limits: list[float] = []
    poll = process._pipe.poll

    def note(limit: float) -> bool:
        limits.append(limit)
        return poll(limit)

    monkeypatch.setattr(process._pipe, "poll", note)
    return limits


def test_timeout_counts_from_answer_to_answer(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = waited(process, monkeypatch)
    assert len(ask(process, "tick", "5", "0.1")) == 5
    # The last is the end of the answers.
    assert limits == [TIMEOUT] * 6


def test_signs_of_life_keep_a_long_command_alive_and_are_no_answers(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = waited(process, monkeypatch)
    assert ask(process, "live", "5", "0.1") == [AcceptanceProgress(1, 1)]
    assert limits == [TIMEOUT] * 7


def test_closed_pipe_of_a_living_process_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "ENDING_SECONDS", 0.5)
    monkeypatch.setattr(supervising, "SHUTDOWN_SECONDS", 0.1)
    with EngineProcess(log, stand_ins.StandIn) as process:
        assert lost(process, "close the pipe").what == "the engine died: its pipe closed"
    wait_until_gone(process.pid)


def test_engine_that_raises_is_lost_with_the_first_line_of_its_error(process: EngineProcess) -> None:
    error = lost(process, "raise", "CUDA error: an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")
    assert error.what == "the engine failed: RuntimeError: CUDA error: an illegal memory access"
    assert error.last_words.splitlines()[0] == "Traceback (most recent call last):"
    assert "TORCH_USE_CUDA_DSA" in error.last_words


def test_last_words_are_bounded(process: EngineProcess, log: Path) -> None:
    ask(process, "print", "x" * 3_000, "30")
    words = lost(process, "exit", "1").last_words
    assert len(words.encode()) <= supervising.LAST_WORDS_BYTES < log.stat().st_size
    assert words.endswith("the reason")
    ask_lines = "\n".join(f"line {index}" for index in range(50))
    log.write_text(ask_lines + "\n\n")
    assert supervising.last_words(log).splitlines() == [f"line {index}" for index in range(30, 50)]


def test_last_words_survive_bars_and_broken_characters(log: Path) -> None:
    log.write_bytes(b"Loading 10%\rLoading 100%\n\n  \n\xff\xfe the end  \n")
    assert supervising.last_words(log).splitlines() == ["Loading 10%", "Loading 100%", "\ufffd\ufffd the end"]


def test_no_log_is_no_last_words(tmp_path: Path) -> None:
    assert supervising.last_words(tmp_path / "none.log") == ""


# Nothing is left behind


def test_engine_that_does_not_end_when_asked_is_killed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "SHUTDOWN_SECONDS", 0.2)
    with EngineProcess(log, stand_ins.StandIn) as process:
        answers = process.ask(tell("sleep", "60"), TIMEOUT)
        next(answers)  # and now it is busy, as when somebody presses Ctrl-C in the middle of a cell
    assert not alive(process.pid)
    assert log.read_text() == ""


def test_second_interrupt_ends_a_hung_engine_at_once(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(timeout: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    next(process.ask(tell("sleep", "60"), TIMEOUT))
    monkeypatch.setattr(process._process, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.close()
    assert not alive(process.pid)


@pytest.mark.parametrize("ending", ["in order", "SIGKILL"])
def test_workers_end_with_the_engine(process: EngineProcess, ending: str) -> None:
    (answer,) = ask(process, "start a worker")
    assert isinstance(answer, AcceptanceProgress)
    worker = answer.done
    assert alive(worker)
    if ending == "SIGKILL":
        lost(process, "signal", "SIGKILL")
    process.close()
    wait_until_gone(worker)


def test_engine_ends_with_a_profiler_that_is_killed(log: Path) -> None:
    profiler = subprocess.Popen(
        [sys.executable, "-m", "tests.profiler.stand_ins", str(log)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    with profiler:
        assert profiler.stdout is not None
        pid = int(profiler.stdout.readline())
        assert alive(pid)
        profiler.send_signal(signal.SIGKILL)
    assert profiler.returncode == -signal.SIGKILL
    wait_until_gone(pid)
    assert log.read_text() == ""
