"""
Errors as Kubernetes words them: a `Status` with reason, code and details.

Clients parse these (`kubectl` by reason, people by message), so the words are upstream's.
A refusal is raised as an `ApiError`; `status()` turns it into the body of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bidplane import errors
from bidplane.errors import ApiError


class Cause(msgspec.Struct, frozen=True):
    """One cause of an error, with the field that it is about."""

    message: str
    field: str = ""
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class About(msgspec.Struct, frozen=True):
    """The subject of an error: the resource (`pods`), its group, and the object's name."""

    plural: str = ""
    group: str = ""
    name: str = ""
    kind: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class StatusError(ApiError):
    """An `ApiError` raised by our own server: it knows the details of its Status."""

    about: About = About()
    causes: Sequence[Cause] = ()
    retry_after: int = 0
    uid: str = ""


class _NotFound(StatusError, errors.NotFound):
    pass


class _Conflict(StatusError, errors.Conflict):
    pass


class _AlreadyExists(StatusError, errors.AlreadyExists):
    pass


class _Gone(StatusError, errors.Gone):
    pass


class _Unavailable(StatusError, errors.Unavailable):
    pass


_CLASSES: dict[str, type[StatusError]] = {
    "NotFound": _NotFound,
    "Conflict": _Conflict,
    "AlreadyExists": _AlreadyExists,
    "Expired": _Gone,
    "Gone": _Gone,
    "ServiceUnavailable": _Unavailable,
}


def refuse(
    code: int,
    reason: str,
    message: str,
    *,
    about: About | None = None,
    causes: Sequence[Cause] = (),
    retry_after: int = 0,
) -> StatusError:
    error = _CLASSES.get(reason, StatusError)(message, code=code, reason=reason)
    error.about = about or About()
    error.causes = causes
    error.retry_after = retry_after
    return error


def not_found(about: About) -> StatusError:
    return refuse(404, "NotFound", f'{about.qualified} "{about.name}" not found', about=about)


def no_such_path() -> StatusError:
    return refuse(404, "NotFound", "the server could not find the requested resource")


def already_exists(about: About) -> StatusError:
    message = f'{about.qualified} "{about.name}" already exists'
    return refuse(409, "AlreadyExists", message, about=about)


def conflict(about: About, problem: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {about.qualified} "{about.name}": {problem}'
    return refuse(409, "Conflict", message, about=about)


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def invalid(about: About, causes: Sequence[Cause]) -> StatusError:
    """Return a 422 with every cause; its message names `about.kind`."""
    qualified = f"{about.kind}.{about.group}" if about.group else about.kind
    details = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(map(str, causes)) + "]"
    message = f'{qualified} "{about.name}" is invalid: {details}'
    return refuse(422, "Invalid", message, about=about, causes=causes)


def bad_request(message: str, *, about: About | None = None) -> StatusError:
    return refuse(400, "BadRequest", message, about=about)


def forbidden(about: About, problem: str, causes: Sequence[Cause] = ()) -> StatusError:
    message = f'{about.qualified} "{about.name}" is forbidden: {problem}'
    return refuse(403, "Forbidden", message, about=about, causes=causes)


def method_not_allowed(about: About) -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return refuse(405, "MethodNotAllowed", message, about=about)


def unsupported(message: str) -> StatusError:
    return refuse(415, "UnsupportedMediaType", message)


def not_acceptable(allowed: str) -> StatusError:
    message = f"only the following media types are accepted: {allowed}"
    return refuse(406, "NotAcceptable", message)


def too_large(limit: int) -> StatusError:
    message = f"Request entity too large: limit is {limit}"
    return refuse(413, "RequestEntityTooLarge", message)


def expired(requested: int, oldest: int) -> StatusError:
    return refuse(410, "Expired", f"too old resource version: {requested} ({oldest})")


def expired_continue() -> StatusError:
    message = (
        "The provided continue parameter is too old to display a consistent list result. You must"
        " start a new list without the continue parameter."
    )
    return refuse(410, "Expired", message)


def too_new(requested: int, current: int) -> StatusError:
    """Return the error for a revision newer than ours (of another server, or before a restore)."""
    cause = Cause("Too large resource version", reason="ResourceVersionTooLarge")
    message = f"Too large resource version: {requested}, current: {current}"
    return refuse(504, "Timeout", message, causes=[cause], retry_after=1)


def unauthorized(message: str) -> StatusError:
    return refuse(401, "Unauthorized", message)


def unavailable(message: str) -> StatusError:
    return refuse(503, "ServiceUnavailable", message, retry_after=1)


def status(error: ApiError) -> dict[str, Any]:
    """Return the `Status` object of an error."""
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
    }
    if error.reason:
        body["reason"] = error.reason
    if isinstance(error, StatusError):
        details = _details(error)
        if details:
            body["details"] = details
    body["code"] = error.code
    return body


def _details(error: StatusError) -> dict[str, Any]:
    about = error.about
    details: dict[str, Any] = {}
    if about.name:
        details["name"] = about.name
    if about.group:
        details["group"] = about.group
    # Upstream names the kind in "Invalid" and the resource everywhere else.
    kind = about.kind if error.reason == "Invalid" else about.plural
    if kind:
        details["kind"] = kind
    if error.uid:
        details["uid"] = error.uid
    if error.causes:
        details["causes"] = [_cause(cause) for cause in error.causes]
    if error.retry_after:
        details["retryAfterSeconds"] = error.retry_after
    return details


def _cause(cause: Cause) -> dict[str, str]:
    body = {"message": cause.message}
    if cause.reason:
        body = {"reason": cause.reason, **body}
    if cause.field:
        body["field"] = cause.field
    return body


def deleted(about: About, uid: str) -> dict[str, Any]:
    """Return the `Status` of a deletion that left no object to return."""
    details = {"name": about.name, "group": about.group, "kind": about.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }
