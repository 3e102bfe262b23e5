"""Sums rows up: the goals, the tables on the terminal, the pictures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.table import Table

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

Row = dict[str, Any]

COLOURS = {
    "ours": "#0b6e4f",
    "static": "#7a7a7a",
    "stale table": "#7a7a7a",
    "turbospec-style": "#d17a00",
    "nightjar-style": "#6a4c93",
    "oracle": "#1f77b4",
}
STYLES = {"ours": "-", "static": "--", "stale table": "--", "oracle": ":"}
CONTROLLERS = ("static", "ours", "turbospec-style", "nightjar-style", "oracle")


def group(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Return rows by key, in the order of their first."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def load_of(row: Row) -> str:
    """Return how a row's load is called."""
    if row["open_requests"]:
        return str(row["open_requests"])
    return f"{row['arrivals_per_second']:g}/s"


def goals(results: dict[str, list[Row]]) -> list[Row]:
    """Return each goal, what was reached (means over seeds, in the worst case) and whether it is met.

    Two rows do not count as goals: recovery as single runs tell it, of ours and of the tuned table whose
    first three steps differ. What the latter misses, no controller can be blamed for.
    """
    found = []

    def goal(name: str, least: float, cases: dict[Any, list[float]], counts: bool = True) -> None:
        means = {case: statistics.mean(values) for case, values in cases.items()}
        missed = {str(case): round(mean, 4) for case, mean in means.items() if mean < least}
        worst = min(means, key=lambda case: means[case])
        found.append(
            {
                "goal": name,
                "least": least,
                "cases": len(means),
                "mean": round(statistics.mean(means.values()), 4),
                "worst_case": str(worst),
                "worst": round(means[worst], 4),
                "worst_seed": round(min(min(values) for values in cases.values()), 4),
                "missed": missed,
                "met": not missed,
                "counts": counts,
            }
        )

    def values(
        rows: Iterable[Row], key: Callable[[Row], Any], value: Callable[[Row], Any]
    ) -> dict[Any, list[float]]:
        return {
            case: [value(row) for row in own]
            for case, own in group((row for row in rows if value(row) is not None), key).items()
        }

    right = results["right"] + results["open"]
    goal(
        "right profile: share of the best fixed length, every load",
        0.97,
        values(right, lambda row: (row["engine"], load_of(row)), lambda row: row["share"]["ours"]),
    )
    wrong = [row for row in results["wrong"] if row["what"] == "wrong profile"]
    goal(
        "wrong profile (row, column, constant): share of the best fixed length after 30 s",
        0.95,
        values(
            [row for row in wrong if row["case"] not in ("noise of 15%", "right")],
            lambda row: (row["engine"], row["open_requests"], row["case"]),
            lambda row: row["share_after_30_s"],
        ),
    )
    goal(
        "workload switch: share of a stale table's loss (5% or more) recovered after 30 s",
        0.96,
        values(
            [row for row in results["switch"] if row["stale_loss"] >= 0.05],
            lambda row: (row["engine"], row["switch"], row["open_requests"]),
            lambda row: row["recovered"]["ours"],
        ),
    )
    for driver, whose in (("ours", "ours"), ("tuned, other luck", "the tuned table itself")):

        def as_served(row: Row, driver: str = driver) -> Any:
            return row["recovered_as_served"][driver]

        goal(
            f"the same as single runs tell it, luck with prompts included: {whose}",
            0.96,
            values(
                [row for row in results["switch"] if row["stale_loss"] >= 0.05],
                lambda row: (row["engine"], row["switch"], row["open_requests"]),
                as_served,
            ),
            counts=False,
        )
    against = values(right, lambda row: (row["engine"], load_of(row)), lambda row: row["ours_against_off"])
    against |= values(
        wrong,
        lambda row: (row["engine"], row["open_requests"], row["case"]),
        lambda row: row["against_off"],
    )
    against |= values(
        results["switch"],
        lambda row: (row["engine"], row["switch"], row["open_requests"]),
        lambda row: row["against_off_from_the_switch"],
    )
    goal("share of speculation off: right and wrong profiles from the start, after a switch", 0.98, against)
    return found


