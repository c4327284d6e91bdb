"""
The address and credential of a client.

The caller's arguments come first; then `BIDPLANE_URL` and `BIDPLANE_TOKEN` (`BIDPLANE_CA` names a
file with the certificates to trust); then the kubeconfig in `BIDPLANE_KUBECONFIG`, else in
`KUBECONFIG`. Inside a pod, the plane's own service account opens the plane but not the exchange,
so it is not used.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bidplane.api.objects import Fields
from bidplane.errors import UserError

URL = "BIDPLANE_URL"
TOKEN = "BIDPLANE_TOKEN"
CA = "BIDPLANE_CA"
KUBECONFIG = "BIDPLANE_KUBECONFIG"
_HOW = (
    f"name a kubeconfig in {KUBECONFIG}, or set {URL} (https://HOST:PORT/planes/NAME)"
    f" and {TOKEN}; `bidplane agent kubeconfig NAME` writes one"
)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The plane's address, and the credential for it."""

    url: str  # of the plane: https://HOST:PORT/planes/NAME
    token: str
    ca_data: str | None = None  # PEM; None trusts what the system trusts
    namespace: str = "default"

    def __repr__(self) -> str:
        return f"<Config {self.url}>"  # never the token

    @property
    def agent(self) -> str:
        return self.url.rstrip("/").rpartition("/planes/")[2]

    @property
    def root(self) -> str:
        """The installation's public address."""
        return self.url.rstrip("/").rpartition("/planes/")[0]


def find(
    *,
    kubeconfig: str | Path | None = None,
    url: str | None = None,
    token: str | None = None,
    ca_file: str | Path | None = None,
    environment: Mapping[str, str],
) -> Config:
    """Return the credential to use; raises `UserError` that says how to provide one."""
    if kubeconfig is not None:
        return _check(read(Path(kubeconfig)))
    url, token = url or environment.get(URL), token or environment.get(TOKEN)
    if url or token:
        if not url or not token:
            raise UserError(f"{URL} and {TOKEN} go together, and one of them is missing: {_HOW}")
        trusted = ca_file or environment.get(CA)
        ca_data = _text(Path(trusted)) if trusted else None
        return _check(Config(url=url, token=token, ca_data=ca_data))
    kubeconfig_path = (
        environment.get(KUBECONFIG) or environment.get("KUBECONFIG", "").partition(":")[0]
    )
    if not kubeconfig_path:
        raise UserError(f"no credential: {_HOW}")
    return _check(read(Path(kubeconfig_path)))


def read(path: Path) -> Config:
    """Read the current context of a kubeconfig that `bidplane agent` wrote."""
    try:
        config = msgspec.yaml.decode(_text(path))
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        encoded = cluster.get("certificate-authority-data")
        return Config(
            url=cluster["server"],
            token=user.get("token", ""),
            ca_data=base64.b64decode(encoded).decode() if encoded else None,
            namespace=context.get("namespace") or "default",
        )
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, binascii.Error):
            raise UserError(f"{path}: its certificate-authority-data is not base64") from None
        raise UserError(f"{path} is not a kubeconfig of an agent ({error!r}): {_HOW}") from None


def _check(config: Config) -> Config:
    """Return the config; raises `UserError` if it lacks a token or a plane's address."""
    if not config.token:
        raise UserError(
            "the kubeconfig has no token, and a client certificate opens the plane but not"
            " the exchange: write one with `bidplane agent kubeconfig NAME`"
        )
    if not config.root.startswith(("https://", "http://")) or not config.agent:
        raise UserError(f"{config.url!r} is not a plane's address: https://HOST:PORT/planes/NAME")
    return config


def _named(entries: Sequence[Fields], name: str) -> Fields:
    return next(entry for entry in entries if entry["name"] == name)


def _text(path: Path) -> str:
    try:
        return path.expanduser().read_text()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
