"""What a scrape shows, read by Prometheus' own parser."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tabletune.documents import Control, Measure, Mode
from tabletune_plugin import metrics, settings, states, tallying
from tabletune_plugin.fingerprints import Difference
from tabletune_plugin.metrics import Graphs, PluginCollector, Snapshot
from tests.core import h200
from tests.plugin import engines
from tests.plugin.test_controller import Rig

SETTINGS, _ = settings.read({"TABLETUNE_TABLE": "/t.json"})
INACTIVE = states.Report(active=False, reason=states.NO_SPECULATIVE_CONFIG, message="")


def scrape(snapshot: Snapshot) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return values by sample name and labels; fails where a family has no help text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PluginCollector(lambda: snapshot))
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert re.fullmatch(r"tabletune_[a-z_]+", family.name)
        assert len(family.documentation) > 10, family.name
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), sample
            found[sample.name][labels] = sample.value
    return found


def snapshot_of(rig: Rig) -> Snapshot:
    return Snapshot(rig.report, rig.engine, SETTINGS, rig.tally.totals(), rig.steering.explorations)


@pytest.fixture
def adapting(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path / "table.json", TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100)))
    rig.tick()
    for _ in range(3):
        rig.serve(100, length=2, accepted=(1, 0))
        rig.tick(2)
    return rig


def test_inactive_plugin_says_why_and_little_else() -> None:
    found = scrape(Snapshot(INACTIVE, None, SETTINGS, None, 0))
    assert found["tabletune_active"] == {(("reason", "NoSpeculativeConfig"),): 0.0}
    assert "tabletune_steps_total" not in found


def test_every_metric_of_the_design_is_there(adapting: Rig) -> None:
    assert {
        "tabletune_drafted_total",
        "tabletune_accepted_total",
        "tabletune_requests_total",
        "tabletune_steps_total",
        "tabletune_step_seconds_total",
        "tabletune_step_median_seconds",
        "tabletune_table_generation",
        "tabletune_table_info",
        "tabletune_reloads_total",
        "tabletune_active",
    } <= set(scrape(snapshot_of(adapting)))


def test_counts_are_by_position_from_1(adapting: Rig) -> None:
    found = scrape(snapshot_of(adapting))
    # 300 steps of 2 requests, one of which is accepted once; the very first step verified nothing.
    assert found["tabletune_drafted_total"] == {
        (("position", "1"),): 598.0,
        (("position", "2"),): 598.0,
    }
    assert found["tabletune_accepted_total"] == {(("position", "1"),): 299.0, (("position", "2"),): 0.0}
    assert found["tabletune_requests_total"] == {(("proposed", "no"),): 0.0, (("proposed", "yes"),): 598.0}


def test_what_the_plugin_itself_took_is_by_part(adapting: Rig) -> None:
    own = {metrics.SCHEDULER: 1.5, metrics.SPANS: 0.0, metrics.CONTROL: 0.25}
    found = scrape(dataclasses.replace(snapshot_of(adapting), own_seconds=own))
    assert found["tabletune_plugin_seconds_total"] == {
        (("part", "scheduler"),): 1.5,
        (("part", "spans"),): 0.0,
        (("part", "control"),): 0.25,
    }


def test_every_reason_has_a_series(adapting: Rig) -> None:
    report = dataclasses.replace(adapting.report, reason="FingerprintDiffers", also=("StatisticsOff",))
    found = scrape(dataclasses.replace(snapshot_of(adapting), report=report, looked_at=1e9))
    assert found["tabletune_active"] == {
        (("reason", "FingerprintDiffers"),): 1.0,
        (("reason", "StatisticsOff"),): 1.0,
    }
    assert found["tabletune_last_look_timestamp_seconds"] == {(): 1e9}


def test_steps_are_by_batch_length_and_kind(adapting: Rig) -> None:
    adapting.serve(1, batch_size=4, length=2, prompt_tokens=9)
    found = scrape(snapshot_of(adapting))
    labels = (("batch", "2"), ("kind", "decode"), ("length", "2"))
    assert found["tabletune_steps_total"][labels] == 299.0
    assert found["tabletune_step_seconds_total"][labels] == pytest.approx(299 * 0.012)
    assert found["tabletune_kept_tokens_total"][labels] == 299.0 * 3
    assert found["tabletune_steps_total"][("batch", "4"), ("kind", "mixed"), ("length", "2")] == 1.0
    assert found["tabletune_step_median_seconds"] == {(("batch", "2"), ("length", "2")): pytest.approx(0.012)}


@pytest.mark.parametrize("measure", [Measure.QUIET_INTERVAL, Measure.GPU_SPAN])
def test_times_in_another_measure_than_the_profiles_are_not_shown(tmp_path: Path, measure: Measure) -> None:
    # The operator would correct costs by intervals where spans were profiled.
    rig = Rig(tmp_path / "table.json")
    rig.serve(100, length=2)
    assert rig.tally.totals().recent_ms
    assert scrape(snapshot_of(rig)).get("tabletune_step_median_seconds") is None
    rig.write(engines.document((2, 2, 2, 2), measure=measure))
    rig.tick(3)
    rig.serve(100, length=2)
    assert rig.tally.totals().recent_ms
    shown = "tabletune_step_median_seconds" in scrape(snapshot_of(rig))
    assert shown is (measure is Measure.QUIET_INTERVAL)


def test_table_and_what_it_was_profiled_on_are_shown(adapting: Rig) -> None:
    found = scrape(snapshot_of(adapting))
    assert found["tabletune_table_generation"] == {(): 1.0}
    ((labels, value),) = found["tabletune_table_info"].items()
    assert value == 1.0
    assert dict(labels) | {"digest": ""} == {
        "digest": "",
        "source": "profile",
        "gpu": "CPU",
        "vllm": "0.33.0",
        "runner": "V1",
        "model": "org/model",
        "method": "ngram",
        "drafter": "",
        "dtype": "float32",
        "max_num_seqs": "4",
    }
    assert found["tabletune_mode"] == {(("mode", "adapt"),): 1.0}
    lengths = {labels[0][1]: value for labels, value in found["tabletune_table_length"].items()}
    assert lengths == {str(size): adapting.report.lookup[size] for size in range(1, 5)}


def test_length_of_a_bucket_is_that_of_its_largest_batch_size(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "table.json")
    rig.write(engines.document((2, 1, 0, 1)))
    rig.tick()
    found = scrape(snapshot_of(rig))["tabletune_table_length"]
    assert {labels[0][1]: value for labels, value in found.items()} == {"1": 2, "2": 1, "3": 0, "4": 1}


def test_profiled_times_stand_beside_the_live_ones_under_the_same_labels(adapting: Rig) -> None:
    found = scrape(snapshot_of(adapting))
    profiled, live = found["tabletune_profiled_step_seconds"], found["tabletune_step_median_seconds"]
    assert set(live) <= set(profiled)
    for labels, seconds in profiled.items():
        assert seconds == engines.STEP_MS[int(dict(labels)["length"])] / 1e3


def test_of_profiled_batch_sizes_in_a_bucket_the_largest_is_shown_and_none_beyond_the_engine() -> None:
    profile = h200.steps_profile()
    shown = dict(metrics._profiled(profile, 40))
    assert {batch for batch, _ in shown} <= set(tallying.buckets(40))
    for (batch, length), seconds in shown.items():
        first, _, last = batch.partition("-")
        inside = [size for size in profile.batch_sizes if int(first) <= size <= int(last or first)]
        row = profile.step_time_ms[profile.draft_lengths.index(int(length))]
        assert seconds * 1e3 == pytest.approx(row[profile.batch_sizes.index(max(inside))])
    assert dict(metrics._profiled(profile, -1)) == {}


def test_what_the_control_believes_is_shown(adapting: Rig) -> None:
    found = scrape(snapshot_of(adapting))
    assert found["tabletune_survival"][(("position", "1"),)] == pytest.approx(0.5, abs=0.1)
    assert found["tabletune_proposal_rate"] == {(): 1.0}
    assert set(found["tabletune_step_time_ratio"]) == {(("batch", size),) for size in "1234"}
    assert found["tabletune_failures_total"] == {(): 0.0}


def test_label_values_from_a_stranger_do_not_break_the_exposition() -> None:
    nasty = 'a"b\\c\nd{e="f"} 1\n# HELP x y'
    document = engines.document(model=nasty, drafter=nasty)
    report = states.Report(
        active=True,
        reason=states.FINGERPRINT_DIFFERS,
        message="",
        mode=Mode.FOLLOW,
        document=document,
        differences=(Difference("model", nasty, nasty, minor=False),),
        reloads=MappingProxyType({"Loaded": 2, "Missing": 1}),
        lookup=(0, 1, 1, 1, 1),
    )
    found = scrape(Snapshot(report, engines.engine(), SETTINGS, None, 0))
    ((labels, _),) = found["tabletune_table_info"].items()
    assert dict(labels)["model"] == nasty
    assert found["tabletune_fingerprint_differs"] == {(("field", "model"), ("minor", "no")): 1.0}
    assert found["tabletune_reloads_total"] == {(("result", "Loaded"),): 2.0, (("result", "Missing"),): 1.0}


# Graphs


def gpu_engine(**changes: Any) -> states.Engine:
    fields: dict[str, Any] = {
        "runner": "V2",
        "drafter_method": "eagle3",
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": (1, 2, 4, *range(8, 256, 8), *range(256, 1_025, 16)),
        "max_num_seqs": 256,
    }
    return engines.engine(
        fingerprint=engines.fingerprint(**fields | changes),
        max_num_seqs=256,
        longest=3,
        lengths=(0, 1, 2, 3),
    )


def test_batch_sizes_without_a_full_graph_are_those_of_the_measurements() -> None:
    # ENGINE.md 2: 34, 17, 136 and none of 256 batch sizes at lengths 0 to 3.
    found = scrape(Snapshot(INACTIVE, gpu_engine(), SETTINGS, None, 0))
    assert found["tabletune_batch_sizes_without_full_graph"] == {
        (("length", "0"),): 34.0,
        (("length", "1"),): 17.0,
        (("length", "2"),): 136.0,
        (("length", "3"),): 0.0,
    }
    assert found["tabletune_hazardous_batch_sizes"]


def test_engine_without_full_graphs_has_no_batch_sizes_that_stand_out() -> None:
    assert Graphs.of(engines.engine()) == Graphs({}, {})


def test_bucket_ends_are_the_largest_batch_sizes() -> None:
    assert metrics._bucket_ends(6) == (("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5-6", 6))
