"""Tells what the runs of a folder show: tables, goals and pictures, from the files alone.

    python benchmarks/gpu/report.py benchmarks/results/gpu/serving [--again EARLIER_FOLDER]

Reads each NAME.json and NAME-steps.npz that `serve.py` wrote there, and the documents that they name anywhere
below `benchmarks/results`. Written are report.md, report.json (with every figure of it) and the pictures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BENCHMARKS = Path(__file__).parents[1]
sys.path[:0] = [str(BENCHMARKS)]

from gpu.analysis import goals, others, pictures, profiles, recoveries, runs, stepping  # noqa: E402
from gpu.analysis.closed_loops import LoopResult  # noqa: E402
from gpu.analysis.goals import Findings, Goal  # noqa: E402
from gpu.analysis.ratios import Estimate  # noqa: E402
from gpu.analysis.runs import Run, constant_length  # noqa: E402
from gpu.analysis.settings import Across  # noqa: E402

POLICIES = ("tuned", "adapt", "turbo", "nightjar", "documented")


def main() -> int:
    """Read, compute, write; returns 1 where the folder holds no run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--again", type=Path, help="folder of earlier runs, for what both of them measured")
    asked = parser.parse_args()
    folder: Path = asked.folder
    read = runs.read(folder, BENCHMARKS / "results")
    earlier = [] if asked.again is None else runs.read(asked.again, BENCHMARKS / "results")
    if not read:
        sys.stderr.write(f"{folder} holds no result of serve.py\n")
        return 1
    found = goals.find(read, [*profiles.read(folder), *profiles.served(read)], earlier)
    reached = goals.judge(found)
    drawn = pictures.draw(found, folder)
    (folder / "report.json").write_text(json.dumps(told(found, reached), indent=1, allow_nan=False) + "\n")
    (folder / "report.md").write_text(page(found, reached, drawn))
    return 0


def told(found: Findings, reached: Sequence[Goal]) -> dict[str, Any]:
    """Return all figures as JSON."""
    own = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    own["runs"] = {run.name: _conditions(run) for run in found.runs}
    result: dict[str, Any] = plain({"what": __doc__.splitlines()[0], "goals": list(reached), **own})
    return result


