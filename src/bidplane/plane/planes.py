"""
All planes of an installation: one folder each, opened when first used.

    ROOT/NAME/plane.db      the plane
    ROOT/.gone-…            a plane whose deletion was interrupted; swept at the next start
    ROOT/.new-…             one whose restoring was

A plane nobody uses is closed: its file and its memory are given back, and the next request
opens it again. Who follows planes from inside (controllers) is told of that by `on_wake`.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bidplane.kube.client import Client
from bidplane.machinery.clock import Clock
from bidplane.plane import snapshots
from bidplane.plane.call import Admit
from bidplane.plane.feed import Recent
from bidplane.plane.housekeeping import Housekeeper
from bidplane.plane.http import serve
from bidplane.plane.http.hosting import PodStreams
from bidplane.plane.http.message import Receive, Scope, Send
from bidplane.plane.journal import Journal
from bidplane.plane.local import LocalClient
from bidplane.plane.plane import Plane
from bidplane.plane.seeds import seed
from bidplane.plane.store import Store
from bidplane.plane.uses import Uses
from bidplane.plane.writers import Writers
from bidplane.runtime.clientcerts import Signer
from bidplane.runtime.credentials import Tokens
from bidplane.wire import status
from bidplane.wire.names import label_problems

FILE = "plane.db"
_GONE, _NEW = ".gone-", ".new-"
# Commits wait for the disk, not for a core; more threads let more planes sync at once.
_WRITERS = 4


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
        pod_streams: PodStreams | None = None,
        ca: str = "",
        signer: Signer | None = None,
        durable: bool = True,
        inline: bool = False,
        dice: random.Random | None = None,
    ) -> None:
        self.clock, self.tokens, self.pod_streams = clock, tokens, pod_streams
        self.root, self._crds, self._admit = root, crds, admit
        self._durable = durable
        self._signer = signer  # of client certificates; without one, requests for them wait
        self._ca = ca  # the certificate clients trust, shown in every namespace
        self._dice = dice or random.Random(secrets.randbits(256))
        self._writers = None if inline else Writers(_WRITERS)
        self._recent = Recent()
        self._open: dict[str, tuple[Plane, Housekeeper]] = {}
        self._uses = Uses(clock)
        self._uids: dict[str, str] = {}  # also of those asleep: asked with every request
        self.on_wake: list[Callable[[str], None]] = []
        self._closed = False
        self._making: dict[str, asyncio.Lock] = {}
        root.mkdir(parents=True, exist_ok=True)
        for left in [*root.glob(f"{_GONE}*"), *root.glob(f"{_NEW}*")]:
            shutil.rmtree(left)

    def __repr__(self) -> str:
        return f"<Planes [{len(self.names())} there, {len(self._open)} open]>"

    # Life.

    async def create(self, name: str, uid: str | None = None) -> str:
        """
        Make the plane if it is not there; returns its uid.

        `uid` ties it to the life of what it is made for: a plane of that name with
        another uid is a leftover, and goes first.
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
                    folder.mkdir()
                    self._sync_root()
                facts = {"uid": uid or self._new_uid()}
                journal = Journal(folder / FILE, durable=self._durable, begin_with=facts)
            plane, keeper = self._opened(name, journal)
            await seed(plane, self._crds(name))
            if journal is not None and journal.is_new:
                plane.store.forget_history()
            keeper.start()
            return plane.uid

    def _sync_root(self) -> None:
        """SQLite syncs what is in a plane's folder; that there is such a folder is ours to sync."""
        if self._durable:
            root = os.open(self.root, os.O_RDONLY)
            try:
                os.fsync(root)
            finally:
                os.close(root)

    def _opened(self, name: str, journal: Journal | None = None) -> tuple[Plane, Housekeeper]:
        if self._closed:
            raise status.unavailable("the server is shutting down")
        found = self._open.get(name)
        if found is not None:
            return found
        if journal is None:
            path = self.root / name / FILE
            if label_problems(name) or not path.exists():
                raise status.refuse(404, "NotFound", f"there is no plane {name!r}")
            journal = Journal(path, durable=self._durable)
        uid = journal.fact("uid") or ""
        plane = Plane(
            name,
            uid,
            Store(journal, self._writers, self._recent),
            clock=self.clock,
            dice=self._dice,
            admit=self._admit,
            crds=self._crds(name),
        )
        plane.ca, plane.signer = self._ca, self._signer
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
        """Remove everything of the plane; nothing happens if it is not there."""
        async with self._making.setdefault(name, asyncio.Lock()):
            folder = self.root / name
            if label_problems(name) or not folder.exists():
                return
            opened = self._open.pop(name, None)
            self._uids.pop(name, None)
            self._uses.forget(name)
            # The name is free at once, before anything is waited for: a request that comes
            # meanwhile must not open it again. A crash from here on leaves nothing half there.
            gone = self.root / f"{_GONE}{name}-{self._dice.getrandbits(32):08x}"
            folder.rename(gone)
            if opened is not None:
                plane, keeper = opened
                await keeper.stop()
                await plane.store.close(f"the plane {name} was deleted")
            shutil.rmtree(gone)

    # Sleep, and copies.

    async def sleep(self, name: str, *, unused_for: float = 0.0) -> bool:
        """
        Close the plane if nobody has used it for so many seconds; whether it is asleep.

        Its watches end, and resume where they were: what happened is in its file.
        """
        async with self._making.setdefault(name, asyncio.Lock()):
            found = self._open.get(name)
            if found is None:
                return True
            if unused_for and self._uses.unused_for(name) < unused_for:
                return False
            plane, keeper = found
            await keeper.stop()
            await plane.store.close(f"the plane {name} went to sleep; ask again")
            del self._open[name]
            return True

    def idle(self, seconds: float) -> list[str]:
        """The open planes nobody has used for so long."""
        return [name for name in self._open if self._uses.unused_for(name) >= seconds]

    def least_used(self) -> list[str]:
        """The open planes, the one that was longest of no use to anybody first."""
        return sorted(self._open, key=self._uses.unused_for, reverse=True)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def size(self, name: str) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in (self.root / name).glob("*"))

    def is_awake(self, name: str) -> bool:
        return name in self._open

    async def snapshot(self, name: str, target: Path) -> None:
        """The plane as it is now, as one file; `NotFound` when there is none."""
        async with self._making.setdefault(name, asyncio.Lock()):
            source = self.root / name / FILE
            if label_problems(name) or not source.exists():
                raise status.refuse(404, "NotFound", f"there is no plane {name!r}")
            found = self._open.get(name)
            if found is None:  # asleep, and stays so
                snapshots.copy(source, target)
            else:
                await found[0].store.aside(lambda journal: snapshots.write(journal, target))

    async def restore(self, name: str, source: Path, *, same_uid: bool = False) -> str:
        """
        The plane a snapshot was made of, as it was, under a name that is free.

        Without `same_uid` it is another plane: credentials of the first do not open it.
        """
        if problems := label_problems(name):
            raise status.bad_request(f"{name!r} cannot be the name of a plane: {problems[0]}")
        snapshots.check(source)
        async with self._making.setdefault(name, asyncio.Lock()):
            folder = self.root / name
            if folder.exists():
                raise status.refuse(409, "AlreadyExists", f"there is a plane {name!r} already")
            fresh = self.root / f"{_NEW}{name}-{self._dice.getrandbits(32):08x}"
            fresh.mkdir()
            snapshots.copy(source, fresh / FILE)
            journal = Journal(fresh / FILE, durable=self._durable)
            if not same_uid:
                journal.remember("uid", self._new_uid())
            journal.close()
            fresh.rename(folder)
        return await self.create(name)

    async def fork(self, name: str, new: str) -> str:
        """Copy a plane as it is now, under a new name and uid."""
        copy = self.root / f"{_NEW}{self._dice.getrandbits(64):016x}"
        copy.mkdir()
        try:
            await self.snapshot(name, copy / FILE)
            return await self.restore(new, copy / FILE)
        finally:
            shutil.rmtree(copy)

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob(f"[!.]*/{FILE}"))

    def uid(self, name: str) -> str | None:
        """The uid of the plane, or None when there is no such plane."""
        if name in self._uids:  # asked with every request: no look at the disk
            return self._uids[name]
        if label_problems(name) or not (self.root / name / FILE).exists():
            return None
        return self._opened(name)[0].uid

    def plane(self, name: str) -> Plane:
        """The plane, opened if need be; `NotFound` when there is none."""
        plane, keeper = self._opened(name)
        keeper.start()
        return plane

    def client(self, name: str) -> Client:
        return LocalClient(lambda: self.plane(name), self.tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3: serves `/planes/NAME/…`."""
        name = self._uses.begin(scope.get("path", ""))
        try:
            await serve(self, scope, receive, send)
        finally:
            self._uses.end(name)

    async def close(self) -> None:
        """Finish what is being written, end the watches, close the files."""
        self._closed = True
        for plane, keeper in list(self._open.values()):
            await keeper.stop()
            await plane.store.close("the server is shutting down")
        self._open.clear()
        if self._writers is not None:
            self._writers.close()

    def abandon(self) -> None:
        """As kill -9: what was not committed never happened."""
        self._closed = True
        for plane, keeper in self._open.values():
            keeper.abandon()
            plane.store.abandon()
        self._open.clear()
        if self._writers is not None:
            self._writers.close(wait=False)

    def facts(self) -> Mapping[str, int]:
        """For metrics: how many planes there are, and how many are open."""
        return {"planes": len(self.names()), "open": len(self._open)}
