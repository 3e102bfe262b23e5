"""From measurements to a whole document.

The profiler calls it at the end of a run, the ``table`` command and the operator call it again with
another control section. It is the one place that knows the order of the computation (costs, goodput,
table, prediction, recommendation, engine advice); with the order in two places, a recomputed document
would differ from a profiled one although nothing was measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np
from pydantic import JsonValue

from tabletune import advice, costs, hazards, predictions, recommendations, tables, traffic
from tabletune.acceptance import AcceptanceError
from tabletune.costs import CostError
from tabletune.documents import Acceptance, Control, Document, Fingerprint, Prediction, Profile, Source
from tabletune.graphs import GraphSettingsError
from tabletune.predictions import PredictionError
from tabletune.tables import TableError

NOT_COMPUTABLE = (AcceptanceError, CostError, GraphSettingsError, PredictionError, TableError)
"""What :func:`assemble` raises where measurements that are valid by themselves do not make a table."""


def assemble(
    fingerprint: Fingerprint,
    profile: Profile,
    acceptance: Acceptance,
    control: Control,
    created_at: datetime,
    prompt_tokens: int,
    output_tokens: int,
    generation: int = 1,
    source: Source = Source.PROFILE,
    speculative_config: Mapping[str, JsonValue] | None = None,
) -> Document:
    """Return the document of one profile, its table computed for every batch size up to max_num_seqs.

    ``prompt_tokens`` and ``output_tokens`` are the lengths of the requests that the table and the engine
    advice are for, ``speculative_config`` is vLLM's as it was profiled, without a table.

    Raises one of :data:`NOT_COMPUTABLE` where the profile, the acceptance or the control section does not
    allow a table, with what to change.
    """
    model = costs.CostModel.from_profile(profile, fingerprint)
    requests = traffic.Requests.of(prompt_tokens, output_tokens, fingerprint.max_num_batched_tokens)
    goodput = traffic.expected_goodput(model, acceptance, requests, fingerprint.max_num_seqs)
    hazardous = hazards.drafted(hazards.cells(profile, fingerprint, fingerprint.max_num_seqs))
    safe = hazards.keep_off(goodput, hazardous, profile.draft_lengths, control.allowed_lengths)
    table = tables.compute(safe, profile.draft_lengths, control)
    prediction = predictions.predict(
        goodput,
        profile.draft_lengths,
        profile.batch_sizes,
        table,
        control.allowed_lengths,
        predictions.off_goodput(profile),
    )
    return Document(
        generation=generation,
        created_at=created_at,
        source=source,
        fingerprint=fingerprint,
        speculative_config=dict(speculative_config or {}),
        profile=profile,
        acceptance=acceptance,
        table=table,
        recommendation=recommendations.recommend(prediction, fingerprint, table, control),
        engine=advice.advise(fingerprint, profile, acceptance, table, prompt_tokens, output_tokens),
        control=control,
        prediction=prediction,
    )


def recompute(document: Document, control: Control, created_at: datetime) -> Document:
    """Return ``document`` computed again under ``control``, with the measurements that it holds.

    Only another table makes another generation: pods watch generations, and a change of mode or of a
    tolerance that moves no range is none. With the table, the time of the generation is kept too, so
    computing the same again gives equal bytes.
    """
    computed = assemble(
        document.fingerprint,
        document.profile,
        document.acceptance,
        control,
        created_at,
        document.engine.prompt_tokens,
        document.engine.output_tokens,
        document.generation + 1,
        document.source,
        document.speculative_config,
    )
    if computed.table != document.table:
        return computed
    return computed.model_copy(update={"generation": document.generation, "created_at": document.created_at})


def disagreements(document: Document) -> tuple[str, ...]:
    """Return the sections of a profile's document that are not what its own measurements make, by name.

    Empty for a document that nobody edited. Another version of TableTune may compute otherwise, so a
    section named here is a reason to look and no fault. A correction's table comes from live counts, which
    the document does not hold; nothing can be said of it.

    Raises one of :data:`NOT_COMPUTABLE` where the measurements make no table.
    """
    if document.source is not Source.PROFILE:
        return ()
    computed = recompute(document, document.control, document.created_at)
    sections = {
        "table": computed.table == document.table,
        "prediction": _agree(computed.prediction, document.prediction),
        "recommendation": computed.recommendation.kind is document.recommendation.kind
        and computed.recommendation.draft_length == document.recommendation.draft_length,
    }
    return tuple(name for name, agrees in sections.items() if not agrees)


def _agree(computed: Prediction, told: Prediction) -> bool:
    """Return whether both say the same, up to what another processor's arithmetic may differ by."""
    exact = ("batch_sizes", "best_length", "fixed_length")
    return all(getattr(computed, name) == getattr(told, name) for name in exact) and all(
        np.allclose(getattr(computed, name), getattr(told, name), rtol=1e-9)
        for name in ("table", "best", "fixed", "off")
    )
