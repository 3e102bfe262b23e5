"""The table document: the one JSON that travels from the profiling Job to the serving pods.

The profiler writes it, the operator stores it in a ConfigMap and corrects it, the plugin follows it.
Whoever reads one may have it from a stranger (a ConfigMap that somebody edited by hand), so
everything is bounded and checked here, once: a :class:`Document` that exists is a good one.
Without this, a bad number would surface inside a serving engine.

Two rules keep documents comparable: unknown fields are refused, and :func:`dump` writes equal
content as equal bytes (sorted keys, no NaN), so that a hash of the bytes is a hash of the content.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeVar

import pydantic
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

SCHEMA_VERSION: Literal[1] = 1

MAX_PROBLEMS = 50
"""Faults named of one document; a hostile one could hold hundreds of thousands."""

MAX_DOCUMENT_BYTES = 900_000
"""A ConfigMap holds 1 MiB in all (Kubernetes API, ConfigMap); the rest is left to its other keys."""

MAX_BATCH_SIZE = 65_536
MAX_DRAFT_LENGTH = 64
MAX_GRID_POINTS = 512
MAX_RANGES = 4_096
MAX_SPECULATIVE_CONFIG_BYTES = 16_384
MAX_SPECULATIVE_CONFIG_DEPTH = 4


class Source(StrEnum):
    """What a generation of the table was computed from."""

    PROFILE = "profile"
    CORRECTION = "correction"


class Measure(StrEnum):
    """How step times were taken; profile and live times are comparable only if it is the same."""

    GPU_SPAN = "gpuSpan"
    """Start to end of a step's work on the GPU, by CUDA events on the engine's own stream."""
    QUIET_INTERVAL = "quietInterval"
    """From one step's result to the next, of steps with no prompt near them."""


class Graph(StrEnum):
    """The kind of CUDA graph that a step runs as."""

    FULL = "full"
    PIECEWISE = "piecewise"
    NONE = "none"


class RecommendationKind(StrEnum):
    """What serves best on the profiled engine."""

    TABLE = "table"
    FIXED = "fixed"
    OFF = "off"


class Mode(StrEnum):
    """What the plugin does with the table in the engine."""

    OBSERVE = "observe"
    FOLLOW = "follow"
    ADAPT = "adapt"


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a document: where (``profile.stepTimeMs[0][2]``), what was found, what is right."""

    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        where = self.path or "document"
        return f"{where}: {self.expected}" + (f" (found {self.found})" if self.found else "")


class DocumentError(ValueError):
    """A document that cannot be used. ``problems`` names each fault with its path."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class _FaultError(ValueError):
    """Raised by validators: one fault with its path below the model that found it."""

    def __init__(self, path: str, found: object, expected: str) -> None:
        self.path, self.found, self.expected = path, str(found), expected
        super().__init__(f"{path} is {found}, {expected}")


ModelT = TypeVar("ModelT", bound=BaseModel)


def _utc_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _whole_second(moment: datetime) -> datetime:
    """Return what :func:`_utc_text` writes of ``moment``: a document must equal what its bytes parse to."""
    try:
        return moment.astimezone(UTC).replace(microsecond=0)
    except OverflowError as error:
        raise ValueError("must be a time between the years 1 and 9999 in UTC") from error


def _text_or_moment(value: object) -> object:
    """Refuse a number, which pydantic would take for seconds, or milliseconds, since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and re.match(r"\d{4}-", value)):
        return value
    raise _FaultError("", _found(value), "must be a time with its zone in text, as in 2026-11-30T09:15:00Z")


Timestamp = Annotated[
    AwareDatetime,
    BeforeValidator(_text_or_moment),
    AfterValidator(_whole_second),
    PlainSerializer(_utc_text, return_type=str),
]
# Numbers are strict: a number in quotes or a boolean in its place is somebody's mistake. A float may be
# written as an integer.
UnsignedZero = AfterValidator(lambda value: value + 0.0)
"""Turns -0.0 into 0.0: they are equal, so they must be equal bytes."""
BatchSize = Annotated[int, Field(strict=True, ge=1, le=MAX_BATCH_SIZE)]
DraftLength = Annotated[int, Field(strict=True, ge=0, le=MAX_DRAFT_LENGTH)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=2**31)]
EngineSize = Annotated[int, Field(strict=True, ge=1, le=4_096)]
Flag = Annotated[bool, Field(strict=True)]
MIN_MILLISECONDS = 1e-6
"""A nanosecond: no step is faster, and goodput, which divides by times, stays finite."""
Milliseconds = Annotated[float, Field(strict=True, ge=MIN_MILLISECONDS, le=3_600_000, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False), UnsignedZero]
Goodput = Annotated[float, Field(strict=True, ge=0, le=1e12, allow_inf_nan=False), UnsignedZero]
Gain = Annotated[float, Field(strict=True, ge=-1, allow_inf_nan=False), UnsignedZero]
Text = Annotated[str, Field(max_length=4_096)]
Range = tuple[BatchSize, BatchSize, DraftLength]
"""``(first, last, K)``, both ends included: vLLM's own form of a table entry."""
Table = Annotated[tuple[Range, ...], Field(max_length=MAX_RANGES)]
TABLE_KEY = "num_speculative_tokens_per_batch_size"
"""The key of vLLM's speculative config that holds the table."""


