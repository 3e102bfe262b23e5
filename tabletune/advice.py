"""Which engine settings to serve with, and what changing them is predicted to be worth.

Called once, when a document is assembled from a profile. vLLM's graph settings matter as much as the
table: with its defaults single batch sizes lose their full graph, large batches may have none at all, and
every step that a prompt joins runs piecewise (`ENGINE.md` 1 and 2). Without advice a user tunes the table
around costs that need not be. Advice that guessed would be worse than none, so each gain rests on measured
cells, and where none of them supports it the advice says what to measure and names no number.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tabletune import graphs, workloads
from tabletune.costs import CostModel
from tabletune.documents import (
    Acceptance,
    BatchSizesWithoutGraph,
    EngineAdvice,
    EngineChange,
    Fingerprint,
    Graph,
    Profile,
    Table,
)
from tabletune.graphs import GraphSettings
from tabletune.workloads import Workload

MAX_REQUESTS_LOST = 0.02
"""Most of max_num_seqs that advice gives up for alignment: 256 becomes 252, but not 240."""

MAX_CAPTURE_SIZES = 256
"""Most capture sizes that advice names; vLLM's own grid has 83 up to 1,024 tokens. Each is captured for
every length that it suits, which takes start-up time and GPU memory."""

MAX_LOSS_BY_PADDING = 0.01
"""Aligned sizes are advised although they lose less than this, a tie: a table made around the gap hardly
shows what it costs, while live correction moves to other lengths, and drafters keep their own graphs."""


def advise(
    fingerprint: Fingerprint,
    profile: Profile,
    acceptance: Acceptance,
    table: Table,
    prompt_tokens: int,
    output_tokens: int,
) -> EngineAdvice:
    """Return the engine settings advised for requests of ``prompt_tokens`` that get ``output_tokens``.

    - On the CPU there are no CUDA graphs, so there is nothing to change.
    - Largest size: ``B · (K+1)`` of the largest batch at the longest length, and the prompt on top where
      that at most doubles it, so that steps keep a graph; at most max_num_batched_tokens, never less than
      now; unless it is predicted to gain nothing.
    - Capture sizes: where batch sizes find no full graph, sizes that leave none; unless these pad so much
      that they lose over :data:`MAX_LOSS_BY_PADDING`, or are more than :data:`MAX_CAPTURE_SIZES`.
    - max_num_seqs: rounded down to an aligned one with these sizes, where that gives up at most
      :data:`MAX_REQUESTS_LOST`.
    - Mode and runner: the graphs of another were not measured. Where one may pay, the change says which
      experiment shows it, without a gain, and the advice's ``cudagraph_mode`` stays unset.

    A gain is one in output tokens per second of closed loops with as many requests open, the geometric mean
    over the grid's batch sizes (:mod:`tabletune.workloads`). It is None where a cell or a prompt that it
    needs was of a kind never measured. That of all changes together leaves out the experiments.
    """
    advice = partial(EngineAdvice, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    if fingerprint.gpu_count == 0:
        return advice(reason="vLLM runs on the CPU, which has no CUDA graphs: no graph setting to change.")
    workload = Workload.of(
        CostModel.from_profile(profile, fingerprint), profile, acceptance, table, prompt_tokens, output_tokens
    )
    now = workload.model.settings
    gap = graphs.gap(now)
    advised, changes = _size_changes(workload, gap, fingerprint)
    notes = [_gap_told(gap)] if gap else []
    if gap and all(change.setting != "cudagraph_capture_sizes" for change in changes):
        notes.append(_other_ways_told(now))
    notes += [_change_told(change) for change in changes]
    if changes:
        notes += _missing_told(workload, advised)
    return advice(
        cudagraph_capture_sizes=advised.capture_sizes if changes else (),
        max_cudagraph_capture_size=advised.largest_capture_size if changes else None,
        max_num_seqs=advised.max_num_seqs if advised.max_num_seqs != now.max_num_seqs else None,
        predicted_gain=workload.gain(advised) if changes else None,
        changes=(*changes, *_experiments(workload)),
        without_full_graph=_without_full_graph(now),
        reason=" ".join(notes) or "Every step of the table finds the graph that suits it.",
    )


def _without_full_graph(settings: GraphSettings) -> tuple[BatchSizesWithoutGraph, ...]:
    """Return the document's list of batch sizes without a full graph; empty in modes that have no gap."""
    if settings.mode_with_table not in graphs.UNIFORM_MODES:
        return ()
    return tuple(
        BatchSizesWithoutGraph(draft_length=draft_length, batch_sizes=sizes)
        for draft_length, sizes in graphs.batch_sizes_without_full_graph(settings).items()
        if sizes
    )


