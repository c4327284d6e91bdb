"""
MIG instances created and destroyed on a node: by NVML on real GPUs, else in a table.

`carry_out` carries out a plan of `core/devices/migplan` step by step, and stops at the first
failure: `current` then returns the state reached.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pynvml  # type: ignore[import-untyped]

from bidplane.core.devices import mig
from bidplane.core.devices.mig import Slot
from bidplane.core.devices.migplan import Create, Destroy, Operation
from bidplane.errors import UserError
from bidplane.telemetry.nvmltypes import Handle, Placement, ProfileInfo, text_of

_SIMULATED = uuid.UUID("8f3ad9a6-9d7e-4c60-b1d7-6f0c1a2f8f55")


class InstanceIdentity(msgspec.Struct, frozen=True):
    """The identifiers of a MIG instance."""

    uuid: str  # by which programs select it
    number: int  # of the GPU instance: the label `GPU_I_ID` of its metrics


class Instances(Protocol):
    """The MIG instances of a node's GPUs."""

    blocks: bool  # True if a call may take long, and belongs in a thread

    def current(self, gpu: str) -> list[Slot]:
        """The instances of the GPU with that UUID; none while MIG is off."""

    def card(self, gpu: str) -> mig.Card:
        """The profiles into which the GPU can be partitioned."""

    def made(self, gpu: str, slot: Slot) -> InstanceIdentity:
        """The identifiers of an existing instance."""

    def create(self, gpu: str, slot: Slot) -> None:
        """Create an instance; turns MIG on first, if nothing uses the GPU."""

    def destroy(self, gpu: str, slot: Slot) -> None: ...

    def join(self, gpu: str) -> None:
        """Turn MIG off on a GPU without instances: programs cannot use a GPU with MIG on."""


def carry_out(instances: Instances, operations: Iterable[Operation]) -> None:
    """Carry out the operations in order; raises `UserError` at the first that the GPU refuses."""
    for operation in operations:
        match operation:
            case Destroy(gpu=gpu, slot=slot):
                instances.destroy(gpu, slot)
            case Create(gpu=gpu, slot=slot):
                instances.create(gpu, slot)


def simulated_number(profile: mig.Profile, start: int) -> int:
    """
    An instance's number, as drivers assign it: 0 the whole GPU, 1 and 2 halves, 3 to 6 quarters, 7
    on eighths.
    """
    first = {8: 0, 4: 1, 2: 3}.get(profile.memory, 7)
    return first + start // profile.memory


class SimulatedInstances:
    """
    Simulated GPUs, which refuse what a real one would. With a `file` they keep their instances
    over a restart, as real ones do.
    """

    blocks = False

    def __init__(self, gpus: Sequence[str], card: mig.Card, file: Path | None = None) -> None:
        self._card = card
        self._file = file
        self._slots: dict[str, list[Slot]] = {gpu: [] for gpu in gpus}
        if file is not None and file.exists():
            saved = msgspec.json.decode(file.read_bytes(), type=dict[str, list[Slot]])
            self._slots |= {gpu: slots for gpu, slots in saved.items() if gpu in self._slots}

    def current(self, gpu: str) -> list[Slot]:
        return sorted(self._slots_of(gpu))

    def card(self, gpu: str) -> mig.Card:
        return self._card

    def made(self, gpu: str, slot: Slot) -> InstanceIdentity:
        if slot not in self._slots_of(gpu):
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        name = uuid.uuid5(_SIMULATED, f"{gpu}/{slot.profile}/{slot.start}")
        number = simulated_number(mig.profiles(self._card)[slot.profile], slot.start)
        return InstanceIdentity(f"MIG-{name}", number)

    def create(self, gpu: str, slot: Slot) -> None:
        problem = mig.problem([*self._slots_of(gpu), slot], self._card)
        if problem:
            raise UserError(f"{gpu}: {slot.profile} at {slot.start} cannot be made: {problem}")
        self._slots[gpu].append(slot)
        self._save()

    def destroy(self, gpu: str, slot: Slot) -> None:
        if slot not in self._slots_of(gpu):
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        self._slots[gpu].remove(slot)
        self._save()

    def join(self, gpu: str) -> None:
        if self._slots_of(gpu):
            raise UserError(f"{gpu}: it has instances: {_slot_list(self._slots_of(gpu))}")

    def _slots_of(self, gpu: str) -> list[Slot]:
        """The instances of a GPU; raises `UserError` for an unknown one."""
        if gpu not in self._slots:
            raise UserError(f"no GPU {gpu} is here")
        return self._slots[gpu]

    def _save(self) -> None:
        """Write all instances to the file, atomically."""
        if self._file is not None:
            new_file = self._file.with_name(self._file.name + ".new")
            new_file.write_bytes(msgspec.json.encode(self._slots))
            new_file.rename(self._file)


