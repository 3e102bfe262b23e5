from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import documents
from tabletune.documents import Graph
from tabletune_profiler import partials
from tabletune_profiler.exit_codes import InputError, OutputError
from tabletune_profiler.messages import Sample
from tabletune_profiler.partials import CellRecord, Partial
from tabletune_profiler.planning import Options
from tests.core import strategies
from tests.profiler import engines

times = st.floats(min_value=0.001, max_value=1e6).map(lambda value: round(value, 6))
samples = st.lists(
    st.builds(
        Sample,
        interval_ms=times,
        gpu_span_ms=st.none() | times,
        drafted_tokens=st.integers(0, 10_000),
        graph=st.none() | st.sampled_from(list(Graph)),
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partials")


@settings(max_examples=40)
@given(samples, st.integers(1, 512), st.integers(0, 16), st.booleans())
def test_what_is_written_is_read_again(
    folder: Path, found: list[Sample], batch_size: int, draft_length: int, fatal: bool
) -> None:
    path = folder / "table.json.partial"
    partial = Partial(
        fingerprint=strategies.fingerprint(),
        settings=partials.settings_hash("anything"),
        acceptance=partials.acceptance_record(engines.COUNTED),
        cells=(
            CellRecord(
                batch_size=batch_size,
                draft_length=draft_length,
                samples=partials.rows(found),
                visits=2,
                excluded="why",
                fatal=fatal,
            ),
        ),
        mixed=(partials.MixedRecord(batch_size=1, draft_length=2, prompt_tokens=64, added_ms=(1.5, -0.25)),),
    )
    partials.write(path, partial)
    read = partials.read(path)
    assert read == partial
    assert read is not None
    assert partials.samples(read.cells[0]) == found


def test_partial_lies_beside_the_output() -> None:
    assert partials.path_of(Path("/data/table.json")) == Path("/data/table.json.partial")


def test_no_file_is_no_partial(tmp_path: Path) -> None:
    assert partials.read(tmp_path / "table.json.partial") is None


def whole() -> bytes:
    return documents.dump(
        Partial(
            fingerprint=strategies.fingerprint(),
            settings="0" * 32,
            cells=(CellRecord(batch_size=1, draft_length=0, visits=1),),
        )
    )


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        (b"", "Expecting value"),
        (whole()[:-40], "Unterminated string"),
        (b"\xff" + whole(), "utf-8"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "must be a JSON object"),
        (whole().replace(b'"formatVersion": 1', b'"formatVersion": 2'), "formatVersion: input should be 1"),
        (whole().replace(b'"visits": 1', b'"visits": -1'), r"cells\[0\]\.visits: .*\(found -1\)"),
        (whole().replace(b'"visits": 1', b'"visit": 1'), r"cells\[0\]\.visit: extra inputs"),
    ],
    ids=["empty", "cut off", "no UTF-8", "deep", "no object", "another format", "negative", "unknown field"],
)
def test_damaged_file_is_bad_input_that_names_file_fault_and_remedy(
    tmp_path: Path, damaged: bytes, problem: str
) -> None:
    path = tmp_path / "table.json.partial"
    path.write_bytes(damaged)
    with pytest.raises(
        InputError, match=f"{path} is no partial profile that can be gone on from: .*{problem}"
    ) as caught:
        partials.read(path)
    assert str(caught.value).endswith("Remove it to start anew.")
    assert len(str(caught.value).splitlines()) == 1


def test_folder_in_its_place_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        partials.read(tmp_path)


def test_full_disk_is_told_and_keeps_the_old_file() -> None:
    with pytest.raises(OutputError, match="/dev/full could not be written: No space left"):
        partials.write(Path("/dev/full"), documents.parse_as(Partial, whole()))


# What tells two profiles apart

OTHER: dict[str, Any] = {
    "batch_sizes": (1, 2),
    "draft_lengths": (0, 1),
    "context_length": 300,
    "steps": 25,
    "repeats": 3,
    "acceptance_tokens": 97,
    "acceptance_concurrency": 17,
    "mixed": False,
    "mixed_prompt_tokens": (65,),
    "prompt_tokens": 257,
    "output_tokens": 257,
}


def test_hash_differs_for_each_option() -> None:
    assert set(OTHER) == {field.name for field in dataclasses.fields(Options)}
    changed = [dataclasses.replace(Options(), **{name: value}) for name, value in OTHER.items()]
    hashes = {partials.settings_hash(dataclasses.asdict(options)) for options in [Options(), *changed]}
    assert len(hashes) == 1 + len(OTHER)


def test_hash_differs_for_each_part_and_its_place() -> None:
    hashes = [
        partials.settings_hash({"a": 1}, [1, 2]),
        partials.settings_hash([1, 2], {"a": 1}),
        partials.settings_hash({"a": 1}, [2, 1]),
        partials.settings_hash({"a": 1}),
    ]
    assert len(set(hashes)) == 4


def test_hash_is_the_same_for_equal_settings() -> None:
    assert partials.settings_hash({"a": 1, "b": (2, 3)}) == partials.settings_hash({"b": [2, 3], "a": 1})
    # The next version must still find an earlier one's partial to match: printf '[{"a": 1}]' | sha256sum
    assert partials.settings_hash({"a": 1}) == "2696610e78752a9e7bd0c4b0404b2fb0"


def test_every_partial_that_is_put_aside_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "table.json.partial"
    for content in ("first", "second", "third"):
        path.write_text(content)
        partials.put_aside(path)
    assert not path.exists()
    kept = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert kept == {
        "table.json.partial.old": "first",
        "table.json.partial.old.2": "second",
        "table.json.partial.old.3": "third",
    }
