"""NVML is asked for instances as its documentation says; a card here would be a table as well."""

import asyncio
from types import SimpleNamespace

import pynvml
import pytest

from bidplane.core.devices.mig import Slot, problem, profiles
from bidplane.core.devices.topology import Gpu, Machine
from bidplane.errors import UserError
from bidplane.node.inventory.instances import InstanceIdentity, NvmlInstances
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.inventory.slices import slices_of

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

    def __init__(self, compute_fails=False, on=True, needs_reset=False):
        self.slots = {}
        self.inside = {}
        self.compute_fails = compute_fails
        self.mode = int(on)
        self.needs_reset = needs_reset

    def nvmlDeviceGetMigMode(self, device):  # noqa: N802
        return self.mode, self.mode

    def nvmlDeviceSetMigMode(self, device, mode):  # noqa: N802
        assert not self.slots
        if not self.needs_reset:
            self.mode = mode
        return 0

    def nvmlDeviceGetMemoryInfo(self, device):  # noqa: N802
        return SimpleNamespace(total=81559 << 20)

    def nvmlDeviceGetMaxMigDeviceCount(self, device):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):  # noqa: N802
        numbers = [number for number, inside in sorted(self.inside.items()) if inside]
        if index >= len(numbers):
            raise NVMLError("Not Found")
        return f"mig/{numbers[index]}"

    def nvmlDeviceGetGpuInstanceId(self, handle):  # noqa: N802
        return int(handle.partition("/")[2])

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        slot = self.slots[int(handle.partition("/")[2])]
        return f"MIG-{slot.profile}-{slot.start}".encode()

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != "GPU-0":
            raise NVMLError("Not Found")
        return "device"

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device, number):  # noqa: N802
        if number >= len(NAMES) or not self.mode:
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
        place = SimpleNamespace(start=self.slots[instance].start)
        return SimpleNamespace(placement=place, id=instance)

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
    assert instances.made("GPU-0", Slot("3g.40gb", 4)) == InstanceIdentity("MIG-3g.40gb-4", 1)
    with pytest.raises(UserError, match=r"3g.40gb at 4 cannot be made: Insufficient Resources"):
        instances.create("GPU-0", Slot("3g.40gb", 4))
    instances.destroy("GPU-0", Slot("3g.40gb", 4))
    assert instances.current("GPU-0") == []
    with pytest.raises(UserError, match="no GPU GPU-7"):
        instances.current("GPU-7")


def test_a_whole_card_is_switched_when_it_is_to_be_cut_and_back():
    card = Card(on=False)
    instances = NvmlInstances(card)
    assert instances.current("GPU-0") == []
    assert instances.card("GPU-0") == 80
    instances.create("GPU-0", Slot("3g.40gb", 0))
    assert card.mode == 1
    assert instances.card("GPU-0") == profiles(80)
    with pytest.raises(UserError, match=r"it has instances: 3g.40gb at 0"):
        instances.join("GPU-0")
    instances.destroy("GPU-0", Slot("3g.40gb", 0))
    instances.join("GPU-0")
    assert card.mode == 0


def test_a_card_that_must_be_reset_for_it_says_so():
    with pytest.raises(UserError, match=r"MIG is on after a reset: nvidia-smi -i GPU-0"):
        NvmlInstances(Card(on=False, needs_reset=True)).create("GPU-0", Slot("3g.40gb", 0))


def test_a_profile_the_card_does_not_have_is_named():
    with pytest.raises(UserError, match=r"the card has no profile '1g.5gb'; it has 1g.10gb, "):
        NvmlInstances(Card()).create("GPU-0", Slot("1g.5gb", 0))


def test_a_node_cuts_a_real_card_for_a_claim_and_makes_it_whole_for_another(tmp_path):
    """The node's own way to the card, the inventory's slices included."""
    gpu = Gpu(index=0, uuid="GPU-0", product="A100", memory=81559 << 20, mig=True)
    card = Card(on=False)
    made = Partitions(NvmlInstances(card), file=tmp_path / "made.json")
    made.slices_are(slices_of(Machine(name="box", gpus=(gpu,))))
    part = ("gpu.bidplane.dev", "box", "gpu-0-mig-3g40gb-4")
    whole = ("gpu.bidplane.dev", "box", "gpu-0")

    async def story():
        assert await made.take("pod", [part]) == {part: InstanceIdentity("MIG-3g.40gb-4", 1)}
        with pytest.raises(UserError, match="it has instances"):
            await made.take("other", [whole])
        await made.leave("pod")
        assert (card.slots, card.mode) == ({}, 1)
        assert await made.take("other", [whole]) == {}
        assert card.mode == 0

    asyncio.run(story())


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
