"""The sample prompts from which acceptance is measured: the bundled 160 or the user's own JSONL.

The acceptance sweep takes them as token ids. How often a model agrees with its drafter depends on what
it is asked, so a profile of repeated filler text gives a table for filler text. And a file of recorded
traffic comes from anywhere: what cannot be used is refused here, with the line and the field, before an
engine is started for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from tabletune_profiler.exit_codes import InputError

MAX_FILE_BYTES = 64 * 2**20

MAX_LINE_BYTES = 2**20
"""A prompt of some 250,000 tokens as English text, or of 150,000 as token ids."""

MAX_PROMPTS = 10_000
"""The paper measures acceptance with 160."""

_LINES = "must be a readable file, UTF-8, with one JSON object on each line"

_ACCEPTED = {
    "model_type": "must be a JSON object",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
}
"""By pydantic's type of error, where its own words are those of Python."""


class PromptsError(InputError):
    """Prompts that cannot be used: where in which file, what was found there, what is accepted instead."""

    def __init__(
        self, file: str, found: str, accepted: str, line: int | None = None, field: str = ""
    ) -> None:
        self.file, self.line, self.field = file, line, field
        self.found, self.accepted = found, accepted
        where = file + (f", line {line}" if line else "") + (f", {field}" if field else "")
        super().__init__(f"{where}: {accepted} (found {found})")


class Tokenizer(Protocol):
    """What is needed of a tokenizer, and all that those of transformers and of vLLM have in common."""

    def encode(self, text: str, /) -> list[int]:
        """Return the token ids of ``text``, with the special tokens that the model starts with."""

    def apply_chat_template(self, messages: list[dict[str, str]], /, **options: Any) -> Any:
        """Return the token ids of a conversation."""


def _require_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair, a tokenizer cannot
        raise PydanticCustomError("surrogate", "must be Unicode text without lone surrogates") from error
    if not text.strip():
        raise PydanticCustomError("blank", "must hold text other than white space")
    return text


Text = Annotated[str, AfterValidator(_require_text)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Message(_Model):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who says it."""
    content: Text
    """What is said, as text."""


class Prompt(_Model):
    """One request to the engine: a conversation, a text or token ids. The fields are vLLM's own."""

    id: Text | None = None
    """Name of the prompt in messages."""
    category: Text | None = None
    """Kind of work that it stands for."""
    max_tokens: Annotated[StrictInt, Field(ge=1, le=2**20)] | None = None
    """Most tokens to generate; unset: the profiler's choice."""
    messages: Annotated[tuple[Message, ...], Field(min_length=1)] | None = None
    """A conversation that ends with the user's turn; the model's chat template is applied to it."""
    prompt: Text | None = None
    """Text that goes to the model as it is."""
    prompt_token_ids: (
        Annotated[tuple[Annotated[StrictInt, Field(ge=0, lt=2**31)], ...], Field(min_length=1)] | None
    ) = None
    """Token ids that go to the model as they are."""

    @model_validator(mode="after")
    def _require_one_content(self) -> Self:
        names = ("messages", "prompt", "prompt_token_ids")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "content",
                "must have exactly one of messages, prompt and prompt_token_ids",
                {"found": " and ".join(given) or "none of them"},
            )
        if self.messages and self.messages[-1].role != "user":
            raise PydanticCustomError(
                "turn",
                "messages must end with the user's turn, which the model is to answer",
                {"found": f"a last message of role {self.messages[-1].role}"},
            )
        return self


def bundled() -> tuple[Prompt, ...]:
    """Return the 160 prompts that come with TableTune.

    Chat, code, mathematics, extraction, retrieval and several languages in turn, so that the first few
    are a balanced sample too.
    """
    file = resources.files("tabletune_profiler").joinpath("data", "prompts.jsonl")
    return parse(file.read_bytes(), file.name)


