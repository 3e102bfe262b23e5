import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import documents, rendering
from tabletune.documents import TABLE_KEY, Document, DocumentError
from tabletune.rendering import RenderingError

EXAMPLE = Path(__file__).parents[1] / "data" / "example-document.json"

BASE: dict[str, Any] = {"method": "eagle3", "model": "/elsewhere/eagle3", "max_model_len": 2048}

NO_ADVICE: dict[str, Any] = {
    "maxNumSeqs": None,
    "cudagraphCaptureSizes": [],
    "maxCudagraphCaptureSize": None,
    "cudagraphMode": None,
}


@pytest.fixture(scope="module")
def example() -> Document:
    return documents.parse(EXAMPLE.read_bytes())


def changed(document: Document, **changes: object) -> Document:
    content = json.loads(documents.dump(document))
    for name, value in changes.items():
        content[name] = content[name] | value if isinstance(value, dict) and name in content else value
    return documents.validate_as(Document, content)


def with_table(document: Document, *ranges: list[int]) -> Document:
    return changed(document, table=list(ranges), recommendation={"kind": "table", "draftLength": None})


def test_table_comes_with_its_longest_length_and_the_profiled_drafter(example: Document) -> None:
    document = with_table(example, [1, 8, 3], [9, 256, 1])
    config = rendering.speculative_config(document)
    assert config == document.speculative_config | {
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 256, 1]],
    }


def test_given_base_replaces_the_profiled_one(example: Document) -> None:
    document = with_table(example, [1, 256, 2])
    config = rendering.speculative_config(document, BASE | {"num_speculative_tokens": 5})
    assert config == BASE | {
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": [[1, 256, 2]],
    }


@pytest.mark.parametrize("method", ["ngram", "", 3, ["eagle3"]])
def test_base_of_another_method_than_the_profiled_one_is_refused(example: Document, method: Any) -> None:
    with pytest.raises(RenderingError, match="profiled with eagle3"):
        rendering.speculative_config(with_table(example, [1, 256, 2]), {"method": method})


def test_method_under_the_name_that_it_was_given_to_vllm_by_is_the_profiled_one(example: Document) -> None:
    document = changed(
        with_table(example, [1, 256, 2]),
        fingerprint={"drafterMethod": "mtp"},
        speculativeConfig={"method": "deepseek_mtp"},
    )
    for method in ("mtp", "deepseek_mtp"):
        assert rendering.speculative_config(document, {"method": method})


def test_fixed_recommendation_has_a_length_and_no_table(example: Document) -> None:
    document = changed(example, recommendation={"kind": "fixed", "draftLength": 2})
    base = BASE | {"num_speculative_tokens_per_batch_size": [[1, 256, 3]]}
    assert rendering.speculative_config(document, base) == BASE | {"num_speculative_tokens": 2}


def test_off_recommendation_has_no_speculative_config(example: Document) -> None:
    document = changed(example, recommendation={"kind": "off", "draftLength": None})
    assert rendering.speculative_config(document) is None
    assert rendering.speculative_config_json(document) == "null\n"
    assert "speculative-config" not in rendering.vllm_arguments(document)
    assert "no speculation" in rendering.vllm_args_yaml(document).splitlines()[0]


def test_table_of_zeros_is_off_since_vllm_takes_no_length_zero(example: Document) -> None:
    assert rendering.speculative_config(with_table(example, [1, 256, 0])) is None


def test_synthetic_rates_are_cut_to_the_length(example: Document) -> None:
    base = BASE | {"synthetic_acceptance_rates": [0.7, 0.5, 0.3, 0.2, 0.1]}
    config = rendering.speculative_config(with_table(example, [1, 256, 2]), base)
    assert config is not None
    assert config["synthetic_acceptance_rates"] == [0.7, 0.5]


def test_unknown_drafter_is_refused_with_what_to_pass(example: Document) -> None:
    with pytest.raises(RenderingError, match=r"eagle3 drafting.*--speculative-config"):
        rendering.speculative_config(example, {"num_speculative_tokens": 3})


def test_fixed_without_a_length_is_refused(example: Document) -> None:
    document = changed(example, recommendation={"kind": "fixed", "draftLength": None})
    with pytest.raises(RenderingError, match="draftLength"):
        rendering.speculative_config(document)


def test_documents_own_speculative_config_must_not_hold_a_table(example: Document) -> None:
    with pytest.raises(
        DocumentError, match=r"speculativeConfig\.num_speculative_tokens_per_batch_size: must"
    ):
        changed(example, speculativeConfig={"num_speculative_tokens_per_batch_size": [[1, 2, 3]]})


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([[[[1]]]], "must nest at most 4 levels"),
        ("x" * 20_000, "must be at most 16384 bytes"),
        (math.inf, "finite"),
        ("\ud800", "valid text"),
    ],
)
def test_documents_own_speculative_config_is_bounded(example: Document, value: object, fault: str) -> None:
    with pytest.raises(DocumentError, match=fault):
        changed(example, speculativeConfig={"method": "ngram", "extra": value})


