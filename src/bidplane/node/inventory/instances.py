"""
MIG instances made and unmade on a node: by NVML on real cards, by a table else.

`carry_out` does what `core/migplan` planned, one step after the other, and stops at the first
that fails: what was done is then what `current` says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pynvml  # type: ignore[import-untyped]

from bidplane.core import mig
from bidplane.core.mig import Slot
from bidplane.core.migplan import Create, Destroy, Operation
from bidplane.errors import UserError


class Instances(Protocol):
    def current(self, gpu: str) -> list[Slot]:
        """The instances of the GPU with that UUID."""

    def create(self, gpu: str, slot: Slot) -> None: ...

    def destroy(self, gpu: str, slot: Slot) -> None: ...


def carry_out(instances: Instances, operations: Iterable[Operation]) -> None:
    """Raises `UserError` at the first step the card refuses."""
    for operation in operations:
        match operation:
            case Destroy(gpu=gpu, slot=slot):
                instances.destroy(gpu, slot)
            case Create(gpu=gpu, slot=slot):
                instances.create(gpu, slot)


class SimulatedInstances:
    """Cards that are not here: they refuse what a real one would."""

    def __init__(self, gpus: Sequence[str], gigabytes: int) -> None:
        self._gigabytes = gigabytes
        self._slots: dict[str, list[Slot]] = {gpu: [] for gpu in gpus}

    def current(self, gpu: str) -> list[Slot]:
        return sorted(self._slots[gpu])

    def create(self, gpu: str, slot: Slot) -> None:
        wrong = mig.problem([*self._slots[gpu], slot], self._gigabytes)
        if wrong:
            raise UserError(f"{gpu}: {slot.profile} at {slot.start} cannot be made: {wrong}")
        self._slots[gpu].append(slot)

    def destroy(self, gpu: str, slot: Slot) -> None:
        if slot not in self._slots[gpu]:
            raise UserError(f"{gpu}: there is no {slot.profile} at {slot.start}")
        self._slots[gpu].remove(slot)


class NvmlInstances:
    """
    Real cards, with MIG switched on. Needs the rights of root.

    A GPU instance is of use only with a compute instance in it: one is made that has all of it.
    """

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml

    def current(self, gpu: str) -> list[Slot]:
        return sorted(self._found(gpu))

    def profiles(self, gpu: str) -> dict[str, mig.Profile]:
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
        profile, size = self._profiles(device)[slot.profile]
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
