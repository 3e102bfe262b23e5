"""The plugin at work, without an engine: a snapshot in which every metric has a value.

`generate_reference.py` makes the page of metrics from it. A family of metrics knows its labels only once it
has a sample, so a list that is kept by hand, or a snapshot in which something is empty, would leave some out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from prometheus_client.core import Metric

from tabletune import assembling, controlling, documents, estimating
from tabletune.documents import Document, Mode
from tabletune_plugin import following, settings, states, tallying
from tabletune_plugin.fingerprints import Difference
from tabletune_plugin.metrics import CONTROL, SCHEDULER, SPANS, PluginCollector, Snapshot
from tabletune_plugin.states import Engine, Report
from tabletune_plugin.tallying import Totals

DOCUMENT = Path(__file__).parents[1] / "benchmarks/results/gpu/h200-qwen3-4b-eagle3-default.json"
"""A profile with batch sizes that find no full graph, and hazardous ones."""


def families() -> Iterator[Metric]:
    """Yield every family of metrics that the plugin exports, each with a sample at least.

    Raises ``ValueError`` where one has none: what :func:`snapshot` holds is then to be filled in.
    """
    for family in PluginCollector(snapshot).collect():
        if not family.samples:
            raise ValueError(f"{family.name} has no sample in the example, so that its labels are not known")
        yield family


def snapshot() -> Snapshot:
    """Return all that is shown of a plugin in mode adapt, with something of everything."""
    stored = documents.parse(DOCUMENT.read_bytes())
    # With the table of today: the plugin knows of a better one otherwise.
    document = assembling.recompute(stored, stored.control, stored.created_at)
    engine = engine_of(document)
    plan = controlling.plan(document, document.control, engine.max_num_seqs, engine.fingerprint)
    window = controlling.Window(1.0, estimating.Counts.none(plan.positions))
    _, outcome = controlling.advance(plan, controlling.begin(plan), window)
    longest = plan.positions
    chosen, _ = settings.read({settings.TABLE: "table.json"})
    return Snapshot(
        report=Report(
            active=True,
            reason=states.ADAPTING,
            message="",
            mode=Mode.ADAPT,
            document=document,
            lookup=outcome.lookup,
            document_lookup=plan.lookup,
            outcome=dataclasses.replace(outcome, avoided_changes=((2, 1),)),
            differences=(Difference("driver", "before", "now", minor=True),),
            reloads=MappingProxyType({following.LOADED: 1}),
            comparable=True,
        ),
        engine=engine,
        settings=chosen,
        totals=Totals(
            drafted=(1,) * longest,
            accepted=(1,) * longest,
            proposed=1,
            not_proposed=0,
            steps={("1", longest, tallying.DECODE): (1, 0.005, longest + 1)},
            recent_ms={("1", longest): (5.0,)},
        ),
        explorations=1,
        looked_at=document.created_at.timestamp(),
        own_seconds={SCHEDULER: 0.001, SPANS: 0.001, CONTROL: 0.001},
    )


def engine_of(document: Document) -> Engine:
    """Return the engine that ``document`` was profiled on, as it would serve without the plugin."""
    fingerprint, longest = document.fingerprint, document.profile.draft_lengths[-1]
    return Engine(
        fingerprint=fingerprint,
        max_num_seqs=fingerprint.max_num_seqs,
        longest=longest,
        lengths=document.profile.draft_lengths,
        own_lookup=(0, *(longest,) * fingerprint.max_num_seqs),
        users_table=False,
        asynchronous=fingerprint.async_scheduling,
        uniform_drafts=True,
        statistics=True,
    )