def _slot_list(slots: Iterable[Slot]) -> str:
    """The instances as text."""
    return ", ".join(f"{slot.profile} at {slot.start}" for slot in sorted(slots))


class NvmlInstances:
    """
    The MIG instances of real GPUs. Needs the rights of root.

    A GPU instance is usable only with a compute instance in it: one is made that fills it.
    """

    blocks = True

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml

    def current(self, gpu: str) -> list[Slot]:
        return sorted(self._instance_handles(gpu)) if self._is_on(self._device(gpu)) else []

    def card(self, gpu: str) -> mig.Card:
        """The profiles as the GPU reports them while MIG is on; else by its memory."""
        device = self._device(gpu)
        return self.profiles(gpu) or mig.gigabytes(
            int(self._nvml.nvmlDeviceGetMemoryInfo(device).total)
        )

    def made(self, gpu: str, slot: Slot) -> InstanceIdentity:
        nvml = self._nvml
        device = self._device(gpu)
        handle_of_instance = self._instance_handles(gpu).get(slot)
        if handle_of_instance is None:
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        number = nvml.nvmlGpuInstanceGetInfo(handle_of_instance).id
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
                if nvml.nvmlDeviceGetGpuInstanceId(handle) == number:
                    uuid = text_of(nvml.nvmlDeviceGetUUID(handle))
                    return InstanceIdentity(uuid, int(number))
            except nvml.NVMLError:
                continue  # no MIG device has that index
        raise UserError(
            f"{gpu}: {slot.profile} at {slot.start} has no compute instance: destroy it with"
            f" nvidia-smi mig -dgi -gi {number}"
        )

    def join(self, gpu: str) -> None:
        device = self._device(gpu)
        if self._is_on(device):
            slots = self.current(gpu)
            if slots:
                raise UserError(f"{gpu}: it has instances: {_slot_list(slots)}")
            self._switch(gpu, device, on=False)

    def _is_on(self, device: Handle) -> bool:
        """Return True if MIG is on."""
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(device)[0])
        except self._nvml.NVMLError:
            return False  # a GPU without MIG

    def _switch(self, gpu: str, device: Handle, *, on: bool) -> None:
        """
        Turn MIG on or off; GPUs before Hopper need a reset for it, which is left to the operator.
        """
        state = "on" if on else "off"
        try:
            self._nvml.nvmlDeviceSetMigMode(device, int(on))
        except self._nvml.NVMLError as error:
            raise UserError(f"{gpu}: MIG cannot be turned {state}: {error}") from error
        if self._is_on(device) is not on:
            raise UserError(
                f"{gpu}: MIG is {state} after a reset: nvidia-smi -i {gpu} --gpu-reset, when"
                " nothing uses it"
            )

    def profiles(self, gpu: str) -> Mapping[str, mig.Profile]:
        """The profiles that the GPU itself reports; none if it cannot be read."""
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
        by_name = self._profiles(device)
        if slot.profile not in by_name:
            raise UserError(f"{gpu}: {mig.no_profile(slot.profile, self.profiles(gpu))}")
        profile, size = by_name[slot.profile]
        placement = nvml.c_nvmlGpuInstancePlacement_t(start=slot.start, size=size)
        try:
            gpu_instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                device, profile.id, ctypes.byref(placement)
            )
            try:
                compute_profile = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    gpu_instance, self._compute_profile(profile.sliceCount), 0
                )
                nvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, compute_profile.id)
            except nvml.NVMLError:
                nvml.nvmlGpuInstanceDestroy(
                    gpu_instance
                )  # an instance without a compute instance is unusable
                raise
        except nvml.NVMLError as error:
            raise UserError(
                f"{gpu}: {slot.profile} at {slot.start} cannot be made: {error}"
            ) from error

    def destroy(self, gpu: str, slot: Slot) -> None:
        nvml = self._nvml
        gpu_instance = self._instance_handles(gpu).get(slot)
        if gpu_instance is None:
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        try:
            for compute_instance in self._compute_instances(gpu_instance):
                nvml.nvmlComputeInstanceDestroy(compute_instance)
            nvml.nvmlGpuInstanceDestroy(gpu_instance)
        except nvml.NVMLError as error:
            raise UserError(
                f"{gpu}: {slot.profile} at {slot.start} is in use: {error}; end its processes first"
            ) from error

    def _device(self, gpu: str) -> Handle:
        """The NVML handle of a GPU; raises `UserError` for an unknown one."""
        try:
            return Handle(self._nvml.nvmlDeviceGetHandleByUUID(gpu))
        except self._nvml.NVMLError as error:
            raise UserError(f"no GPU {gpu} is here: {error}") from error

    def _profiles(self, device: Handle) -> dict[str, tuple[ProfileInfo, int]]:
        """The GPU's profiles by name, each with its number of memory slices."""
        nvml = self._nvml
        profiles: dict[str, tuple[ProfileInfo, int]] = {}
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
            except nvml.NVMLError:
                continue
            name = text_of(info.name)
            placements = self._placements(device, info.id)
            if placements:
                profiles[name.removeprefix("MIG ")] = (info, placements[0].size)
        return profiles

    def _placements(self, device: Handle, profile: int) -> list[Placement]:
        """The possible placements of a profile."""
        nvml = self._nvml
        count = ctypes.c_uint(0)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, ctypes.byref(count))
        placements = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            device, profile, placements, ctypes.byref(count)
        )
        return list(placements[: count.value])

    def _instance_handles(self, gpu: str) -> dict[Slot, Handle]:
        """The NVML handles of a GPU's instances."""
        nvml = self._nvml
        device = self._device(gpu)
        handles_by_slot: dict[Slot, Handle] = {}
        for name, (profile, _) in self._profiles(device).items():
            count = ctypes.c_uint(0)
            handles = (nvml.c_nvmlGpuInstance_t * profile.instanceCount)()
            nvml.nvmlDeviceGetGpuInstances(device, profile.id, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                placement = nvml.nvmlGpuInstanceGetInfo(handle).placement
                handles_by_slot[Slot(name, placement.start)] = handle
        return handles_by_slot

    def _compute_profile(self, slices: int) -> int:
        """NVML's number of the compute profile with that many slices."""
        number: int = getattr(self._nvml, f"NVML_COMPUTE_INSTANCE_PROFILE_{slices}_SLICE")
        return number

    def _compute_instances(self, instance: Handle) -> list[Handle]:
        """The compute instances in a GPU instance."""
        nvml = self._nvml
        instances: list[Handle] = []
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
            except nvml.NVMLError:
                continue
            count = ctypes.c_uint(0)
            handles = (nvml.c_nvmlComputeInstance_t * info.instanceCount)()
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, handles, ctypes.byref(count))
            instances += handles[: count.value]
        return instances
