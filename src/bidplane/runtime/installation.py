"""
An installation is a folder.

    lock             held while `bidplane up` runs in it
    installation.json  address and identity, for the commands that talk to it
    ca.crt …         its certificates        token.key    signs its tokens
    credentials.json the generations of credentials that were revoked
    planes/NAME/     one plane each          ledger.db    the truth about money and leases
    fleet.yaml       the fleet it was started with
    encryption.yaml  the configuration of encryption at rest, if any
    machine.json     the node of the fleet that is this machine, if one is
    logs/            the output of each process
    status.json      the state of each process, while `bidplane up` runs
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from bidplane.errors import UserError
from bidplane.runtime.folderlock import HeldByAnother, hold, is_held
from bidplane.runtime.identity import certificates, credentials
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.runtime.identity.credentials import (
    HOST_PLANE,
    METRICS_PLANE,
    OWNERS,
    Identity,
    Tokens,
)
from bidplane.runtime.identity.generations import Generations
from bidplane.runtime.supervision.statusfile import StatusFile
from bidplane.storage import sealing
from bidplane.storage.sealing import Sealing

_COMPONENT_TOKEN_SECONDS = 3600


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that other processes and commands need to reach a running installation."""

    url: str
    exchange_url: str
    host_uid: str = ""
    activator_url: str = ""  # of agents' services
    activator_tls_url: str = ""
    activator_address: tuple[str, int] | None = None  # for gateways, perhaps on other machines
    tls_folder: str = ""  # the certificates of agents' services; "" is no HTTPS
    activators: int = 1  # processes that serve them
    domain: str = "localhost"  # agents' services have names below it


class Installation:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.planes = folder / "planes"
        self.ledger = folder / "ledger.db"
        self.fleet = folder / "fleet.yaml"
        self.encryption = folder / "encryption.yaml"
        self.logs = folder / "logs"
        self.status = StatusFile(folder / "status.json")
        self._address = folder / "installation.json"
        self._machine = folder / "machine.json"
        self._lock: IO[str] | None = None
        # By user and groups: a token and its end.
        self._host_tokens: dict[tuple[str, tuple[str, ...]], tuple[str, int]] = {}

    def __repr__(self) -> str:
        return f"<Installation {self.folder}>"

    def create(self) -> None:
        """Create the folder; raise `UserError` when that fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)  # keys and secrets are in it, whoever made it
            for inside in (self.planes, self.logs):
                inside.mkdir(exist_ok=True, mode=0o700)
            for inside in (self.planes, self.logs, *self.planes.glob("*/")):
                inside.chmod(0o700)
            probe = self.folder / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"cannot write to the data directory {self.folder}: {error.strerror};"
                " choose another with --data"
            ) from error

    def lock(self) -> None:
        """Lock the folder for this process; raise `UserError` when another has it."""
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
    def is_running(self) -> bool:
        """True while some process holds the folder."""
        return is_held(self.folder)

    @property
    def lock_descriptor(self) -> int:
        """
        The lock, for child processes to inherit: the folder is free when the last of them is gone.
        """
        assert self._lock is not None, "not locked"
        return self._lock.fileno()

    def certificates(self, *, hosts: list[str], now: float) -> Certificates:
        return certificates.ensure(self.folder, hosts=hosts, now=now)

    def signer(self) -> Signer:
        """Return the signer of client certificates; `certificates` has made its key."""
        return Signer(self.folder / "ca.crt", self.folder / "ca.key", self.generations())

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca.crt")

    def tokens(self) -> Tokens:
        return Tokens(credentials.load_key(self.folder / "token.key"), self.generations())

    def generations(self) -> Generations:
        return Generations(self.folder / "credentials.json")

    def write_encryption(self, source: Path) -> None:
        """Copy an encryption configuration; the server reads it when it starts."""
        temporary = self.encryption.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(source.read_bytes())
        temporary.replace(self.encryption)

    def sealing(self) -> Sealing:
        return sealing.load(self.encryption) if self.encryption.exists() else Sealing()

    def write_address(self, address: Address) -> None:
        temporary = self._address.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(address))
        temporary.replace(self._address)

    def address(self) -> Address:
        """Return the addresses; raise `UserError` when nothing was ever started here."""
        try:
            return msgspec.json.decode(self._address.read_bytes(), type=Address)
        except FileNotFoundError:
            raise UserError(
                f"no Bidplane in {self.folder}: start one with `bidplane up`,"
                " or name its directory with --data"
            ) from None
        except msgspec.MsgspecError as error:
            raise UserError(f"{self._address} is damaged ({error}); start Bidplane again") from None

    def ports(self) -> tuple[int, ...]:
        """Return the ports of server, exchange, activator (HTTP, HTTPS); 0 where none is known."""
        try:
            address = self.address()
        except UserError:
            return 0, 0, 0, 0
        urls = (
            address.url,
            address.exchange_url,
            address.activator_url,
            address.activator_tls_url,
        )
        return tuple(urlsplit(url).port or 0 for url in urls)

    def machine(self) -> dict[str, Any] | None:
        """Return the node of the fleet that is this machine, with its settings; None if none is."""
        try:
            return msgspec.json.decode(self._machine.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return None

    def write_machine(self, settings: dict[str, Any] | None) -> None:
        if settings is None:
            self._machine.unlink(missing_ok=True)
        else:
            self._machine.write_bytes(msgspec.json.encode(settings))

    def metrics_token(self, *, seconds: int, now: float) -> str:
        """Return a token for /metrics of this installation's processes, and for nothing else."""
        identity = Identity(
            plane=METRICS_PLANE, uid="", user="prometheus", expires=int(now) + seconds
        )
        return self.tokens().issue(identity)

    def owner_token(self, *, user: str, now: float) -> str:
        """
        Return a token of the owner, for our own processes and commands, which can read the key
        anyway.
        """
        return self.host_token(user=user, groups=(OWNERS,), now=now)

    def host_token(self, *, user: str, groups: tuple[str, ...], now: float) -> str:
        """Return a token of the host with the rights of these groups."""
        cached = self._host_tokens.get((user, groups))
        if cached is not None and cached[1] > now + _COMPONENT_TOKEN_SECONDS / 2:
            return cached[0]
        identity = Identity(
            plane=HOST_PLANE,
            uid=self.address().host_uid,
            user=user,
            groups=groups,
            expires=int(now) + _COMPONENT_TOKEN_SECONDS,
        )
        token = self.tokens().issue(identity)
        if identity.uid:  # else the host plane is still being made: ask again
            self._host_tokens[user, groups] = token, identity.expires
        return token