def read(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts in the JSONL file ``path``; raises :class:`PromptsError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PromptsError(str(path), error.strerror or repr(error), _LINES) from error
    return parse(data, str(path))


def parse(data: bytes, file: str) -> tuple[Prompt, ...]:
    """Return the prompts in ``data``, one JSON object a line; blank lines are skipped.

    Raises :class:`PromptsError`, in which ``file`` is the name of the data, for the first fault.
    """
    if len(data) > MAX_FILE_BYTES:
        raise PromptsError(file, "more", f"must be at most {MAX_FILE_BYTES} bytes")
    prompts = tuple(_parse_lines(data, file))
    if not prompts:
        raise PromptsError(file, f"no prompt in {len(data)} bytes", _LINES)
    return prompts


def _parse_lines(data: bytes, file: str) -> Iterator[Prompt]:
    # Split as bytes at line feeds only: inside a JSON string other line separators of Unicode are text.
    lines = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1)
    filled = ((number, line) for number, line in lines if line.strip())
    for count, (number, line) in enumerate(filled, start=1):
        if count > MAX_PROMPTS:
            raise PromptsError(file, "one more", f"must hold at most {MAX_PROMPTS} prompts", number)
        yield _parse_line(line, file, number)


def _parse_line(line: bytes, file: str, number: int) -> Prompt:
    if len(line) > MAX_LINE_BYTES:
        raise PromptsError(file, f"{len(line)} bytes", f"must be at most {MAX_LINE_BYTES} bytes", number)
    try:
        return Prompt.model_validate(json.loads(line.decode()))
    except pydantic.ValidationError as error:
        field, found, accepted = _first_fault(error)
        raise PromptsError(file, found, accepted, number, field) from error
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise PromptsError(file, found, "must be UTF-8", number) from error
    except json.JSONDecodeError as error:
        found = f"column {error.colno}: {error.msg}"
        raise PromptsError(file, found, "must be one JSON object", number) from error
    except (ValueError, RecursionError) as error:  # a number too long or brackets too deep for Python
        raise PromptsError(file, str(error), "must be one JSON object", number) from error


def _first_fault(error: pydantic.ValidationError) -> tuple[str, str, str]:
    """Return field, what was found and what is accepted, of the first fault."""
    fault = error.errors(include_url=False)[0]
    field = ascii(".".join(str(part) for part in fault["loc"]))[1:-1][:80]
    if fault["type"] == "extra_forbidden":
        known = Message.model_fields if len(fault["loc"]) > 1 else Prompt.model_fields
        return field, "an unknown field", f"must be one of the fields {', '.join(known)}"
    if fault["type"] == "missing":
        return field, "no such field", "is a required field"
    found = fault.get("ctx", {}).get("found") or repr(fault["input"])[:80]
    return field, found, _ACCEPTED.get(fault["type"], fault["msg"][0].lower() + fault["msg"][1:])


def as_token_ids(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Return what the engine is to be given for ``prompt``, as vLLM's server would make it.

    - Token ids are given as they are, text as the tokenizer encodes it.
    - Messages go through the chat template, opened for the model's turn.
    - Where the template refuses them (Gemma's has no system role), what the system messages say is put
      in front of the user's first message.
    - Without a template (a base model) the messages are given as text, with a blank line between them.

    Raises :class:`InputError` where the template refuses the messages either way.
    """
    if prompt.prompt_token_ids is not None:
        return list(prompt.prompt_token_ids)
    if prompt.prompt is not None:
        return tokenizer.encode(prompt.prompt)
    messages = [message.model_dump() for message in prompt.messages or ()]
    refusal: Exception | None = None
    for form in (messages, _without_system(messages)):
        try:
            # transformers 5 returns a dictionary unless told not to.
            return list(tokenizer.apply_chat_template(form, add_generation_prompt=True, return_dict=False))
        except Exception as error:  # a template raises what it likes
            refusal = refusal or error
    # Asked only now: vLLM's own tokenizers of Mistral and DeepSeek apply one without having the attribute.
    if getattr(tokenizer, "chat_template", None) is None:
        return tokenizer.encode("\n\n".join(message["content"] for message in messages))
    name = prompt.id or messages[-1]["content"][:40]
    raise InputError(
        f"The model's chat template refuses the messages of prompt {name!r}: {refusal}."
        " Change them, or give the prompt as text in the field prompt."
    ) from refusal


def _without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    said = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    first = next(index for index, message in enumerate(others) if message["role"] == "user")
    merged = {"role": "user", "content": "\n\n".join([*said, others[first]["content"]])}
    return [*others[:first], merged, *others[first + 1 :]]
