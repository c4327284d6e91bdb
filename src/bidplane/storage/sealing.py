"""
Objects encrypted at rest, configured as Kubernetes' EncryptionConfiguration.

    apiVersion: apiserver.config.k8s.io/v1
    kind: EncryptionConfiguration
    resources:
    - resources: [secrets]
      providers:
      - aesgcm: {keys: [{name: key1, secret: BASE64}]}    # or file: PATH, or command: [PROGRAM, …]
      - identity: {}

The first provider (and its first key) writes; all of them read. `identity` is plain text: listed
last, what was written before is still read; listed first, what is written is plain again. A
`command` prints the key in base64: that is how a KMS is asked, once when the server starts.

A value is sealed for the key it is stored under: one that was copied elsewhere cannot be opened.
"""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from bidplane.errors import UserError

PREFIX = b"k8s:enc:"
_NONCE_BYTES = 12
_COMMAND_SECONDS = 30
_IDENTITY = "identity"
_CIPHERS: Mapping[str, tuple[Callable[[bytes], Any], tuple[int, ...]]] = {
    "aesgcm": (AESGCM, (16, 24, 32)),
    "chacha20poly1305": (ChaCha20Poly1305, (32,)),
}


class Sealed(UserError):
    """A value that cannot be decrypted with the available keys."""


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    secret: str = ""
    file: str = ""
    command: list[str] = []


class _Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[_Key]


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    resources: list[str]
    providers: list[dict[str, Any]]


class _Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    kind: str
    resources: list[_Group]
    api_version: str = ""


class _Provider:
    """One key of one cipher; without a cipher, plain text."""

    def __init__(self, name: str, key: str = "", cipher: Any = None) -> None:
        self.head = b"" if cipher is None else f"k8s:enc:{name}:v1:{key}:".encode()
        self._cipher = cipher

    def seal(self, key: str, value: bytes) -> bytes:
        if self._cipher is None:
            return value
        nonce = os.urandom(_NONCE_BYTES)
        return self.head + nonce + bytes(self._cipher.encrypt(nonce, value, key.encode()))

    def open(self, key: str, value: bytes) -> bytes:
        nonce = value[len(self.head) : len(self.head) + _NONCE_BYTES]
        rest = value[len(self.head) + _NONCE_BYTES :]
        return bytes(self._cipher.decrypt(nonce, rest, key.encode()))


class Sealing:
    """Encryption of the objects of a journal, by their resource."""

    def __init__(self, providers: Mapping[str, list[_Provider]] | None = None) -> None:
        self._providers = dict(providers or {})

    def __bool__(self) -> bool:
        return bool(self._providers)

    def seal(self, key: str, value: bytes) -> bytes:
        """Return `value` as it is written under `key`, which is `RESOURCE/…`."""
        providers = self._of(key)
        return providers[0].seal(key, value) if providers else value

    def open(self, key: str, value: bytes) -> bytes:
        """
        Return the value that was sealed as `value`. Raise `Sealed` if the key for it is missing, or
        if it is plain where the configuration wants it encrypted.
        """
        if not value.startswith(PREFIX):
            providers = self._of(key)
            if providers and all(provider.head for provider in providers):
                raise Sealed(
                    f"{key} is not encrypted, and the encryption configuration does not allow that:"
                    " add the provider identity at its end"
                )
            return value
        cipher, _, name = value[len(PREFIX) :].split(b":", 3)[:3]
        # Also for a resource that is no longer listed: its old values can be read.
        for provider in (listed for group in self._providers.values() for listed in group):
            if provider.head and value.startswith(provider.head):
                try:
                    return provider.open(key, value)
                except InvalidTag:
                    raise Sealed(
                        f"{key} cannot be decrypted with the key {name.decode()!r}: it is another"
                        " key of that name, or the data are damaged; put the right key back"
                    ) from None
        raise Sealed(
            f"{key} is encrypted with the {cipher.decode()} key {name.decode()!r}, which the"
            " encryption configuration does not have: put it back, with --encryption-config"
        )

    def _of(self, key: str) -> list[_Provider]:
        return self._providers.get(key.partition("/")[0], [])


def load(path: Path) -> Sealing:
    """Return the sealing that a file describes; raise `UserError`."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the encryption configuration {path}: {error}") from None
    try:
        configuration = msgspec.yaml.decode(raw, type=_Configuration)
    except msgspec.MsgspecError as error:
        raise UserError(f"the encryption configuration {path}: {error}") from None
    if configuration.kind != "EncryptionConfiguration":
        raise UserError(f"{path} is a {configuration.kind!r}, not an EncryptionConfiguration")
    providers: dict[str, list[_Provider]] = {}
    for group in configuration.resources:
        group_providers = [
            _provider for entry in group.providers for _provider in _providers(path, entry)
        ]
        if not group_providers:
            raise UserError(f"the encryption configuration {path}: a group has no providers")
        for resource in group.resources:
            providers.setdefault(resource, group_providers)
    return Sealing(providers)


def _providers(path: Path, entry: Mapping[str, Any]) -> list[_Provider]:
    if len(entry) != 1:
        raise UserError(f"the encryption configuration {path}: a provider has one name")
    ((name, options),) = entry.items()
    if name == _IDENTITY:
        return [_Provider(name)]
    if name not in _CIPHERS:
        names = ", ".join((*_CIPHERS, _IDENTITY))
        raise UserError(
            f"the encryption configuration {path}: there is no provider {name!r}: use {names}"
        )
    try:
        keys = msgspec.convert(options, _Keys).keys
    except msgspec.ValidationError as error:
        raise UserError(f"the encryption configuration {path}: {name}: {error}") from None
    make, sizes = _CIPHERS[name]
    key_providers = []
    for key in keys:
        if not key.name or ":" in key.name:
            raise UserError(f"the encryption configuration {path}: a key needs a name without ':'")
        secret = _secret(path, key)
        if len(secret) not in sizes:
            allowed = " or ".join(map(str, sizes))
            raise UserError(
                f"the encryption configuration {path}: the key {key.name!r} has {len(secret)}"
                f" bytes, and {name} needs {allowed} (head -c 32 /dev/urandom | base64)"
            )
        key_providers.append(_Provider(name, key.name, make(secret)))
    return key_providers


def _secret(path: Path, key: _Key) -> bytes:
    where = f"the encryption configuration {path}: the key {key.name!r}"
    if sum(map(bool, (key.secret, key.file, key.command))) != 1:
        raise UserError(f"{where} needs one of secret, file and command")
    text: str | bytes = key.secret
    if key.file:
        try:
            text = Path(key.file).read_bytes()
        except OSError as error:
            raise UserError(f"{where}: cannot read {key.file}: {error.strerror}") from None
    if key.command:
        try:
            done = subprocess.run(
                key.command, capture_output=True, timeout=_COMMAND_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(f"{where}: its command failed: {error}") from None
        text = done.stdout
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"{where} is not base64") from None
