import io
import json
import math
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from tabletune import documents
from tabletune.documents import Document
from tabletune_profiler import plotting

EXAMPLE = Path(__file__).parents[1] / "data" / "example-document.json"


@pytest.fixture
def content() -> dict[str, Any]:
    return dict(json.loads(EXAMPLE.read_bytes()))


def document_of(content: dict[str, Any]) -> Document:
    return documents.validate_as(Document, content)


def exclude(content: dict[str, Any], *cells: tuple[int, int]) -> None:
    """Take the times of these batch sizes and draft lengths out of the profile."""
    profile = content["profile"]
    for batch_size, draft_length in cells:
        row = profile["draftLengths"].index(draft_length)
        column = profile["batchSizes"].index(batch_size)
        for grid in ("stepTimeMs", "spreadMs", "graph"):
            profile[grid][row][column] = None
        profile["samples"][row][column] = 0
        profile["excluded"].append(
            {"batchSize": batch_size, "draftLength": draft_length, "reason": "The engine died."}
        )


def panels(document: Document, *, laid_out: bool = False) -> tuple[Figure, Axes, Axes, Axes]:
    """Return the figure with its panels: step times, goodput, survival. Layout takes most of the time."""
    with mpl.rc_context(plotting.STYLE):
        figure = plotting.draw(document)
        if laid_out:
            figure.draw_without_rendering()
    heat, _colour_bar, goodput, survival = figure.axes
    return figure, heat, goodput, survival


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def numbers(values: Any) -> list[float]:
    return [float(value) for value in values]


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def patches(axes: Axes, label: str) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_label() == label]


def test_cells_show_their_times_at_real_batch_sizes(content: dict[str, Any]) -> None:
    _, heat, _, _ = panels(document_of(content))
    assert [label.get_text() for label in heat.get_xticklabels()] == [
        str(size) for size in content["profile"]["batchSizes"]
    ]
    assert [label.get_text() for label in heat.get_yticklabels()] == [f"K={length}" for length in range(6)]
    shown = texts(heat)
    assert "3.98" in shown  # K=0, B=1: 3.984 ms
    assert "44.4" in shown  # K=5, B=96: 44.417 ms


def test_steps_without_a_graph_are_noted(content: dict[str, Any]) -> None:
    _, heat, _, _ = panels(document_of(content))
    without = sum(row.count("none") for row in content["profile"]["graph"])
    assert texts(heat).count("no graph") == without > 0


def test_graphs_are_not_noted_where_all_are_alike(content: dict[str, Any]) -> None:
    content["profile"]["graph"] = [["none" for _ in row] for row in content["profile"]["graph"]]
    _, heat, _, _ = panels(document_of(content))
    assert "no graph" not in texts(heat)


def test_piecewise_steps_are_noted(content: dict[str, Any]) -> None:
    content["profile"]["graph"][2][2] = "piecewise"
    _, heat, _, _ = panels(document_of(content))
    assert texts(heat).count("piecewise") == 1


def test_capture_limit_is_the_edge_to_larger_steps(content: dict[str, Any]) -> None:
    _, heat, _, _ = panels(document_of(content))
    lines = [line for line in heat.lines if line.get_color() == plotting.LIMIT]
    assert len(lines) == 1
    edges = set(zip(numbers(lines[0].get_xdata()), numbers(lines[0].get_ydata()), strict=True))
    # 512 tokens are captured. K=5 has 6 tokens a request: 64 requests are 384 tokens, 96 are 576, so the
    # edge is between columns 7 and 8; K=2 has 3: 128 are 384, 192 are 576: between columns 9 and 10.
    assert {(7.5, 4.5), (7.5, 5.5), (9.5, 1.5), (9.5, 2.5)} <= edges
    assert any("512 tokens" in label for label in legend(heat))


@pytest.mark.parametrize("sizes", [[], [1, 2, 4096]])
def test_no_capture_limit_is_drawn_where_none_is_crossed(content: dict[str, Any], sizes: list[int]) -> None:
    content["fingerprint"]["cudagraphCaptureSizes"] = sizes
    _, heat, _, _ = panels(document_of(content))
    assert not heat.lines
    assert legend(heat) == ["the table's choice"]


