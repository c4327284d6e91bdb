"""
All planes of an installation: one folder each, opened when first used.

    ROOT/NAME/plane.db      the plane
    ROOT/.gone-…            a plane whose deletion was interrupted; swept at the next start
    ROOT/.new-…             one whose restoring was

A plane nobody uses is closed: its file and its memory are given back, and the next request
opens it again. Controllers that follow planes in this process learn of that by `on_wake`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from bidplane.api.agent import PlaneLimits
from bidplane.gate.service import Gate
from bidplane.http.asgi import Receive, Scope, Send
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.plane.admission import limits
from bidplane.plane.call import Admit, Advise
from bidplane.plane.fairness import Fairness
from bidplane.plane.housekeeping import Housekeeper
from bidplane.plane.http import serve
from bidplane.plane.http.hosting import PodStreams
from bidplane.plane.lastuse import UseTracker
from bidplane.plane.local import LocalClient
from bidplane.plane.plane import Plane
from bidplane.plane.storage import snapshots
from bidplane.plane.storage.feed import Recent
from bidplane.plane.storage.journal import DatabaseError, Journal
from bidplane.plane.storage.seeds import seed
from bidplane.plane.storage.store import ObjectStore
from bidplane.plane.storage.watermark import REMEDY, PlaneDamaged
from bidplane.plane.storage.writers import Writers
from bidplane.plane.turns import Turns
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.runtime.supervision import running
from bidplane.storage.sealing import Sealed, Sealing
from bidplane.wire import status
from bidplane.wire.names import label_problems

T = TypeVar("T")
FILE = "plane.db"
_GONE, _NEW = ".gone-", ".new-"
# Commits wait for the disk, not for a core; more threads let more planes sync at once.
_WRITERS = 4

log = structlog.get_logger(__name__)


class Planes:
    """`inline` commits on the event loop: the simulator's deterministic order."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        tokens: Tokens,
        crds: Callable[[str], Sequence[dict[str, Any]]] = lambda plane: (),
        admit: Admit | None = None,
        advise: Advise | None = None,
        pod_streams: PodStreams | None = None,
        ca: str = "",
        signer: Signer | None = None,
        durable: bool = True,
        inline: bool = False,
        dice: random.Random | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        self.clock, self.tokens, self.pod_streams = clock, tokens, pod_streams
        self.root, self._crds = root, crds
        self._admit, self._advise = admit, advise
        self._durable, self._sealing = durable, sealing
        self._signer = signer  # of client certificates; without one, requests for them wait
        self._ca = ca  # the certificate clients trust, shown in every namespace
        self._dice = dice or random.Random(secrets.randbits(256))
        self._writers = None if inline else Writers(_WRITERS)
        self._recent = Recent()
        self._turns = Turns()
        self.fairness = Fairness()
        self._open: dict[str, tuple[Plane, Housekeeper]] = {}
        self._uses = UseTracker(clock)
        self._uids: dict[str, str] = {}  # also of planes asleep: read with every request
        self.gate: Gate | None = None  # of the host; set before it is opened to others
        self.on_wake: list[Callable[[str], None]] = []
        self._closed = False
        self._making: dict[str, asyncio.Lock] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for leftover in [*root.glob(f"{_GONE}*"), *root.glob(f"{_NEW}*")]:
            shutil.rmtree(leftover)

    def __repr__(self) -> str:
        return f"<Planes [{len(self.names())} there, {len(self._open)} open]>"

    # Life.

    async def create(self, name: str, uid: str | None = None) -> str:
        """
        Create the plane if it does not exist; return its uid.

        `uid` ties it to the life of its agent: a plane of that name with another uid is a leftover,
        and is deleted first.
        """
        if uid is not None and self.uid(name) not in (None, uid):
            await self.delete(name)
        if problems := label_problems(name):
            raise status.bad_request(f"{name!r} cannot be the name of a plane: {problems[0]}")
        async with self._making.setdefault(name, asyncio.Lock()):
            folder = self.root / name
            journal: Journal | None = None
            if name not in self._open:
                if not folder.exists():
                    folder.mkdir(mode=0o700)
                    self._sync_root()
                facts = {"uid": uid or self._new_uid()}
                journal = self._read(
                    name,
                    lambda: Journal(
                        folder / FILE,
                        durable=self._durable,
                        begin_with=facts,
                        sealing=self._sealing,
                    ),
                )
            plane, keeper = self._open_plane(name, journal)
            await seed(plane, self._crds(name))
            if journal is not None and journal.is_new:
                plane.store.forget_history()
            keeper.start()
            return plane.uid

    def _read(self, name: str, read: Callable[[], T]) -> T:
        """Read a plane's file; raise 503 with its name and a remedy when that fails."""
        try:
            return read()
        except (PlaneDamaged, Sealed) as error:
            problem = str(error)
        except DatabaseError as error:
            path = self.root / name / FILE
            problem = f"{path} cannot be read ({error}): {REMEDY}"
        log.error("a plane's file cannot be read", plane=name, problem=problem)
        raise status.unavailable(f"the plane {name!r} is not served: {problem}")

    def exists(self, name: str) -> bool:
        """Return whether there is such a plane, also one whose file cannot be read."""
        return not label_problems(name) and (self.root / name).exists()

    def _sync_root(self) -> None:
        """
        Sync the folder of all planes: SQLite syncs a plane's own folder, not its entry in this one.
        """
        if self._durable:
            root = os.open(self.root, os.O_RDONLY)
            try:
                os.fsync(root)
            finally:
                os.close(root)

    def _open_plane(self, name: str, journal: Journal | None = None) -> tuple[Plane, Housekeeper]:
        if self._closed:
            raise status.unavailable("the server is shutting down")
        opened = self._open.get(name)
        if opened is not None:
            return opened
        if journal is None:
            path = self.root / name / FILE
            if label_problems(name) or not path.exists():
                raise status.refuse(404, "NotFound", f"there is no plane {name!r}")
            journal = self._read(
                name, lambda: Journal(path, durable=self._durable, sealing=self._sealing)
            )
        uid = journal.fact("uid") or ""
        try:
            store = self._read(name, lambda: ObjectStore(journal, self._writers, self._recent))
        except status.StatusError:
            journal.close()
            raise
        plane = Plane(
            name,
            uid,
            store,
            clock=self.clock,
            dice=self._dice,
            admit=self._admit,
            advise=self._advise,
            crds=self._crds(name),
        )
        plane.ca, plane.signer = self._ca, self._signer
        plane.turns = self._turns
        if name == HOST_PLANE:
            plane.gate = self.gate
        else:
            plane.limits = limits.read(journal)
        keeper = Housekeeper(plane)
        self._open[name] = plane, keeper
        self._uids[name] = uid
        self._uses.touch(name)
        for tell in self.on_wake:
            tell(name)
        return plane, keeper

    def _new_uid(self) -> str:
        return f"{self._dice.getrandbits(64):016x}"

    async def delete(self, name: str) -> None:
        """Remove everything of the plane; do nothing if it does not exist."""
        async with self._making.setdefault(name, asyncio.Lock()):
            folder = self.root / name
            if label_problems(name) or not folder.exists():
                return
            opened = self._open.pop(name, None)
            self._uids.pop(name, None)
            self._uses.forget(name)
            running.quarantine.release(name)
            # The name is free at once, before anything is waited for: a request that comes
            # meanwhile must not open it again. A crash from here on leaves nothing half there.
            doomed = self.root / f"{_GONE}{name}-{self._dice.getrandbits(32):08x}"
            folder.rename(doomed)
            if opened is not None:
                plane, keeper = opened
                await keeper.stop()
                await plane.store.close(f"the plane {name} was deleted")
            shutil.rmtree(doomed)

    async def limit(self, name: str, new_limits: PlaneLimits, *, by_agent: bool = False) -> None:
        """Set the limits of a plane; its existing objects stay."""
        if name == HOST_PLANE:
            raise status.bad_request("the host plane has no limit: it has the pods of all agents")
        try:
            msgspec.convert(msgspec.to_builtins(new_limits), PlaneLimits)
        except msgspec.ValidationError as error:
            raise status.bad_request(f"this is no limit: {error}") from None
        plane = self.plane(name)

        def write(journal: Journal) -> None:
            limits.write(journal, new_limits, by_agent=by_agent)
            plane.limits = limits.read(journal)

        await plane.store.run_between_commits(write)

    def usage(self, name: str) -> tuple[PlaneLimits, PlaneLimits | None]:
        """Return the usage of a plane, which is opened for that, and its limits."""
        plane = self.plane(name)
        return limits.usage(plane), plane.limits

    # Sleep, and copies.

    async def sleep(self, name: str, *, unused_for: float = 0.0) -> bool:
        """
        Close the plane if nobody has used it for `unused_for` seconds; return whether it is closed.

        Its watches end, and resume where they were: their changes are in its file.
        """
        async with self._making.setdefault(name, asyncio.Lock()):
            opened = self._open.get(name)
            if opened is None:
                return True
            if unused_for and self._uses.unused_for(name) < unused_for:
                return False
            plane, keeper = opened
            await keeper.stop()
            await plane.store.close(f"the plane {name} went to sleep; ask again")
            del self._open[name]
            return True

    def idle(self, seconds: float) -> list[str]:
        """Return the open planes that nobody has used for `seconds`."""
        return [name for name in self._open if self._uses.unused_for(name) >= seconds]

    def least_used(self) -> list[str]:
        """Return the open planes, the one with the oldest last use first."""
        return sorted(self._open, key=self._uses.unused_for, reverse=True)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def size(self, name: str) -> int:
        """Return the bytes that a plane has on disk."""
        return sum(path.stat().st_size for path in (self.root / name).glob("*"))

    def is_awake(self, name: str) -> bool:
        return name in self._open

    async def snapshot(self, name: str, target: Path) -> None:
        """Write the plane as it is now to one file; raise `NotFound` when there is none."""
        async with self._making.setdefault(name, asyncio.Lock()):
            source = self.root / name / FILE
            if label_problems(name) or not source.exists():
                raise status.refuse(404, "NotFound", f"there is no plane {name!r}")
            opened = self._open.get(name)
            if opened is None:  # asleep, and stays so
                snapshots.copy(source, target)
            else:
                await opened[0].store.run_between_commits(
                    lambda journal: snapshots.write(journal, target)
                )

    async def restore(self, name: str, source: Path, *, same_uid: bool = False) -> str:
        """
        Create a plane from a snapshot, under a name that is free, and return its uid.

        Without `same_uid` it is another plane: credentials of the first do not open it.
        """
        if problems := label_problems(name):
            raise status.bad_request(f"{name!r} cannot be the name of a plane: {problems[0]}")
        snapshots.check(source)
        async with self._making.setdefault(name, asyncio.Lock()):
            folder = self.root / name
            if folder.exists():
                raise status.refuse(409, "AlreadyExists", f"there is a plane {name!r} already")
            staging = self.root / f"{_NEW}{name}-{self._dice.getrandbits(32):08x}"
            staging.mkdir(mode=0o700)
            snapshots.copy(source, staging / FILE)
            journal = Journal(staging / FILE, durable=self._durable, sealing=self._sealing)
            if not same_uid:
                journal.remember("uid", self._new_uid())
            journal.close()
            staging.rename(folder)
        return await self.create(name)

    async def fork(self, name: str, new: str) -> str:
        """Copy a plane as it is now, under a new name and uid."""
        copy = self.root / f"{_NEW}{self._dice.getrandbits(64):016x}"
        copy.mkdir(mode=0o700)
        try:
            await self.snapshot(name, copy / FILE)
            return await self.restore(new, copy / FILE)
        finally:
            shutil.rmtree(copy)

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob(f"[!.]*/{FILE}"))

    def uid(self, name: str) -> str | None:
        """Return the uid of the plane, or None when there is no such plane."""
        if name in self._uids:  # read with every request: no access to the disk
            return self._uids[name]
        if label_problems(name) or not (self.root / name / FILE).exists():
            return None
        return self._open_plane(name)[0].uid

    def plane(self, name: str) -> Plane:
        """Return the plane, opened if need be; raise `NotFound` when there is none."""
        plane, keeper = self._open_plane(name)
        keeper.start()
        return plane

    def client(self, name: str) -> KubeClient:
        return LocalClient(lambda: self.plane(name), self.tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve `/planes/NAME/…` (ASGI 3)."""
        name = self._uses.begin(scope.get("path", ""))
        try:
            await serve(self, scope, receive, send)
        finally:
            self._uses.end(name)

    async def close(self) -> None:
        """Finish the writes in progress, end the watches, close the files."""
        self._closed = True
        for plane, keeper in list(self._open.values()):
            await keeper.stop()
            await plane.store.close("the server is shutting down")
        self._open.clear()
        if self._writers is not None:
            self._writers.close()

    def abandon(self) -> None:
        """Stop as kill -9 would: writes that were not committed are lost."""
        self._closed = True
        for plane, keeper in self._open.values():
            keeper.abandon()
            plane.store.abandon()
        self._open.clear()
        if self._writers is not None:
            self._writers.close(wait=False)

    def facts(self) -> Mapping[str, int]:
        """Return the number of planes, and of open ones, for metrics."""
        return {"planes": len(self.names()), "open": len(self._open)}


def check_keys(root: Path, sealing: Sealing) -> None:
    """Raise `Sealed` if a plane below `root` was encrypted with a key that is missing."""
    for path in sorted(root.glob(f"[!.]*/{FILE}")):
        # A damaged plane is refused by name when it is used; the others do not wait for it.
        with contextlib.suppress(PlaneDamaged, DatabaseError):
            journal = Journal(path, sealing=sealing)
            try:
                journal.check_keys()
            except Sealed as error:
                raise Sealed(f"the plane {path.parent.name!r}: {error}") from None
            finally:
                journal.close()
