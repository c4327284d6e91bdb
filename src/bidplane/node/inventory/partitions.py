"""
The MIG instances of one node: made when the first pod that has one starts, unmade when the last
one has ended.

What this node makes, it writes down first: so a new agent knows which instances are its own, makes
none twice, and leaves none behind. Instances that somebody else made are used where a claim has
exactly these, and are never unmade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from bidplane.core import mig, migplan, parts
from bidplane.core.mig import Slot
from bidplane.core.parts import Key, Part
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.inventory.instances import Instances, Made, carry_out

T = TypeVar("T")

log = structlog.get_logger(__name__)


class _Record(msgspec.Struct, frozen=True):
    """As it is written down."""

    gpu: str
    profile: str
    start: int
    holders: list[str]


class Partitions:
    def __init__(self, instances: Instances, *, file: Path | None = None) -> None:
        self._instances = instances
        self._file = file
        self._lock = asyncio.Lock()  # a card is changed by one at a time
        self._parts: dict[Key, Part] = {}
        self._whole: dict[Key, str] = {}  # GPUs that could be cut, by device: their UUID
        self._ours: dict[Part, set[str]] = {}  # made here, or about to be: who has it
        self._used: dict[Part, set[str]] = {}  # made by somebody else
        self.lost: frozenset[Key] = frozenset()  # held, and no longer there
        if file is not None and file.exists():
            for one in msgspec.json.decode(file.read_bytes(), type=list[_Record]):
                self._ours[Part(one.gpu, Slot(one.profile, one.start))] = set(one.holders)

    def __repr__(self) -> str:
        held = ", ".join(
            f"{part.gpu} {part.slot.profile}@{part.slot.start}×{len(holders)}"
            for part, holders in sorted(self._ours.items(), key=lambda item: repr(item[0]))
        )
        return f"<Partitions {held or 'none'}>"

    def slices_are(self, slices: Sequence[Object]) -> None:
        """What the node publishes: which of its devices are parts, and of what."""
        self._parts = parts.of_slices(slices)
        cut = {part.gpu for part in self._parts.values()}
        self._whole = {
            (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]): uuid
            for one in slices
            for device in one["spec"].get("devices") or ()
            if (uuid := device.get("attributes", {}).get("uuid", {}).get("string")) in cut
        }

    def concern(self, keys: Iterable[Key]) -> bool:
        """Whether anything is to be made, or made whole, for these devices."""
        return any(key in self._parts or key in self._whole for key in keys)

    async def take(self, holder: str, keys: Collection[Key]) -> dict[Key, Made]:
        """
        The instances among these devices, there and held. May be repeated.

        Raises `UserError` in the card's words; then nothing new is held.
        """
        if not self.concern(keys):
            return {}
        async with self._lock:
            wanted = {key: self._parts[key] for key in keys if key in self._parts}
            fresh = [part for part in wanted.values() if holder not in self._holders(part)]
            try:
                for key in keys:
                    if key in self._whole:
                        await self._call(lambda gpu=self._whole[key]: self._make_whole(gpu))  # type: ignore[misc]
                for part in wanted.values():
                    await self._call(lambda part=part: self._make(part, holder))  # type: ignore[misc]
                return {
                    key: await self._call(
                        lambda part=part: self._instances.made(part.gpu, part.slot)  # type: ignore[misc]
                    )
                    for key, part in wanted.items()
                }
            except UserError:
                for part in fresh:
                    self._let_go(part, holder)
                await self._call(self._clean)
                raise

    async def leave(self, holder: str) -> None:
        """Whoever it was has ended; what nobody has any more is unmade."""
        held = [part for part in (*self._ours, *self._used) if holder in self._holders(part)]
        if held:
            async with self._lock:
                for part in held:
                    self._let_go(part, holder)
                await self._call(self._clean)

    async def keep_only(self, holders: Collection[str]) -> None:
        """Of all that were ever held, only what these have: after a restart, and now and then."""
        async with self._lock:
            for known in (*self._ours.values(), *self._used.values()):
                known &= set(holders)
            await self._call(self._clean)
            self.lost = await self._call(self._missing)

    # With the lock held.

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work) if self._instances.blocks else work()

    def _holders(self, part: Part) -> set[str]:
        return self._ours.get(part) or self._used.get(part) or set()

    def _let_go(self, part: Part, holder: str) -> None:
        for known in (self._ours, self._used):
            known.get(part, set()).discard(holder)

    def _make(self, part: Part, holder: str) -> None:
        """There, and held; written down before it is made."""
        there = self._instances.current(part.gpu)
        if part.slot in there and part not in self._ours:
            self._used.setdefault(part, set()).add(holder)
            return
        self._ours.setdefault(part, set()).add(holder)
        self._save()
        if part.slot in there:
            return
        unheld = self._unheld(part.gpu)
        wanted = [*(slot for slot in there if slot not in unheld), part.slot]
        try:
            plan = migplan.changes(
                {part.gpu: there}, {part.gpu: wanted}, self._instances.card(part.gpu)
            )
        except mig.BadGeometry as error:
            raise UserError(
                f"{part.slot.profile} at {part.slot.start} cannot be made: {error}; what is in the"
                " way was not made by this node: see nvidia-smi mig -lgi"
            ) from error
        carry_out(self._instances, plan)

    def _make_whole(self, gpu: str) -> None:
        for slot in self._unheld(gpu) & set(self._instances.current(gpu)):
            self._instances.destroy(gpu, slot)
        self._instances.join(gpu)

    def _unheld(self, gpu: str) -> set[Slot]:
        return {
            part.slot for part, holders in self._ours.items() if part.gpu == gpu and not holders
        }

    def _clean(self) -> None:
        """What this node made and nobody has goes; what a card does not let go of, later."""
        for part in [part for part, holders in self._ours.items() if not holders]:
            try:
                if part.slot in self._instances.current(part.gpu):
                    self._instances.destroy(part.gpu, part.slot)
                del self._ours[part]
            except UserError as error:
                log.warning("an instance stays for now", part=repr(part), error=str(error))
        self._used = {part: holders for part, holders in self._used.items() if holders}
        self._save()

    def _missing(self) -> frozenset[Key]:
        names = {part: key for key, part in self._parts.items()}
        found: set[Key] = set()
        for part in (*self._ours, *self._used):
            try:
                there = part.slot in self._instances.current(part.gpu)
            except UserError:
                there = False  # the card itself is gone
            if not there and part in names:
                found.add(names[part])
        return frozenset(found)

    def _save(self) -> None:
        if self._file is None:
            return
        made = [
            _Record(part.gpu, part.slot.profile, part.slot.start, sorted(holders))
            for part, holders in self._ours.items()
        ]
        fresh = self._file.with_name(self._file.name + ".new")
        fresh.write_bytes(msgspec.json.encode(made))
        fresh.rename(self._file)
