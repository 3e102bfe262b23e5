"""``/debug/table`` is JSON whatever is in it, and says why the table is as it is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tabletune.documents import Control
from tabletune_plugin import debugging, settings, states
from tabletune_plugin.metrics import Snapshot
from tests.plugin import engines
from tests.plugin.test_controller import Rig

SETTINGS, _ = settings.read({"TABLETUNE_TABLE": "/t.json"})


def describe(snapshot: Snapshot) -> dict[str, object]:
    """Describe it and read it back as JSON that knows no NaN."""
    content: dict[str, object] = json.loads(json.dumps(debugging.describe(snapshot), allow_nan=False))
    return content


def test_inactive_plugin_is_described() -> None:
    report = states.Report(active=False, reason="DataParallel", message="several ranks")
    found = describe(Snapshot(report, None, SETTINGS, None, 0))
    assert (found["active"], found["message"]) == (False, "several ranks")
    assert found["table"] == []
    assert found["engine"] is None


def test_table_in_force_and_the_documents_are_told_as_ranges(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "table.json", TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100)))
    rig.tick()
    for _ in range(6):
        rig.serve(200, length=2, accepted=(0, 0))
        rig.tick(2)
    found = describe(Snapshot(rig.report, rig.engine, SETTINGS, rig.tally.totals(), 3))
    assert found["documentTable"] == [[1, 4, 2]]
    assert found["table"] == [[1, 4, 0]]
    assert found["explorations"] == 3
    assert found["lastReload"] == {"result": "Loaded", "message": "generation 1, mode adapt", "at": 1e9}
    decision = found["decision"]
    assert isinstance(decision, dict)
    assert decision["estimate"]["survival"][0] < 0.1
    assert decision["costs"]["batchSizes"]
    assert len(decision["costs"]["stepTimeMs"]) == len(engines.LENGTHS)


def test_every_name_is_in_camel_case(tmp_path: Path) -> None:
    # But for file names and results, which are values: the reload's result, a draft length.
    rig = Rig(tmp_path / "table.json", TABLETUNE_MODE="adapt", TABLETUNE_HALF_LIFE="20")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100), driver="other"))
    rig.tick()
    for _ in range(6):
        rig.serve(200, length=2, accepted=(0, 0))
        rig.tick(2)
    found = describe(Snapshot(rig.report, rig.engine, rig.settings, rig.tally.totals(), 3))
    assert found["settings"]["control"] == {"mode": "adapt", "halfLife": 20.0}  # type: ignore[index]
    assert found["decision"]["estimate"]["proposalRate"] == 1.0  # type: ignore[index]
    assert found["engine"]["ownLookup"] == [0, 2, 2, 2, 2]  # type: ignore[index]
    names = set(names_in(found)) - set(rig.report.reloads)
    assert {"maxNumSeqs", "withoutFullGraph", "metricsPort", "priorWeights", "largestGain"} <= names
    assert [name for name in names if not re.fullmatch(r"[a-z][A-Za-z0-9]*|[0-9]+", name)] == []


def names_in(content: object) -> Iterator[str]:
    """Yield the keys of all objects in ``content``."""
    if isinstance(content, dict):
        yield from content
        content = list(content.values())
    if isinstance(content, list):
        for value in content:
            yield from names_in(value)


def test_plain_values_hold_no_nan_and_no_objects() -> None:
    found = debugging.plain(
        {
            1: (math.nan, math.inf, -0.0),
            "grid": np.array([[1.0, np.nan]]),
            "scalar": np.float64(0.5),
            "path": Path("/x"),
            "set": frozenset({3}),
            "nothing": None,
        }
    )
    assert found == {
        "1": [None, None, 0.0],
        "grid": [[1.0, None]],
        "scalar": 0.5,
        "path": "/x",
        "set": [3],
        "nothing": None,
    }
