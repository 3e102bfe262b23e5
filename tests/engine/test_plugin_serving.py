"""The plugin in a real server: tables followed, files of all kinds survived, requests untouched.

One server goes through all of it, in the order of this file, since each start takes half a minute; a second
one without the plugin says what the texts must be.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tabletune import documents
from tabletune.documents import Document
from tests import ports
from tests.engine import servers
from tests.engine.servers import LONGEST, MAX_NUM_SEQS, Load, Server
from tests.mounts import Mount

pytestmark = pytest.mark.engine

PROMPTS = (
    "one two three four one two three four one two three",
    "The capital of France is Paris. The capital of Italy is",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    "Once upon a time there was a",
)
HOSTILE_FILES = 1_000
SEEN = {"Unreadable": 100, "Missing": 20, "TooLarge": 20, "Invalid": 10}
"""How often the plugin sees at least what of them."""
SWAPS_A_SECOND = 100
SWAPS = 6_000


@pytest.fixture(scope="module")
def texts(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a server without the plugin makes of the prompts."""
    with Server(model_folder, tmp_path_factory.mktemp("plain") / "log", servers.NGRAM) as server:
        with pytest.raises(ConnectionRefusedError):
            server.get("/metrics", server.metrics_port)
        assert "TableTune" not in server.told()
        return {prompt: server.complete(prompt) for prompt in PROMPTS}


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Mount:
    return Mount(tmp_path_factory.mktemp("mount"))


@pytest.fixture(scope="module")
def server(
    texts: object, model_folder: Path, mount: Mount, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with n-gram drafting whose document is not there yet."""
    with Server(
        model_folder,
        tmp_path_factory.mktemp("served") / "log",
        servers.NGRAM,
        TABLETUNE_TABLE=str(mount.path),
        TABLETUNE_POLL_SECONDS="0.03",
    ) as running:
        yield running


Make = Callable[..., Document]


@pytest.fixture(scope="module")
def make(server: Server) -> Make:
    """Make documents for the server's engine, each of a generation of its own."""
    fingerprint = server.fingerprint()
    generations = iter(range(1, 1_000_000))

    def document(*lookup: int, **changes: Any) -> Document:
        return servers.document(fingerprint, lookup, **{"generation": next(generations)} | changes)

    return document


def put(server: Server, mount: Mount, document: Document) -> None:
    """Put a document in place and wait until it is in force."""
    mount.write(document)
    server.wait_for_generation(document.generation)


def steps_by_batch(server: Server, kind: str = "decode") -> dict[tuple[int, int], float]:
    """Return pure steps so far by batch size and length."""
    found = {}
    for labels, value in server.metrics().get("tabletune_steps_total", {}).items():
        named = dict(labels)
        if named["kind"] == kind:
            found[int(named["batch"]), int(named["length"])] = value
    return found


def test_server_starts_without_a_document_and_says_so(server: Server) -> None:
    assert server.active() == ("NoDocument", False)
    # What vLLM does without a table: its one length.
    assert server.table()["table"] == [[1, MAX_NUM_SEQS, LONGEST]]
    assert server.table()["lastReload"]["result"] == "Missing"
    assert server.table()["engine"]["lengths"] == [0, 1, 2, 3]


def test_document_that_comes_late_is_followed(server: Server, mount: Mount, make: Make) -> None:
    put(server, mount, make(0, 1, 2, 3))
    assert server.active() == ("Following", True)
    assert server.table()["table"] == [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 4, 3]]
    assert server.table()["differences"] == []


def test_steps_have_the_tables_length_at_each_batch_size(server: Server, mount: Mount, make: Make) -> None:
    lookup = (2, 0, 3, 1)
    put(server, mount, make(*lookup))
    before = steps_by_batch(server)
    for clients in range(1, MAX_NUM_SEQS + 1):
        with Load(server, clients, PROMPTS, tokens=40) as load:
            load.wait_until_done(clients)
        assert load.failures == []
    steps = {
        cell: count - before.get(cell, 0)
        for cell, count in steps_by_batch(server).items()
        if count > before.get(cell, 0)
    }
    for size, length in enumerate(lookup, start=1):
        at_size = {cell[1]: count for cell, count in steps.items() if cell[0] == size}
        # A step after one of another batch size still verifies what that one was told to draft.
        assert at_size[length] > 0.7 * sum(at_size.values()), (size, at_size)
        assert set(at_size) <= set(lookup)


@pytest.mark.parametrize("length", range(LONGEST + 1))
def test_text_is_the_same_as_without_the_plugin_at_every_length(
    server: Server, mount: Mount, make: Make, texts: dict[str, str], length: int
) -> None:
    put(server, mount, make(*(length,) * MAX_NUM_SEQS))
    assert {prompt: server.complete(prompt) for prompt in PROMPTS} == texts


