"""
A client from a kubeconfig, as kubectl reads it: its current context, or another by name.

Tokens and client certificates, in the file or in files it names. What it cannot do
(plugins, passwords) is said by name.
"""

from __future__ import annotations

import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec

from bidplane.errors import UserError
from bidplane.kube.http import HttpClient


def client_from(path: Path, *, context: str = "") -> HttpClient:
    """Raises `UserError` that names what is missing or cannot be used."""
    config = _read(path)
    name = context or config.get("current-context") or ""
    chosen = _named(config, "contexts", "context", name, path)
    cluster = _named(config, "clusters", "cluster", chosen.get("cluster", ""), path)
    user = _named(config, "users", "user", chosen.get("user", ""), path)
    for unusable in ("exec", "auth-provider", "username"):
        if user.get(unusable):
            raise UserError(
                f"{path}: its user logs in with {unusable}; use a token or a certificate"
            )
    if not cluster.get("server"):
        raise UserError(f"{path}: the cluster of context {name!r} has no server")
    authority = cluster.get("certificate-authority")
    data = cluster.get("certificate-authority-data")
    # OpenSSL reads a certificate from files only, and at once.
    with tempfile.TemporaryDirectory(prefix="bidplane-") as folder:
        return HttpClient(
            cluster["server"],
            token=_token(user, path),
            ca_file=str(path.parent / authority) if authority else None,
            ca_data=b64decode(data).decode() if data else None,
            certificate=_certificate(user, path, Path(folder)),
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        config = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UserError(f"the kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"the kubeconfig {path} is empty")
    return config


def _named(config: dict[str, Any], list_: str, field: str, name: str, path: Path) -> dict[str, Any]:
    for one in config.get(list_) or ():
        if isinstance(one, dict) and one.get("name") == name:
            found = one.get(field)
            return found if isinstance(found, dict) else {}
    raise UserError(f"{path}: it has no {field} {name!r}")


def _token(user: dict[str, Any], path: Path) -> str:
    if user.get("tokenFile"):
        return (path.parent / str(user["tokenFile"])).read_text().strip()
    return str(user.get("token") or "")


def _certificate(user: dict[str, Any], path: Path, folder: Path) -> tuple[str, str] | None:
    found = []
    for part in ("client-certificate", "client-key"):
        if user.get(f"{part}-data"):
            file = folder / part
            file.touch(mode=0o600)
            file.write_bytes(b64decode(user[f"{part}-data"]))
            found.append(str(file))
        elif user.get(part):
            found.append(str(path.parent / user[part]))
    return (found[0], found[1]) if len(found) == 2 else None
