"""The plugin's page of the reference: complete, and only what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import describing
import generate_reference
import plugin_examples
from tabletune.documents import Control
from tabletune_plugin import following, metrics, settings, states

PAGE = generate_reference.plugin()
NAMES_OF_METRICS = set(re.findall(r'"(tabletune_\w+)"', Path(metrics.__file__).read_text()))


def first_cells(section: str) -> list[str]:
    """Return the first column of the section's tables, without the heads."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_every_variable_that_is_read_is_on_the_page_and_no_other() -> None:
    own = {
        settings.TABLE,
        settings.METRICS_PORT,
        settings.FINGERPRINT_POLICY,
        settings.REPLACE_TABLE,
        settings.ALLOW_OLDER_GENERATION,
        settings.POLL_SECONDS,
    }
    assert set(first_cells("Environment variables")) == own | set(settings.CONTROL_VARIABLES)


@pytest.mark.parametrize("variable", sorted(settings.CONTROL_VARIABLES))
def test_default_on_the_page_is_one_that_the_variable_takes(variable: str) -> None:
    # A reader copies the default and changes it.
    (default,) = re.findall(rf"^\| `{variable}` \| [^|]+ \| [^|]+ \| `?([^|`]+)`? \|", PAGE, re.MULTILINE)
    text = "[]" if default == "empty" else default
    chosen, complaints = settings.read({settings.TABLE: "/t.json", variable: text})
    assert complaints == ()
    assert chosen.control_of(Control()) == Control()


def test_every_reason_and_every_result_of_a_reload_is_on_the_page() -> None:
    reasons = first_cells("Reasons")
    assert {states.FOLLOWING, states.NO_DOCUMENT, states.CONTROLLER_FAILED} < set(reasons)
    constants = {value for name, value in vars(states).items() if name.isupper() and isinstance(value, str)}
    assert set(reasons) == constants
    results = {value for name, value in vars(following).items() if name.isupper() and isinstance(value, str)}
    assert set(first_cells("Results of a reload")) == results | {
        states.DOCUMENT_UNUSABLE,
        states.FINGERPRINT_REFUSED,
    }


def test_every_metric_that_the_plugin_can_export_is_on_the_page() -> None:
    # By the names in the source: a metric that the example leaves out is not on the page.
    shown = {name.removesuffix("_total") for name in first_cells("Metrics")}
    assert len(NAMES_OF_METRICS) > 20
    assert shown == NAMES_OF_METRICS


def test_a_metric_stands_with_its_labels_its_type_and_its_help() -> None:
    assert (
        "| `tabletune_drafted_total` | counter | `position` | Requests and steps that got a draft while the"
        " length in force reached the position (from 1). |"
    ) in PAGE
    assert "| `tabletune_active` | gauge | `reason` | " in PAGE


def test_a_metric_without_a_sample_is_an_error_and_not_a_row_without_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = plugin_examples.snapshot()
    empty = metrics.Snapshot(
        states.Report(active=True, reason=states.FOLLOWING, message=""),
        found.engine,
        found.settings,
        found.totals,
        0,
    )
    monkeypatch.setattr(plugin_examples, "snapshot", lambda: empty)
    with pytest.raises(ValueError, match="tabletune_reloads has no sample"):
        list(plugin_examples.families())


def test_a_constant_stands_with_its_value_and_its_reason() -> None:
    (found,) = [one for one in describing.constants(following) if one.name == "MISSING"]
    assert (found.value, found.meaning) == ("Missing", "There is no file at the path.")
    assert "| `STALLS_NEEDED` | 3 | `tabletune.controlling` | Windows with stalled changes" in PAGE


def test_check_covers_the_page() -> None:
    assert Path("docs/reference/plugin.md") in {
        path.relative_to(Path(generate_reference.__file__).parents[1]) for path in generate_reference.pages()
    }
