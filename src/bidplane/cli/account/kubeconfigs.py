"""Kubeconfigs with an expiry: written, and renewed with the file's own credential."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bidplane.client import config
from bidplane.errors import UserError
from bidplane.http.client.caller import BlockingCaller, HttpAnswer, NoAnswer, trust

SHORTEST_HOURS = 0.02  # a minute, and a little
OWNERS_MOST_HOURS = 30 * 24
AGENTS_MOST_HOURS = 24


class Kubeconfig(msgspec.Struct, frozen=True):
    """A written file, and the time its credential expires."""

    path: Path
    expires: str  # RFC 3339

    def __str__(self) -> str:
        return f"{self.path}, good until {self.expires}"

    @property
    def as_json(self) -> dict[str, str]:
        return {"kubeconfig": str(self.path), "expires": self.expires}


def lifetime(hours: float, *, most: int) -> dict[str, str]:
    """Return the parameter that asks for a credential of so many hours."""
    if not SHORTEST_HOURS <= hours <= most:
        raise UserError(f"--hours must be from {SHORTEST_HOURS} to {most}, not {hours:g}")
    return {"seconds": str(int(hours * 3600))}


def save(path: Path, answer: HttpAnswer) -> Kubeconfig:
    """Write the kubeconfig in an answer, atomically, readable by its owner alone."""
    new_file = path.with_name(f".{path.name}.new")
    try:
        new_file.touch(mode=0o600)
        new_file.write_bytes(answer.body)
        new_file.replace(path)
    except OSError as error:
        new_file.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; choose with --output") from error
    return Kubeconfig(path, answer.headers.get("expires", ""))


def renewed(path: Path, hours: float) -> Kubeconfig:
    """Replace the credential in an agent's kubeconfig by a new one, requested with the old."""
    params = lifetime(hours, most=AGENTS_MOST_HOURS)
    credential = config.find(kubeconfig=path, environment={})
    trusted = trust(ca_data=credential.ca_data)
    try:
        with BlockingCaller(credential.root, trust=trusted, token=credential.token) as client:
            answer = client.call(
                "POST",
                f"/bidplane/v1/agents/{credential.agent}/kubeconfig",
                params=params,
            )
    except NoAnswer as error:
        raise UserError(
            f"{credential.root} does not answer ({error}); start it with `bidplane up`"
        ) from error
    if answer.code == 401:
        raise UserError(
            f"{path} has expired or was revoked: ask the owner for"
            f" `bidplane agent kubeconfig {credential.agent}`"
        )
    return save(path, answer.accepted())
