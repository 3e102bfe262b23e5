import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

import generate_reference
from tabletune import documents, rendering, schemas
from tabletune.documents import Document
from tabletune_profiler import main, plotting
from tabletune_profiler.exit_codes import ExitCode

EXAMPLE = Path(__file__).parents[1] / "data" / "example-document.json"


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main.app, [str(argument) for argument in arguments], input=stdin)


def run_in_shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command with ``tabletune`` as a process of its own, for what happens at its edges."""
    python = f"{sys.executable} -c 'from tabletune_profiler import main; main.run()'"
    return subprocess.run(
        ["/bin/sh", "-c", f'tabletune() {{ {python} "$@"; }}; {command}'],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def example() -> Document:
    return documents.parse(EXAMPLE.read_bytes())


def write(path: Path, document: Document, **changes: Any) -> Path:
    """Write ``document`` with ``changes`` to its parts, by their names in JSON."""
    content = json.loads(documents.dump(document))
    for name, value in changes.items():
        content[name] = content[name] | value if isinstance(value, dict) else value
    path.write_bytes(documents.dump(documents.validate_as(Document, content)))
    return path


def bad(path: Path) -> Path:
    content = json.loads(EXAMPLE.read_bytes())
    content["acceptance"]["survival"][0] = 1.5
    content["profile"]["stepTimeMs"][2][1] = -4.0
    path.write_text(json.dumps(content))
    return path


COMMANDS_WITH_DOCUMENTS = [
    ["table"],
    ["show"],
    ["plot"],
    ["render", "--to", "vllm-args"],
    ["validate"],
    ["diff", str(EXAMPLE)],
]


@pytest.mark.parametrize("command", COMMANDS_WITH_DOCUMENTS, ids=lambda command: command[0])
def test_bad_document_ends_with_2_and_names_each_fault(command: list[str], tmp_path: Path) -> None:
    result = run(*command, bad(tmp_path / "bad.json"))
    assert result.exit_code == ExitCode.BAD_INPUT
    told = result.output
    assert "bad.json" in told
    assert "acceptance.survival[0]: input should be less than or equal to 1 (found 1.5)" in told
    assert "profile.stepTimeMs[2][1]: input should be greater than or equal to 0.000001 (found -4.0)" in told
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.parametrize("command", COMMANDS_WITH_DOCUMENTS, ids=lambda command: command[0])
def test_missing_document_ends_with_2_and_its_name(command: list[str], tmp_path: Path) -> None:
    result = run(*command, tmp_path / "nothing.json")
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "nothing.json cannot be read: No such file or directory" in result.output


def test_another_schema_version_is_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "future.json"
    path.write_text(json.dumps(json.loads(EXAMPLE.read_bytes()) | {"schemaVersion": 7}))
    result = run("show", path)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "schemaVersion: must be 1, the version this TableTune reads and writes (found 7)" in result.stderr


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1.0"])
def test_number_that_is_no_time_is_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(EXAMPLE.read_text().replace("3.984", number, 1))
    result = run("show", path)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert number in result.stderr


def test_messages_go_to_standard_error_and_data_to_standard_output() -> None:
    result = run("table", EXAMPLE)
    assert result.exit_code == ExitCode.OK
    assert documents.parse(result.stdout).table
    assert result.stderr.startswith("Table: 1-")


# table


def test_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run("table", EXAMPLE, "--output", first)
    result = run("table", first, "--output", second)
    assert result.exit_code == ExitCode.OK
    assert "(unchanged)" in result.stderr
    assert first.read_bytes() == second.read_bytes()


def test_allowed_lengths_bound_the_new_table(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    assert run("table", EXAMPLE, "--lengths", "3,0", "--output", output).exit_code == ExitCode.OK
    document = documents.parse(output.read_bytes())
    assert {length for _, _, length in document.table} <= {0, 3}
    assert document.control.allowed_lengths == (0, 3)
    assert document.generation == 2


def test_pinned_ranges_keep_their_lengths(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    result = run("table", EXAMPLE, "--pin", "100-200=0", "--pin", "7=1", "--output", output)
    assert result.exit_code == ExitCode.OK
    document = documents.parse(output.read_bytes())
    assert document.control.pinned == ((7, 7, 1), (100, 200, 0))
    assert (7, 7, 1) in document.table
    assert any(first <= 100 and last >= 200 and length == 0 for first, last, length in document.table)


def test_pins_and_lengths_can_be_taken_back(tmp_path: Path) -> None:
    changed, output = tmp_path / "changed.json", tmp_path / "table.json"
    run("table", EXAMPLE, "--pin", "7=1", "--lengths", "0,1,3", "--output", changed)
    assert run("table", changed, "--pin", "none", "--lengths", "all", "--output", output).exit_code == 0
    document = documents.parse(output.read_bytes())
    assert document.control == documents.Control()
    assert document.table == documents.parse(EXAMPLE.read_bytes()).table


def test_wider_tolerance_gives_fewer_ranges(tmp_path: Path, example: Document) -> None:
    result = run(
        "table", EXAMPLE, "--merge-tolerance", "0.3", "--tie-tolerance", "0.05", "--narrow-range", "0.5"
    )
    document = documents.parse(result.stdout)
    assert len(document.table) < len(example.table)
    assert document.control.merge_tolerance == 0.3
    assert document.control.tie_tolerance == 0.05
    assert document.control.narrow_range == 0.5


def test_document_can_be_recomputed_in_place(tmp_path: Path, example: Document) -> None:
    path = write(tmp_path / "table.json", example)
    assert run("table", path, "--lengths", "0,1", "--output", path).exit_code == ExitCode.OK
    assert documents.parse(path.read_bytes()).generation == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--lengths", "1,x"], "--lengths 1,x: expected draft lengths as in 0,1,3, or all"),
        (["--lengths", "0,9"], "9"),
        (["--lengths", "0,99"], "allowedLengths[1]: input should be less than or equal to 64 (found 99)"),
        (["--pin", "1-8"], "--pin 1-8: expected first-last=K"),
        (["--pin", "8-1=2"], "pinned[0]: must start after 0 and not end before it starts"),
        (["--pin", "1-8=2", "--pin", "4-9=1"], "pinned[1]: must start after 8"),
        (["--pin", "1-8=9"], "9"),
        (["--pin", "1-8=2", "--pin", "9-257=1"], "257 is beyond the table's last batch size, 256"),
        (["--tie-tolerance", "2"], "tieTolerance: input should be less than or equal to 1 (found 2.0)"),
        (["--tie-tolerance", "nan"], "tieTolerance"),
        (["--tie-tolerance", "x"], "tie-tolerance"),
        (["--unknown"], "--unknown"),
    ],
)
def test_bad_setting_ends_with_2_and_writes_nothing(tmp_path: Path, arguments: list[str], told: str) -> None:
    result = run("table", EXAMPLE, *arguments, "--output", tmp_path / "table.json")
    assert result.exit_code == ExitCode.BAD_INPUT
    assert told in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_document_without_the_times_for_a_table_is_refused(tmp_path: Path) -> None:
    content = json.loads(EXAMPLE.read_bytes())
    profile = content["profile"]
    for grid in ("stepTimeMs", "spreadMs", "graph"):
        profile[grid] = [[None] * len(profile["batchSizes"])] * len(profile["draftLengths"])
    profile["excluded"] = [
        {"batchSize": size, "draftLength": length, "reason": "The engine died."}
        for size in profile["batchSizes"]
        for length in profile["draftLengths"]
    ]
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    result = run("table", path)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert result.stderr.startswith(f"Error: {path}: ")
    assert result.stdout == ""


# show


def show(document: Document, tmp_path: Path) -> str:
    result = run("show", write(tmp_path / "shown.json", document))
    assert result.exit_code == ExitCode.OK
    return result.stdout


def test_page_has_every_part_within_80_columns(tmp_path: Path, example: Document) -> None:
    page = show(example, tmp_path)
    for heading in (
        "Serve with the table.",
        "Table",
        "Predicted goodput",
        "Step times",
        "Acceptance",
        "Measured on",
    ):
        assert re.search(f"^{re.escape(heading)}", page, re.MULTILINE), heading
    assert example.recommendation.reason.split(".")[0][:60] in page
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80
    assert "…" not in page


def test_page_marks_choice_and_steps_without_a_graph(tmp_path: Path, example: Document) -> None:
    page = show(example, tmp_path)
    # Row of batch size 256: K=0 is chosen at 8.593 ms; K=5 has no graph at 52.498 ms.
    row = next(line for line in page.splitlines() if re.match(r"\s+256 +8\.59", line))
    assert "8.59*" in row
    assert "52.50 n" in row


def test_page_names_excluded_cells_with_their_reason(tmp_path: Path, example: Document) -> None:
    content = json.loads(documents.dump(example))
    for grid in ("stepTimeMs", "spreadMs", "graph"):
        content["profile"][grid][5][11] = content["profile"][grid][5][10] = None
    content["profile"]["excluded"] = [
        {"batchSize": size, "draftLength": 5, "reason": "The engine died: illegal memory access"}
        for size in (192, 256)
    ]
    page = show(documents.validate_as(Document, content), tmp_path)
    assert "No time for K=5 at 192, 256: The engine died: illegal memory access" in page
    assert re.search(r"^\s+256 .* -\s*$", page, re.MULTILINE)


def test_page_tells_what_prompts_cost_and_which_settings_to_change(tmp_path: Path, example: Document) -> None:
    step = {"batchSize": 64, "draftLength": 3, "promptTokens": 256, "stepTimeMs": 18.25, "samples": 9}
    change = {
        "setting": "max_cudagraph_capture_size",
        "current": "512",
        "recommended": "1024",
        "predictedGain": 0.11,
        "reason": "Beyond 512 tokens a step has no graph.",
    }
    gap = {"draftLength": 2, "batchSizes": [*range(9, 90, 2), *range(91, 200)]}
    page = run(
        "show",
        write(
            tmp_path / "table.json",
            example,
            profile={"mixed": [step]},
            engine={"changes": [change], "predictedGain": 0.14, "withoutFullGraph": [gap]},
        ),
    ).stdout
    assert re.search(r"^ +64 +3 +256 +18\.25 +9 *$", page, re.MULTILINE)
    assert "max_cudagraph_capture_size: 512 -> 1024 (+11.0%)" in page
    assert "Together +14.0% output tokens per second" in page
    assert "Without a full graph at K=2: 150 batch sizes, 9 to 91 by 2, 92 to 199" in page
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80


def test_page_fits_also_with_many_lengths(tmp_path: Path, example: Document) -> None:
    content = json.loads(documents.dump(example))
    profile = content["profile"]
    profile["draftLengths"] = list(range(17))
    for grid, value in (("stepTimeMs", 123.4), ("spreadMs", 1.0), ("samples", 3), ("graph", "none")):
        profile[grid] = [[value] * len(profile["batchSizes"])] * 17
    content["acceptance"] |= {"survival": [0.5] * 16, "drafted": [9] * 16, "accepted": [4] * 16}
    page = show(documents.validate_as(Document, content), tmp_path)
    assert "K=16" in page
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80


def test_page_carries_no_control_characters_of_a_strangers_document(
    tmp_path: Path, example: Document
) -> None:
    path = write(
        tmp_path / "hostile.json",
        example,
        recommendation={"reason": "fine \x1b]0;owned\x07 \x1b[2J [red]not markup"},
    )
    result = run("show", path)
    assert "\x1b" not in result.stdout
    assert "[red]not markup" in result.stdout


@pytest.mark.parametrize(
    ("recommendation", "told"),
    [
        ({"kind": "off", "draftLength": None}, "Serve with speculation off."),
        ({"kind": "fixed", "draftLength": 3}, "Serve with the fixed draft length 3."),
    ],
)
def test_page_begins_with_the_recommendation(
    tmp_path: Path, example: Document, recommendation: dict[str, Any], told: str
) -> None:
    path = write(tmp_path / "table.json", example, recommendation=recommendation)
    assert run("show", path).stdout.splitlines()[0] == told


def test_document_from_standard_input_is_shown() -> None:
    assert run("show", "-", stdin=EXAMPLE.read_bytes()).stdout == run("show", EXAMPLE).stdout


# plot


def test_both_pictures_are_written_and_named(tmp_path: Path) -> None:
    result = run("plot", EXAMPLE, "--output-dir", tmp_path)
    assert result.exit_code == ExitCode.OK
    assert result.stdout.splitlines() == [
        str(tmp_path / "example-document.png"),
        str(tmp_path / "example-document.svg"),
    ]
    assert (tmp_path / "example-document.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "example-document.svg").read_bytes()


def test_one_format_is_drawn_where_one_is_asked_for(tmp_path: Path) -> None:
    assert run("plot", EXAMPLE, "--output-dir", tmp_path, "--format", "svg").exit_code == ExitCode.OK
    assert [path.name for path in tmp_path.iterdir()] == ["example-document.svg"]


def test_missing_folder_ends_with_6(tmp_path: Path) -> None:
    result = run("plot", EXAMPLE, "--output-dir", tmp_path / "nowhere", "--format", "svg")
    assert result.exit_code == ExitCode.OUTPUT_FAILED
    assert "The folder does not exist" in result.stderr


# render


def test_speculative_config_is_rendered(example: Document) -> None:
    result = run("render", EXAMPLE, "--to", "speculative-config")
    assert json.loads(result.stdout) == rendering.speculative_config(example)


def test_vllm_args_are_rendered(example: Document) -> None:
    result = run("render", EXAMPLE, "--to", "vllm-args")
    assert yaml.safe_load(result.stdout) == rendering.vllm_arguments(example)


def test_config_map_is_rendered_with_name_and_namespace(example: Document) -> None:
    result = run("render", EXAMPLE, "--to", "configmap", "--name", "qwen3", "--namespace", "serving")
    config_map = yaml.safe_load(result.stdout)
    assert config_map["metadata"]["name"] == "qwen3"
    assert config_map["metadata"]["namespace"] == "serving"
    assert documents.parse(config_map["data"]["table.json"]) == example


def test_given_speculative_config_takes_the_table(example: Document) -> None:
    base: dict[str, Any] = {"method": "eagle3", "model": "/elsewhere/eagle3"}
    result = run("render", EXAMPLE, "--to", "speculative-config", "--speculative-config", json.dumps(base))
    assert json.loads(result.stdout) == rendering.speculative_config(example, base)


def test_speculation_off_is_said(tmp_path: Path, example: Document) -> None:
    path = write(tmp_path / "table.json", example, recommendation={"kind": "off", "draftLength": None})
    result = run("render", path, "--to", "speculative-config")
    assert result.exit_code == ExitCode.OK
    assert result.stdout == "null\n"
    assert "Warning: Speculation off serves best" in result.stderr


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("speculative-config", "speculative-config.json"),
        ("vllm-args", "vllm-args.yaml"),
        ("configmap", "configmap.yaml"),
    ],
)
def test_rendered_folder_checks_as_up_to_date(tmp_path: Path, form: str, name: str) -> None:
    assert run("render", EXAMPLE, "--to", form, "--output", tmp_path).exit_code == ExitCode.OK
    assert [path.name for path in tmp_path.iterdir()] == [name]
    for place in (tmp_path, tmp_path / name):
        result = run("render", EXAMPLE, "--to", form, "--check", place)
        assert result.exit_code == ExitCode.OK
        assert result.stdout == ""
        assert "is up to date" in result.stderr


def test_check_of_another_documents_file_ends_with_1_and_a_diff(tmp_path: Path, example: Document) -> None:
    run("render", EXAMPLE, "--to", "vllm-args", "--output", tmp_path)
    written = (tmp_path / "vllm-args.yaml").read_bytes()
    other = write(tmp_path / "other.json", example, generation=2, table=[[1, 256, 4]])
    result = run("render", other, "--to", "vllm-args", "--check", tmp_path)
    assert result.exit_code == ExitCode.DIFFERENT
    assert "+  - [1, 256, 4]" in result.stdout.splitlines()
    assert any(line.startswith("-  - [1, ") for line in result.stdout.splitlines())
    assert (tmp_path / "vllm-args.yaml").read_bytes() == written


def test_check_of_a_missing_file_ends_with_2(tmp_path: Path) -> None:
    result = run("render", EXAMPLE, "--to", "vllm-args", "--check", tmp_path)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "vllm-args.yaml cannot be read" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "helm"], "helm"),
        ([], "--to"),
        (["--to", "configmap", "--name", "Not A Name"], "DNS subdomain"),
        (["--to", "vllm-args", "--speculative-config", "{"], "--speculative-config is no JSON"),
        (["--to", "vllm-args", "--speculative-config", "[1]"], "expected a JSON object"),
        (["--to", "vllm-args", "--speculative-config", "{}"], "names neither method nor model"),
        (["--to", "vllm-args", "--speculative-config", '{"method": "ngram"}'], "the method ngram, and the"),
        (["--to", "vllm-args", "--speculative-config", '{"a": NaN}'], "NaN is not a JSON number"),
        (["--to", "vllm-args", "--speculative-config", '{"a": -Infinity}'], "-Infinity is not a JSON"),
        (["--to", "vllm-args", "--speculative-config", '{"a": 1e999}'], "finite numbers"),
        (["--to", "vllm-args", "--speculative-config", '{"a": "\\ud800"}'], "valid text"),
        (["--to", "vllm-args", "--speculative-config", '{"a": 1, "a": 2}'], "'a' is given twice"),
        (["--to", "vllm-args", "--name", "draft-table"], "give them with --to configmap"),
        (["--to", "speculative-config", "--namespace", "a"], "give them with --to configmap"),
        (["--to", "vllm-args", "--output", ""], "--output is empty"),
        (["--to", "vllm-args", "--output", "a", "--check", "a"], "--check writes nothing"),
    ],
)
def test_bad_rendering_argument_ends_with_2(arguments: list[str], told: str) -> None:
    result = run("render", EXAMPLE, *arguments)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert told in result.stderr
    assert result.stdout == ""


# diff


def test_equal_documents_end_with_0_and_print_nothing() -> None:
    result = run("diff", EXAMPLE, EXAMPLE)
    assert result.exit_code == ExitCode.OK
    assert result.stdout == ""
    assert result.stderr == "The documents are equal.\n"


def test_differing_documents_end_with_1_and_what_differs(tmp_path: Path, example: Document) -> None:
    times = json.loads(documents.dump(example))["profile"]["stepTimeMs"]
    times[1][0] = 2 * times[1][0]
    path = write(
        tmp_path / "new.json",
        example,
        generation=2,
        table=[[1, 256, 3]],
        profile={"stepTimeMs": times},
        acceptance={"survival": [0.70, 0.56, 0.42, 0.31, 0.23]},
        control={"tieTolerance": 0.05},
        fingerprint={"gpu": "NVIDIA H100"},
    )
    result = run("diff", EXAMPLE, path)
    assert result.exit_code == ExitCode.DIFFERENT
    page = result.stdout
    assert page.startswith("Generation 1 -> 2\n")
    assert 'gpu: "NVIDIA H200" -> "NVIDIA H100"' in page
    first, last, length = example.table[0]
    assert re.search(rf"^ +{first}-{last} +{length} +3 *$", page, re.MULTILINE)
    # One of 72 cells took twice as long: 2 ** (1 / 72) = 1.0097.
    assert "1.010 in the geometric mean of 72 common cells" in page
    assert re.search(r"^ +1 +1 +4\.04 +8\.07 +2\.000 *$", page, re.MULTILINE)
    assert re.search(r"^ +1 +0\.760 +0\.700 *$", page, re.MULTILINE)
    assert "tieTolerance: 0.01 -> 0.05" in page
    assert "tokens of context" not in page
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80


def test_step_times_at_other_contexts_are_told_to_be_so(tmp_path: Path, example: Document) -> None:
    path = write(tmp_path / "new.json", example, profile={"contextLength": 4_224})
    page = " ".join(run("diff", EXAMPLE, path).stdout.split())
    before = f"before at {example.profile.context_length}:"
    assert f"Steps were timed at 4,224 tokens of context per request, {before} longer contexts take" in page


def test_differences_are_json_for_a_program(tmp_path: Path, example: Document) -> None:
    path = write(tmp_path / "new.json", example, generation=2, table=[[1, 256, 3]])
    result = run("diff", "--json", EXAMPLE, path)
    assert result.exit_code == ExitCode.DIFFERENT
    comparison = json.loads(result.stdout)
    assert comparison["newGeneration"] == 2
    first, last, length = example.table[0]
    assert {"first": first, "last": last, "old": length, "new": 3} in comparison["table"]


# validate


def test_every_document_is_judged(tmp_path: Path) -> None:
    result = run("validate", EXAMPLE, bad(tmp_path / "bad.json"), tmp_path / "nothing.json")
    assert result.exit_code == ExitCode.BAD_INPUT
    lines = result.stdout.splitlines()
    assert lines[0] == f"{EXAMPLE}: good"
    assert lines[1] == f"{tmp_path / 'bad.json'}: 2 faults"
    assert lines[4] == f"{tmp_path / 'nothing.json'}: a fault"


def test_verdicts_are_json_for_a_program(tmp_path: Path) -> None:
    path = bad(tmp_path / "bad.json")
    result = run("validate", "--json", EXAMPLE, path)
    assert result.exit_code == ExitCode.BAD_INPUT
    good, broken = json.loads(result.stdout)
    assert good == {"file": str(EXAMPLE), "valid": True, "problems": [], "disagreements": []}
    assert broken["valid"] is False
    assert {problem["path"] for problem in broken["problems"]} == {
        "acceptance.survival[0]",
        "profile.stepTimeMs[2][1]",
    }


def test_good_documents_end_with_0() -> None:
    assert run("validate", EXAMPLE).exit_code == ExitCode.OK


def test_table_edited_by_hand_is_named_and_no_fault(tmp_path: Path) -> None:
    content = json.loads(EXAMPLE.read_bytes())
    content["table"] = [[1, content["fingerprint"]["maxNumSeqs"], 0]]
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    result = run("validate", path)
    assert result.exit_code == ExitCode.OK
    assert result.stdout.splitlines()[0] == f"{path}: good"
    assert "  table: not what its own measurements make." in result.stdout


# schema


def test_schema_is_printed() -> None:
    assert json.loads(run("schema").stdout) == schemas.table_schema()


# all of them


def test_exit_codes_keep_their_numbers() -> None:
    # Scripts and the operator know them by number.
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "DIFFERENT": 1,
        "BAD_INPUT": 2,
        "NOT_SERVABLE": 3,
        "ENGINE_FAILED": 4,
        "INTERRUPTED": 5,
        "OUTPUT_FAILED": 6,
        "INTERNAL": 70,
        "BROKEN_PIPE": 141,
    }


def test_every_command_has_help_with_an_example() -> None:
    without = [
        command.__name__
        for command in main.COMMANDS
        if f"tabletune {command.__name__} " not in run(command.__name__, "--help").stdout.split("Example")[-1]
    ]
    assert without == []


def test_no_command_shows_the_help_of_all() -> None:
    result = run()
    assert all(command.__name__ in result.output for command in main.COMMANDS)


def test_version_is_printed() -> None:
    assert re.fullmatch(r"tabletune \d+\.\d+\.\d+\n", run("--version").stdout)


def test_start_imports_neither_vllm_nor_matplotlib() -> None:
    heavy = "{'vllm', 'torch', 'matplotlib', 'kubernetes', 'kopf'}"
    code = f"import sys, tabletune_profiler.main; sys.exit(str({heavy} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr.strip() == "set()"


def test_full_disk_behind_standard_output_ends_with_6() -> None:
    # `show` prints for people and `schema` writes data: two ways to standard output.
    for command in ("schema", f"show {EXAMPLE}"):
        result = run_in_shell(f"tabletune {command} > /dev/full")
        assert result.returncode == ExitCode.OUTPUT_FAILED
        assert "Standard output could not be written: No space left on device." in result.stderr


def test_reader_that_has_seen_enough_is_no_error() -> None:
    result = run_in_shell(f"tabletune show {EXAMPLE} | head -1")
    assert result.stdout == "Serve with the table.\n"
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["schema", f"show {EXAMPLE}", "--help", "--version"])
def test_command_without_a_reader_ends_with_141(command: str, tmp_path: Path) -> None:
    # The pipe's other end is closed before the command prints.
    script = f"mkfifo {tmp_path}/pipe; exec 4<>{tmp_path}/pipe 5>{tmp_path}/pipe; exec 4<&-"
    result = run_in_shell(f"{script}; tabletune {command} >&5")
    assert (result.returncode, result.stderr) == (ExitCode.BROKEN_PIPE, "")


def test_help_and_version_on_a_full_disk_end_with_6() -> None:
    for command in ("--version", "--help", "show --help"):
        result = run_in_shell(f"tabletune {command} > /dev/full")
        assert result.returncode == ExitCode.OUTPUT_FAILED
        assert "Standard output could not be written" in result.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"show {EXAMPLE} >&-", ExitCode.OUTPUT_FAILED),
        ("--help >&-", ExitCode.OUTPUT_FAILED),
        (f"diff {EXAMPLE} {EXAMPLE} 2>&-", ExitCode.OK),
        ("show /nowhere >&- 2>&-", ExitCode.BAD_INPUT),
        ("show - <&-", ExitCode.BAD_INPUT),
    ],
)
def test_closed_stream_is_no_fault_of_the_program(command: str, code: ExitCode) -> None:
    result = run_in_shell(f"tabletune {command}")
    assert result.returncode == code
    assert "Traceback" not in result.stderr


def test_character_that_the_terminal_lacks_is_replaced(tmp_path: Path, example: Document) -> None:
    path = write(tmp_path / "table.json", example, recommendation={"reason": "模型 is fast."})
    result = run_in_shell(f"tabletune show {path}; tabletune show /模", PYTHONIOENCODING="latin1")
    assert "?? is fast." in result.stdout
    assert "/? cannot be read" in result.stderr


def test_file_name_that_is_no_text_keeps_its_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    Path(name).write_bytes(EXAMPLE.read_bytes())
    for arguments in (
        ["validate", name],
        ["plot", name, "--format", "svg", "--output-dir", str(tmp_path)],
        ["render", EXAMPLE, "--to", "vllm-args", "--check", name],
    ):
        result = run(*arguments)
        assert result.exit_code in (ExitCode.OK, ExitCode.DIFFERENT), result.output
        assert os.fsencode(tmp_path) + b"/\xff." in result.stdout_bytes


@pytest.mark.parametrize("columns", ["0", "1", "39"])
def test_terminal_narrower_than_a_page_cuts_nothing(columns: str) -> None:
    command = f"tabletune show {EXAMPLE}; tabletune show --help"
    narrow = run_in_shell(command, COLUMNS=columns)
    assert narrow.stdout == run_in_shell(command, COLUMNS="80").stdout
    assert "Usage" in narrow.stdout
    assert "…" not in narrow.stdout


def test_number_wider_than_the_page_keeps_its_digits(tmp_path: Path, example: Document) -> None:
    columns = len(example.prediction.batch_sizes)
    goodput = {name: [987_654_321_012.0] * columns for name in ("table", "best", "fixed", "off")}
    times = [[3_599_999.0] * columns] * len(example.profile.draft_lengths)
    page = show_changed(tmp_path, example, prediction=goodput, profile={"stepTimeMs": times})
    assert "…" not in page
    assert "3599999.0" in page


def show_changed(tmp_path: Path, example: Document, **changes: Any) -> str:
    return run("show", write(tmp_path / "wide.json", example, **changes)).stdout


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("b.png", ["plot", "{doc}", "--output-dir", "{folder}"]),
        ("b.svg", ["plot", "{doc}", "--output-dir", "{folder}"]),
        ("b.json", ["render", "{doc}", "--to", "vllm-args", "--output", "{doc}"]),
        ("b.json", ["render", "{doc}", "--to", "vllm-args", "--output", "{folder}/link"]),
        ("vllm-args.yaml", ["render", "{doc}", "--to", "vllm-args", "--output", "{folder}"]),
    ],
)
def test_output_that_is_the_document_is_refused(tmp_path: Path, name: str, command: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(EXAMPLE.read_bytes())
    (tmp_path / "link").symlink_to(path)
    result = run(*(part.format(doc=path, folder=tmp_path) for part in command))
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "is the input itself" in result.stderr
    assert path.read_bytes() == EXAMPLE.read_bytes()
    assert {found.name for found in tmp_path.iterdir()} == {name, "link"}


def test_output_that_is_the_file_behind_standard_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(EXAMPLE.read_bytes())
    result = run_in_shell(f"tabletune render - --to vllm-args --output {path} < {path}")
    assert result.returncode == ExitCode.BAD_INPUT
    assert path.read_bytes() == EXAMPLE.read_bytes()


def test_picture_that_cannot_be_drawn_leaves_no_half_of_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Document) -> bytes:
        raise MemoryError

    monkeypatch.setattr(plotting, "svg", fail)
    assert run("plot", EXAMPLE, "--output-dir", tmp_path).exit_code != ExitCode.OK
    assert list(tmp_path.iterdir()) == []


def test_changed_length_of_a_given_speculative_config_is_said(tmp_path: Path, example: Document) -> None:
    path = write(tmp_path / "table.json", example, table=[[1, 256, 2]])
    base = json.dumps({"method": "eagle3", "num_speculative_tokens": 5})
    result = run("render", path, "--to", "speculative-config", "--speculative-config", base)
    assert "Warning: num_speculative_tokens is 2" in result.stderr
    assert "in place of 5" in result.stderr


def test_fault_of_the_program_ends_with_70_and_a_traceback(tmp_path: Path) -> None:
    code = (
        "from tabletune_profiler import files, main\n"
        "def fail(*_): raise RuntimeError('unforeseen')\n"
        "files.read_document = fail\n"
        "main.run()\n"
    )
    script = tmp_path / "faulty.py"
    script.write_text(code)
    result = run_in_shell(f"{sys.executable} {script} show {EXAMPLE}")
    assert result.returncode == ExitCode.INTERNAL
    assert "RuntimeError: unforeseen" in result.stderr
    assert "Please report it" in result.stderr


def test_published_pages_are_those_of_the_code() -> None:
    stale = [
        path.name
        for path, text in generate_reference.pages().items()
        if not path.exists() or path.read_text() != text
    ]
    assert stale == [], "run tools/generate_reference.py"
