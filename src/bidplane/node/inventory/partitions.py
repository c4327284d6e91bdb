"""
The MIG instances of one node: created when the first pod that uses one starts, destroyed when the
last has ended.

What this node creates it records first: so a restarted agent knows its own instances, creates none
twice, and leaves none behind. Instances that somebody else created are used where a claim names
exactly these, and are never destroyed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from bidplane.core.devices import mig, migdevices, migplan
from bidplane.core.devices.mig import Slot
from bidplane.core.devices.migdevices import Key, MigDevice
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.inventory.instances import InstanceIdentity, Instances, carry_out

T = TypeVar("T")

log = structlog.get_logger(__name__)


class _Record(msgspec.Struct, frozen=True):
    """An instance in the record file."""

    gpu: str
    profile: str
    start: int
    holders: list[str]


class Partitions:
    """Creates MIG instances for the pods that hold them, and destroys those that nobody holds."""

    def __init__(self, instances: Instances, *, file: Path | None = None) -> None:
        self._instances = instances
        self._file = file
        self._lock = asyncio.Lock()  # one change of a GPU at a time
        self._parts: dict[Key, MigDevice] = {}
        self._gpu_uuids: dict[Key, str] = {}  # the UUIDs of GPUs with MIG, by device
        self._own_holders: dict[
            MigDevice, set[str]
        ] = {}  # holders of instances that we made, or will
        self._foreign_holders: dict[
            MigDevice, set[str]
        ] = {}  # holders of instances that somebody else made
        self.lost: frozenset[Key] = frozenset()  # held instances that no longer exist
        if file is not None and file.exists():
            for record in msgspec.json.decode(file.read_bytes(), type=list[_Record]):
                self._own_holders[MigDevice(record.gpu, Slot(record.profile, record.start))] = set(
                    record.holders
                )

    def __repr__(self) -> str:
        instances = ", ".join(
            f"{part.gpu} {part.slot.profile}@{part.slot.start}×{len(holders)}"
            for part, holders in sorted(self._own_holders.items(), key=lambda item: repr(item[0]))
        )
        return f"<Partitions {instances or 'none'}>"

    def slices_are(self, slices: Sequence[Object]) -> None:
        """Set the node's published slices, which list the MIG devices and their GPUs."""
        self._parts = migdevices.of_slices(slices)
        partitioned = {part.gpu for part in self._parts.values()}
        self._gpu_uuids = {
            (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], device["name"]): uuid
            for slice_ in slices
            for device in slice_["spec"].get("devices") or ()
            if (uuid := device.get("attributes", {}).get("uuid", {}).get("string")) in partitioned
        }

    def concern(self, keys: Iterable[Key]) -> bool:
        """
        Return True if one of these devices is a MIG instance, or a GPU that may be partitioned.
        """
        return any(key in self._parts or key in self._gpu_uuids for key in keys)

    async def take(self, holder: str, keys: Collection[Key]) -> dict[Key, InstanceIdentity]:
        """
        Ensure that the instances among these devices exist and are held. May be repeated.

        Raises `UserError` with the driver's message; then nothing new is held.
        """
        if not self.concern(keys):
            return {}
        async with self._lock:
            requested = {key: self._parts[key] for key in keys if key in self._parts}
            newly_held = [part for part in requested.values() if holder not in self._holders(part)]
            try:
                for key in keys:
                    if key in self._gpu_uuids:
                        await self._call(lambda gpu=self._gpu_uuids[key]: self._ensure_whole(gpu))  # type: ignore[misc]
                for part in requested.values():
                    await self._call(lambda part=part: self._ensure_instance(part, holder))  # type: ignore[misc]
                return {
                    key: await self._call(
                        lambda part=part: self._instances.made(part.gpu, part.slot)  # type: ignore[misc]
                    )
                    for key, part in requested.items()
                }
            except UserError:
                for part in newly_held:
                    self._drop_holder(part, holder)
                await self._call(self._destroy_unheld)
                raise

    async def leave(self, holder: str) -> None:
        """Drop all instances of a holder that has ended; destroy those that nobody holds."""
        parts_held = [
            part
            for part in (*self._own_holders, *self._foreign_holders)
            if holder in self._holders(part)
        ]
        if parts_held:
            async with self._lock:
                for part in parts_held:
                    self._drop_holder(part, holder)
                await self._call(self._destroy_unheld)

    async def keep_only(self, holders: Collection[str]) -> None:
        """Drop all other holders: after a restart, and from time to time."""
        async with self._lock:
            for current_holders in (*self._own_holders.values(), *self._foreign_holders.values()):
                current_holders &= set(holders)
            await self._call(self._destroy_unheld)
            self.lost = await self._call(self._missing)

    # With the lock held.

    async def _call(self, work: Callable[[], T]) -> T:
        """Call NVML, in a thread if it may block."""
        return await asyncio.to_thread(work) if self._instances.blocks else work()

    def _holders(self, part: MigDevice) -> set[str]:
        """The holders of an instance."""
        return self._own_holders.get(part) or self._foreign_holders.get(part) or set()

    def _drop_holder(self, part: MigDevice, holder: str) -> None:
        """Remove a holder of an instance."""
        for holders_by_part in (self._own_holders, self._foreign_holders):
            holders_by_part.get(part, set()).discard(holder)

    def _ensure_instance(self, part: MigDevice, holder: str) -> None:
        """Create and hold the instance; it is recorded before it is made."""
        current = self._instances.current(part.gpu)
        if part.slot in current and part not in self._own_holders:
            self._foreign_holders.setdefault(part, set()).add(holder)
            return
        self._own_holders.setdefault(part, set()).add(holder)
        self._save()
        if part.slot in current:
            return
        unheld = self._unheld(part.gpu)
        slots = [*(slot for slot in current if slot not in unheld), part.slot]
        try:
            plan = migplan.changes(
                {part.gpu: current}, {part.gpu: slots}, self._instances.card(part.gpu)
            )
        except mig.BadGeometry as error:
            raise UserError(
                f"{part.slot.profile} at {part.slot.start} cannot be made: {error}; the instances"
                " in the way were not made by this node: see nvidia-smi mig -lgi"
            ) from error
        carry_out(self._instances, plan)

    def _ensure_whole(self, gpu: str) -> None:
        """Destroy the GPU's unheld instances and turn MIG off."""
        for slot in self._unheld(gpu) & set(self._instances.current(gpu)):
            self._instances.destroy(gpu, slot)
        self._instances.join(gpu)

    def _unheld(self, gpu: str) -> set[Slot]:
        """Our instances of a GPU that nobody holds."""
        return {
            part.slot
            for part, holders in self._own_holders.items()
            if part.gpu == gpu and not holders
        }

    def _destroy_unheld(self) -> None:
        """
        Destroy our instances that nobody holds; one that the GPU does not release is tried later.
        """
        for part in [part for part, holders in self._own_holders.items() if not holders]:
            try:
                if part.slot in self._instances.current(part.gpu):
                    self._instances.destroy(part.gpu, part.slot)
                del self._own_holders[part]
            except UserError as error:
                log.warning("cannot destroy an instance yet", part=repr(part), error=str(error))
        self._foreign_holders = {
            part: holders for part, holders in self._foreign_holders.items() if holders
        }
        self._save()

    def _missing(self) -> frozenset[Key]:
        """The held instances that no longer exist."""
        names = {part: key for key, part in self._parts.items()}
        missing: set[Key] = set()
        for part in (*self._own_holders, *self._foreign_holders):
            try:
                exists = part.slot in self._instances.current(part.gpu)
            except UserError:
                exists = False  # the card itself is gone
            if not exists and part in names:
                missing.add(names[part])
        return frozenset(missing)

    def _save(self) -> None:
        """Write our instances to the record file, atomically."""
        if self._file is None:
            return
        records = [
            _Record(part.gpu, part.slot.profile, part.slot.start, sorted(holders))
            for part, holders in self._own_holders.items()
        ]
        new_file = self._file.with_name(self._file.name + ".new")
        new_file.write_bytes(msgspec.json.encode(records))
        new_file.rename(self._file)