def test_swaps_are_soon_in_force_and_no_request_notices(
    server: Server, mount: Mount, make: Make, texts: dict[str, str]
) -> None:
    taken = []
    with Load(server, MAX_NUM_SEQS, PROMPTS) as load:
        for number in range(12):
            document = make(*(number % (LONGEST + 1),) * MAX_NUM_SEQS)
            mount.write(document)
            taken.append(server.wait_for_generation(document.generation))
            time.sleep(0.3)
        load.wait_until_done(8)
    assert load.failures == []
    assert load.texts == {prompt: {texts[prompt]} for prompt in PROMPTS}
    # Hundredths of a second each. The machine may pause in one of them.
    assert statistics.median(taken) < 2.0, taken


def test_deleted_document_stays_in_force_and_is_taken_up_again(
    server: Server, mount: Mount, make: Make
) -> None:
    put(server, mount, make(1, 1, 1, 1))
    mount.remove()
    server.wait_for(lambda table: table["lastReload"]["result"] == "Missing")
    assert server.table()["table"] == [[1, 4, 1]]
    assert server.active() == ("Following", True)
    put(server, mount, make(2, 2, 2, 2))
    assert server.table()["table"] == [[1, 4, 2]]


def test_older_generation_is_refused(server: Server, mount: Mount, make: Make) -> None:
    newest = make(1, 1, 1, 1)
    put(server, mount, newest)
    mount.write(newest.model_copy(update={"generation": newest.generation - 1}))
    server.wait_for(lambda table: table["lastReload"]["result"] == "OlderGeneration")
    assert server.table()["generation"] == newest.generation


def test_document_of_another_engine_is_followed_with_a_warning(
    server: Server, mount: Mount, make: Make
) -> None:
    document = make(1, 1, 1, 1)
    other = document.fingerprint.model_copy(update={"gpu": "NVIDIA H200"})
    put(server, mount, document.model_copy(update={"fingerprint": other}))
    assert server.active() == ("FingerprintDiffers", True)
    labels = (("field", "gpu"), ("minor", "no"))
    assert server.metrics()["tabletune_fingerprint_differs"] == {labels: 1.0}
    assert "profiled was 'NVIDIA H200'" in server.told()


def test_observing_changes_nothing_and_shows_what_adapting_would_do(
    server: Server, mount: Mount, make: Make
) -> None:
    put(server, mount, make(0, 0, 0, 0, mode="observe", min_drafts=50))
    with Load(server, 2, PROMPTS[:1]):
        server.wait_for(lambda table: table["decision"] is not None)
    assert server.active() == ("Observing", True)
    assert server.table()["table"] == [[1, MAX_NUM_SEQS, LONGEST]]
    assert server.metrics()["tabletune_survival"]


def test_every_metric_is_exported(server: Server) -> None:
    assert {
        "tabletune_active",
        "tabletune_reloads_total",
        "tabletune_failures_total",
        "tabletune_plugin_seconds_total",
        "tabletune_drafted_total",
        "tabletune_accepted_total",
        "tabletune_requests_total",
        "tabletune_steps_total",
        "tabletune_step_seconds_total",
        "tabletune_step_median_seconds",
        "tabletune_kept_tokens_total",
        "tabletune_table_generation",
        "tabletune_table_info",
        "tabletune_table_length",
        "tabletune_mode",
        "tabletune_corrections_total",
        "tabletune_explorations_total",
        "tabletune_predicted_gain",
        "tabletune_survival",
        "tabletune_proposal_rate",
        "tabletune_step_time_ratio",
    } <= set(server.metrics())
    assert server.metrics()["tabletune_failures_total"] == {(): 0.0}
    own = {
        labels[0][1]: seconds
        for labels, seconds in server.metrics()["tabletune_plugin_seconds_total"].items()
    }
    # No GPU, no spans.
    assert own["scheduler"] > 0
    assert own["control"] > 0
    assert own["spans"] == 0
    assert server.get("/healthz", server.metrics_port)[0] == 200