def plain(value: Any) -> Any:
    """Return a value as JSON has it: objects with their properties, numbers to six digits, NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        names += [name for name, own in vars(type(value)).items() if isinstance(own, property)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def page(found: Findings, reached: Sequence[Goal], drawn: Sequence[Path]) -> str:
    """Return the report."""
    pictured = {path.stem: path.name for path in drawn}
    sections = [
        _head(found),
        _goals(reached),
        _settings(found),
        _profiles(found),
        _loads(found, pictured.get("loads")),
        _recoveries(found, pictured.get("recovery")),
        _jumps(found),
        _arrivals(found),
        _costs(found),
        _bursts(found),
        _across(found),
        _predictions(found, pictured.get("predicted")),
        _host(found),
        _neighbours(found),
        _after_changes(found),
        _scatter(found),
        _mixed(found),
        _batches(found),
        _explanations(found),
    ]
    return "\n".join(section for section in sections if section)


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown; bars in cells are escaped."""
    lines = [names, ["---"] * len(names), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def share(value: Estimate | None, mark: bool = True, digits: int = 1) -> str:
    """Return a ratio in percent with its standard error; ≈ marks a tie with 100%."""
    if value is None:
        return ""
    return value.percent(digits) + (" ≈" if mark and value.ties() else "")


def number(value: float | None, digits: int = 2) -> str:
    """Return a number; nothing where it is not known."""
    return "" if value is None else f"{value:,.{digits}f}"


def _head(found: Findings) -> str:
    failed = [run.name for run in found.runs if run.result["failures"]]
    ended = f" Runs with failures: {', '.join(f'`{name}`' for name in failed)}." if failed else ""
    return (
        "# What the runs show\n\n"
        "Made by `benchmarks/gpu/report.py` from this folder alone; every figure is in `report.json`."
        f" Runs of `serve.py`, one engine start each: {len(found.runs)}.{ended}\n\n"
        "Ratios are taken within a round, whose windows lie seconds apart, then averaged: the host drifts."
        " Errors (±) are standard errors over rounds. A difference under 2% or under two standard errors is a"
        " tie (≈), and so is any of a single round. The best constant is chosen by the windows that it is"
        " compared in, so luck is on its side.\n"
    )


def _goals(reached: Sequence[Goal]) -> str:
    rows = []
    for goal in reached:
        result = goal.result
        if goal.missed:
            shown = "; ".join(goal.missed[:3]) + (
                f" and {len(goal.missed) - 3} more" if len(goal.missed) > 3 else ""
            )
            result += f". Missed: {shown}"
        rows.append((goal.claim, goal.goal, f"**{goal.status}**", result, goal.source))
    missing = [goal.claim for goal in reached if goal.status == "not run"]
    left = f"\nNot judged, for want of a run: {'; '.join(missing)}.\n" if missing else ""
    text = (
        "\nA goal is met where every case reaches it, missed where one falls short by two standard errors or"
        " more, and a tie where one falls short by less than that can tell.\n"
    )
    return "## Goals\n\n" + table(("claim", "goal", "", "result", "from"), rows) + text + left


def _conditions(run: Run) -> dict[str, Any]:
    own = run.result["fingerprint"]
    return {
        "date": run.result["conditions"]["date"],
        "machine": run.result["conditions"]["machine"],
        "versions": {"vllm": own["vllm"], "torch": own["torch"]},
        "command": run.result["conditions"]["command"],
        "kind": run.graphs,
        "gpu": own["gpu"],
        "runner": own["runner"],
        "model": run.model,
        "maxNumSeqs": own["maxNumSeqs"],
        "serve": run.result["serve"],
        "document": run.result["document"],
        "documentFound": run.document is not None,
        "table": run.result["table"],
        "secondsStart": run.result.get("secondsStart"),
        "secondsMeasured": run.result.get("secondsMeasured"),
        "steps": None if run.steps is None else len(run.steps),
        "records": len(run.records),
        "failures": run.result["failures"],
    }


def _settings(found: Findings) -> str:
    parts = ["## Settings\n"]
    for run in found.runs:
        own = _conditions(run)
        target, method, drafter = own["model"]
        ranges = ", ".join(
            f"{first}-{last}: {length}" if first != last else f"{first}: {length}"
            for first, last, length in own["table"]
        )
        arguments = " ".join(_short(part) for part in own["serve"])
        steps = "no step log" if own["steps"] is None else f"{own['steps']:,} steps"
        stolen = "" if run.stolen_cpus is None else f", the host took {run.stolen_cpus:.2f} CPUs of it"
        found_as = "" if own["documentFound"] else " (not found: nothing is predicted)"
        parts.append(
            f"**{run.name}** ({own['kind']}): {own['date']}, {own['gpu']}, vLLM {own['versions']['vllm']},"
            f" torch {own['versions']['torch']}, {own['runner']} runner; {target} with {method}"
            f"{f' ({drafter})' if drafter else ''}, at most {own['maxNumSeqs']} requests; started in"
            f" {number(own['secondsStart'], 0) or '?'} s, measured for"
            f" {number(own['secondsMeasured'], 0) or '?'} s, {own['records']} records, {steps}{stolen}."
            f" Document `{own['document']}`{found_as}.\n"
            f"Table in force: {ranges}.\nArguments: `{arguments}`.\n"
        )
        parts += [f"Failure: `{failure.strip().splitlines()[-1][:300]}`\n" for failure in own["failures"]]
    return "\n".join(parts)


def _profiles(found: Findings) -> str:
    rows = [
        (
            own.name,
            "yes" if own.succeeded else "**no**",
            number(own.whole, 0),
            number(own.start, 0),
            number(own.sweep, 0),
            "" if own.excluded is None else own.excluded,
        )
        for own in found.profiles
    ]
    names = ("profile", "succeeded", "all, s", "engine start, s", "sweep, s", "cells excluded")
    return f"## Profiles\n\n{table(names, rows)}" if rows else ""


def _short(argument: str) -> str:
    return argument if len(argument) <= 120 else f"{argument[:117]}…"


def _loads(found: Findings, picture: str | None) -> str:
    results = found.all_loops
    if not results:
        return ""
    parts = ["## Closed loops\n", _picture(picture, "Share of the best constant length by open requests")]
    worst = [
        (
            name,
            *(
                f"{share(own[policy].loss, mark=False)} ({own[policy].loop})" if policy in own else ""
                for policy in goals.LOSERS
            ),
        )
        for name, own in found.worst_losses.items()
        if own
    ]
    if worst:
        parts.append("Worst loss to the best constant, % (negative: a gain everywhere):\n")
        parts.append(table(("run", *goals.LOSERS), worst))
    for run in found.runs:
        own = found.loops[run.name]
        if own:
            parts.append(f"### {run.name}\n")
            parts.append(_loop_table(own))
        if found.evened[run.name] and any(result.shares for result in own):
            parts.append("With prompts evened out:\n")
            parts.append(_loop_table(found.evened[run.name]))
    parts.append(
        "Shares of the best constant in % ± their standard error. *Spread* is the standard deviation between"
        " rounds: of the best constant's tokens per second, and of the tuned table's share. *For ± 1%*: so"
        " many rounds of such windows would have brought that share's standard error down to 1%. *With"
        " prompts evened out*: how many prompts fall into a window is luck, and each takes time; here each"
        " window's time is that with as many prompts as its tokens call for (one in as many tokens as an"
        " output has). Goals are judged by what was served, not by these.\n"
    )
    return "\n".join(parts)


def _loop_table(results: Sequence[LoopResult]) -> str:
    names = {name for result in results for name in result.tokens_per_second}
    constants = sorted(
        (name for name in names if constant_length(name) is not None), key=pictures.constant_length_of
    )
    policies = [name for name in POLICIES if name in names]
    policies += sorted(names - set(policies) - set(constants))
    rows = []
    for result in results:
        loop = result.loop
        best = result.best
        rate = result.tokens_per_second[best] if best is not None else None
        tied = (
            f" ≈ {', '.join(name.removeprefix('constant ') for name in result.tied)}" if result.tied else ""
        )
        tuned = result.shares.get("tuned")
        rows.append(
            (
                loop.open,
                f"{loop.prompt_tokens:,}" + ("" if loop.comparison == "loads" else f" ({loop.comparison})"),
                max(own.rounds for own in result.tokens_per_second.values()),
                f"{best.removeprefix('constant ')}{tied}" if best is not None else "",
                number(rate.mean if rate is not None else None, 0),
                _spread(rate),
                _spread(tuned),
                _rounds(tuned),
                *(
                    "best" if name == best else share(result.shares.get(name))
                    for name in (*policies, *constants)
                ),
            )
        )
    heads = ("open", "prompt", "rounds", "best K", "its tokens/s", "spread", "spread of tuned", "for ± 1%")
    return table((*heads, *policies, *(name.replace("constant ", "K=") for name in constants)), rows)


def _spread(value: Estimate | None) -> str:
    return "" if value is None or value.spread is None else f"{100 * value.spread:.1f}%"


def _rounds(value: Estimate | None) -> str:
    rounds = None if value is None else value.rounds_for(0.01)
    return "" if rounds is None else str(rounds)


def _picture(name: str | None, told_as: str) -> str:
    return f"![{told_as}]({name})\n" if name else ""


def _recoveries(found: Findings, picture: str | None) -> str:
    if not found.recoveries:
        return ""
    rows = []
    for own in found.recoveries:
        rows.append(
            (
                own.run,
                own.kind,
                own.start if own.kind != "switch" else " ".join(f"{rate:g}" for rate in own.rates),
                own.open,
                number(own.right_before, 0),
                number(own.right_after, 0),
                "" if own.right_spread is None else f"{100 * own.right_spread:.1f}%",
                f"{100 * own.shares[0]:.1f}",
                share(own.within_30_seconds),
                f"{own.recovered_after:.1f} s" if own.recovered_after is not None else "not in it",
                share(own.stale),
                share(own.recovered, mark=False),
                " ".join(str(length) for length in _changes(own.lengths)),
            )
        )
    names = (
        "run", "kind", "start, or new rates", "open", "right before", "after", "spread", "first slice",
        "within 30 s", "stays from", "stale", "loss back", "lengths at the load",
    )  # fmt: skip
    late = recoveries.LATE_SECONDS
    stays = {kind: 100 * least for kind, least in recoveries.STAYS.items()}
    return (
        "## Recovery\n\n"
        + _picture(picture, "Share of the right table's rate over time")
        + "\nShares of the right table's tokens per second in %; that moves on lines between its windows:"
        " before the timeline, between its late slices (not in the runs of 2026-11-30), after it. *Within 30"
        f" s*: mean of the slices from {late} s on. *Stays from*:"
        f" from there on no running mean of {recoveries.SMOOTHED} slices is below {stays['mistuned']:.0f}%"
        f" ({stays['wrong profile']:.0f}% for a wrong profile). *Loss back*: share of the stale table's loss,"
        " where it is no tie. *Spread* is that of one of the right table's windows.\n\n" + table(names, rows)
    )


def _changes(lengths: Sequence[int]) -> list[int]:
    return [own for place, own in enumerate(lengths) if place == 0 or own != lengths[place - 1]]


def _jumps(found: Findings) -> str:
    rows = [
        (
            own.run,
            " → ".join(str(count) for count in own.open),
            (own.best or "tuned").removeprefix("constant "),
            policy,
            number(own.tokens_per_second[policy].mean, 0),
            share(ratio),
            ratio.rounds,
        )
        for own in found.jumps
        for policy, ratio in sorted(own.shares.items())
    ]
    names = ("run", "open requests, twice", "best", "policy", "tokens/s", "share of the best", "rounds")
    return f"## Jumping load\n\n{table(names, rows)}" if rows else ""


def _arrivals(found: Findings) -> str:
    rows = []
    for own in found.arrivals:
        first = own.ms_to_first_token or (None, None)
        each = own.ms_per_token or (None, None)
        rows.append(
            (
                own.run, f"{own.per_second:g}", f"{own.prompt_tokens:,}", own.policy,
                number(own.tokens_per_second.mean, 0), own.finished,
                number(first[0], 0), number(first[1], 0), number(each[0]), number(each[1]),
            )
        )  # fmt: skip
    names = (
        "run", "arrivals/s", "prompt", "policy", "tokens/s", "finished", "ms to first token, median", "99%",
        "ms per token, median", "99%",
    )  # fmt: skip
    return f"## Arrivals at random\n\n{table(names, rows)}" if rows else ""


def _costs(found: Findings) -> str:
    counted = any(own.own is not None for own in found.costs)
    names = ["run", "open", "cost, % of throughput", "rounds", "tokens/s adapting", "without the plugin"]
    if counted:
        names[3:3] = ["without GPU spans, %", "own seconds, % of the time", "of these"]
        names.append("without spans")
    rows = []
    for own in found.costs:
        row: list[object] = [own.run, own.open, share(own.cost, mark=False)]
        if counted:
            row += [
                share(own.without_spans, mark=False),
                share(own.own, mark=False, digits=2),
                ", ".join(f"{part} {share(value, False, 2)}" for part, value in own.own_parts.items()),
            ]
        rates = own.tokens_per_second
        policies = (others.ADAPTING, others.WITHOUT_PLUGIN, *[others.WITHOUT_SPANS] * counted)
        row += [own.cost.rounds, *(number(rates[name].mean, 0) if name in rates else "" for name in policies)]
        rows.append(row)
    text = (
        "Of throughput: lost to the engine without the plugin, within rounds, with all of the plugin and"
        " without its GPU spans. Own seconds are those that the plugin counted while adapting, on the"
        " scheduler's and the model runner's thread and of its control's; most pass while the engine waits"
        " for its GPU.\n\n"
    )
    return f"## The plugin's cost\n\n{text if counted else ''}{table(names, rows)}" if rows else ""


def _bursts(found: Findings) -> str:
    rows = [
        (
            own.run,
            own.policy,
            f"{own.requests[0]}-{own.requests[1]}",
            f"{own.prompt_tokens:,}",
            own.asked,
            own.survived,
            "died" if own.died else "out of time" if own.survived < own.asked else "",
        )
        for own in found.bursts
    ]
    names = ("run", "policy", "requests a burst", "prompt", "asked", "survived", "then")
    return f"## Draining bursts\n\n{table(names, rows)}" if rows else ""


def _across(found: Findings) -> str:
    parts = []
    for title, rows in (
        ("Engine advice taken: tuned on it over the best constant on the default", found.advice_taken),
        ("Capture sizes as advised: tuned over tuned on the default", found.sizes_taken),
        ("cudagraph_mode FULL over the default mode", found.full_mode),
        ("Table engine with a constant length over an engine of that fixed length", found.fixed_engines),
        ("Tuned over adaptive verification", found.adaptive_verification),
    ):
        if rows:
            parts.append(f"### {title}\n\n{_across_table(rows)}")
    if found.mode_advice:
        parts.append(f"### Advice on cudagraph_mode\n\n{_mode_advice_table(found)}")
    if found.repeats:
        names = ("run", "again", "policy", "loop", "share", "share again", "agrees")
        again = (
            (
                own.run, own.other, own.policy, own.loop, share(own.share), share(own.other_share),
                "yes" if own.agrees else "**no**",
            )
            for own in found.repeats
        )  # fmt: skip
        parts.append(f"### The same setting again\n\n{table(names, again)}")
    if not parts:
        return ""
    return (
        "## Across engine starts\n\n"
        "These share no round: errors are those of both runs' means, and a host that was slower on one of the"
        " two starts is not in them.\n\n" + "\n".join(parts)
    )


def _across_table(rows: Sequence[Across]) -> str:
    told_ratio = any(own.predicted is not None for own in rows)
    names = ["run", "policy", "over", "policy", "loop", "ratio, %"] + ["predicted, %"] * told_ratio
    cells = []
    for own in rows:
        cells.append([own.run, own.policy, own.other, own.other_policy, str(own.loop), share(own.ratio)])
        if told_ratio:
            cells[-1].append(number(None if own.predicted is None else 100 * own.predicted, 1))
    return table(names, cells)


def _mode_advice_table(found: Findings) -> str:
    rows = [
        (
            own.run,
            own.other,
            f"{own.prompt_tokens:,}",
            share(own.ratio),
            own.advised or ("FULL as an experiment" if own.experiment else "no change"),
            "" if own.right is None else "yes" if own.right else "no",
        )
        for own in found.mode_advice
    ]
    return table(("FULL", "default", "prompt", "FULL over default, %", "advice", "right"), rows)


def _predictions(found: Findings, picture: str | None) -> str:
    if not found.cell_groups:
        return ""
    near = {(cell.run, cell.prompt_tokens) for cell in goals.profiled_cells(found)}
    rows = [
        (
            own.run,
            f"{own.prompt_tokens:,}",
            own.draft_length,
            own.graph,
            "-".join(str(size) for size in sorted(set(own.batch_sizes))),
            number(own.tokens_per_request, 3),
            *_close(own.by_quiet_span),
            *_close(own.by_span),
            *_close(own.by_interval),
            "yes" if own.graph == "full" and (own.run, own.prompt_tokens) in near else "",
        )
        for own in found.cell_groups
    ]
    names = (
        "run", "prompt", "K", "graph", "batch sizes", "kept per request",
        "by span of quiet steps, %", "farthest", "within 5%", "by span, %", "farthest", "within 5%",
        "by interval, %", "farthest", "within 5%", "judged",
    )  # fmt: skip
    return (
        "## Predicted against measured\n\n"
        + _picture(picture, "Measured over predicted tokens per second")
        + f"\nPure decode steps in windows of constants, cells with {stepping.LEAST_STEPS} steps or more:"
        " measured over predicted tokens per second, median over the row's cells, and the farthest cell."
        f" Quiet steps ({stepping.QUIET_STEPS} or more) are away from prompts, as those that the profiler"
        " times; by interval is what users get. Judged is the span of quiet steps. Only full graphs and the"
        " prompts nearest to the profile's context are judged. All cells are in `report.json`.\n\n"
        + table(names, rows)
    )


def _close(value: stepping.Closeness | None) -> tuple[str, str, str]:
    if value is None:
        return "", "", ""
    return (
        f"{100 * value.median:.1f}",
        f"{100 * value.farthest:.1f}",
        f"{value.within} of {value.cells}",
    )


def _host(found: Findings) -> str:
    rows = [
        (
            own.run,
            "-".join(str(size) for size in own.batch_sizes) if own.batch_sizes[0] > 1 else "1",
            f"{own.steps:,}",
            number(own.interval_ms),
            number(own.span_ms),
            number(own.host_ms),
            f"{100 * own.share:.0f}%",
        )
        for own in found.host_shares
    ]
    names = ("run", "batch sizes", "steps", "interval, ms", "span, ms", "host, ms", "of the interval")
    text = "Interval less GPU span of quiet pure steps in windows of constants; medians.\n\n"
    return f"## The host's share\n\n{text}{table(names, rows)}" if rows else ""


def _after_changes(found: Findings) -> str:
    rows = [
        (
            own.run,
            "shorter" if own.downwards else "longer",
            own.graph,
            own.steps,
            number(100 * own.span, 1),
            number(None if own.settled_without is None else 100 * own.settled_without, 1),
        )
        for own in found.after_changes
    ]
    if not rows:
        return ""
    names = ("run", "becomes", "graph", "steps", "span, median, %", "settled ones with that graph, %")
    return (
        "## After a change of length\n\n"
        "The first steps that verify another length, over settled steps of that length with a full graph, as"
        f" far from a prompt; medians of GPU spans.\n\n{table(names, rows)}"
    )


def _scatter(found: Findings) -> str:
    median, quartile = stepping.QUANTILES
    rows = [
        (
            own.run,
            own.open,
            own.length,
            own.seconds,
            number(own.milliseconds[median]),
            number(own.milliseconds[quartile]),
            number(100 * own.deviation[median], 1),
            number(100 * own.deviation[quartile], 1),
            number(own.undisturbed_ms),
            number(own.profiled_ms),
        )
        for own in found.scatter
    ]
    slow = [
        (own.run, own.open, own.graph, own.windows, number(own.lowest_ms, 1), number(own.highest_ms, 1))
        for own in found.slowness
    ]
    if not rows:
        return ""
    names = (
        "run", "open", "K", "seconds", "median, ms", "lower quartile, ms", "median scatters, %",
        "lower quartile scatters, %", "undisturbed, ms", "by the profile, ms",
    )  # fmt: skip
    return (
        "## From second to second\n\n"
        "What the plugin sees of a cell in a second, by GPU spans: the median and the lower quartile of its"
        " pure steps, and by how much each differs between seconds (standard deviation of its logarithm)."
        " *Undisturbed* is the 5th percentile of all spans of the load's most frequent batch size.\n\n"
        f"{table(names, rows)}\n"
        "Steps with one or two prompts of 256 tokens, by GPU span, all policies of a load: the windows with"
        " the lowest and the highest median.\n\n"
        f"{table(('run', 'open', 'graph', 'windows', 'lowest, ms', 'highest, ms'), slow)}"
    )


def _neighbours(found: Findings) -> str:
    rows = [
        (
            own.run,
            own.place,
            f"{own.steps:,}",
            share(own.span),
            "" if own.span_median is None else f"{100 * own.span_median:.1f}",
            share(own.interval),
        )
        for own in found.neighbours
    ]
    names = ("run", "place", "steps", "span, mean, %", "span, median, %", "interval, mean, %")
    text = (
        "Pure steps beside a step with a prompt, over quiet ones of the same batch size and length. With GPU"
        " spans every pure step counts where these are ties with 100%.\n\n"
    )
    return f"## Beside a prompt\n\n{text}{table(names, rows)}" if rows else ""


def _mixed(found: Findings) -> str:
    rows = [
        (
            own.run,
            f"{own.prompt_tokens:,}",
            own.graph,
            f"{own.episodes:,}",
            number(own.mean_batch, 0),
            number(own.steps, 1),
            number(own.prompts, 1),
            number(own.more_span_ms),
            number(own.more_interval_ms),
        )
        for own in found.mixed_steps
    ]
    names = (
        "run", "prompt", "graph", "episodes", "mean batch", "steps", "prompts", "spans, ms more",
        "intervals, ms more",
    )  # fmt: skip
    text = (
        "Prompts that share a step, or a row of steps, with three pure steps before and after: what they take"
        " over quiet steps of as many decoding requests, medians over such episodes. Intervals count from the"
        " step before to the step after, since with asynchronous scheduling part of the time shows there.\n\n"
    )
    return f"## Steps with a prompt\n\n{text}{table(names, rows)}" if rows else ""


def _batches(found: Findings) -> str:
    rows = [
        (
            own.run,
            own.loop.open,
            f"{own.loop.prompt_tokens:,}",
            own.policy,
            number(own.mean_batch, 1),
            f"{100 * own.mixed_share:.0f}%",
            "" if own.without_full_graph is None else f"{100 * own.without_full_graph:.0f}%",
            number(own.tokens_per_request, 3),
            number(own.step_ms),
            number(own.pure_ms),
            number(own.span_ms),
            ", ".join(
                f"{length}: {100 * part:.0f}%" for length, part in own.lengths.items() if part >= 0.005
            ),
        )
        for own in found.anatomies
        if own.policy
        in ("tuned", *(result.best for result in found.loops[own.run] if result.loop == own.loop))
    ]
    names = (
        "run", "open", "prompt", "policy", "mean batch", "with a prompt", "pure without a full graph",
        "kept per request", "step, ms", "pure step, ms", "its span, ms", "time at each length",
    )  # fmt: skip
    text = "The tuned table and the best constant; the other policies are in `report.json`.\n\n"
    return f"## What windows are made of\n\n{text}{table(names, rows)}" if rows else ""


def _explanations(found: Findings) -> str:
    lines = [f"- {explained(own)}\n" for own in found.explanations]
    if not lines:
        return ""
    return (
        "## Why the tuned table differs\n\n"
        "From the best constant where it loses over 2%, from vLLM's documented table and from the longest"
        " constant where they are no ties. The three factors multiply to about the ratio: kept tokens per"
        " request and step, live batch, steps per second.\n\n" + "".join(lines)
    )


def explained(why: stepping.Explanation) -> str:
    """Return an explanation in a sentence or two."""
    own, other = why.own, why.other

    def change(factor: float) -> str:
        return f"{100 * (factor - 1):+.1f}%"

    def percent(part: float | None) -> str:
        return "?" if part is None else f"{100 * part:.0f}%"

    spans = ""
    if own.span_ms is not None and other.span_ms is not None:
        spans = f", of pure ones {own.pure_ms:.2f} against {other.pure_ms:.2f}, on the GPU"
        spans += f" {own.span_ms:.2f} against {other.span_ms:.2f}"
    lengths = ", ".join(
        f"{length} ({100 * part:.0f}%)" for length, part in own.lengths.items() if part >= 0.005
    )
    return (
        f"`{own.run}`, {why.loop}: tuned keeps {share(why.ratio, mark=False)}% of {why.reference}"
        f"{' (a tie)' if why.ratio.ties() else ''}. **{why.cause}.** Kept tokens per request and step"
        f" {own.tokens_per_request:.2f} against {other.tokens_per_request:.2f}"
        f" ({change(why.tokens_factor)}); mean batch {own.mean_batch:.1f} against {other.mean_batch:.1f}"
        f" ({change(why.batch_factor)}); steps of {own.step_ms:.2f} ms against {other.step_ms:.2f}"
        f" ({change(why.step_factor)}){spans}; with a prompt {percent(own.mixed_share)} against"
        f" {percent(other.mixed_share)}, pure ones without a full graph {percent(own.without_full_graph)}"
        " against"
        f" {percent(other.without_full_graph)}. Lengths in its time: {lengths}."
    )


if __name__ == "__main__":
    sys.exit(main())