def print_tables(results: dict[str, list[Row]], reached: Sequence[Row], console: Console) -> None:
    """Print the tables."""
    for engine, rows in group(results["right"] + results["open"], lambda row: row["engine"]).items():
        table = Table(
            title=f"{engine}, right profile: share of the best fixed length, mean over seeds (worst)"
        )
        table.add_column("load")
        fixed = [name for name in rows[0]["share"] if name.startswith("fixed")]
        for name in (*fixed, *CONTROLLERS):
            table.add_column(name, justify="right")
        for load, own in group(rows, load_of).items():
            cells = []
            for name in (*fixed, *CONTROLLERS):
                shares = [row["share"][name] for row in own]
                cells.append(f"{statistics.mean(shares):.3f} ({min(shares):.3f})")
            table.add_row(load, *cells)
        console.print(table)
    for (what, engine), rows in group(results["wrong"], lambda row: (row["what"], row["engine"])).items():
        loads = sorted({row["open_requests"] for row in rows})
        table = Table(title=f"{engine}, {what}: ours after 30 s (worst seed) / static table")
        table.add_column("case")
        for load in loads:
            table.add_column(str(load), justify="right")
        for case, own in group(rows, lambda row: row["case"]).items():
            cells = []
            for load in loads:
                cell = [row for row in own if row["open_requests"] == load]
                ours, static = ([row[name] for row in cell] for name in ("share_after_30_s", "static_share"))
                cells.append(f"{statistics.mean(ours):.3f} ({min(ours):.3f}) / {statistics.mean(static):.3f}")
            table.add_row(case, *cells)
        console.print(table)
    table = Table(title="workload switch: share of the stale loss recovered from 30 to 60 s after it")
    for column in ("engine", "switch", "load", "stale loss", "ours", "turbospec-style", "nightjar-style"):
        table.add_column(column)
    by_case = group(results["switch"], lambda row: (row["engine"], row["switch"], row["open_requests"]))
    for (engine, switch, load), rows in by_case.items():
        loss = statistics.mean(row["stale_loss"] for row in rows)
        if loss < 0.02:
            continue
        cells = []
        for driver in ("ours", "turbospec-style", "nightjar-style"):
            found = [row["recovered"][driver] for row in rows if row["recovered"][driver] is not None]
            cells.append(f"{statistics.mean(found):.2f} ({min(found):.2f})" if found else "-")
        table.add_row(engine, switch, str(load), f"{loss:.3f}", *cells)
    console.print(table)
    _print_recovery(results["wrong"], console)
    table = Table(title="a slow minute: ours against the best fixed length of each minute")
    for column in ("case", "load", "before", "in it", "after", "changes at the load"):
        table.add_column(column)
    for (case, load), rows in group(results["slow"], lambda row: (row["case"], row["open_requests"])).items():
        cells = [
            f"{statistics.mean(row[name] for row in rows):.3f}"
            for name in ("share_before", "share_in_it", "share_after")
        ]
        changes = sum(len(row["changes_at_the_load"]) for row in rows)
        table.add_row(case, str(load), *cells, f"{changes} in {len(rows)} runs")
    console.print(table)
    table = Table(title="an engine that stalls at changes from 3 to 2")
    for column in (
        "seed",
        "avoided",
        "lengths at the end",
        "static after 30 s",
        "ours",
        "static, tokens/s per request",
        "ours",
    ):
        table.add_column(column)
    for row in results["stalls"]:
        table.add_row(
            str(row["seed"]),
            str(row["avoided"]),
            str(row["lengths_at_the_end"]),
            f"{row['static_share']:.3f}",
            f"{row['share_after_30_s']:.3f}",
            f"{row['static_speed']:.0f}",
            f"{row['ours_speed']:.0f}",
        )
    console.print(table)
    table = Table(title="goals (means over seeds)")
    for column in ("goal", "least", "mean", "worst case", "", "worst seed", "met"):
        table.add_column(column)
    for row in reached:
        table.add_row(
            row["goal"],
            f"{row['least']:.2f}",
            f"{row['mean']:.3f}",
            row["worst_case"],
            f"{row['worst']:.3f}",
            f"{row['worst_seed']:.3f}",
            ("yes" if row["met"] else f"no: {len(row['missed'])} of {row['cases']} cases")
            + ("" if row["counts"] else " (no goal)"),
        )
    console.print(table)


