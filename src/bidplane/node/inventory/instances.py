"""
MIG instances made and unmade on a node: by NVML on real cards, by a table else.

`carry_out` does what `core/migplan` planned, one step after the other, and stops at the first
that fails: what was done is then what `current` says.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pynvml  # type: ignore[import-untyped]

from bidplane.core import mig
from bidplane.core.mig import Slot
from bidplane.core.migplan import Create, Destroy, Operation
from bidplane.errors import UserError

_SIMULATED = uuid.UUID("8f3ad9a6-9d7e-4c60-b1d7-6f0c1a2f8f55")


class Made(msgspec.Struct, frozen=True):
    """An instance, as others know it."""

    uuid: str  # programs
    number: int  # of the GPU instance: the label `GPU_I_ID` of its metrics


class Instances(Protocol):
    blocks: bool  # whether a call may take long, and belongs in a thread

    def current(self, gpu: str) -> list[Slot]:
        """The instances of the GPU with that UUID; none while it is not cut."""

    def card(self, gpu: str) -> mig.Card:
        """What it can be cut into."""

    def made(self, gpu: str, slot: Slot) -> Made:
        """Of an instance that is there."""

    def create(self, gpu: str, slot: Slot) -> None:
        """A whole GPU is made one that can be cut first, where nothing uses it."""

    def destroy(self, gpu: str, slot: Slot) -> None: ...

    def join(self, gpu: str) -> None:
        """Makes a GPU without instances whole again: a program sees nothing of one that is cut."""


def carry_out(instances: Instances, operations: Iterable[Operation]) -> None:
    """Raises `UserError` at the first step the card refuses."""
    for operation in operations:
        match operation:
            case Destroy(gpu=gpu, slot=slot):
                instances.destroy(gpu, slot)
            case Create(gpu=gpu, slot=slot):
                instances.create(gpu, slot)


def simulated_number(profile: mig.Profile, start: int) -> int:
    """As drivers number instances: 0 the whole, 1 and 2 halves, 3 to 6 quarters, 7 on eighths."""
    first = {8: 0, 4: 1, 2: 3}.get(profile.memory, 7)
    return first + start // profile.memory


class SimulatedInstances:
    """
    Cards that are not here: they refuse what a real one would. With a `file` they are as they were
    left when whoever asked them starts anew; real cards are, too.
    """

    blocks = False

    def __init__(self, gpus: Sequence[str], card: mig.Card, file: Path | None = None) -> None:
        self._card = card
        self._file = file
        self._slots: dict[str, list[Slot]] = {gpu: [] for gpu in gpus}
        if file is not None and file.exists():
            known = msgspec.json.decode(file.read_bytes(), type=dict[str, list[Slot]])
            self._slots |= {gpu: slots for gpu, slots in known.items() if gpu in self._slots}

    def current(self, gpu: str) -> list[Slot]:
        return sorted(self._of(gpu))

    def card(self, gpu: str) -> mig.Card:
        return self._card

    def made(self, gpu: str, slot: Slot) -> Made:
        if slot not in self._of(gpu):
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        name = uuid.uuid5(_SIMULATED, f"{gpu}/{slot.profile}/{slot.start}")
        number = simulated_number(mig.profiles(self._card)[slot.profile], slot.start)
        return Made(f"MIG-{name}", number)

    def create(self, gpu: str, slot: Slot) -> None:
        wrong = mig.problem([*self._of(gpu), slot], self._card)
        if wrong:
            raise UserError(f"{gpu}: {slot.profile} at {slot.start} cannot be made: {wrong}")
        self._slots[gpu].append(slot)
        self._save()

    def destroy(self, gpu: str, slot: Slot) -> None:
        if slot not in self._of(gpu):
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        self._slots[gpu].remove(slot)
        self._save()

    def join(self, gpu: str) -> None:
        if self._of(gpu):
            raise UserError(f"{gpu}: it has instances: {_words(self._of(gpu))}")

    def _of(self, gpu: str) -> list[Slot]:
        if gpu not in self._slots:
            raise UserError(f"no GPU {gpu} is here")
        return self._slots[gpu]

    def _save(self) -> None:
        if self._file is not None:
            fresh = self._file.with_name(self._file.name + ".new")
            fresh.write_bytes(msgspec.json.encode(self._slots))
            fresh.rename(self._file)


def _words(slots: Iterable[Slot]) -> str:
    return ", ".join(f"{slot.profile} at {slot.start}" for slot in sorted(slots))


class NvmlInstances:
    """
    Real cards. Needs the rights of root.

    A GPU instance is of use only with a compute instance in it: one is made that has all of it.
    """

    blocks = True

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml

    def current(self, gpu: str) -> list[Slot]:
        return sorted(self._found(gpu)) if self._is_on(self._device(gpu)) else []

    def card(self, gpu: str) -> mig.Card:
        """As it says itself, which it does when it is on; else by its memory."""
        device = self._device(gpu)
        return self.profiles(gpu) or mig.gigabytes(
            int(self._nvml.nvmlDeviceGetMemoryInfo(device).total)
        )

    def made(self, gpu: str, slot: Slot) -> Made:
        nvml = self._nvml
        device = self._device(gpu)
        found = self._found(gpu).get(slot)
        if found is None:
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        number = nvml.nvmlGpuInstanceGetInfo(found).id
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
                if nvml.nvmlDeviceGetGpuInstanceId(handle) == number:
                    name = nvml.nvmlDeviceGetUUID(handle)
                    text = name.decode() if isinstance(name, bytes) else str(name)
                    return Made(text, int(number))
            except nvml.NVMLError:
                continue  # nothing has that number
        raise UserError(
            f"{gpu}: {slot.profile} at {slot.start} has no compute instance: destroy it with"
            f" nvidia-smi mig -dgi -gi {number}"
        )

    def join(self, gpu: str) -> None:
        device = self._device(gpu)
        if self._is_on(device):
            there = self.current(gpu)
            if there:
                raise UserError(f"{gpu}: it has instances: {_words(there)}")
            self._switch(gpu, device, on=False)

    def _is_on(self, device: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(device)[0])
        except self._nvml.NVMLError:
            return False  # a card that cannot be cut

    def _switch(self, gpu: str, device: Any, *, on: bool) -> None:
        """Turn MIG on or off; cards before Hopper need a reset for it, which is not ours to do."""
        word = "on" if on else "off"
        try:
            self._nvml.nvmlDeviceSetMigMode(device, int(on))
        except self._nvml.NVMLError as error:
            raise UserError(f"{gpu}: MIG cannot be turned {word}: {error}") from error
        if self._is_on(device) is not on:
            raise UserError(
                f"{gpu}: MIG is {word} after a reset: nvidia-smi -i {gpu} --gpu-reset, when nothing"
                " uses it"
            )

    def profiles(self, gpu: str) -> Mapping[str, mig.Profile]:
        """What the card itself says it can be cut into; nothing if it cannot be asked."""
        try:
            device = self._device(gpu)
            return {
                name: mig.Profile(
                    compute=info.sliceCount,
                    memory=size,
                    starts=tuple(place.start for place in self._placements(device, info.id)),
                    media=name.endswith("+me"),
                )
                for name, (info, size) in self._profiles(device).items()
            }
        except (UserError, self._nvml.NVMLError):
            return {}

    def create(self, gpu: str, slot: Slot) -> None:
        nvml = self._nvml
        device = self._device(gpu)
        if not self._is_on(device):
            self._switch(gpu, device, on=True)
        known = self._profiles(device)
        if slot.profile not in known:
            raise UserError(f"{gpu}: {mig.no_profile(slot.profile, self.profiles(gpu))}")
        profile, size = known[slot.profile]
        placement = nvml.c_nvmlGpuInstancePlacement_t(start=slot.start, size=size)
        try:
            made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                device, profile.id, ctypes.byref(placement)
            )
            try:
                inside = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    made, self._compute_profile(profile.sliceCount), 0
                )
                nvml.nvmlGpuInstanceCreateComputeInstance(made, inside.id)
            except nvml.NVMLError:
                nvml.nvmlGpuInstanceDestroy(made)  # half an instance is of use to nobody
                raise
        except nvml.NVMLError as error:
            raise UserError(
                f"{gpu}: {slot.profile} at {slot.start} cannot be made: {error}"
            ) from error

    def destroy(self, gpu: str, slot: Slot) -> None:
        nvml = self._nvml
        found = self._found(gpu).get(slot)
        if found is None:
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        try:
            for inside in self._compute_instances(found):
                nvml.nvmlComputeInstanceDestroy(inside)
            nvml.nvmlGpuInstanceDestroy(found)
        except nvml.NVMLError as error:
            raise UserError(
                f"{gpu}: {slot.profile} at {slot.start} is in use: {error}; end its processes first"
            ) from error

    def _device(self, gpu: str) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(gpu)
        except self._nvml.NVMLError as error:
            raise UserError(f"no GPU {gpu} is here: {error}") from error

    def _profiles(self, device: Any) -> dict[str, tuple[Any, int]]:
        """By name, what the card says its profiles are, and how many memory slices each has."""
        nvml = self._nvml
        found: dict[str, tuple[Any, int]] = {}
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
            except nvml.NVMLError:
                continue
            name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
            places = self._placements(device, info.id)
            if places:
                found[name.removeprefix("MIG ")] = (info, places[0].size)
        return found

    def _placements(self, device: Any, profile: int) -> list[Any]:
        nvml = self._nvml
        count = ctypes.c_uint(0)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, ctypes.byref(count))
        places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            device, profile, places, ctypes.byref(count)
        )
        return list(places[: count.value])

    def _found(self, gpu: str) -> dict[Slot, Any]:
        nvml = self._nvml
        device = self._device(gpu)
        found: dict[Slot, Any] = {}
        for name, (profile, _) in self._profiles(device).items():
            count = ctypes.c_uint(0)
            handles = (nvml.c_nvmlGpuInstance_t * profile.instanceCount)()
            nvml.nvmlDeviceGetGpuInstances(device, profile.id, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                where = nvml.nvmlGpuInstanceGetInfo(handle).placement
                found[Slot(name, where.start)] = handle
        return found

    def _compute_profile(self, slices: int) -> int:
        number: int = getattr(self._nvml, f"NVML_COMPUTE_INSTANCE_PROFILE_{slices}_SLICE")
        return number

    def _compute_instances(self, instance: Any) -> list[Any]:
        nvml = self._nvml
        found: list[Any] = []
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
            except nvml.NVMLError:
                continue
            count = ctypes.c_uint(0)
            handles = (nvml.c_nvmlComputeInstance_t * info.instanceCount)()
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, handles, ctypes.byref(count))
            found += handles[: count.value]
        return found