def test_engine_advice_becomes_arguments(example: Document) -> None:
    engine = {
        "maxNumSeqs": 252,
        "cudagraphCaptureSizes": [24, 12, 36],
        "maxCudagraphCaptureSize": 36,
        "cudagraphMode": "FULL",
    }
    arguments = rendering.vllm_arguments(changed(example, engine=engine))
    arguments.pop("speculative-config", None)
    assert arguments == {
        "max-num-seqs": 252,
        "cudagraph-capture-sizes": [12, 24, 36],
        "max-cudagraph-capture-size": 36,
        "compilation-config": {"cudagraph_mode": "FULL"},
    }


def test_largest_capture_size_is_that_of_the_sizes_vllm_keeps(example: Document) -> None:
    # vLLM drops 48, above max_num_batched_tokens, and refuses a max_cudagraph_capture_size of 48 then.
    document = changed(
        example,
        fingerprint={"maxNumBatchedTokens": 40},
        engine={"cudagraphCaptureSizes": [12, 24, 48], "maxCudagraphCaptureSize": 48},
    )
    arguments = rendering.vllm_arguments(document)
    assert arguments["cudagraph-capture-sizes"] == [12, 24]
    assert arguments["max-cudagraph-capture-size"] == 24


def test_largest_capture_size_stands_alone_without_sizes(example: Document) -> None:
    document = changed(example, engine={"cudagraphCaptureSizes": [], "maxCudagraphCaptureSize": 1024})
    arguments = rendering.vllm_arguments(document)
    assert arguments["max-cudagraph-capture-size"] == 1024
    assert "cudagraph-capture-sizes" not in arguments


def test_nothing_to_say_is_an_empty_mapping_which_vllm_needs(example: Document) -> None:
    document = changed(example, recommendation={"kind": "off", "draftLength": None}, engine=NO_ADVICE)
    assert yaml.safe_load(rendering.vllm_args_yaml(document)) == {}


def test_yaml_of_arguments_is_ascii_and_keeps_the_text(example: Document) -> None:
    text = rendering.vllm_args_yaml(
        with_table(example, [1, 256, 1]), {"model": "/モデル: #1", "method": "eagle3"}
    )
    assert text.isascii()
    assert yaml.safe_load(text)["speculative-config"]["model"] == "/モデル: #1"


def test_yaml_has_a_range_a_line(example: Document) -> None:
    text = rendering.vllm_args_yaml(with_table(example, [1, 8, 3], [9, 256, 1]))
    assert "  - [1, 8, 3]\n  - [9, 256, 1]\n" in text


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
configs = st.dictionaries(st.text(max_size=20), scalars | st.lists(scalars, max_size=3), max_size=5)


@settings(max_examples=60)
@given(config=configs)
def test_any_base_survives_both_forms(config: dict[str, Any]) -> None:
    document = with_table(documents.parse(EXAMPLE.read_bytes()), [1, 256, 2])
    base = config | {"method": "eagle3"}
    expected = rendering.speculative_config(document, base)
    assert json.loads(rendering.speculative_config_json(document, base)) == expected
    text = rendering.vllm_args_yaml(document, base)
    assert yaml.safe_load(text)["speculative-config"] == expected


def test_config_map_has_the_document_and_both_forms(example: Document) -> None:
    config_map = rendering.config_map(
        example, name="qwen3-h200", namespace="serving", labels={"app.kubernetes.io/part-of": "llm"}
    )
    assert config_map["apiVersion"] == "v1"
    assert config_map["kind"] == "ConfigMap"
    assert config_map["metadata"] == {
        "name": "qwen3-h200",
        "namespace": "serving",
        "labels": {"app.kubernetes.io/part-of": "llm"},
        "annotations": {"tabletune.dev/generation": str(example.generation)},
    }
    assert config_map["data"] == {
        "table.json": documents.dump(example).decode(),
        "speculative-config.json": rendering.speculative_config_json(example),
        "vllm-args.yaml": rendering.vllm_args_yaml(example),
    }


def test_manifest_reads_back_as_the_same_object(example: Document) -> None:
    config_map = rendering.config_map(example, name="table")
    assert yaml.safe_load(rendering.manifest(config_map)) == config_map


def test_document_stays_readable_in_the_manifest(example: Document) -> None:
    assert "  table.json: |\n    {\n" in rendering.manifest(rendering.config_map(example, name="table"))


@pytest.mark.parametrize("name", ["", "Table", "-a", "a..b", "a_b", "a" * 254, "a\n"])
def test_name_that_kubernetes_refuses_is_refused(example: Document, name: str) -> None:
    with pytest.raises(RenderingError, match="DNS subdomain"):
        rendering.config_map(example, name=name)