def test_excluded_cells_are_hatched(content: dict[str, Any]) -> None:
    exclude(content, (256, 5), (4, 2))
    _, heat, _, _ = panels(document_of(content))
    hatched = patches(heat, "excluded")
    assert {patch.get_xy() for patch in hatched} == {(10.5, 4.5), (1.5, 1.5)}
    assert all(patch.get_hatch() for patch in hatched)
    assert "excluded" in legend(heat)


def test_choice_of_the_table_is_framed(content: dict[str, Any]) -> None:
    content["table"] = [[1, 8, 5], [9, 256, 0]]
    _, heat, _, _ = panels(document_of(content))
    frames = [patch for patch in patches(heat, "choice") if patch.get_edgecolor() == to_rgba(plotting.INK)]
    # Columns 0 to 3 (batch sizes 1 to 8) in the row of K=5, the other eight in that of K=0.
    assert [(round(frame.get_x()), round(frame.get_y()), round(frame.get_width())) for frame in frames] == [
        (0, 5, 4),
        (4, 0, 8),
    ]


def test_goodput_has_a_line_per_length_and_the_table(content: dict[str, Any]) -> None:
    document = document_of(content)
    _, _, goodput, _ = panels(document)
    lines = {line.get_label(): line for line in goodput.lines}
    assert {"table", *(f"K={length}" for length in range(6))} <= lines.keys()
    assert numbers(lines["table"].get_ydata()) == pytest.approx(
        [table / off for table, off in zip(document.prediction.table, document.prediction.off, strict=True)]
    )
    # At one request K=5 keeps 1 + 0.76 + 0.56 + 0.42 + 0.31 + 0.23 = 3.28 tokens in 5.324 ms, against one
    # in 3.984 ms: 3.28 / 5.324 · 3.984 = 2.454.
    assert numbers(lines["K=5"].get_ydata())[0] == pytest.approx(2.454, abs=0.001)


def test_line_is_broken_where_the_kind_of_graph_changes(content: dict[str, Any]) -> None:
    _, _, goodput, _ = panels(document_of(content))
    lines = {line.get_label(): line for line in goodput.lines}
    whole, broken = numbers(lines["K=0"].get_xdata()), numbers(lines["K=5"].get_xdata())
    assert [x for x in broken if not math.isnan(x)] == whole
    assert [index for index, x in enumerate(broken) if math.isnan(x)] == [8]  # between 64 and 96
    assert "change of graph" in legend(goodput)


def test_ranges_of_the_table_are_drawn_with_their_lengths(content: dict[str, Any]) -> None:
    content["table"] = [[1, 8, 5], [9, 9, 4], [10, 256, 0]]
    _, _, goodput, _ = panels(document_of(content))
    ranges = patches(goodput, "range")
    assert [round(patch.get_x() + patch.get_width(), 1) for patch in ranges[:2]] == [8.5, 9.5]
    # The one batch size at 4 has no room for a label.
    assert [text for text in texts(goodput) if text.startswith("K=")] == ["K=5", "K=0"]


def test_survival_has_errors_and_counts(content: dict[str, Any]) -> None:
    content["acceptance"] |= {"drafted": [5000, 5000, 400, 40, 0], "accepted": [3800, 2800, 168, 12, 0]}
    _, _, _, survival = panels(document_of(content))
    bars = [patch.get_height() for patch in survival.patches if isinstance(patch, Rectangle)]
    assert bars == content["acceptance"]["survival"]
    assert [label.get_text() for label in survival.get_xticklabels()] == [
        "1\n5.0k",
        "2\n5.0k",
        "3\n400",
        "4\n40",
        "5\n0",
    ]
    errors = survival.collections[0]
    assert isinstance(errors, LineCollection)
    segments = errors.get_segments()
    assert len(segments) == 4  # none where nothing was drafted
    # At position 4: sqrt(0.31 · 0.69 / 40) = 0.0731, to both sides.
    assert segments[3][1][1] - segments[3][0][1] == pytest.approx(2 * 0.0731, abs=0.0002)


def test_proposal_rate_is_told_where_not_every_step_got_a_draft(content: dict[str, Any]) -> None:
    content["acceptance"]["proposalRate"] = 0.43
    _, _, _, survival = panels(document_of(content))
    assert "43% of requests and steps" in survival.get_xlabel()


