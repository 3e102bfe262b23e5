"""The plugin in servers that it must leave alone, each made so for real, and as an image carries it.

What other people put into vLLM (a scheduler, a proposer, a patch) is a package of its own on the server's
``PYTHONPATH``, found by vLLM as theirs would be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.engine import servers
from tests.engine.servers import LONGEST, MAX_NUM_SEQS, Load, Server
from tests.mounts import Mount
from tests.plugin import hanging

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PROMPTS = ("one two three one two three one two", "The capital of France is")
EXAMPLE = ROOT / "tests" / "data" / "example-document.json"
"""A valid document of some other engine."""


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    made = Mount(tmp_path / "mount")
    made.swap(EXAMPLE.read_bytes())
    return made


def package(folder: Path, name: str, source: str, plugin: str = "") -> Path:
    """Write a module, and declare its function ``plugin`` as a vLLM plugin; returns the folder."""
    folder.mkdir()
    (folder / f"{name}.py").write_text(source)
    if plugin:
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:{plugin}\n")
    return folder


def inactive(server: Server, reason: str) -> None:
    """Check that the plugin is inactive for ``reason``, says so, and requests are served."""
    assert server.active() == (reason, False)
    assert server.told().count(f"TableTune is inactive ({reason})") >= 1
    with Load(server, 2, PROMPTS, tokens=16) as load:
        load.wait_until_done(4)
    assert load.failures == []


# As vLLM's own, and not built on it: its members, without its being a base, and with no constructor that the
# plugin has wrapped. It notes the table that it was started with, and each length that it schedules.
FOREIGN = """
import inspect
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler

made_anew = {"__dict__", "__weakref__", "__abstractmethods__", "_abc_impl"}
members = {name: member for name, member in vars(Scheduler).items() if name not in made_anew}
own = inspect.unwrap(members["__init__"])

def construct(self, *args, **kwargs):
    own(self, *args, **kwargs)
    print("FOREIGN started with", self.dynamic_sd_lookup, flush=True)

schedule = members["schedule"]

def scheduling(self, *args, **kwargs):
    output = schedule(self, *args, **kwargs)
    if output.total_num_scheduled_tokens:
        print("FOREIGN drafts", output.num_spec_tokens_to_schedule, flush=True)
    return output

members |= {"__init__": construct, "schedule": scheduling}
Foreign = type("Foreign", (SchedulerInterface,), members)
"""


def test_scheduler_that_is_not_built_on_vllms_serves_what_the_user_asked_for(
    model_folder: Path, mount: Mount, tmp_path: Path
) -> None:
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        serve=("--scheduler-cls", "foreign_scheduler.Foreign"),
        packages=(package(tmp_path / "foreign", "foreign_scheduler", FOREIGN),),
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        inactive(server, "UnknownScheduler")
        assert "FOREIGN started with None" in server.told()
        lengths = {line.rpartition(" ")[2] for line in server.told().splitlines() if "FOREIGN drafts" in line}
        assert lengths == {str(LONGEST)}


# On the V1 runner such a class is not told the length. It guesses that the last token comes again.
PROPOSER = """
class Proposer:
    def __init__(self, vllm_config):
        self.length = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, *args, **kwargs):
        pass

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        return [[int(ids[-1])] * self.length if len(ids) else [] for ids in sampled_token_ids]
"""


def test_method_that_takes_no_length_is_left_alone(model_folder: Path, mount: Mount, tmp_path: Path) -> None:
    speculative = {
        "method": "custom_class",
        "model": "own_proposer.Proposer",
        "num_speculative_tokens": LONGEST,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,
    }
    with Server(
        model_folder,
        tmp_path / "log",
        speculative,
        packages=(package(tmp_path / "own", "own_proposer", PROPOSER),),
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        inactive(server, "MethodWithoutTable")


# A build of vLLM whose scheduler takes one more argument.
PATCH = """
def patch():
    from vllm.v1.core.sched.scheduler import Scheduler

    own = Scheduler.update_from_output
    if own.__name__ == "update_from_output":
        def update_with_more(self, scheduler_output, model_runner_output, more=None):
            return own(self, scheduler_output, model_runner_output)

        Scheduler.update_from_output = update_with_more
