"""
The memory of this machine's GPUs: seen free before a pod that has ended gives them back.

Where no driver measures the GPUs nothing is waited for: their memory goes with the processes, and
a pod has ended only when none of its processes is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bidplane.core.devices import freeing
from bidplane.core.devices.freeing import MemoryInUse, allowed_bytes, in_use
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.inventory import uuids
from bidplane.node.inventory.slices import with_memory_taints
from bidplane.telemetry.model import Counters, used_bytes

Read = Callable[[], Sequence[Counters]]  # reads all GPUs, blocking; raises `UserError`


class GpuMemory:
    """Reads the memory in use, and keeps the GPUs that ended pods have left with some."""

    def __init__(self, read: Read, file: Path) -> None:
        self._read, self._file = read, file
        # GPUs that are not for sale, by UUID. Kept in a file: the node may be restarted.
        self.withheld: dict[str, MemoryInUse] = {}
        if file.exists():
            self.withheld = msgspec.json.decode(file.read_bytes(), type=dict[str, MemoryInUse])
        self.publish: Callable[[], Awaitable[None]] | None = None  # publishes the devices

    def __repr__(self) -> str:
        return f"<GpuMemory {len(self.withheld)} withheld>"

    async def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the memory in use on those of the GPUs that are measured, by UUID."""
        used = await asyncio.to_thread(self._used) if devices else {}
        return {uuid: used[uuid] for uuid in devices if uuid in used}

    def _used(self) -> dict[str, int]:
        try:
            return used_bytes(self._read())
        except UserError:
            return {}  # no driver measures them

    async def unfreed(self, before: Mapping[str, int]) -> list[MemoryInUse]:
        """Return those of an ended pod's GPUs whose memory is not free."""
        allowed = {uuid: allowed_bytes(used) for uuid, used in before.items()}
        return in_use(await self.used(list(before)), allowed)

    async def withhold(self, leftovers: Sequence[MemoryInUse]) -> None:
        """Keep GPUs from sale until their memory is seen free; raises `ApiError`."""
        self.withheld |= {memory.uuid: memory for memory in leftovers}
        self._save()
        if self.publish is not None:
            await self.publish()

    async def review(self) -> list[MemoryInUse]:
        """Look at the withheld GPUs; return those that are free now, which are for sale again."""
        if not self.withheld:
            return []
        used = await self.used(list(self.withheld))
        free = [
            memory
            for uuid, memory in self.withheld.items()
            if uuid in used and used[uuid] <= memory.allowed
        ]
        for memory in free:
            del self.withheld[memory.uuid]
        if free:
            self._save()
        return free

    def tainted(self, slices: Sequence[Object]) -> list[Object]:
        """Return the slices with a taint at each withheld GPU."""
        in_use = {
            device: self.withheld[uuid].taint
            for (_, _, device), uuid in uuids(slices).items()
            if uuid in self.withheld
        }
        return list(with_memory_taints([dict(slice_) for slice_ in slices], in_use))

    def _save(self) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(self.withheld))
        temporary.rename(self._file)


class Release:
    """The release of one pod's GPUs."""

    def __init__(self, memory: GpuMemory, say: Callable[[str, str, bool], None]) -> None:
        self._memory, self._say = memory, say
        self._began: float | None = None
        self._is_over = False

    async def wait(
        self, before: Mapping[str, int], names: Mapping[str, str], *, now: float, is_gone: bool
    ) -> float | None:
        """
        Return when to look again at the GPUs of an ended pod, or None once their memory is seen
        free or was waited for long enough. `before`: the memory in use before it started, by UUID;
        `names`: the devices' names. `is_gone`: the API has no such pod, so it can keep nothing.
        """
        if self._is_over:
            return None
        leftovers = await self._memory.unfreed(before)
        by_name = {names.get(memory.uuid, memory.uuid): memory for memory in leftovers}
        if leftovers and self._began is None:
            self._began = now
            if not is_gone:
                self._say(freeing.IN_USE, freeing.waiting_message(by_name), True)
        if leftovers and not is_gone and now < (self._began or now) + freeing.LONGEST_SECONDS:
            return now + freeing.LOOK_SECONDS
        if leftovers:
            await self._memory.withhold(leftovers)
        self._is_over = True
        return None
