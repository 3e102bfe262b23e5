"""What an engine may be served with: documents for the plugin, and rivals that steer in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from control import workloads

from tabletune import assembling, documents, tables
from tabletune.documents import Document, Mode

DOCUMENTED = [(1, 64, 3), (65, 128, 1), (129, 512, 0)]
"""The example that vLLM's documentation gives for EAGLE with three draft tokens
(docs/features/speculative_decoding/dynamic_speculative_decoding.md, read on 2026-11-30)."""


@dataclass(frozen=True)
class Policy:
    """What a window serves with."""

    name: str
    document: Document
    rival: str = ""
    """Name of a rival that steers (`inside.steer`); the document is what it starts from."""


def named(name: str, document: Document) -> Policy:
    """Return the policy of this name; ``ValueError`` names those that there are."""
    last, lengths = document.max_batch_size, document.profile.draft_lengths
    followed = _with(document, mode=Mode.FOLLOW)
    if name.startswith("constant "):
        table = tables.constant(int(name.removeprefix("constant ")), last)
        return Policy(name, _with(followed, table=table))
    match name:
        case "tuned":
            return Policy(name, followed)
        case "adapt":
            return Policy(name, _with(document, mode=Mode.ADAPT))
        case "adapt from all 0":
            return Policy(name, _with(document, mode=Mode.ADAPT, table=tables.constant(0, last)))
        case "adapt from all longest":
            table = tables.constant(lengths[-1], last)
            return Policy(name, _with(document, mode=Mode.ADAPT, table=table))
        case "documented":
            return Policy(name, _with(followed, table=documented(document)))
        case "turbo" | "nightjar":
            return Policy(name, followed, rival=name)
    raise ValueError(
        f"{name!r} is no policy; there are 'constant K', 'tuned', 'adapt', 'adapt from all 0',"
        " 'adapt from all longest', 'documented', 'turbo' and 'nightjar'"
    )


def of_today(document: Document, prompt_tokens: int, output_tokens: int) -> Document:
    """Return ``document`` with the table that TableTune computes today, for requests of these lengths."""
    said = document.engine.model_copy(update={"prompt_tokens": prompt_tokens, "output_tokens": output_tokens})
    asked = document.model_copy(update={"engine": said})
    return assembling.recompute(asked, document.control, document.created_at)


def constants(document: Document) -> Iterator[str]:
    """Yield the names of all constant lengths."""
    for length in document.profile.draft_lengths:
        yield f"constant {length}"


def documented(document: Document) -> documents.Table:
    """Return vLLM's documented table, as far as the engine's requests and the drafter's lengths go."""
    last, longest = document.max_batch_size, document.profile.draft_lengths[-1]
    return tuple(
        (first, min(end, last), min(length, longest)) for first, end, length in DOCUMENTED if first <= last
    )


def drafted_by(rates: Sequence[float], document: Document) -> Document:
    """Return ``document`` as it would be with a drafter, or a workload, of these survival rates."""
    return workloads.with_survival(document, tuple(rates), document.acceptance.proposal_rate)


def scaled(
    document: Document, factor: float, length: int | None = None, batch_size: int | None = None
) -> Document:
    """Return ``document`` as a profile would give it whose times are wrong by ``factor``: all of them, those
    of one draft length, or those of one batch size (the longest length's only, or nothing would change)."""
    profile = document.profile
    if batch_size is not None:
        wrong = workloads.wrong_cell(profile, profile.draft_lengths[-1], batch_size, factor)
    elif length is not None:
        wrong = workloads.wrong_row(profile, length, factor)
    else:
        wrong = workloads.scaled(profile, factor)
    return workloads.with_profile(document, wrong)


def adapting(document: Document) -> Document:
    """Return ``document`` in mode adapt."""
    return _with(document, mode=Mode.ADAPT)


def _with(document: Document, *, mode: Mode | None = None, table: documents.Table | None = None) -> Document:
    control = document.control.model_copy(update={"mode": mode}) if mode is not None else document.control
    return document.model_copy(update={"control": control, "table": table or document.table})


class Volume:
    """A folder that changes as kubelet changes a ConfigMap's volume: a link to a folder is replaced."""

    def __init__(self, folder: Path, document: Document) -> None:
        self._folder = folder
        self._generation = document.generation
        self.path = folder / "table.json"
        self.put(document)
        self.path.symlink_to("..data/table.json")

    def put(self, document: Document) -> int:
        """Put ``document`` in place as the next generation; returns that."""
        self._generation += 1
        real = self._folder / f"..{self._generation}"
        real.mkdir()
        numbered = document.model_copy(update={"generation": self._generation})
        (real / "table.json").write_bytes(documents.dump(numbered))
        link = self._folder / "..data_tmp"
        link.symlink_to(real.name)
        link.replace(self._folder / "..data")
        return self._generation