class Model(BaseModel):
    """What all parts of the document share: camelCase in JSON, frozen, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=False,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Fingerprint(Model):
    """What a profile was measured on. A pod whose own differs follows a table made for something else."""

    gpu: Text
    """Product name as the driver gives it, or the processor's where vLLM runs on the CPU."""
    gpu_count: Annotated[int, Field(strict=True, ge=0, le=4_096)]
    """GPUs that one engine uses; 0 on the CPU."""
    driver: Text
    """Driver version; empty on the CPU."""
    vllm: Text
    """vLLM version."""
    torch: Text
    """PyTorch version."""
    runner: Literal["V1", "V2"]
    """vLLM's model runner. V1 has only piecewise graphs with a table."""
    model: Text
    """The model as given to vLLM."""
    drafter_method: Text
    """`method` of vLLM's speculative config."""
    drafter: Text
    """The drafter's model; empty where the method needs none."""
    dtype: Text
    """Data type of weights and activations."""
    quantization: Text = ""
    """Quantization method; empty for none."""
    tensor_parallel_size: EngineSize = 1
    """Tensor parallel size."""
    pipeline_parallel_size: EngineSize = 1
    """Pipeline parallel size."""
    max_num_seqs: BatchSize
    """Most requests in one step, hence the last batch size of the table."""
    max_num_batched_tokens: Tokens
    """Most tokens in one step."""
    async_scheduling: Flag
    """Whether the engine schedules a step while the previous one runs."""
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
    """The mode in force, which vLLM may have changed from what was asked for."""
    cudagraph_capture_sizes: Annotated[tuple[Tokens, ...], Field(max_length=4_096)]
    """Token counts with a captured graph, ascending; empty without graphs."""


class MixedStep(Model):
    """The time of a step in which a prompt joins a decoding batch."""

    batch_size: BatchSize
    """Requests that decode in the step; the prompt's own request comes on top."""
    draft_length: DraftLength
    """Draft tokens per decoding request."""
    prompt_tokens: Tokens
    """Prompt tokens that share the step."""
    step_time_ms: Milliseconds
    """Pure step's time plus all that the prompt added to the steps around it; median."""
    samples: Count
    """Prompts timed."""


class ExcludedCell(Model):
    """A cell of the grid without a time, and why."""

    batch_size: BatchSize
    """Batch size."""
    draft_length: DraftLength
    """Draft length."""
    reason: Text
    """Why there is no time, with the engine's last words where it died."""
    fatal: Flag = False
    """Whether the engine died or hung there, or is known to: tables then keep off the length around it."""


Spread = Annotated[float, Field(strict=True, ge=0, le=3_600_000, allow_inf_nan=False), UnsignedZero]
CellT = TypeVar("CellT")
Row = Annotated[tuple[CellT, ...], Field(max_length=MAX_GRID_POINTS)]
Grid = Annotated[tuple[Row[CellT], ...], Field(max_length=MAX_DRAFT_LENGTH + 1)]