def _print_recovery(rows: Sequence[Row], console: Console) -> None:
    """Print how long a table that lost 3% or more took to come within 5% of the best fixed length."""
    lost = [row for row in rows if row["what"] == "wrong profile" and row["static_share"] < 0.97]
    table = Table(title="wrong profiles whose static table loses 3% or more: seconds to 95% for good")
    for column in ("engine", "load", "runs", "median", "longest", "not within 60 s"):
        table.add_column(column)
    for (engine, load), own in group(lost, lambda row: (row["engine"], row["open_requests"])).items():
        times = [row["recovered_after_s"] for row in own if row["recovered_after_s"] is not None]
        table.add_row(
            engine,
            str(load),
            str(len(own)),
            f"{statistics.median(times):.1f}" if times else "-",
            f"{max(times):.1f}" if times else "-",
            str(len(own) - len(times)),
        )
    console.print(table)


def plot(results: dict[str, list[Row]], timelines: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the pictures and return their paths."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return [
        _plot_loads(results["right"], folder / "loads.png"),
        _plot_wrong(results["wrong"], folder / "wrong-profiles.png"),
        _plot_timelines(timelines, folder / "switch.png"),
        _plot_switches(results["switch"], folder / "recovery.png"),
    ]


def _plot_loads(rows: Sequence[Row], path: Path) -> Path:
    engines = group(rows, lambda row: row["engine"])
    figure, axes = plt.subplots(
        2, (len(engines) + 1) // 2, figsize=(11, 7), squeeze=False, layout="constrained"
    )
    for axis, (engine, own) in zip(axes.flat, engines.items(), strict=False):
        loads = sorted({row["open_requests"] for row in own})
        by_load = group(own, lambda row: row["open_requests"])
        places = np.arange(len(loads))
        for name in CONTROLLERS:
            shares = np.array([[row["share"][name] for row in by_load[load]] for load in loads])
            axis.plot(
                places,
                shares.mean(axis=1),
                STYLES.get(name, "-"),
                color=COLOURS[name],
                label=name,
                linewidth=2 if name == "ours" else 1.3,
                marker="o" if name == "ours" else None,
                markersize=3,
            )
            axis.fill_between(
                places, shares.min(axis=1), shares.max(axis=1), color=COLOURS[name], alpha=0.12, linewidth=0
            )
        axis.axhline(0.97, color="#b00020", linewidth=0.8, linestyle=(0, (1, 3)))
        axis.set_xticks(places, [str(load) for load in loads])
        axis.set_title(engine, loc="left", fontweight="bold")
        axis.set_xlabel("open requests")
        axis.set_ylabel("share of the best fixed length")
        low = min(0.9, float(np.floor(20 * min(row["share"]["nightjar-style"] for row in own)) / 20))
        high = max(max(row["share"][name] for name in CONTROLLERS) for row in own)
        axis.set_ylim(max(low, 0.6), max(1.04, high + 0.02))
    for axis in list(axes.flat)[len(engines) :]:
        axis.remove()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(
        "Right profile, closed loops, 60 s from the start. Band: all seeds. Dotted red: goal, 97%."
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _plot_wrong(rows: Sequence[Row], path: Path) -> Path:
    own = [row for row in rows if row["what"] == "wrong profile"]
    engines = group(own, lambda row: row["engine"])
    figure, axes = plt.subplots(
        len(engines), 2, figsize=(11, 4.6 * len(engines)), squeeze=False, layout="constrained"
    )
    image = None
    for line, (engine, of_engine) in zip(axes, engines.items(), strict=True):
        cases = list(group(of_engine, lambda row: row["case"]))
        loads = sorted({row["open_requests"] for row in of_engine})
        for axis, value, title in (
            (line[0], "static_share", "static table"),
            (line[1], "share_after_30_s", "ours, from 30 to 60 s"),
        ):
            grid = np.array(
                [
                    [
                        statistics.mean(
                            row[value]
                            for row in of_engine
                            if (row["case"], row["open_requests"]) == (case, load)
                        )
                        for load in loads
                    ]
                    for case in cases
                ]
            )
            image = axis.imshow(grid, cmap="RdYlGn", vmin=0.7, vmax=1.0, aspect="auto")
            axis.set_xticks(range(len(loads)), [str(load) for load in loads])
            axis.set_yticks(range(len(cases)), cases if axis is line[0] else [])
            axis.set_title(f"{engine}: {title}", loc="left", fontweight="bold")
            axis.set_xlabel("open requests")
            axis.spines[:].set_visible(False)
            for (y, x), share in np.ndenumerate(grid):
                axis.text(
                    x,
                    y,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="center",
                    color="white" if share < 0.76 or share > 0.97 else "black",
                )
    assert image is not None
    figure.colorbar(image, ax=axes, shrink=0.5, label="share of the best fixed length")
    figure.suptitle("Wrong profiles: share of the best fixed length in %, mean over seeds")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _plot_timelines(timelines: Sequence[Row], path: Path) -> Path:
    figure, axes = plt.subplots(1, len(timelines), figsize=(11, 4), squeeze=False, layout="constrained")
    for axis, line in zip(axes.flat, timelines, strict=True):
        for name, series in line["lines"].items():
            seconds, rates = np.array(series["seconds"]), np.array(series["tokens_per_second"])
            smooth = np.convolve(rates, np.ones(3) / 3, mode="valid")
            axis.plot(
                seconds[1:-1] - line["at"],
                smooth / 1e3,
                STYLES.get(name, "-"),
                color=COLOURS[name],
                label=name,
                linewidth=2 if name == "ours" else 1.2,
                zorder=3 if name == "ours" else 2,
            )
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_xlim(-20, 60)
        axis.set_title(
            f"{line['engine']}, {line['open_requests']} open requests", loc="left", fontweight="bold"
        )
        axis.set_xlabel(f"seconds after the switch ({line['switch']})")
        axis.set_ylabel("thousand tokens per second")
        axis.set_ylim(bottom=0)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _plot_switches(rows: Sequence[Row], path: Path) -> Path:
    cases = group(
        (row for row in rows if row["stale_loss"] >= 0.02),
        lambda row: (row["engine"], row["switch"], row["open_requests"]),
    )
    figure, axis = plt.subplots(figsize=(11, 0.32 * len(cases) + 1.8), layout="constrained")
    _bars(axis, cases)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _bars(axis: Axes, cases: dict[Any, list[Row]]) -> None:
    drivers = ("stale", "ours", "turbospec-style", "nightjar-style")
    places = np.arange(len(cases))
    most = 1.01
    for offset, driver in zip((-0.27, -0.09, 0.09, 0.27), drivers, strict=True):
        shares = [
            statistics.mean(row["share_of_tuned_from_30_to_60_s"][driver] for row in own)
            for own in cases.values()
        ]
        most = max(most, *shares)
        axis.barh(
            places + offset,
            shares,
            height=0.17,
            color=COLOURS["stale table" if driver == "stale" else driver],
            label="stale table" if driver == "stale" else driver,
        )
    axis.set_yticks(places, [f"{engine}, {switch}, {load} open" for engine, switch, load in cases])
    axis.invert_yaxis()
    axis.set_xlim(0.45, most + 0.02)
    axis.margins(y=0.01)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xlabel(
        "tokens per second from 30 to 60 s after the switch, share of the table tuned for the new traffic"
    )
    axis.legend(loc="upper center", bbox_to_anchor=(0.4, -0.06), ncols=4, frameon=False)
