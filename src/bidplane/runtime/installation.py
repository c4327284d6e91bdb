"""
An installation is a folder.

    lock             held while `bidplane up` runs in it
    installation.json  address and identity, for the commands that talk to it
    ca.crt …         its certificates        token.key    signs its tokens
    planes/NAME/     one plane each          ledger.db    the truth about money and leases
    fleet.yaml       the fleet it was started with
    machine.json     which node of it is this machine, if one is
    logs/            what each process said
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import IO, Any

import msgspec

from bidplane.errors import UserError
from bidplane.runtime import certificates, credentials
from bidplane.runtime.certificates import Certificates
from bidplane.runtime.clientcerts import Signer
from bidplane.runtime.credentials import HOST_PLANE, OWNERS, Identity, Tokens
from bidplane.runtime.holding import HeldByAnother, hold

_COMPONENT_TOKEN_SECONDS = 3600


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """What other processes and commands must know to reach a running installation."""

    url: str
    exchange_url: str
    host_uid: str = ""


class Installation:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.planes = folder / "planes"
        self.ledger = folder / "ledger.db"
        self.fleet = folder / "fleet.yaml"
        self.logs = folder / "logs"
        self._address = folder / "installation.json"
        self._machine = folder / "machine.json"
        self._lock: IO[str] | None = None
        self._owner_tokens: dict[str, tuple[str, int]] = {}  # user: token and its end

    def __repr__(self) -> str:
        return f"<Installation {self.folder}>"

    def create(self) -> None:
        """Make the folder; raises `UserError` when that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for inside in (self.planes, self.logs):
                inside.mkdir(exist_ok=True)
            probe = self.folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"cannot write to the data directory {self.folder}: {error.strerror};"
                " choose another with --data"
            ) from error

    def lock(self) -> None:
        """Hold the folder for this process; raises `UserError` when another holds it."""
        try:
            self._lock = hold(self.folder)
        except OSError as error:
            raise UserError(
                f"cannot write to the data directory {self.folder}: {error.strerror};"
                " choose another with --data"
            ) from error
        except HeldByAnother as holder:
            raise UserError(
                f"the data directory {self.folder} is in use by a running Bidplane ({holder});"
                " stop that one, or choose another directory with --data"
            ) from None

    @property
    def lock_descriptor(self) -> int:
        """For child processes to inherit: the folder is free when the last of them is gone."""
        assert self._lock is not None, "not locked"
        return self._lock.fileno()

    def certificates(self, *, hosts: list[str], now: float) -> Certificates:
        return certificates.ensure(self.folder, hosts=hosts, now=now)

    def signer(self) -> Signer:
        """Signs client certificates; `certificates` has made its key."""
        return Signer(self.folder / "ca.crt", self.folder / "ca.key")

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca.crt")

    def tokens(self) -> Tokens:
        return Tokens(credentials.load_key(self.folder / "token.key"))

    def write_address(self, address: Address) -> None:
        fresh = self._address.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(address))
        fresh.replace(self._address)

    def address(self) -> Address:
        """Where it is; raises `UserError` when nothing was ever started here."""
        try:
            return msgspec.json.decode(self._address.read_bytes(), type=Address)
        except FileNotFoundError:
            raise UserError(
                f"no Bidplane in {self.folder}: start one with `bidplane up`,"
                " or name its directory with --data"
            ) from None
        except msgspec.MsgspecError as error:
            raise UserError(f"{self._address} is damaged ({error}); start Bidplane again") from None

    def machine(self) -> dict[str, Any] | None:
        """Which node of the fleet is this machine, and how it runs pods; None if none is."""
        try:
            return msgspec.json.decode(self._machine.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return None

    def write_machine(self, told: dict[str, Any] | None) -> None:
        if told is None:
            self._machine.unlink(missing_ok=True)
        else:
            self._machine.write_bytes(msgspec.json.encode(told))

    def owner_token(self, *, user: str, now: float) -> str:
        """For our own processes and commands, which can read the key anyway."""
        known = self._owner_tokens.get(user)
        if known is not None and known[1] > now + _COMPONENT_TOKEN_SECONDS / 2:
            return known[0]
        identity = Identity(
            plane=HOST_PLANE,
            uid=self.address().host_uid,
            user=user,
            groups=(OWNERS,),
            expires=int(now) + _COMPONENT_TOKEN_SECONDS,
        )
        token = self.tokens().issue(identity)
        if identity.uid:  # else the host plane is still being made: ask again
            self._owner_tokens[user] = token, identity.expires
        return token