class Profile(Model):
    """The measured grid ``T[B, K]``. Every grid has a row per draft length and a column per batch size."""

    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1, max_length=MAX_GRID_POINTS)]
    """Batch sizes measured, ascending."""
    draft_lengths: Annotated[tuple[DraftLength, ...], Field(min_length=1, max_length=MAX_DRAFT_LENGTH + 1)]
    """Draft lengths measured, ascending."""
    measure: Measure
    """How the times were taken."""
    step_time_ms: Grid[Milliseconds | None]
    """Median time of a pure decode step in milliseconds; null where the cell was excluded."""
    interval_ms: Grid[Milliseconds | None] = ()
    """Median time from result to result of the same steps, in milliseconds: above a GPU span by what the GPU
    waits for the host. Empty where the measure is the interval itself."""
    off_ms: Row[Milliseconds | None] = ()
    """Median time in milliseconds of a step with speculation off, by batch size: nothing drafted, and no pass
    of the drafter either, which vLLM runs at draft length 0 for drafters that are models. Empty for other
    drafters, whose speculation off is length 0."""
    spread_ms: Grid[Spread | None]
    """Interquartile range of the step times in milliseconds."""
    samples: Grid[Count]
    """Steps timed in each cell."""
    graph: Grid[Graph | None]
    """Kind of CUDA graph of each cell's steps."""
    context_length: Tokens
    """Tokens of context per request at which the steps were timed."""
    mixed: Annotated[tuple[MixedStep, ...], Field(max_length=4_096)] = ()
    """Steps shared with a prompt."""
    excluded: Annotated[tuple[ExcludedCell, ...], Field(max_length=65_536)] = ()
    """Cells without a time."""

    @model_validator(mode="after")
    def _grids_fit(self) -> Self:
        _require_ascending("batchSizes", self.batch_sizes)
        _require_ascending("draftLengths", self.draft_lengths)
        rows, columns = len(self.draft_lengths), len(self.batch_sizes)
        grids: dict[str, Sequence[Sequence[object]]] = {
            "stepTimeMs": self.step_time_ms,
            "spreadMs": self.spread_ms,
            "samples": self.samples,
            "graph": self.graph,
        }
        if self.interval_ms:
            grids["intervalMs"] = self.interval_ms
        for name, grid in grids.items():
            if len(grid) != rows or any(len(row) != columns for row in grid):
                raise _FaultError(
                    name,
                    f"{len(grid)} rows of {sorted({len(row) for row in grid})} columns",
                    f"must have {rows} rows (draftLengths) of {columns} columns (batchSizes)",
                )
        if self.off_ms and len(self.off_ms) != columns:
            raise _FaultError(
                "offMs", f"{len(self.off_ms)} entries", f"must have {columns}, one per batch size, or none"
            )
        reasons = {(cell.batch_size, cell.draft_length) for cell in self.excluded}
        for row, draft_length in enumerate(self.draft_lengths):
            for column, batch_size in enumerate(self.batch_sizes):
                measured = self.step_time_ms[row][column] is not None
                if measured == ((batch_size, draft_length) in reasons):
                    raise _FaultError(
                        f"stepTimeMs[{row}][{column}]",
                        self.step_time_ms[row][column],
                        "must have either a time or a reason in excluded"
                        f" (batch size {batch_size}, draft length {draft_length})",
                    )
        return self


class Acceptance(Model):
    """How often the model agreed with the drafter, by draft position (the first is index 0)."""

    survival: Annotated[tuple[Share, ...], Field(max_length=MAX_DRAFT_LENGTH)]
    """Probability that guesses 1..i are all accepted, of a request that got a draft; non-increasing."""
    drafted: Annotated[tuple[Count, ...], Field(max_length=MAX_DRAFT_LENGTH)]
    """Requests and steps that got a draft while the length in force reached the position, also where the
    drafter itself stopped before it."""
    accepted: Annotated[tuple[Count, ...], Field(max_length=MAX_DRAFT_LENGTH)]
    """Requests and steps whose guesses up to the position were all accepted."""
    proposal_rate: Share
    """Share of requests and steps that got any draft; 1 for drafters that are models."""
    prompts: Count
    """Prompts that the counts come from."""

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if not len(self.survival) == len(self.drafted) == len(self.accepted):
            raise _FaultError(
                "survival",
                f"{len(self.survival)}, {len(self.drafted)} and {len(self.accepted)} entries",
                "survival, drafted and accepted must have one entry per draft position each",
            )
        for position, (drafted, accepted) in enumerate(zip(self.drafted, self.accepted, strict=True)):
            if accepted > drafted:
                raise _FaultError(
                    f"accepted[{position}]", accepted, f"must be at most drafted[{position}], {drafted}"
                )
        for position in range(1, len(self.survival)):
            if self.survival[position] > self.survival[position - 1]:
                raise _FaultError(
                    f"survival[{position}]",
                    self.survival[position],
                    f"must be at most survival[{position - 1}], {self.survival[position - 1]}",
                )
        return self


