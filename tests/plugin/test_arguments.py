"""The arguments of ``vllm serve``: the start-up table, and vLLM's own parser where vLLM is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import tables
from tabletune.documents import TABLE_KEY
from tabletune_plugin.engine import arguments
from tabletune_plugin.engine.arguments import ArgumentsError, ServeArguments

# The start-up table


def test_every_length_gets_one_of_the_largest_batch_sizes() -> None:
    # The sizes that vLLM chooses for a length end at the largest batch size that the table gives to it.
    assert arguments.startup_table((0, 1, 2), 256) == [[1, 254, 0], [255, 255, 1], [256, 256, 2]]


def test_single_length_gets_all_batch_sizes() -> None:
    assert arguments.startup_table((3,), 8) == [[1, 8, 3]]


def test_as_many_lengths_as_batch_sizes_fit() -> None:
    assert arguments.startup_table((3, 0, 1, 1), 3) == [[1, 1, 0], [2, 2, 1], [3, 3, 3]]


def test_more_lengths_than_batch_sizes_are_refused_with_both_numbers() -> None:
    with pytest.raises(ArgumentsError, match=r"4 draft lengths do not fit .* --max-num-seqs 3 .*Raise --max"):
        arguments.startup_table((0, 1, 2, 3), 3)


@settings(max_examples=60)
@given(st.sets(st.integers(0, 64), min_size=1, max_size=12), st.integers(12, 1_024))
def test_startup_table_is_contiguous_and_names_each_length_once(lengths: set[int], max_num_seqs: int) -> None:
    table = arguments.startup_table(tuple(lengths), max_num_seqs)
    assert [length for _, _, length in table] == sorted(lengths)
    assert [first for first, _, _ in table] == [1, *(last + 1 for _, last, _ in table[:-1])]
    assert table[-1][1] == max_num_seqs
    assert all(last > max_num_seqs - len(lengths) for _, last, _ in table)


def test_startup_table_suits_any_number_of_requests_where_that_is_not_known() -> None:
    table = [(first, last, length) for first, last, length in arguments.startup_table([0, 1, 3], None)]
    for most in (3, 7, 128, 256, 1_000, 4_096, 10_000):
        lookup = tables.lookup(table, most)
        for length in (0, 1, 3):
            widest = max(size for size, found in enumerate(lookup) if size and found == length)
            assert widest > min(most, arguments.MOST_STARTUP_SEQUENCES) - 3


# vLLM's own parser. Importing vLLM takes seconds, so these run with the tests on the engine; none starts one.

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


def parse(*words: str, speculative: dict[str, Any] | None = NGRAM) -> ServeArguments:
    pytest.importorskip("vllm")
    given_ = [] if speculative is None else ["--speculative-config", json.dumps(speculative)]
    return arguments.parse([*words, *given_])


on_engine = pytest.mark.engine
quietly = pytest.mark.filterwarnings("ignore")


@on_engine
@quietly
def test_arguments_are_those_of_vllm_serve() -> None:
    found = parse("org/model", "--max-num-seqs", "16", "--max-model-len=512")
    assert (found.model, found.longest_draft, found.had_table) == ("org/model", 3, False)
    assert found.speculative_config == NGRAM
    assert (found.namespace.max_num_seqs, found.namespace.max_model_len) == (16, 512)


@on_engine
@quietly
def test_table_of_the_users_own_is_set_aside() -> None:
    found = parse("org/model", speculative=NGRAM | {TABLE_KEY: [[1, 4, 3], [5, 8, 0]]})
    assert found.had_table
    assert found.speculative_config == NGRAM


@on_engine
@quietly
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("org/model", "--no-such-thing"), "--no-such-thing"),
        (("org/model", "--max-num-seqs"), "--max-num-seqs"),
        (("org/model", "--max-num-seqs", "many"), "many"),
        (("org/model", "and-another"), "and-another"),
        (("org/model", "--config", "/nowhere/vllm.yaml"), "/nowhere/vllm.yaml"),
        (("--help",), "they ask for help"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_argument_that_vllm_does_not_take_is_named(
    words: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        ArgumentsError, match=f"(?s)vLLM does not take these arguments: .*{complaint}"
    ) as caught:
        parse(*words)
    assert "Traceback" not in str(caught.value)
    assert "usage:" not in capfd.readouterr().err


@on_engine
@quietly
def test_missing_speculative_config_is_told_with_an_example() -> None:
    with pytest.raises(ArgumentsError, match=r"--speculative-config is missing.*\"method\": \"ngram\""):
        parse("org/model", speculative=None)


@on_engine
@quietly
@pytest.mark.parametrize("longest", [None, 0, -1, 2.5, "3", True])
def test_longest_draft_that_is_none_is_told(longest: object) -> None:
    with pytest.raises(
        ArgumentsError, match=r"num_speculative_tokens in --speculative-config is .* 1 or more"
    ):
        parse("org/model", speculative=NGRAM | {"num_speculative_tokens": longest})


@on_engine
@quietly
def test_config_file_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(f"model: org/from-file\nmax-num-seqs: 24\nspeculative-config: '{json.dumps(NGRAM)}'\n")
    found = parse("--config", str(file), speculative=None)
    assert (found.model, found.namespace.max_num_seqs) == ("org/from-file", 24)
    assert found.speculative_config == NGRAM
    # An argument on the command line wins over the file.
    found = parse("org/mine", "--config", str(file), "--max-num-seqs", "8", speculative=None)
    assert (found.model, found.namespace.max_num_seqs) == ("org/mine", 8)


@on_engine
@quietly
@pytest.mark.parametrize(
    "content", ["", "- a list", "a: [1, 2", "model: org/model\nno-such-thing: 1"], ids=repr
)
def test_config_file_that_vllm_cannot_use_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "vllm.yaml").write_text(content)
    with pytest.raises(ArgumentsError, match="vLLM does not take these arguments: "):
        parse("--config", str(tmp_path / "vllm.yaml"))


@on_engine
@quietly
@pytest.mark.parametrize("text", ["{", "[1]", "3", '"text"'])
def test_speculative_config_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ArgumentsError, match="--speculative-config"):
        parse("org/model", "--speculative-config", text, speculative=None)


@on_engine
@quietly
def test_shortcuts_of_the_speculative_config_are_put_into_it() -> None:
    found = parse("org/model", "--spec-method", "ngram", "--spec-tokens", "3", speculative=None)
    assert found.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}
    # vLLM refuses the two together, also what it would read twice from the namespace.
    assert found.namespace.spec_method is None
    with pytest.raises(
        ArgumentsError, match=r"--spec-tokens and num_speculative_tokens of --spec.* Give one"
    ):
        parse("org/model", "--spec-tokens", "3")


@on_engine
@quietly
def test_keys_with_hyphens_are_vllms_own_with_underscores() -> None:
    hyphens = {"method": "ngram", "num-speculative-tokens": 3, TABLE_KEY.replace("_", "-"): []}
    found = parse("org/model", speculative=hyphens)
    assert found.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}
    assert found.had_table


@on_engine
@quietly
def test_missing_model_folder_is_named() -> None:
    # vLLM would take it for a repository's name, and speak of the form of those.
    with pytest.raises(ArgumentsError, match=r"There is no model at /nowhere/model\."):
        parse("/nowhere/model")


@on_engine
@quietly
def test_model_that_no_hub_gives_is_refused_in_vllms_words() -> None:
    with pytest.raises(ArgumentsError, match=r"vLLM refuses this configuration: "):
        arguments.vllm_config(parse("nobody/nothing"), (0, 3))


@on_engine
@quietly
def test_configuration_is_that_of_the_api_server_with_a_table_for_every_length(model_folder: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    parsed = parse(str(model_folder), "--max-model-len", "512")
    config = arguments.vllm_config(parsed, (0, 1, 3))
    # What `vllm serve` itself makes of these arguments without --max-num-seqs.
    own = AsyncEngineArgs.from_cli_args(parse(str(model_folder), "--max-model-len", "512").namespace)
    served = own.create_engine_config(UsageContext.OPENAI_API_SERVER)
    most = served.scheduler_config.max_num_seqs
    assert config.scheduler_config.max_num_seqs == most
    assert config.scheduler_config.max_num_batched_tokens == served.scheduler_config.max_num_batched_tokens
    table = config.speculative_config.num_speculative_tokens_per_batch_size
    assert [list(entry) for entry in table] == arguments.startup_table((0, 1, 3), most)
    assert config.speculative_config.num_speculative_tokens == 3
    # The user's own arguments are as they were.
    assert parsed.speculative_config == NGRAM


@on_engine
@quietly
def test_more_lengths_than_requests_are_refused(model_folder: Path) -> None:
    with pytest.raises(ArgumentsError, match="4 draft lengths do not fit"):
        arguments.vllm_config(
            parse(str(model_folder), "--max-num-seqs", "3", "--max-model-len", "512"), (0, 1, 2, 3)
        )
