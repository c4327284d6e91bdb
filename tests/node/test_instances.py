"""NVML is asked for instances as its documentation says; a card here would be a table as well."""

from types import SimpleNamespace

import pynvml
import pytest

from bidplane.core.mig import Slot, problem, profiles
from bidplane.errors import UserError
from bidplane.node.inventory.instances import NvmlInstances

NAMES = list(profiles(80))


class NVMLError(Exception):
    pass


class Card:
    """One A100 with 80 GB: GPU instances by number, each with its compute instances."""

    NVMLError = NVMLError
    NVML_GPU_INSTANCE_PROFILE_COUNT = 18
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 9
    NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE = 2
    c_nvmlGpuInstancePlacement_t = pynvml.c_nvmlGpuInstancePlacement_t  # noqa: N815
    # Handles are pointers; here, numbers.
    c_nvmlGpuInstance_t = pynvml.c_uint  # noqa: N815
    c_nvmlComputeInstance_t = pynvml.c_uint  # noqa: N815

    def __init__(self, compute_fails=False):
        self.slots = {}
        self.inside = {}
        self.compute_fails = compute_fails

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != "GPU-0":
            raise NVMLError("Not Found")
        return "device"

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device, number):  # noqa: N802
        if number >= len(NAMES):
            raise NVMLError("Not Supported")
        name = NAMES[number]
        slices = profiles(80)[name].compute
        return SimpleNamespace(
            id=100 + number, name=f"MIG {name}".encode(), sliceCount=slices, instanceCount=7
        )

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, device, profile, places, count):  # noqa: N802
        known = profiles(80)[NAMES[profile - 100]]
        count._obj.value = len(known.starts)
        for at, start in enumerate(known.starts if places is not None else ()):
            places[at].start, places[at].size = start, known.memory

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, device, profile, placement):  # noqa: N802
        slot = Slot(NAMES[profile - 100], placement._obj.start)
        assert placement._obj.size == profiles(80)[slot.profile].memory
        if problem([*self.slots.values(), slot], 80):
            raise NVMLError("Insufficient Resources")
        number = max(self.slots, default=0) + 1
        self.slots[number], self.inside[number] = slot, []
        return number

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, instance, number, engine):  # noqa: N802
        if number != self.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE:
            raise NVMLError("Not Supported")
        return SimpleNamespace(id=number, instanceCount=1)

    def nvmlGpuInstanceCreateComputeInstance(self, instance, profile):  # noqa: N802
        if self.compute_fails:
            raise NVMLError("In Use")
        self.inside[instance].append(instance * 10)

    def nvmlDeviceGetGpuInstances(self, device, profile, handles, count):  # noqa: N802
        found = [n for n, slot in self.slots.items() if slot.profile == NAMES[profile - 100]]
        count._obj.value = len(found)
        handles[: len(found)] = found

    def nvmlGpuInstanceGetInfo(self, instance):  # noqa: N802
        return SimpleNamespace(placement=SimpleNamespace(start=self.slots[instance].start))

    def nvmlGpuInstanceGetComputeInstances(self, instance, profile, handles, count):  # noqa: N802
        found = self.inside[instance]
        count._obj.value = len(found)
        handles[: len(found)] = found

    def nvmlComputeInstanceDestroy(self, compute):  # noqa: N802
        self.inside[compute // 10].remove(compute)

    def nvmlGpuInstanceDestroy(self, instance):  # noqa: N802
        if self.inside[instance]:
            raise NVMLError("In Use")
        del self.slots[instance], self.inside[instance]


def test_an_instance_is_made_with_a_compute_instance_and_goes_with_it():
    card = Card()
    instances = NvmlInstances(card)
    instances.create("GPU-0", Slot("3g.40gb", 4))
    assert instances.current("GPU-0") == [Slot("3g.40gb", 4)]
    assert card.inside == {1: [10]}
    with pytest.raises(UserError, match=r"3g.40gb at 4 cannot be made: Insufficient Resources"):
        instances.create("GPU-0", Slot("3g.40gb", 4))
    instances.destroy("GPU-0", Slot("3g.40gb", 4))
    assert instances.current("GPU-0") == []
    with pytest.raises(UserError, match="no GPU GPU-7"):
        instances.current("GPU-7")


def test_half_an_instance_is_not_left_behind():
    card = Card(compute_fails=True)
    with pytest.raises(UserError, match="In Use"):
        NvmlInstances(card).create("GPU-0", Slot("3g.40gb", 0))
    assert card.slots == {}


def test_the_real_library_has_what_is_asked_for():
    assert {name for name in dir(Card) if name.startswith(("nvml", "NVML_", "c_"))} <= set(
        dir(pynvml)
    )


def test_a_card_says_itself_what_it_can_be_cut_into():
    assert NvmlInstances(Card()).profiles("GPU-0") == profiles(80)
    assert NvmlInstances(Card()).profiles("GPU-7") == {}
