"""
Refusals as Kubernetes words them: a `Status` with reason, code and details.

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
    """One reason among several, with the field that it is about."""

    message: str
    field: str = ""
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class About(msgspec.Struct, frozen=True):
    """What a refusal is about: the resource (`pods`), its group, and the object's name."""

    plural: str = ""
    group: str = ""
    name: str = ""
    kind: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Refused(ApiError):
    """An `ApiError` raised by our own server: it knows the details of its Status."""

    about: About = About()
    causes: Sequence[Cause] = ()
    retry_after: int = 0
    uid: str = ""


class _NotFound(Refused, errors.NotFound):
    pass


class _Conflict(Refused, errors.Conflict):
    pass


class _AlreadyExists(Refused, errors.AlreadyExists):
    pass


class _Gone(Refused, errors.Gone):
    pass


class _Unavailable(Refused, errors.Unavailable):
    pass


_CLASSES: dict[str, type[Refused]] = {
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
) -> Refused:
    error = _CLASSES.get(reason, Refused)(message, code=code, reason=reason)
    error.about = about or About()
    error.causes = causes
    error.retry_after = retry_after
    return error


def not_found(about: About) -> Refused:
    return refuse(404, "NotFound", f'{about.qualified} "{about.name}" not found', about=about)


def no_such_path() -> Refused:
    return refuse(404, "NotFound", "the server could not find the requested resource")


def already_exists(about: About) -> Refused:
    message = f'{about.qualified} "{about.name}" already exists'
    return refuse(409, "AlreadyExists", message, about=about)


def conflict(about: About, why: str) -> Refused:
    message = f'Operation cannot be fulfilled on {about.qualified} "{about.name}": {why}'
    return refuse(409, "Conflict", message, about=about)


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def invalid(about: About, causes: Sequence[Cause]) -> Refused:
    """422, with every cause; `about.kind` names what was invalid."""
    qualified = f"{about.kind}.{about.group}" if about.group else about.kind
    said = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(map(str, causes)) + "]"
    message = f'{qualified} "{about.name}" is invalid: {said}'
    return refuse(422, "Invalid", message, about=about, causes=causes)


def bad_request(message: str, *, about: About | None = None) -> Refused:
    return refuse(400, "BadRequest", message, about=about)


def forbidden(about: About, why: str, causes: Sequence[Cause] = ()) -> Refused:
    message = f'{about.qualified} "{about.name}" is forbidden: {why}'
    return refuse(403, "Forbidden", message, about=about, causes=causes)


def method_not_allowed(about: About) -> Refused:
    message = "the server does not allow this method on the requested resource"
    return refuse(405, "MethodNotAllowed", message, about=about)


def unsupported(what: str) -> Refused:
    return refuse(415, "UnsupportedMediaType", what)


def not_acceptable(allowed: str) -> Refused:
    message = f"only the following media types are accepted: {allowed}"
    return refuse(406, "NotAcceptable", message)


def too_large(limit: int) -> Refused:
    message = f"Request entity too large: limit is {limit}"
    return refuse(413, "RequestEntityTooLarge", message)


def expired(requested: int, oldest: int) -> Refused:
    return refuse(410, "Expired", f"too old resource version: {requested} ({oldest})")


def expired_continue() -> Refused:
    message = (
        "The provided continue parameter is too old to display a consistent list result. You must"
        " start a new list without the continue parameter."
    )
    return refuse(410, "Expired", message)


def too_new(requested: int, current: int) -> Refused:
    """The caller has seen a revision that we have not (another server, or a restore)."""
    cause = Cause("Too large resource version", reason="ResourceVersionTooLarge")
    message = f"Too large resource version: {requested}, current: {current}"
    return refuse(504, "Timeout", message, causes=[cause], retry_after=1)


def unauthorized(message: str) -> Refused:
    return refuse(401, "Unauthorized", message)


def unavailable(message: str) -> Refused:
    return refuse(503, "ServiceUnavailable", message, retry_after=1)


def status(error: ApiError) -> dict[str, Any]:
    """The `Status` object that says `error`."""
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
    }
    if error.reason:
        body["reason"] = error.reason
    if isinstance(error, Refused):
        details = _details(error)
        if details:
            body["details"] = details
    body["code"] = error.code
    return body


def _details(error: Refused) -> dict[str, Any]:
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
    said = {"reason": cause.reason, "message": cause.message}
    if cause.field:
        said["field"] = cause.field
    return said


def deleted(about: About, uid: str) -> dict[str, Any]:
    """The `Status` that answers a deletion when no object is left to show."""
    details = {"name": about.name, "group": about.group, "kind": about.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }
