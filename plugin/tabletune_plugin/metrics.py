"""The plugin's Prometheus metrics: names, help texts, and how they are made from counters at a scrape.

vLLM's own ``/metrics`` lives in another process and has no denominator per draft position. Nothing here is
touched by the engine's thread: a scrape copies the counters and makes the families from them, so that a
metric costs the engine nothing until somebody asks for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tabletune import graphs, hazards
from tabletune.documents import Graph, Profile
from tabletune_plugin import tallying
from tabletune_plugin.settings import Settings
from tabletune_plugin.states import Engine, Report
from tabletune_plugin.tallying import Totals

SCHEDULER, SPANS, CONTROL = "scheduler", "spans", "control"
"""Parts of the plugin that take an engine's time: what follows each step, GPU spans, the control's thread."""


@dataclass(frozen=True)
class Snapshot:
    """All that is shown, of one moment."""

    report: Report
    engine: Engine | None
    """``None`` where the plugin is inactive and knows of no engine."""
    settings: Settings
    totals: Totals | None
    explorations: int
    looked_at: float | None = None
    """When the file was last looked at, seconds since 1970; ``None`` where nobody looks."""
    own_seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds that the plugin itself has taken, by part; empty where it does nothing."""


@dataclass(frozen=True)
class Graphs:
    """Batch sizes that are special for the engine's graph settings, by draft length."""

    without_full_graph: dict[int, tuple[int, ...]]
    hazardous: dict[int, tuple[int, ...]]

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, engine: Engine) -> Graphs:
        """Return those of ``engine``; empty in a mode without full graphs, where no batch size stands out."""
        fingerprint = engine.fingerprint
        settings = graphs.GraphSettings.from_fingerprint(fingerprint, engine.lengths)
        full = Graph.FULL in graphs.DECODE_AND_MIXED[settings.mode_with_table]
        mismatched = hazards.mismatched(fingerprint, engine.lengths)
        return cls(
            graphs.batch_sizes_without_full_graph(settings) if full else {},
            {length: tuple(sorted(sizes)) for length, sizes in mismatched.items() if sizes},
        )


