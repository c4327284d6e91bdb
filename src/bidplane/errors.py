"""
Errors, by whose fault they are.

    BidplaneError
    ├── UserError        the person or program that asked can fix it; the CLI exits with 2
    └── ApiError         a Kubernetes API refused; carries the code and reason of its Status
        ├── NotFound     404
        ├── Conflict     409, the object changed since it was read
        ├── AlreadyExists 409, an object of that name is there
        ├── Gone         410, the resourceVersion is too old: list again
        └── Unavailable  the endpoint did not answer (restarting, or not there)

Everything else that is raised is a bug.
"""

from __future__ import annotations


class BidplaneError(Exception):
    """The root of the errors that Bidplane raises on purpose."""


class UserError(BidplaneError):
    """A request that cannot be done; the message says why, and how to fix it."""


class ApiError(BidplaneError):
    """A Kubernetes API refused a call."""

    code = 500
    reason = "InternalError"

    def __init__(self, message: str, *, code: int | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if reason is not None:
            self.reason = reason


class NotFound(ApiError):
    code, reason = 404, "NotFound"


class Conflict(ApiError):
    code, reason = 409, "Conflict"


class AlreadyExists(ApiError):
    code, reason = 409, "AlreadyExists"


class Gone(ApiError):
    code, reason = 410, "Expired"


class Unavailable(ApiError):
    code, reason = 503, "ServiceUnavailable"


_BY_REASON: dict[str, type[ApiError]] = {
    kind.reason: kind for kind in (NotFound, Conflict, AlreadyExists, Gone, Unavailable)
}
# For answers that are no Status: from what stands between us and an API server.
_BY_CODE: dict[int, type[ApiError]] = {
    404: NotFound,
    410: Gone,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def api_error(code: int, reason: str, message: str) -> ApiError:
    """The error for a Status that came back from an API server."""
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, ApiError)
    return kind(message, code=code, reason=reason or None)