class Recommendation(Model):
    """What to serve with on this engine: the table, one fixed length, or no speculation."""

    kind: RecommendationKind
    """The best of the three by prediction."""
    draft_length: DraftLength | None = None
    """The length where `kind` is fixed; unset otherwise."""
    predicted_gain: Gain = 0.0
    """Predicted gain in goodput over speculation off, geometric mean over the grid's batch sizes; 0.2 is
    20%."""
    reason: Text = ""
    """Why, with the numbers behind it."""


class EngineChange(Model):
    """One engine setting worth changing, and what the change is predicted to be worth."""

    setting: Text
    """Name of vLLM's setting."""
    current: Text
    """Value in force when the profile was taken."""
    recommended: Text
    """Value to set."""
    predicted_gain: Gain | None = None
    """Predicted gain in output tokens per second, for the advice's workload; unset where it was not
    measurable."""
    reason: Text
    """What the setting costs now and why the change helps."""


class BatchSizesWithoutGraph(Model):
    """Batch sizes whose pure decode steps find no full graph (a gap in vLLM's dispatch, V2 runner)."""

    draft_length: DraftLength
    """Draft length."""
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(max_length=MAX_BATCH_SIZE)]
    """Batch sizes, ascending."""


class EngineAdvice(Model):
    """Engine settings to serve with. Unset settings may stay as they are."""

    cudagraph_capture_sizes: Annotated[
        tuple[Annotated[int, Field(strict=True)], ...], Field(max_length=4_096)
    ] = ()
    """Token counts to capture graphs for; empty: leave."""
    max_cudagraph_capture_size: Annotated[int, Field(strict=True, ge=0, le=2**31)] | None = None
    """The largest of them."""
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None = (
        None
    )
    """Mode for the user's mix of prompts and outputs; unset: leave."""
    max_num_seqs: BatchSize | None = None
    """Most requests per step, so that every batch size finds a full graph; unset: leave."""
    prompt_tokens: Tokens = 256
    """Prompt length that the gains are predicted for."""
    output_tokens: Tokens = 256
    """Output length that the gains are predicted for."""
    predicted_gain: Gain | None = None
    """Predicted gain of all changes together; unset where it was not measurable."""
    reason: Text = ""
    """Summary for a person."""
    changes: Annotated[tuple[EngineChange, ...], Field(max_length=64)] = ()
    """The changes one by one."""
    without_full_graph: Annotated[
        tuple[BatchSizesWithoutGraph, ...], Field(max_length=MAX_DRAFT_LENGTH + 1)
    ] = ()
    """Batch sizes without a full graph with the settings in force."""


class Control(Model):
    """How a table is computed and corrected; the plugin's environment variables override it."""

    mode: Mode = Mode.FOLLOW
    """What the plugin does: only watch, follow this document, or correct the table from live traffic."""
    half_life: Annotated[float, Field(strict=True, gt=0, le=86_400, allow_inf_nan=False)] = 60.0
    """Seconds until a live count weighs one half."""
    prior_drafts: Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False), UnsignedZero] = (
        200.0
    )
    """How many live drafts the document's survival weighs as much as."""
    hysteresis: Share = 0.02
    """Smallest predicted gain for which a batch size changes its length; 0.02 is 2%."""
    exploration_share: Share = 0.005
    """Most throughput that may be spent on keeping estimates alive where the table says 0."""
    min_drafts: Count = 2_000
    """Fewest drafts seen before a correction is made."""
    allowed_lengths: Annotated[tuple[DraftLength, ...], Field(max_length=MAX_DRAFT_LENGTH + 1)] = ()
    """Lengths that a table may use; empty: all that were profiled."""
    pinned: Table = ()
    """Ranges that keep their length whatever is measured."""
    tie_tolerance: Share = 0.01
    """A batch size keeps its neighbour's length where the gain of another is under this."""
    narrow_range: Share = 0.25
    """Ranges narrower than this share of their first batch size are merged into a neighbour."""
    merge_tolerance: Share = 0.0
    """A range may extend while it loses less than this against the best length."""

    @model_validator(mode="after")
    def _pinned_fit(self) -> Self:
        previous = 0
        for index, (first, last, _) in enumerate(self.pinned):
            if first > last or first <= previous:
                raise _FaultError(
                    f"pinned[{index}]",
                    [first, last],
                    f"must start after {previous} and not end before it starts",
                )
            previous = last
        if tuple(sorted(set(self.allowed_lengths))) != self.allowed_lengths:
            raise _FaultError(
                "allowedLengths", list(self.allowed_lengths), "must be ascending without repeats"
            )
        return self