@pytest.mark.parametrize("namespace", ["", "a.b", "A", "a" * 64])
def test_namespace_that_kubernetes_refuses_is_refused(example: Document, namespace: str) -> None:
    with pytest.raises(RenderingError, match="DNS label"):
        rendering.config_map(example, name="table", namespace=namespace)


def test_config_map_above_one_mebibyte_is_refused_with_its_parts(example: Document) -> None:
    # A document may have 900,000 bytes and a reason 4,096 characters: 300 excluded cells of them, at four
    # bytes a character, make 4.9 MB.
    cells = [{"batchSize": size, "draftLength": 9, "reason": "😀" * 4_096} for size in range(1, 301)]
    document = changed(example, profile={"excluded": cells})
    with pytest.raises(RenderingError, match=r"Kubernetes takes 1048576.*fewer"):
        rendering.config_map(document, name="table")


# vLLM's own parser, with which these tests parse; no engine is started.


@pytest.fixture(scope="module")
def parse(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return what ``vllm serve MODEL --config FILE`` makes of a file's text and further arguments."""
    pytest.importorskip("vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM and torch use what they deprecate
        try:
            from vllm.entrypoints.launchers.cli_args import make_arg_parser
        except ImportError:
            from vllm.entrypoints.common.cli_args import (  # type: ignore[import-not-found,no-redef]
                make_arg_parser,  # where vLLM 0.33 has it
            )
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = make_arg_parser(FlexibleArgumentParser())  # type: ignore[no-untyped-call]
    path = tmp_path_factory.mktemp("config") / "vllm-args.yaml"

    def parse(text: str, *arguments: str) -> Any:
        path.write_text(text)
        return parser.parse_args(["--config", str(path), *arguments])

    return parse


@pytest.mark.engine
def test_vllm_reads_from_the_file_what_the_document_says(
    parse: Callable[..., Any], example: Document
) -> None:
    document = changed(
        with_table(example, [1, 8, 3], [9, 256, 1]),
        engine={"maxNumSeqs": 252, "cudagraphCaptureSizes": [12, 24], "cudagraphMode": "FULL"},
    )
    arguments = parse(rendering.vllm_args_yaml(document))
    assert arguments.speculative_config == rendering.speculative_config(document)
    assert arguments.max_num_seqs == 252
    assert arguments.cudagraph_capture_sizes == [12, 24]
    assert arguments.max_cudagraph_capture_size == 24
    assert arguments.compilation_config.cudagraph_mode.name == "FULL"


@pytest.mark.engine
def test_vllm_looks_up_the_lengths_of_the_table(example: Document) -> None:
    dynamic = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils")
    config = rendering.speculative_config(with_table(example, [1, 8, 3], [9, 256, 1]))
    assert config is not None
    lookup = dynamic.build_dynamic_sd_schedule_lookup(
        config[TABLE_KEY], 256, config["num_speculative_tokens"]
    )
    assert lookup[1:] == [3] * 8 + [1] * 248


@pytest.mark.engine
def test_vllm_takes_the_empty_file_and_null_for_no_speculation(
    parse: Callable[..., Any], example: Document
) -> None:
    document = changed(example, recommendation={"kind": "off", "draftLength": None}, engine=NO_ADVICE)
    assert parse(rendering.vllm_args_yaml(document)).speculative_config is None
    text = rendering.speculative_config_json(document)
    assert parse("{}", "--speculative-config", text).speculative_config is None


@pytest.mark.engine
def test_vllm_keeps_the_capture_sizes_beside_the_pods_own_compilation_config(
    parse: Callable[..., Any], example: Document
) -> None:
    document = changed(example, engine={"cudagraphCaptureSizes": [12, 24], "maxCudagraphCaptureSize": 24})
    arguments = parse(rendering.vllm_args_yaml(document), "--compilation-config", '{"mode": 0}')
    assert arguments.cudagraph_capture_sizes == [12, 24]


@pytest.mark.engine
def test_vllm_ignores_the_file_where_it_is_given_with_an_equals_sign(
    parse: Callable[..., Any], example: Document, tmp_path: Path
) -> None:
    # What the reference page warns of; once vLLM reads it too, the warning can go.
    path = tmp_path / "vllm-args.yaml"
    path.write_text(rendering.vllm_args_yaml(example))
    assert parse("{}", f"--config={path}").speculative_config is None


def test_sizes_of_the_profile_are_pinned_with_a_table_and_no_advice(example: Document) -> None:
    # vLLM's default sizes follow from the table that it starts with, which is not the profile's.
    document = changed(example, engine=NO_ADVICE, recommendation={"kind": "table", "draftLength": None})
    arguments = rendering.vllm_arguments(document)
    assert arguments["cudagraph-capture-sizes"] == list(example.fingerprint.cudagraph_capture_sizes)
    fixed = changed(example, engine=NO_ADVICE, recommendation={"kind": "fixed", "draftLength": 1})
    assert "cudagraph-capture-sizes" not in rendering.vllm_arguments(fixed)