def _size_changes(
    workload: Workload, gap: dict[int, tuple[int, ...]], fingerprint: Fingerprint
) -> tuple[GraphSettings, list[EngineChange]]:
    """Return the settings with the advised capture sizes and max_num_seqs, and the changes one by one."""
    now = workload.model.settings
    if not now.capture_sizes or now.mode == "NONE":
        return now, []
    advised, changes = now, []
    largest = _largest_needed(now, workload.prompt_tokens, fingerprint.max_num_batched_tokens)
    extended = replace(now, capture_sizes=_extended(now.capture_sizes, largest))
    if largest > now.largest_capture_size and workload.pays(extended, over=now):
        advised = extended
        changes.append(_largest_change(workload, extended))
    aligned = _aligned(now, advised.largest_capture_size)
    few = len(aligned.capture_sizes) <= MAX_CAPTURE_SIZES
    if gap and few and workload.pays(aligned, over=advised, least=-MAX_LOSS_BY_PADDING):
        advised = aligned
        changes.insert(0, _capture_sizes_change(workload, gap, aligned, fingerprint.drafter_method))
        if aligned.max_num_seqs != now.max_num_seqs:
            changes.append(_max_num_seqs_change(workload, aligned))
    return advised, changes


def _largest_needed(settings: GraphSettings, prompt_tokens: int, max_num_batched_tokens: int) -> int:
    decoding = settings.max_num_seqs * (settings.draft_lengths[-1] + 1)
    needed = decoding + prompt_tokens if prompt_tokens <= decoding else decoding
    return max(settings.largest_capture_size, min(needed, max_num_batched_tokens))


