"""How a command ends: the exit codes, and the errors that carry one.

Every command raises :class:`CommandError` for what a person can do something about, and ``main`` alone
turns it into a message and a code. The operator reads the code of the profiling Job's container to tell
whether trying again can help, so a code keeps its meaning for good. The reference page is made from here.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``tabletune``; ``when`` says when each is used."""

    when: str

    def __new__(cls, code: int, when: str) -> ExitCode:
        """Let a member carry ``when`` beside its number."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.when = when
        return member

    OK = 0, "The command did what was asked for."
    DIFFERENT = 1, "`diff` or `render --check` found a difference, as with diff(1)."
    BAD_INPUT = (
        2,
        "An argument, file or document cannot be used. Nothing was written; trying again is no use.",
    )
    NOT_SERVABLE = 3, "The engine cannot serve a table with these arguments; trying again is no use."
    ENGINE_FAILED = (
        4,
        "The engine died, hung or ran out of memory, repeatedly. A rerun goes on from what was kept.",
    )
    INTERRUPTED = 5, "Stopped by SIGINT or SIGTERM. A rerun goes on from the finished cells."
    OUTPUT_FAILED = (
        6,
        "The output could not be written (disk full, read-only, no folder). No partial file is left.",
    )
    BROKEN_PIPE = (
        141,
        "Whoever read the output stopped, as head(1) does: ended by SIGPIPE, which a shell tells as 141.",
    )
    INTERNAL = 70, "A fault in TableTune itself, with its traceback (EX_SOFTWARE of sysexits.h)."


class CommandError(Exception):
    """Ends the command with a message for the user. The class says with which code."""

    exit_code = ExitCode.INTERNAL


class InputError(CommandError):
    """A file, argument or document of the user that cannot be used."""

    exit_code = ExitCode.BAD_INPUT


class OutputError(CommandError):
    """The output could not be written."""

    exit_code = ExitCode.OUTPUT_FAILED


class NotServableError(CommandError):
    """The engine cannot serve a table with these arguments."""

    exit_code = ExitCode.NOT_SERVABLE


class EngineError(CommandError):
    """The engine did not start, died, hung or ran out of memory, more than once."""

    exit_code = ExitCode.ENGINE_FAILED


class StoppedError(CommandError):
    """Stopped by a signal; a rerun goes on from the finished cells."""

    exit_code = ExitCode.INTERRUPTED
