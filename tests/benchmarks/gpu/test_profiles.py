"""Times of profiles, from logs."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.gpu import made

from gpu.analysis import goals, profiles  # isort: skip

FINISHED = '{"event": "finished", "excluded": 3, "secondsStart": 140.5, "secondsSweep": 42.0}\n'


def logs(folder: Path, seconds: int, status: int = 0) -> list[profiles.ProfileTimes]:
    (folder / "lane-b.log").write_text(f"14:02:11 profile of mtp ended with {status} after {seconds} s\n")
    (folder / "mtp-profile.log").write_text(
        '{"event": "phase"}\nINFO vllm\n' + (FINISHED if not status else "")
    )
    return profiles.read(folder)


def test_times_come_from_both_logs(tmp_path: Path) -> None:
    assert logs(tmp_path, 230) == [profiles.ProfileTimes("mtp", True, 230.0, 140.5, 42.0, 3)]


def test_profile_that_failed_has_no_sweep(tmp_path: Path) -> None:
    (found,) = logs(tmp_path, 90, status=1)
    assert (found.succeeded, found.sweep) == (False, None)


def test_four_minutes_are_the_goal(tmp_path: Path) -> None:
    def status(seconds: int) -> str:
        found = goals.find([made.run([])], logs(tmp_path, seconds))
        return next(goal.status for goal in goals.judge(found) if goal.claim.startswith("profile"))

    assert status(240) == "met"
    assert status(241) == "missed"


def test_engine_that_is_profiled_before_it_serves_tells_start_and_profile() -> None:
    run = made.run([{"comparison": "profile", "seconds": 50.5, "secondsSweep": 41.0}])
    run.result["secondsStart"] = 150.0
    (found,) = profiles.served([run])
    assert (found.name, found.whole, found.start, found.sweep) == (run.name, 200.5, 150.0, 41.0)