"""


def test_patched_vllm_is_left_alone(model_folder: Path, mount: Mount, tmp_path: Path) -> None:
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        packages=(package(tmp_path / "patched", "patched_build", PATCH, plugin="patch"),),
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        inactive(server, "HooksDiffer")
        assert "Scheduler.update_from_output takes" in server.told()


# A controller that fails once a file says so, as a mistake of ours would after hours.
FAILURE = """
def fail_later():
    import os
    from tabletune import controlling

    advance = controlling.advance

    def advance_or_fail(*args):
        if os.path.exists(os.environ["FAIL_WHEN"]):
            raise ZeroDivisionError("planted")
        return advance(*args)

    controlling.advance = advance_or_fail
"""


def test_controller_that_fails_again_and_again_leaves_the_table_in_force(
    model_folder: Path, tmp_path: Path
) -> None:
    mount, fails = Mount(tmp_path / "mount"), tmp_path / "fails"
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        packages=(package(tmp_path / "failing", "failing_control", FAILURE, plugin="fail_later"),),
        TABLETUNE_TABLE=str(mount.path),
        FAIL_WHEN=str(fails),
    ) as server:
        fingerprint = server.fingerprint()
        lookup = (1, 2, 3, 1)
        mount.write(servers.document(fingerprint, lookup, mode="adapt", exploration_share=0.0))
        server.wait_for_generation(1)
        with Load(server, 2, PROMPTS, tokens=40) as load:
            server.wait_for(lambda table: table["decision"] is not None)
            in_force = server.table()["table"]
            fails.touch()
            server.wait_for(lambda table: table["reason"] == "ControllerFailed")
            assert server.table()["table"] == in_force
            assert server.get("/healthz", server.metrics_port)[0] == 503
            assert server.active() == ("ControllerFailed", False)
            assert server.metrics()["tabletune_failures_total"] == {(): 5.0}
            load.wait_until_done(load.done + 4)
            fails.unlink()
            mount.write(servers.document(fingerprint, lookup, generation=2, mode="adapt"))
            server.wait_for(lambda table: table["reason"] == "Adapting" and table["decision"] is not None)
        assert load.failures == []
        assert server.get("/healthz", server.metrics_port)[0] == 200
        assert server.told().count("ZeroDivisionError: planted") == 5


def test_server_starts_though_the_documents_file_system_hangs(model_folder: Path, tmp_path: Path) -> None:
    with (
        hanging.mounted(tmp_path / "hangs") as hangs,
        Server(
            model_folder, tmp_path / "log", servers.NGRAM, TABLETUNE_TABLE=str(hangs / "table.json")
        ) as server,
    ):
        inactive_until_then = server.active()
        assert server.complete(PROMPTS[0], 8)
        assert server.table()["table"] == [[1, MAX_NUM_SEQS, LONGEST]]
        assert server.table()["engine"]["lengths"] == [0, 1, 2, 3]
        assert "could not read" in server.told()
        server.stop()
    assert inactive_until_then == ("NoDocument", False)


# As an image carries it


def installed_without_tabletune(folder: Path) -> Path:
    """Make a folder with all packages of this environment but TableTune; returns it."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # Not the link files either: they put our sources on the path.
        if "tabletune" not in entry.name and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def test_wheel_unpacked_on_the_path_is_enough_and_every_reason_is_told(
    model_folder: Path, mount: Mount, tmp_path: Path
) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    others = installed_without_tabletune(tmp_path / "others")
    python = str(Path(sys.base_prefix) / "bin" / "python3")
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        serve=("--disable-log-stats",),
        vllm=(python, "-m", "vllm.entrypoints.cli.main"),
        packages=(unpacked, others),
        TABLETUNE_TABLE=str(mount.path),
        TABLETUNE_MODE="adapt",
    ) as server:
        assert server.complete(PROMPTS[0], 16)
        active = server.metrics()["tabletune_active"]
        assert active == {(("reason", "FingerprintDiffers"),): 1.0, (("reason", "StatisticsOff"),): 1.0}
        assert server.table()["reasons"] == ["FingerprintDiffers", "StatisticsOff"]
        loaded = {
            line.split()[-1]
            for pid in server.processes()
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if str(ROOT / "plugin") in line
        }
        assert loaded == set()
        shown = subprocess.run(
            [python, "-c", "import tabletune_plugin; print(tabletune_plugin.__file__)"],
            env={"PYTHONPATH": os.pathsep.join((str(unpacked), str(others)))},
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(shown.stdout.strip()).is_relative_to(unpacked)
