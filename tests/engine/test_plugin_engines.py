"""The plugin in servers of other kinds: a draft model, and those that it leaves alone and says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tabletune import documents
from tests import ports
from tests.engine import profiles, servers
from tests.engine.servers import MAX_NUM_SEQS, Load, Server
from tests.mounts import Mount

pytestmark = pytest.mark.engine

PROMPTS = ("The capital of France is", "Once upon a time there was a")


def draft_model(model: Path) -> dict[str, Any]:
    """The model as its own drafter."""
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": 2}


def test_draft_model_is_followed_at_every_length_with_the_same_text(
    model_folder: Path, tmp_path: Path
) -> None:
    mount = Mount(tmp_path / "mount")
    with Server(
        model_folder,
        tmp_path / "log",
        draft_model(model_folder),
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        assert server.active() == ("NoDocument", False)
        fingerprint = server.fingerprint()
        # Nothing of TableTune is in force yet: what vLLM makes of it.
        texts = {prompt: server.complete(prompt, 24) for prompt in PROMPTS}
        for length in range(3):
            document = servers.document(
                fingerprint,
                (length,) * MAX_NUM_SEQS,
                generation=length + 1,
                step_ms=(60.0, 90.0, 120.0),
                survival=(0.9, 0.8),
            )
            mount.write(document)
            server.wait_for_generation(length + 1)
            with Load(server, 2, PROMPTS, tokens=24) as load:
                load.wait_until_done(4)
            assert load.failures == []
            assert load.texts == {prompt: {texts[prompt]} for prompt in PROMPTS}, length
        metrics = server.metrics()
        drafted = metrics["tabletune_drafted_total"]
        accepted = metrics["tabletune_accepted_total"]
        # The model agrees with itself; every request got a draft.
        assert accepted[("position", "1"),] > 0.95 * drafted[("position", "1"),] > 0
        assert metrics["tabletune_requests_total"][("proposed", "no"),] == 0
        lengths = {dict(labels)["length"] for labels in metrics["tabletune_steps_total"]}
        assert lengths == {"0", "1", "2"}
        assert {dict(labels)["length"] for labels in metrics["tabletune_step_median_seconds"]} >= {"1", "2"}


def table(mount: Mount) -> None:
    """Put a valid document of some other engine in place."""
    mount.swap((Path(__file__).parents[1] / "data" / "example-document.json").read_bytes())


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    made = Mount(tmp_path / "mount")
    table(made)
    return made


def test_server_without_speculation_is_left_alone(model_folder: Path, mount: Mount, tmp_path: Path) -> None:
    with Server(model_folder, tmp_path / "log", None, TABLETUNE_TABLE=str(mount.path)) as server:
        assert server.active() == ("NoSpeculativeConfig", False)
        assert server.complete(PROMPTS[0], 8)
        assert server.told().count("TableTune is inactive (NoSpeculativeConfig)") == 1


def test_users_own_table_stays_and_another_engines_document_is_only_told(
    model_folder: Path, mount: Mount, tmp_path: Path
) -> None:
    users = servers.NGRAM | {documents.TABLE_KEY: [[1, 2, 2], [3, 4, 1]]}
    with Server(model_folder, tmp_path / "log", users, TABLETUNE_TABLE=str(mount.path)) as server:
        assert server.active() == ("UserTable", False)
        assert server.complete(PROMPTS[0], 30)
        assert server.table()["table"] == [[1, 2, 2], [3, 4, 1]]
        assert server.metrics()["tabletune_steps_total"]
        differing = {dict(labels)["field"] for labels in server.metrics()["tabletune_fingerprint_differs"]}
        assert {"gpu", "model", "drafterMethod", "maxNumSeqs"} <= differing


def test_engine_in_the_callers_own_process_is_followed(
    model_folder: Path, mount: Mount, tmp_path: Path
) -> None:
    # Without vLLM's multiprocessing, engine core, worker and front end are one process.
    port = ports.free_port()
    script = f"""
import json, urllib.request
from vllm import LLM, SamplingParams
llm = LLM({str(model_folder)!r}, max_num_seqs=4, max_model_len=256, enforce_eager=True,
          speculative_config={servers.NGRAM!r})
llm.generate("one two three one two", SamplingParams(max_tokens=30, temperature=0, ignore_eos=True))
def get(path):
    text = urllib.request.urlopen("http://127.0.0.1:{port}" + path).read().decode()
    return " ".join(text.splitlines())
print("TABLE", get("/debug/table"))
print("METRICS", get("/metrics"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=profiles.environment()
        | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "TABLETUNE_TABLE": str(mount.path),
            "TABLETUNE_METRICS_PORT": str(port),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    (table,) = [line for line in done.stdout.splitlines() if line.startswith("TABLE ")]
    shown = json.loads(table.removeprefix("TABLE "))
    assert (shown["active"], shown["reason"]) == (True, "FingerprintDiffers")
    (metrics,) = [line for line in done.stdout.splitlines() if line.startswith("METRICS ")]
    assert 'tabletune_steps_total{batch="1"' in metrics


def test_document_of_another_engine_is_refused_by_policy_and_settings_are_told(
    model_folder: Path, mount: Mount, tmp_path: Path
) -> None:
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        TABLETUNE_TABLE=str(mount.path),
        TABLETUNE_FINGERPRINT_POLICY="refuse",
        TABLETUNE_HALF_LIFE="soon",
    ) as server:
        assert server.active() == ("FingerprintRefused", False)
        assert server.complete(PROMPTS[0], 8)
        assert server.table()["table"] == [[1, MAX_NUM_SEQS, servers.LONGEST]]
        assert "TABLETUNE_HALF_LIFE is 'soon'" in server.told()


def test_version_that_is_not_known_is_left_alone(model_folder: Path, mount: Mount, tmp_path: Path) -> None:
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        version="0.99.0+cpu",
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        assert server.active() == ("UnsupportedVersion", False)
        assert server.complete(PROMPTS[0], 8)
        assert "vLLM 0.99.0+cpu found" in server.told()


def test_data_parallel_engines_are_left_alone(model_folder: Path, mount: Mount, tmp_path: Path) -> None:
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        serve=("--data-parallel-size", "2"),
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        assert server.active() == ("DataParallel", False)
        assert server.complete(PROMPTS[0], 8)


def test_several_api_servers_and_tensor_parallel_workers_have_one_controller(
    model_folder: Path, mount: Mount, tmp_path: Path
) -> None:
    with Server(
        model_folder,
        tmp_path / "log",
        servers.NGRAM,
        serve=("--tensor-parallel-size", "3", "--api-server-count", "2"),
        # By default each worker is bound to a memory node of its own.
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        TABLETUNE_TABLE=str(mount.path),
    ) as server:
        assert server.active() == ("FingerprintDiffers", True)
        assert server.complete(PROMPTS[0], 8)
        assert server.told().count("TableTune serves metrics") == 1
        assert server.told().count("cannot serve metrics") == 0
        # One engine core, three workers, two API servers and what starts them.
        assert len(server.processes()) >= 7
