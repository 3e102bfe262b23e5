"""What the profiler and its engine process say to each other, over one pipe.

The engine runs in a process of its own because it can die (ENGINE.md 3) or hang; what was measured is
then safe on this side. Commands go one way; each is answered by any number of messages and ends with
:class:`Done` or :class:`Failed`. All are plain data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import JsonValue

from tabletune.documents import Fingerprint, Graph
from tabletune_plugin.engine.facts import Obstacle
from tabletune_profiler.prompts import Prompt


@dataclass(frozen=True)
class Configure:
    """Parse the arguments of ``vllm serve`` and report what they mean. Answered by :class:`Configured`."""

    arguments: tuple[str, ...]
    draft_lengths: tuple[int, ...] | None
    """Lengths to profile; ``None`` for 0 to the longest that the drafter is configured for."""


@dataclass(frozen=True)
class Start:
    """Start the engine that was configured. Answered by :class:`Started`."""


@dataclass(frozen=True)
class Tokenize:
    """Turn prompts into token ids. Answered by :class:`Tokenized`."""

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True)
class TimeCells:
    """Time pure decode steps of one batch size. Answered by a :class:`CellTimed` per visit."""

    batch_size: int
    visits: tuple[int, ...]
    """Draft lengths in the order to time them, changed inside the running batch."""
    steps: int
    """Steps that count, per visit."""
    prompts: tuple[tuple[int, ...], ...]
    """Token ids that the requests start from, used in turn."""
    off_steps: int = 0
    """Steps to time with speculation off, in the middle of the visits; 0 for none. Answered by
    :class:`OffTimed`, where the drafter can be left out."""
    seconds: float = math.inf
    """Most seconds until all requests decode: prompts that are long and many take minutes. Answered by
    :class:`OutOfTime` where it takes longer."""


@dataclass(frozen=True)
class TimePrompts:
    """Time what prompts add to the steps of a decoding batch. Answered by :class:`PromptsTimed`."""

    batch_size: int
    draft_length: int
    prompt_tokens: int
    repeats: int
    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class CountAcceptance:
    """Complete prompts at one draft length.

    Answered by :class:`AcceptanceProgress` after each step, then by :class:`AcceptanceCounted`.
    """

    draft_length: int
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    """Most output tokens of each prompt."""
    concurrency: int


@dataclass(frozen=True)
class MeasureGoodput:
    """Serve prompts in a closed loop at one constant length.

    Answered by :class:`GoodputMeasured`, or by nothing where no step was without a prompt.
    """

    batch_size: int
    """Requests kept open."""
    draft_length: int
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    seconds: float
    """Time of pure decode steps to measure over, at least."""
    complete: int = 0
    """Prompts to complete, at least: drafters that look into text find more late in an output than early."""


@dataclass(frozen=True)
class Shutdown:
    """End the engine and the process."""


Command = Configure | Start | Tokenize | TimeCells | TimePrompts | CountAcceptance | MeasureGoodput | Shutdown


@dataclass(frozen=True)
class Configured:
    """What the arguments mean."""

    fingerprint: Fingerprint
    speculative_config: dict[str, JsonValue]
    """The user's own, without a table."""
    draft_lengths: tuple[int, ...]
    max_model_len: int
    vocabulary: int
    """Token ids are below this."""
    obstacles: tuple[Obstacle, ...]
    had_table: bool
    uniform_drafts: bool
    """Whether every request gets a draft of full length each step (drafters that are models)."""


@dataclass(frozen=True)
class Started:
    """The engine is up."""

    seconds: float
    measures_gpu_span: bool


@dataclass(frozen=True)
class Tokenized:
    """Token ids of the prompts, in their order."""

    token_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sample:
    """One step that counts."""

    interval_ms: float
    """From the previous result to this one."""
    gpu_span_ms: float | None
    """On the GPU; ``None`` where it was not recorded."""
    drafted_tokens: int
    """Draft tokens verified, all requests together."""
    graph: Graph | None


@dataclass(frozen=True)
class CellStarted:
    """From here on, trouble is this cell's."""

    batch_size: int
    draft_length: int


@dataclass(frozen=True)
class CellTimed:
    """One visit to a cell."""

    batch_size: int
    draft_length: int
    samples: tuple[Sample, ...]
    seconds_counted: float
    """Time spent in the steps that count."""


@dataclass(frozen=True)
class OffStarted:
    """From here on, trouble is that of speculation off, and no cell's."""

    batch_size: int


@dataclass(frozen=True)
class OffTimed:
    """Steps of one batch size with speculation off: nothing drafted, and no pass of the drafter either."""

    batch_size: int
    samples: tuple[Sample, ...]
    seconds_counted: float


@dataclass(frozen=True)
class CellUnreachable:
    """The engine lives, but never ran that many requests at once."""

    batch_size: int
    draft_length: int
    reason: str


@dataclass(frozen=True)
class OutOfTime:
    """Not all requests decoded within the seconds given; nothing of this batch size was timed."""

    batch_size: int


@dataclass(frozen=True)
class PromptsTimed:
    """What each prompt added, in milliseconds, to the steps around it, all together."""

    added_ms: tuple[float, ...]


@dataclass(frozen=True)
class AcceptanceProgress:
    """How far the acceptance run is."""

    done: int
    total: int


@dataclass(frozen=True)
class AcceptanceCounted:
    """Counts over all prompts, by draft position."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    requests_drafted: int
    """Requests and steps that had a draft verified."""
    requests_decoded: int
    """Requests and steps that could have had one."""


@dataclass(frozen=True)
class Alive:
    """The engine makes steps. Told once a second at most, whatever the command, and seen by nobody but
    ``supervising``, for which an engine without a sign of life is a hung one."""


@dataclass(frozen=True)
class GoodputMeasured:
    """What a constant length kept, over pure decode steps of exactly the batch size asked for."""

    kept_tokens: int
    step_ms: float
    """Mean time of these steps, by intervals."""
    steps: int
    block_goodput: tuple[float, ...]
    """Kept tokens per second of successive tenths of the steps, which show how sure the whole is."""


@dataclass(frozen=True)
class Done:
    """The command is complete."""


@dataclass(frozen=True)
class Failed:
    """The command cannot be carried out; the process lives on."""

    kind: str
    """``arguments``, ``unsupported``, ``start`` or ``internal``."""
    message: str


Message = (
    Configured
    | Started
    | Tokenized
    | CellStarted
    | CellTimed
    | OffStarted
    | OffTimed
    | CellUnreachable
    | OutOfTime
    | PromptsTimed
    | AcceptanceProgress
    | AcceptanceCounted
    | Alive
    | GoodputMeasured
    | Done
    | Failed
)