class Prediction(Model):
    """Predicted goodput in kept tokens per second, an entry per batch size of ``batch_sizes``."""

    batch_sizes: Annotated[tuple[BatchSize, ...], Field(max_length=MAX_GRID_POINTS)]
    """Batch sizes predicted for: those of the grid, ascending."""
    table: tuple[Goodput, ...]
    """With the table."""
    best: tuple[Goodput, ...]
    """With the best single length of each batch size."""
    best_length: tuple[DraftLength, ...]
    """That length."""
    fixed: tuple[Goodput, ...]
    """With the one fixed length that is best over all batch sizes."""
    fixed_length: DraftLength
    """That length."""
    off: tuple[Goodput, ...]
    """With speculation off: of `profile.offMs` where that is known, of draft length 0 otherwise."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        _require_ascending("batchSizes", self.batch_sizes)
        columns = len(self.batch_sizes)
        for name in ("table", "best", "best_length", "fixed", "off"):
            if len(getattr(self, name)) != columns:
                raise _FaultError(
                    to_camel(name),
                    f"{len(getattr(self, name))} entries",
                    f"must have {columns} entries, one per batch size",
                )
        return self


def _check_speculative_config(config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Bound what a stranger may put into a field whose names are vLLM's and change with its versions."""
    if TABLE_KEY in config:
        raise _FaultError(TABLE_KEY, "a table", "must not be set: the table is the document's own")
    depth = _depth(config)
    if depth > MAX_SPECULATIVE_CONFIG_DEPTH:
        raise _FaultError("", f"{depth} levels", f"must nest at most {MAX_SPECULATIVE_CONFIG_DEPTH} levels")
    try:
        size = len(json.dumps(config, allow_nan=False, ensure_ascii=False).encode())
    except ValueError as error:
        raise _FaultError("", error, "must be JSON of finite numbers and valid text") from error
    if size > MAX_SPECULATIVE_CONFIG_BYTES:
        expected = f"must be at most {MAX_SPECULATIVE_CONFIG_BYTES} bytes of JSON"
        raise _FaultError("", f"{size} bytes", expected)
    return config


def _depth(value: JsonValue) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


class Document(Model):
    """A measured table with all it was computed from."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this format."""
    generation: Annotated[int, Field(strict=True, ge=1, le=2**53)] = 1
    """Counts up with every change of the table; a pod never goes back on its own."""
    created_at: Timestamp
    """When this generation was computed, UTC."""
    source: Source = Source.PROFILE
    """What the table was computed from."""
    fingerprint: Fingerprint
    """What the profile was measured on."""
    speculative_config: Annotated[dict[str, JsonValue], AfterValidator(_check_speculative_config)] = Field(
        default_factory=dict
    )
    """vLLM's speculative config that was profiled, without a table; empty where it is not known."""
    profile: Profile
    """Measured step times."""
    acceptance: Acceptance
    """Measured acceptance."""
    table: Annotated[Table, Field(min_length=1)]
    """Ranges ``[first, last, K]``, contiguous from 1 to the largest batch size."""
    recommendation: Recommendation
    """What to serve with."""
    engine: EngineAdvice = EngineAdvice()
    """Engine settings to serve with."""
    control: Control = Control()
    """How the table is computed and corrected."""
    prediction: Prediction
    """Predicted goodput."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        next_first = 1
        for index, (first, last, draft_length) in enumerate(self.table):
            if first != next_first or last < first:
                raise _FaultError(
                    f"table[{index}]",
                    [first, last, draft_length],
                    f"must start at {next_first} and not end before it starts: ranges are contiguous from 1",
                )
            if draft_length not in self.profile.draft_lengths:
                raise _FaultError(
                    f"table[{index}][2]",
                    draft_length,
                    f"must be one of profile.draftLengths, {list(self.profile.draft_lengths)}",
                )
            if last > self.fingerprint.max_num_seqs:
                raise _FaultError(
                    f"table[{index}]",
                    [first, last, draft_length],
                    f"must end at fingerprint.maxNumSeqs, {self.fingerprint.max_num_seqs}, or before",
                )
            next_first = last + 1
        longest = max(self.profile.draft_lengths)
        if len(self.acceptance.survival) < longest:
            raise _FaultError(
                "acceptance.survival",
                f"{len(self.acceptance.survival)} entries",
                f"must have at least {longest}, the longest of profile.draftLengths",
            )
        return self

    @property
    def max_batch_size(self) -> int:
        """The last batch size that the table covers."""
        return self.table[-1][1]


def _require_ascending(name: str, values: Sequence[int]) -> None:
    for index, (previous, value) in enumerate(itertools.pairwise(values), start=1):
        if value <= previous:
            raise _FaultError(f"{name}[{index}]", value, f"must be above {previous}: {name} is ascending")


def parse(data: bytes | str) -> Document:
    """Return the document in ``data`` (JSON).

    Raises :class:`DocumentError`, which names every fault with its path, for anything else: text that
    is too large or no JSON, another schema version, an unknown field, a value out of bounds.
    """
    return parse_as(Document, data)


def parse_as(model: type[ModelT], data: bytes | str) -> ModelT:
    """Return ``data`` (JSON) as ``model``, with the bounds and errors of :func:`parse`."""
    size = len(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    if size > MAX_DOCUMENT_BYTES:
        raise DocumentError([Problem("", f"{size} bytes", f"must be at most {MAX_DOCUMENT_BYTES} bytes")])
    content = parse_json(data)
    return validate_as(model, content)


def parse_json(data: bytes | str) -> JsonValue:
    """Return what the JSON in ``data`` says; raises :class:`DocumentError` for what RFC 8259 does not allow
    or leaves open (a key given twice), and for what would not fit (nesting, numbers of thousands of digits).
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        content: JsonValue = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_integer, object_pairs_hook=_object
        )
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise DocumentError([Problem("", found, "must be text in UTF-8")]) from error
    except RecursionError as error:
        raise DocumentError([Problem("", "", "must not be nested so deeply")]) from error
    except ValueError as error:
        raise DocumentError([Problem("", str(error)[:200], "must be JSON (RFC 8259)")]) from error
    return content


