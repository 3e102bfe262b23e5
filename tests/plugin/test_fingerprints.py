"""Whether an engine is the profiled one."""

from __future__ import annotations

import pytest

from tabletune.documents import Fingerprint
from tabletune_plugin import fingerprints
from tests.plugin import engines


def test_same_engine_differs_in_nothing() -> None:
    assert fingerprints.differences(engines.fingerprint(), engines.fingerprint()) == ()


def test_local_build_of_the_same_release_is_the_same() -> None:
    other = engines.fingerprint(vllm="0.33.0+cu130", torch="2.11.0+cu130")
    assert fingerprints.differences(engines.fingerprint(), other) == ()


def test_difference_names_field_and_both_values() -> None:
    (found,) = fingerprints.differences(engines.fingerprint(), engines.fingerprint(max_num_seqs=8))
    assert str(found) == "maxNumSeqs is '8', profiled was '4'"
    assert not found.minor


def test_important_differences_come_first() -> None:
    other = engines.fingerprint(driver="580.1", torch="2.12.0", model="org/other", gpu="NVIDIA H200")
    found = fingerprints.differences(engines.fingerprint(), other)
    assert [difference.field for difference in found] == ["gpu", "model", "driver", "torch"]
    assert [difference.minor for difference in found] == [False, False, True, True]


@pytest.mark.parametrize("field", sorted(set(Fingerprint.model_fields) - fingerprints.MINOR))
def test_every_field_counts_unless_it_is_minor(field: str) -> None:
    before = engines.fingerprint()
    value = getattr(before, field)
    if field == "cudagraph_mode":
        value = "FULL"
    elif field == "runner":
        value = "V2"
    elif isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value += 1
    else:
        value += "x"
    (found,) = fingerprints.differences(before, before.model_copy(update={field: value}))
    assert not found.minor