def test_thousand_hostile_files_in_a_row_fail_no_request(
    server: Server, mount: Mount, make: Make, texts: dict[str, str]
) -> None:
    good = make(1, 1, 1, 1)
    put(server, mount, good)
    later = documents.dump(make(2, 2, 2, 2))
    chance = random.Random(20261130)
    kinds = [
        *(lambda: mount.swap(later[: chance.randrange(len(later))]),) * 4,
        *(lambda: mount.swap(flipped(later, chance)),) * 4,
        *(lambda: mount.swap(wrong_type(later, chance)),) * 4,
        lambda: mount.swap(chance.randbytes(chance.randrange(10_000))),
        lambda: mount.swap(b""),
        lambda: mount.swap(b"[" * 100_000),
        lambda: mount.swap(b'{"a":' * 50_000),
        lambda: mount.swap(b"9" * 500_000),
        lambda: mount.swap(later.replace(b"30.0", b"NaN", 1)),
        lambda: mount.swap(later.replace(b"30.0", b"1e999", 1)),
        lambda: mount.swap(later.replace(b'"schemaVersion": 1', b'"schemaVersion": 2')),
        lambda: mount.swap(later + b" " * documents.MAX_DOCUMENT_BYTES),
        lambda: sparse(mount, 10**11),
        lambda: special(mount, os.mkfifo),
        lambda: special(mount, Path.mkdir),
        lambda: special(mount, lambda path: path.symlink_to(path.name)),
        lambda: special(mount, lambda path: path.symlink_to("/dev/zero")),
        lambda: special(mount, lambda path: path.symlink_to("/proc/self/mem")),
        lambda: special(mount, lambda path: path.symlink_to("/nowhere")),
        lambda: without_permission(mount, later),
        mount.remove,
    ]
    with Load(server, MAX_NUM_SEQS, PROMPTS) as load:
        for number in itertools.count():
            # A slow machine looks less often than files come: on until it has seen enough of them.
            if number >= HOSTILE_FILES and number % len(kinds) == 0 and seen_enough(server):
                break
            kinds[number % len(kinds)]()
            time.sleep(0.04)  # more than the time between two looks
    assert load.failures == []
    assert load.texts == {prompt: {texts[prompt]} for prompt in PROMPTS}
    assert server.running
    # Flipped bytes may leave a valid document, with another number in it.
    assert server.metrics()["tabletune_failures_total"] == {(): 0.0}
    put(server, mount, make(3, 3, 3, 3).model_copy(update={"generation": 2_000_000}))
    assert server.table()["table"] == [[1, 4, 3]]


def seen_enough(server: Server) -> bool:
    reloads = {labels[0][1]: count for labels, count in server.metrics()["tabletune_reloads_total"].items()}
    return all(reloads.get(result, 0.0) > count for result, count in SEEN.items())


def flipped(content: bytes, chance: random.Random) -> bytes:
    """Return ``content`` with some bytes changed, never the generation's, which must not grow by chance."""
    changed = bytearray(content)
    spared = content.index(b'"generation"')
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(changed))
        if not spared <= place < spared + 40:
            changed[place] = chance.randrange(256)
    return bytes(changed)


def wrong_type(content: bytes, chance: random.Random) -> bytes:
    """Return ``content`` with one of its values replaced by another kind of value."""
    places = [place for place in range(len(content)) if content[place : place + 2] == b": "]
    place = chance.choice(places) + 2
    value = chance.choice([b"null", b"-1", b'"x"', b"[]", b"{}", b"true", b"1e400", b"123456789012345678901"])
    end = min(content.find(mark, place) for mark in (b",", b"\n") if content.find(mark, place) > 0)
    return content[:place] + value + content[end:]


def special(mount: Mount, make: Callable[[Path], object]) -> None:
    """Put something that is no file at the path."""
    mount.remove()
    make(mount.path)


def sparse(mount: Mount, size: int) -> None:
    mount.remove()
    with mount.path.open("wb") as file:
        file.truncate(size)


def without_permission(mount: Mount, content: bytes) -> None:
    mount.remove()
    mount.path.write_bytes(content[:1_000])
    mount.path.chmod(0)


def test_file_swapped_a_hundred_times_a_second_fails_no_request(
    server: Server, mount: Mount, make: Make, texts: dict[str, str]
) -> None:
    base = make(0, 0, 0, 0)
    contents = [
        documents.dump(
            base.model_copy(update={"generation": 3_000_000 + number, "table": ((1, 4, number % 4),)})
        )
        for number in range(50)
    ]
    began = time.monotonic()
    with Load(server, MAX_NUM_SEQS, PROMPTS) as load:
        for swap in range(SWAPS):
            mount.swap(contents[swap * len(contents) // SWAPS])
            time.sleep(max(0.0, (swap + 1) / SWAPS_A_SECOND - (time.monotonic() - began)))
        load.wait_until_done(20)
    assert load.failures == []
    assert load.texts == {prompt: {texts[prompt]} for prompt in PROMPTS}
    assert server.metrics()["tabletune_failures_total"] == {(): 0.0}
    last = contents[-1]
    mount.swap(last)
    server.wait_for_generation(documents.parse(last).generation)


def test_killed_server_starts_again_with_the_table_in_force_and_a_busy_port_later(
    server: Server, mount: Mount
) -> None:
    server.kill()
    mount.write(servers.document(_fingerprint_of(mount), (2, 1, 0, 0)))
    with ports.listening(server.metrics_port):
        server.start()
        assert server.complete(PROMPTS[0])
        assert "cannot serve metrics on port" in server.told()
    deadline = time.monotonic() + servers.PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            table = server.table()
            break
        except OSError:
            time.sleep(0.2)
    else:
        pytest.fail("the port was never taken")
    # A new process knows no generation that could be newer.
    assert (table["generation"], table["table"]) == (1, [[1, 1, 2], [2, 2, 1], [3, 4, 0]])
    assert server.active() == ("Following", True)


def _fingerprint_of(mount: Mount) -> documents.Fingerprint:
    return documents.parse(mount.path.read_bytes()).fingerprint