class PluginCollector(Collector):
    """Makes all families at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        snapshot = self._snapshot()
        yield from _activity(snapshot)
        yield from _own(snapshot.own_seconds)
        if snapshot.totals is not None:
            yield from _counts(snapshot.totals)
            yield from _steps(snapshot.totals, timed=snapshot.report.comparable)
        yield from _table(snapshot)
        yield from _control(snapshot)
        if snapshot.engine is not None:
            yield from _graph_metrics(Graphs.of(snapshot.engine))


def _activity(snapshot: Snapshot) -> Iterator[Metric]:
    report = snapshot.report
    yield _gauge(
        "tabletune_active",
        "1 where TableTune does what its mode says, else 0: the engine serves as it would without it, or,"
        " with ControllerFailed, by the last table. A series for each reason that holds.",
        ["reason"],
        [([reason], float(report.active)) for reason in report.reasons],
    )
    reloads = [([result], float(count)) for result, count in sorted(report.reloads.items())]
    yield _counter(
        "tabletune_reloads",
        "Changes of the table document's file that were noticed, by what became of them.",
        ["result"],
        reloads,
    )
    yield _counter(
        "tabletune_failures",
        "Exceptions in TableTune's controller, after each of which the table in force stayed.",
        [],
        [([], float(report.failures))],
    )
    if snapshot.looked_at is not None:
        yield _gauge(
            "tabletune_last_look_timestamp_seconds",
            "When the control last looked at the table document's file; an old one says that it hangs, as a"
            " file system may.",
            [],
            [([], snapshot.looked_at)],
        )
    yield _gauge(
        "tabletune_fingerprint_differs",
        "1 for each field in which the engine is not the one that was profiled.",
        ["field", "minor"],
        [([found.field, "yes" if found.minor else "no"], 1.0) for found in report.differences],
    )


def _own(seconds: Mapping[str, float]) -> Iterator[Metric]:
    if seconds:
        yield _counter(
            "tabletune_plugin_seconds",
            "What TableTune itself took: scheduler, seconds of the engine core's thread after steps; spans,"
            " seconds of the model runner's thread for GPU spans; control, processor seconds of the control's"
            " own thread, for which the engine's may have to wait. Scrapes are not in it.",
            ["part"],
            [([part], value) for part, value in seconds.items()],
        )


def _counts(totals: Totals) -> Iterator[Metric]:
    positions = range(1, len(totals.drafted) + 1)
    yield _counter(
        "tabletune_drafted",
        "Requests and steps that got a draft while the length in force reached the position (from 1).",
        ["position"],
        [([str(position)], float(totals.drafted[position - 1])) for position in positions],
    )
    yield _counter(
        "tabletune_accepted",
        "Requests and steps whose guesses up to the position (from 1) were all accepted.",
        ["position"],
        [([str(position)], float(totals.accepted[position - 1])) for position in positions],
    )
    yield _counter(
        "tabletune_requests",
        "Requests and steps in which drafting was on, by whether the drafter proposed anything.",
        ["proposed"],
        [(["yes"], float(totals.proposed)), (["no"], float(totals.not_proposed))],
    )


def _steps(totals: Totals, *, timed: bool) -> Iterator[Metric]:
    """Return the steps' metrics; medians only if steps are ``timed`` in the profile's measure."""
    labels = ["batch", "length", "kind"]
    steps = sorted(totals.steps.items(), key=lambda item: (_first(item[0][0]), item[0][1:]))
    named = [([batch, str(length), kind], total) for (batch, length, kind), total in steps]
    yield _counter(
        "tabletune_steps",
        "Engine steps by batch size (bucket), draft length in force, and kind: decode, or mixed with a"
        " prompt.",
        labels,
        [(values, float(total[0])) for values, total in named],
    )
    yield _counter(
        "tabletune_step_seconds",
        "Time of these steps from result to result; steps after an idle engine have none.",
        labels,
        [(values, total[1]) for values, total in named],
    )
    yield _counter(
        "tabletune_kept_tokens",
        "Output tokens that these steps kept; a step of a chunked prompt counts as one too many.",
        labels,
        [(values, float(total[2])) for values, total in named],
    )
    recent = sorted(totals.recent_ms.items(), key=lambda item: (_first(item[0][0]), item[0][1]))
    # The operator, alerts and dashboard hold them against the profile's times, as the control here does.
    yield _gauge(
        "tabletune_step_median_seconds",
        f"Median of the last {tallying.RECENT_TIMES} timed pure decode steps, in the profile's measure (GPU"
        " span or quiet interval). None without a document, and where live steps cannot be timed in it.",
        ["batch", "length"],
        [
            ([batch, str(length)], statistics.median(times) / 1e3)
            for (batch, length), times in recent
            if times and timed
        ],
    )


def _table(snapshot: Snapshot) -> Iterator[Metric]:
    report = snapshot.report
    if report.document is not None:
        document, fingerprint = report.document, report.document.fingerprint
        yield _gauge(
            "tabletune_table_generation",
            "Generation of the table document in force.",
            [],
            [([], float(document.generation))],
        )
        labels = {
            "digest": report.digest[:12],
            "source": document.source.value,
            "gpu": fingerprint.gpu,
            "vllm": fingerprint.vllm,
            "runner": fingerprint.runner,
            "model": fingerprint.model,
            "method": fingerprint.drafter_method,
            "drafter": fingerprint.drafter,
            "dtype": fingerprint.dtype,
            "max_num_seqs": str(fingerprint.max_num_seqs),
        }
        yield _gauge(
            "tabletune_table_info",
            "What the table document in force was profiled on; always 1.",
            list(labels),
            [(list(labels.values()), 1.0)],
        )
        yield _gauge(
            "tabletune_profiled_step_seconds",
            "Time of a pure decode step as profiled, at the largest measured batch size of the bucket.",
            ["batch", "length"],
            _profiled(document.profile, len(report.lookup) - 1),
        )
    if report.mode is not None:
        yield _gauge("tabletune_mode", "Mode in force; always 1.", ["mode"], [([report.mode.value], 1.0)])
    if len(report.lookup) > 1:
        yield _gauge(
            "tabletune_table_length",
            "Draft length in force at the bucket's largest batch size.",
            ["batch"],
            [([label], float(report.lookup[size])) for label, size in _bucket_ends(len(report.lookup) - 1)],
        )


def _control(snapshot: Snapshot) -> Iterator[Metric]:
    report, outcome = snapshot.report, snapshot.report.outcome
    yield _counter(
        "tabletune_corrections",
        "Times that live traffic changed the table (in mode observe: would have changed it).",
        [],
        [([], float(report.corrections))],
    )
    yield _counter(
        "tabletune_shifts", "Switches of the workload that were noticed.", [], [([], float(report.shifts))]
    )
    yield _counter(
        "tabletune_explorations",
        "Times that another draft length than the table's was held for a few steps, to learn from it.",
        [],
        [([], float(snapshot.explorations))],
    )
    if outcome is None:
        return
    estimate = outcome.estimate
    yield _gauge(
        "tabletune_survival",
        "Estimated probability that guesses up to the position (from 1) are all accepted.",
        ["position"],
        [([str(position)], rate) for position, rate in enumerate(estimate.survival, start=1)],
    )
    yield _gauge(
        "tabletune_proposal_rate",
        "Estimated share of requests and steps that get a draft.",
        [],
        [([], estimate.proposal_rate)],
    )
    yield _gauge(
        "tabletune_predicted_gain",
        "Largest predicted gain of any batch size with another draft length than the table's; 0.02 is 2%.",
        [],
        [([], outcome.decision.largest_gain)],
    )
    factors = outcome.costs.column_factors
    yield _gauge(
        "tabletune_step_time_ratio",
        "Step times as believed now over the profile's, at the bucket's largest batch size, mean over"
        " lengths.",
        ["batch"],
        [([label], float(factors[size - 1])) for label, size in _bucket_ends(len(factors))],
    )
    yield _gauge(
        "tabletune_avoided_change",
        "1 for each change of length that is avoided since steps stalled after it.",
        ["before", "after"],
        [([str(before), str(after)], 1.0) for before, after in outcome.avoided_changes],
    )


def _graph_metrics(found: Graphs) -> Iterator[Metric]:
    yield _gauge(
        "tabletune_batch_sizes_without_full_graph",
        "Batch sizes whose pure decode steps find no full CUDA graph at this draft length.",
        ["length"],
        [([str(length)], float(len(sizes))) for length, sizes in found.without_full_graph.items()],
    )
    yield _gauge(
        "tabletune_hazardous_batch_sizes",
        "Batch sizes at which this draft length may kill the engine; the table keeps off them.",
        ["length"],
        [([str(length)], float(len(sizes))) for length, sizes in found.hazardous.items()],
    )


@lru_cache(maxsize=4)
def _bucket_ends(max_batch_size: int) -> tuple[tuple[str, int], ...]:
    """Return each bucket's label and largest batch size."""
    labels = tallying.buckets(max_batch_size)
    return tuple({label: size for size, label in enumerate(labels) if size}.items())


def _profiled(profile: Profile, max_batch_size: int) -> Samples:
    """Return the profile's times in seconds by bucket and length, without sizes that it never runs."""
    labels = tallying.buckets(max(max_batch_size, 0))
    found = {
        (labels[size], str(length)): time / 1e3
        for length, row in zip(profile.draft_lengths, profile.step_time_ms, strict=True)
        for size, time in zip(profile.batch_sizes, row, strict=True)
        if time is not None and size < len(labels)
    }
    return found.items()


def _first(bucket: str) -> int:
    return int(bucket.partition("-")[0])


Samples = Iterable[tuple[Sequence[str], float]]


def _gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
