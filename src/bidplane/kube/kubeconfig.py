"""
A client from a kubeconfig, as kubectl reads it: its current context, or another by name.

Supports tokens and client certificates, in the file or in files it names. Unsupported logins
(plugins, passwords) are refused by name.
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
    """
    Return the client for a context; raises `UserError` that names what is missing or unsupported.
    """
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
    """The entry of that name in one of the kubeconfig's lists."""
    for entry in config.get(list_) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            content = entry.get(field)
            return content if isinstance(content, dict) else {}
    raise UserError(f"{path}: it has no {field} {name!r}")


def _token(user: dict[str, Any], path: Path) -> str:
    if user.get("tokenFile"):
        return (path.parent / str(user["tokenFile"])).read_text().strip()
    return str(user.get("token") or "")


def _certificate(user: dict[str, Any], path: Path, folder: Path) -> tuple[str, str] | None:
    """The files of the user's client certificate and key, or None."""
    files = []
    for part in ("client-certificate", "client-key"):
        if user.get(f"{part}-data"):
            file = folder / part
            file.touch(mode=0o600)
            file.write_bytes(b64decode(user[f"{part}-data"]))
            files.append(str(file))
        elif user.get(part):
            files.append(str(path.parent / user[part]))
    return (files[0], files[1]) if len(files) == 2 else None
