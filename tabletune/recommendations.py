"""What to serve with on the profiled engine: the table, one fixed length, or no speculation.

Called when a document is assembled. A table is not always worth having: on some engines one length
is as good everywhere, on others speculation loses, and vLLM's runner V1 pays for any table with its
full CUDA graphs. Without a word on this a user would install a table that serves worse than none.
"""

from __future__ import annotations

from tabletune import predictions
from tabletune.documents import (
    Control,
    Fingerprint,
    Prediction,
    Recommendation,
    RecommendationKind,
    Table,
)


def recommend(
    prediction: Prediction, fingerprint: Fingerprint, table: Table, control: Control
) -> Recommendation:
    """Return what is predicted to serve best, with the reason and its numbers.

    Gains are geometric means over the prediction's batch sizes.

    1. Table cost: on runner V1 with CUDA graphs a table is no candidate. vLLM sets the graph mode to
       PIECEWISE there with any table (``_maybe_override_dynamic_sd_cudagraph_mode`` in its
       ``vllm/config/vllm.py``), which lost 30 to 43% on an H100 (paper §6.6). What it costs on this
       engine is in none of the profile's cells, since all were timed with a table in place.
    2. Fixed: a table must gain more than the tie tolerance over the best fixed length.
    3. Off: what is left must gain more than the tie tolerance over speculation off.
    """
    over_fixed = predictions.gain(prediction.table, prediction.fixed)
    if loses_full_graphs(fingerprint):
        return _without_table(prediction, control, _graphs_reason(prediction))
    if over_fixed <= control.tie_tolerance:
        return _without_table(
            prediction,
            control,
            f"A table of {_count(len(table), 'range')} gains {over_fixed:.1%} over draft length"
            f" {prediction.fixed_length} everywhere, not more than the tie tolerance of"
            f" {control.tie_tolerance:.1%}.",
        )
    over_off = predictions.gain(prediction.table, prediction.off)
    if over_off <= control.tie_tolerance:
        return _off(control, f"The table gains {over_off:.1%} over speculation off.")
    return Recommendation(
        kind=RecommendationKind.TABLE,
        predicted_gain=over_off,
        reason=f"A table of {_count(len(table), 'range')} gains {over_off:.1%} over speculation off and"
        f" {over_fixed:.1%} over draft length {prediction.fixed_length}, the best fixed one, which"
        f" {_worst_loss(prediction)}.",
    )


def loses_full_graphs(fingerprint: Fingerprint) -> bool:
    """Return whether vLLM gives up the engine's full CUDA graphs because there is a table."""
    return fingerprint.runner == "V1" and fingerprint.cudagraph_mode != "NONE"


def _without_table(prediction: Prediction, control: Control, reason: str) -> Recommendation:
    gained = predictions.gain(prediction.fixed, prediction.off)
    length = prediction.fixed_length
    if length == 0:
        allowed = "allowed" if control.allowed_lengths else "fixed"
        return Recommendation(
            kind=RecommendationKind.OFF,
            reason=f"{reason} No {allowed} draft length gains over speculation off.",
        )
    if gained <= control.tie_tolerance:
        return _off(
            control, f"{reason} Draft length {length}, the best, gains {gained:.1%} over speculation off."
        )
    return Recommendation(
        kind=RecommendationKind.FIXED,
        draft_length=length,
        predicted_gain=gained,
        reason=f"{reason} Draft length {length} gains {gained:.1%} over speculation off and"
        f" {_worst_loss(prediction)}.",
    )


def _off(control: Control, reason: str) -> Recommendation:
    return Recommendation(
        kind=RecommendationKind.OFF,
        reason=f"{reason} That is not more than the tie tolerance of {control.tie_tolerance:.1%}.",
    )


def _graphs_reason(prediction: Prediction) -> str:
    gained = predictions.gain(prediction.table, prediction.fixed)
    return (
        "Runner V1 gives up full CUDA graphs for any table, which lost 30 to 43% on an H100 (paper §6.6) and"
        f" was not measured here; the table gains {gained:.1%} over the best fixed draft length. To use a"
        " table, set VLLM_USE_V2_MODEL_RUNNER=1 and profile again."
    )


def _worst_loss(prediction: Prediction) -> str:
    """Say where the fixed length loses most against the best length of a batch size."""
    losses = [1 - fixed / best for fixed, best in zip(prediction.fixed, prediction.best, strict=True)]
    worst = max(losses)
    batch_size = prediction.batch_sizes[losses.index(worst)]
    return f"loses at most {worst:.1%} against the best length of a batch size (at {batch_size})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