def _extended(capture_sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """Return ``capture_sizes`` with vLLM's own grid, and ``largest``, above them."""
    beyond = {*graphs.default_capture_sizes(largest), largest}
    return (*capture_sizes, *sorted(size for size in beyond if size > capture_sizes[-1]))


def _aligned(settings: GraphSettings, largest: int) -> GraphSettings:
    """Return ``settings`` with sizes up to ``largest`` that leave no gap, and requests to match."""
    requests = graphs.aligned_max_num_seqs(settings.draft_lengths, settings.max_num_seqs)
    if requests < settings.max_num_seqs * (1 - MAX_REQUESTS_LOST):
        requests = settings.max_num_seqs
    sizes = graphs.aligned_capture_sizes(settings.draft_lengths, requests, largest)
    return replace(settings, capture_sizes=sizes, max_num_seqs=requests)


def _capture_sizes_change(
    workload: Workload, gap: dict[int, tuple[int, ...]], aligned: GraphSettings, drafter_method: str
) -> EngineChange:
    now = workload.model.settings
    alone = _aligned(now, now.largest_capture_size)
    more = workload.model.kind_costs_more(graphs.PIECEWISE, graphs.FULL)
    cost = "how much slower was not measured" if more is None else f"{more:.1f} ms slower"
    reason = [
        f"{_gap_told(gap)} They run without it, {cost}. With these sizes, multiples of"
        f" {graphs.alignment(now.draft_lengths)} and single ones where needed, every step up to"
        f" {aligned.largest_capture_size} tokens finds one. {graphs.captured_graphs(aligned)} graphs are"
        f" captured instead of {graphs.captured_graphs(now)}."
    ]
    mismatched = {own: sizes for own, sizes in graphs.mismatched_batch_sizes(now).items() if sizes}
    if mismatched and drafter_method in graphs.DRAFTERS_ON_THE_TARGETS_BATCH:
        reason.append(
            f"At {_counted(mismatched)} of them the drafter replays a full graph captured for more requests,"
            " which may be what ends an engine in an illegal memory access when a batch shrinks."
        )
    return EngineChange(
        setting="cudagraph_capture_sizes",
        current=f"{len(now.capture_sizes)} sizes, {now.capture_sizes[0]} to {now.largest_capture_size}",
        recommended=str(list(aligned.capture_sizes)),
        predicted_gain=workload.gain(alone),
        reason=" ".join([*reason, *_most_told(workload, alone), *_decode_gain_told(workload, alone)]),
    )


def _largest_change(workload: Workload, extended: GraphSettings) -> EngineChange:
    now = workload.model.settings
    lost = {
        draft_length: now.largest_capture_size // (draft_length + 1) + 1
        for draft_length in now.draft_lengths
        if now.max_num_seqs * (draft_length + 1) > now.largest_capture_size
    }
    reason = [f"Steps of more than {now.largest_capture_size} tokens have no graph at all"]
    if lost:
        told = ", ".join(f"{size} requests at length {own}" for own, size in lost.items())
        reason[0] += f": decode steps from {told}, and sooner with a prompt in the step"
    else:
        reason[0] += ", which is so for large batches with a prompt in the step"
    reason[0] += "."
    more = workload.model.kind_costs_more(graphs.NONE, graphs.FULL)
    if more is not None:
        reason.append(
            f"They cost {more:.1f} ms more than full graphs would, by the slope of the measured full graphs."
        )
    return EngineChange(
        setting="max_cudagraph_capture_size",
        current=str(now.largest_capture_size),
        recommended=str(extended.largest_capture_size),
        predicted_gain=workload.gain(extended),
        reason=" ".join([*reason, *_most_told(workload, extended), *_decode_gain_told(workload, extended)]),
    )


def _max_num_seqs_change(workload: Workload, aligned: GraphSettings) -> EngineChange:
    now = workload.model.settings
    all_requests = replace(
        aligned,
        capture_sizes=graphs.aligned_capture_sizes(
            now.draft_lengths, now.max_num_seqs, aligned.largest_capture_size
        ),
        max_num_seqs=now.max_num_seqs,
    )
    lost = now.max_num_seqs - aligned.max_num_seqs
    return EngineChange(
        setting="max_num_seqs",
        current=str(now.max_num_seqs),
        recommended=str(aligned.max_num_seqs),
        predicted_gain=workload.gain(aligned, over=all_requests),
        reason=f"A full batch then ends on an aligned size at every length, and the capture sizes above leave"
        f" no gap with {graphs.captured_graphs(aligned)} graphs; {now.max_num_seqs} requests would need"
        f" {graphs.captured_graphs(all_requests)}. It gives up {lost} of {now.max_num_seqs} requests"
        f" ({lost / now.max_num_seqs:.1%}) in the largest step.",
    )


def _experiments(workload: Workload) -> list[EngineChange]:
    """Return changes of runner or mode that may pay but take another profile to tell."""
    now = workload.model.settings
    compare = "and compare the two documents (`tabletune diff`)."
    if now.mode == "NONE":
        return [
            EngineChange(
                setting="cudagraph_mode",
                current="NONE",
                recommended="FULL_AND_PIECEWISE",
                reason="The engine runs without CUDA graphs (--enforce-eager, or a model or attention backend"
                f" that cannot). Not measured: profile again with graphs, {compare}",
            )
        ]
    if now.runner == "V1":
        return [
            EngineChange(
                setting="VLLM_USE_V2_MODEL_RUNNER",
                current="0",
                recommended="1",
                reason="With a table the V1 runner has piecewise graphs only. Not measured: profile again"
                f" with the environment variable VLLM_USE_V2_MODEL_RUNNER=1, {compare}",
            )
        ]
    if now.mode in ("PIECEWISE", "FULL_DECODE_ONLY"):
        lacking = "decode steps have no full" if now.mode == "PIECEWISE" else "steps with a prompt have no"
        return [
            EngineChange(
                setting="cudagraph_mode",
                current=now.mode,
                recommended="FULL_AND_PIECEWISE",
                reason=f"In mode {now.mode} {lacking} graph. Not measured: profile again with cudagraph_mode"
                f" FULL_AND_PIECEWISE, if the attention backend supports it, {compare}",
            )
        ]
    return _full_mode_experiment(workload, compare) if now.mode == "FULL_AND_PIECEWISE" else []


def _full_mode_experiment(workload: Workload, compare: str) -> list[EngineChange]:
    """Return the experiment with mode FULL, unless it can gain less than a switch of lengths needs.

    In that mode a step with a prompt runs a full graph, and saves what piecewise costs more; pure steps
    then run these graphs too, captured for any mix of requests, and by how much they slow down shows in
    no cell of this profile. So there is a bound, and no gain. Where no step runs piecewise, since prompts
    are above the largest capture size, say, nothing can be saved: on an H200 the engine lost 3 to 8% with
    prompts of 2,048 tokens, and gained 2 to 28% with prompts of 256 (docs/performance.md).
    """
    now = workload.model.settings
    if not workload.piecewise_beside_prompts.any():
        return []
    before, after = workload.served(now), workload.served_by_full_graphs()
    bound, most = workload.mean_gain(before, after), workloads.most_gained(before, after)
    if bound is None or most is None:
        told = "What a prompt adds was not measured for every step here."
    elif most[1] < workloads.SWITCH_GAIN:
        return []
    else:
        told = (
            f"That is worth at most {bound:+.1%} here, and most with {_open_told(most[0])}, {most[1]:+.0%};"
            " less by as much as pure steps slow down."
        )
    return [
        EngineChange(
            setting="cudagraph_mode",
            current=now.mode,
            recommended="FULL",
            reason="An experiment. A step that a prompt joins runs piecewise; in mode FULL it runs a full"
            " graph, but pure steps lose their own and run those, which suit any mix of requests."
            f" {told} How much they slow down was not measured: profile again with cudagraph_mode FULL,"
            f" {compare}",
        )
    ]


def _counted(batch_sizes: dict[int, tuple[int, ...]]) -> str:
    return ", ".join(f"{len(sizes)} at length {draft_length}" for draft_length, sizes in batch_sizes.items())


def _gap_told(gap: dict[int, tuple[int, ...]]) -> str:
    return f"Batch sizes without a full graph though they are small enough: {_counted(gap)}."


def _other_ways_told(settings: GraphSettings) -> str:
    """Return what closes the gap where capture sizes do not."""
    few = tuple(2**power - 1 for power in range(settings.draft_lengths[-1].bit_length() + 1))
    few = tuple(draft_length for draft_length in few if draft_length <= settings.draft_lengths[-1])
    without = not graphs.gap(replace(settings, draft_lengths=few))
    return (
        f"Sizes that close the gap are multiples of {graphs.alignment(settings.draft_lengths)}: too many, or"
        " they pad too much."
        + (f" The draft lengths {list(few)} alone have no gap with the sizes in force." if without else "")
    )


def _change_told(change: EngineChange) -> str:
    gain = "not known" if change.predicted_gain is None else f"{change.predicted_gain:+.1%}"
    return f"{change.setting}: predicted gain {gain}."


def _most_told(workload: Workload, settings: GraphSettings) -> list[str]:
    """Return where a change gains most: a mean over batch sizes from 1 on hides what it is worth at one."""
    most = workload.most(settings)
    if most is None or most[1] < workloads.SWITCH_GAIN:
        return []
    return [f"It gains most with {_open_told(most[0])}, {most[1]:+.0%}."]


def _open_told(requests: int) -> str:
    return "one request open" if requests == 1 else f"{requests} requests open"


def _decode_gain_told(workload: Workload, settings: GraphSettings) -> list[str]:
    """Return the gain of decode steps alone, for a change whose gain with prompts is not known."""
    gain = workload.gain(settings, prompts=False)
    if gain is None or workload.gain(settings) is not None:
        return []
    return [f"Decode steps alone gain {gain:.1%}; what prompts make of it was not measured."]


def _missing_told(workload: Workload, settings: GraphSettings) -> list[str]:
    """Return what to measure so that the gain of ``settings`` can be told; empty where it can."""
    model, missing = workload.model, []
    both = model.settings, settings
    if any(np.isnan(workload.of_table(workload.decode_times(own))).any() for own in both):
        sizes = graphs.batch_sizes_to_add(model.settings, model.measured_batch_sizes, {})
        what = f"batch sizes {', '.join(map(str, sizes))} too" if sizes else "the excluded cells again"
        missing.append(f"Some kind of graph that steps run was measured in no cell: profile {what}.")
    for own in both:
        unknown = workload.batch_sizes[np.isnan(workload.of_table(workload.prompt_times(own)))]
        if unknown.size:
            batch_size = int(unknown[len(unknown) // 2])
            draft_length = workload.draft_lengths[workload.chosen[batch_size - 1]]
            kind = graphs.dispatch(own, batch_size, draft_length, workload.prompt_tokens).kind
            missing.append(
                f"What a prompt adds to a step that runs {_kind_told(kind)} was not measured: profile mixed"
                f" steps with a prompt of {workload.prompt_tokens} tokens, such as {batch_size} requests at"
                f" draft length {draft_length}."
            )
            break
    return missing


def _kind_told(kind: Graph) -> str:
    return {Graph.FULL: "a full graph", Graph.PIECEWISE: "piecewise", Graph.NONE: "without a graph"}[kind]