def validate_as(model: type[ModelT], content: object) -> ModelT:
    """Return ``content`` (what a JSON parser gave) as ``model``; raises :class:`DocumentError`."""
    if issubclass(model, Document) and isinstance(content, dict):
        version = content.get("schemaVersion", SCHEMA_VERSION)
        if version != SCHEMA_VERSION or isinstance(version, bool):
            expected = f"must be {SCHEMA_VERSION}, the version this TableTune reads and writes"
            raise DocumentError([Problem("schemaVersion", repr(version)[:80], expected)])
    if not isinstance(content, dict | BaseModel):
        raise DocumentError([Problem("", _found(content), "must be a JSON object")])
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as error:
        raise DocumentError(list(_problems(error))) from error


def dump(document: BaseModel) -> bytes:
    """Return the canonical JSON of ``document``: sorted keys, no NaN, a newline at the end, UTF-8.

    Equal content gives equal bytes, and :func:`parse` of them gives an equal document.
    """
    content = document.model_dump(mode="json", by_alias=True)
    text = json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False, indent=1)
    return (_put_flat_lists_on_one_line(text) + "\n").encode()


_FLAT_LIST = re.compile(r'\[\n(?:\s|[\d.,eE+-]|null|"(?:full|piecewise|none)")*\]')
"""A list over several lines with only numbers, nulls and graph kinds in it. No JSON string holds a raw
newline, so a match never starts inside one."""


def _put_flat_lists_on_one_line(text: str) -> str:
    """Let a grid's row read as a row, and a diff of two documents stay small."""
    return _FLAT_LIST.sub(
        lambda match: re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]"), text
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


MAX_DIGITS = 1_000
"""Digits of an integer that is read at all; Python itself refuses some thousands with advice on Python."""


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits is too large")
    return int(text)


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} is given twice in one object")
    return content


def _found(value: object) -> str:
    return "null" if value is None else repr(value)[:80]


def _problems(error: pydantic.ValidationError) -> Iterable[Problem]:
    for item in itertools.islice(error.errors(include_url=False), MAX_PROBLEMS):
        path = _path(item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, _FaultError):
            yield Problem(".".join(filter(None, (path, cause.path))), cause.found, cause.expected)
            continue
        found = "" if item["type"] == "missing" else _found(item["input"])
        yield Problem(path, found, _expected(item["type"], item["msg"]))


def _expected(kind: str, message: str) -> str:
    """Return what is right, in words of JSON where pydantic's are Python's."""
    if kind == "too_short":
        return "must have at least one entry"
    if kind == "model_type":
        return "must be a JSON object"
    return message[0].lower() + message[1:]


def _path(location: Iterable[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
