"""What the API server may answer, a class for each that somebody treats differently.

The queue tries again after every one of them; what differs is who is to be told. A conflict is old news of
ours, an outage is nobody's fault, and a refusal is the user's to read.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_MESSAGE = 2_000


class ApiError(Exception):
    """The request failed; ``status`` is 0 where no answer came."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message[:MAX_MESSAGE]
        super().__init__(f"{status} {reason}: {self.message}" if status else self.message)


class NotFoundError(ApiError):
    """There is no such object, or its namespace is gone or on its way (404)."""


class ConflictError(ApiError):
    """The object is there already, or is another by now (409)."""


class ForbiddenError(ApiError):
    """The operator may not do this, or an admission plugin refuses it (401, 403)."""


class InvalidError(ApiError):
    """The object is not as it must be (400, 422)."""


class UnavailableError(ApiError):
    """No answer, or none of worth (429, 5xx, a broken connection, a time-out)."""


NAMESPACE_TERMINATING = "NamespaceTerminating"
"""Cause in the answer 403 to whoever makes something in a namespace that is being deleted."""


def of(status: int, reason: str, message: str, causes: Collection[str] = ()) -> ApiError:
    """Return the error for an answer with ``status``; ``causes`` are the reasons in its details."""
    if NAMESPACE_TERMINATING in causes:
        return NotFoundError(status, reason, message)
    match status:
        case 404 | 410:
            return NotFoundError(status, reason, message)
        case 409:
            return ConflictError(status, reason, message)
        case 401 | 403:
            return ForbiddenError(status, reason, message)
        case 400 | 422:
            return InvalidError(status, reason, message)
        case 429 | 500 | 502 | 503 | 504:
            return UnavailableError(status, reason, message)
        case _:
            return ApiError(status, reason, message)