def labels_overlap(axes: Axes) -> list[tuple[str, str]]:
    """Return the pairs of texts that lie over each other: tick labels of both axes, title and notes."""
    items = [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes._left_title]  # type: ignore[attr-defined]
    found = axes.get_legend()
    items += found.get_texts() if found else []
    boxes = [(item.get_text(), item.get_window_extent()) for item in items if item.get_text()]
    return [
        (text, other)
        for index, (text, box) in enumerate(boxes)
        for other, second in boxes[index + 1 :]
        if box.overlaps(second)
    ]


def grid(content: dict[str, Any], batch_sizes: list[int], draft_lengths: list[int]) -> None:
    """Give the document another grid."""
    rows, columns = len(draft_lengths), len(batch_sizes)
    times = [
        [4.0 + 0.3 * length + 0.02 * size * (1 + length) for size in batch_sizes] for length in draft_lengths
    ]
    content["profile"] |= {
        "batchSizes": batch_sizes,
        "draftLengths": draft_lengths,
        "stepTimeMs": times,
        "spreadMs": [[0.1] * columns] * rows,
        "samples": [[30] * columns] * rows,
        "graph": [
            ["full" if size * (length + 1) <= 512 else "none" for size in batch_sizes]
            for length in draft_lengths
        ],
    }
    longest = max(draft_lengths)
    rates = [0.8 ** (position + 1) for position in range(longest)]
    content["acceptance"] |= {"survival": rates, "drafted": [5000] * longest, "accepted": [0] * longest}
    content["table"] = [[1, 9, draft_lengths[-1]], [10, 256, draft_lengths[1]]]
    goodput = [1234.5 * size for size in batch_sizes]
    content["prediction"] |= dict.fromkeys(("table", "best", "fixed", "off"), goodput) | {
        "batchSizes": batch_sizes,
        "bestLength": [0] * columns,
    }


HALF_POWERS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]


@pytest.mark.parametrize(
    ("batch_sizes", "draft_lengths"),
    [
        (HALF_POWERS, [0, 1, 2, 3, 4, 5]),
        ([1, 2, 4, 8], [0, 1, 3]),
        ([8], [0, 1]),
        (list(range(1, 65)), [0, 2, 4]),
        (HALF_POWERS, list(range(17))),
    ],
)
def test_labels_do_not_overlap(
    content: dict[str, Any], batch_sizes: list[int], draft_lengths: list[int]
) -> None:
    grid(content, batch_sizes, draft_lengths)
    _, heat, goodput, survival = panels(document_of(content), laid_out=True)
    assert [labels_overlap(axes) for axes in (heat, goodput, survival)] == [[], [], []]


def test_texts_lie_inside_the_picture(content: dict[str, Any]) -> None:
    content["fingerprint"] |= {"model": "/very/long/" + "path/" * 60 + "model", "gpu": "GPU " * 50}
    figure, *_ = panels(document_of(content), laid_out=True)
    outside = [
        text.get_text()
        for text in figure.findobj(Text)
        if text.get_text() and text.get_window_extent().x1 > figure.bbox.x1
    ]
    assert outside == []


def test_profile_without_any_time_is_drawn(content: dict[str, Any]) -> None:
    profile = content["profile"]
    exclude(
        content, *((size, length) for size in profile["batchSizes"] for length in profile["draftLengths"])
    )
    content["prediction"]["off"] = [0.0] * len(profile["batchSizes"])
    _, heat, _, _ = panels(document_of(content))
    assert len(patches(heat, "excluded")) == 12 * 6


def test_svg_is_the_same_bytes_each_time(content: dict[str, Any]) -> None:
    document = document_of(content)
    first = plotting.svg(document)
    assert first == plotting.svg(document)
    assert b"<dc:date>" not in first
    assert ElementTree.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"


def test_svg_is_valid_whatever_the_names_are(content: dict[str, Any]) -> None:
    content["fingerprint"]["model"] = "$x_1 <&> -- \x1b[31m\n模型"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = plotting.svg(document_of(content))
    ElementTree.fromstring(svg)


def test_png_is_a_picture_of_the_figures_size(content: dict[str, Any]) -> None:
    with Image.open(io.BytesIO(plotting.png(document_of(content)))) as image:
        assert image.format == "PNG"
        assert image.width == plotting.WIDTH * plotting.DPI


def test_drawing_leaves_matplotlibs_settings_alone(content: dict[str, Any]) -> None:
    before = dict(mpl.rcParams)
    plotting.png(document_of(content))
    assert dict(mpl.rcParams) == before
