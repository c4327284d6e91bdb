"""A leased MIG instance is the device its driver publishes for it, whatever that is called."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.lease import DeviceRef
from bidplane.core.devices import mig, migdevices
from bidplane.core.devices.mig import Slot
from bidplane.core.devices.migdevices import MigDevice
from bidplane.core.devices.topology import Gpu, Machine
from bidplane.core.hosting.translation import host_claim
from bidplane.node.inventory.slices import slices_of
from core.structs import as_lease

MACHINE = Machine(
    name="box",
    gpus=tuple(
        Gpu(index=at, uuid=f"GPU-{at}", product="H100", memory=80 << 30, mig=True) for at in (0, 1)
    ),
)
OURS = slices_of(MACHINE)
PLACES = [(profile, start) for profile, known in mig.profiles(80).items() for start in known.starts]


def nvidia() -> list[dict[str, Any]]:
    """As NVIDIA's driver names them: with the number of the profile in the middle."""
    pool = {"name": "box", "generation": 1, "resourceSliceCount": 1}
    gpu = {
        "name": "gpu-1",
        "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}},
    }
    part = {
        "name": "gpu-1-mig-3g40gb-9-4",
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": "3g.40gb"},
            "parentUUID": {"string": "GPU-1"},
        },
        "consumesCounters": [
            {
                "counterSet": "gpu-1-counter-set",
                "counters": {f"memory-slice-{at}": {"value": "1"} for at in (4, 5, 6, 7)}
                | {"multiprocessors": {"value": "60"}},
            }
        ],
    }
    spec = {"driver": "gpu.nvidia.com", "nodeName": "box", "pool": pool, "devices": [gpu, part]}
    return [{"metadata": {"name": "s"}, "spec": spec}]


def leased(
    share: str, slots: list[int], driver: str = "gpu.bidplane.dev", node: str = "box"
) -> DeviceRef:
    return DeviceRef(
        node=node, driver=driver, pool="box", name="gpu-1", share=share, slots=tuple(slots)
    )


@pytest.mark.parametrize(("profile", "start"), PLACES)
def test_every_place_of_every_profile_is_found(profile: str, start: int) -> None:
    slots = list(range(start, start + mig.profiles(80)[profile].memory))
    (device,) = migdevices.on_host([leased(profile, slots)], OURS)
    key = device.driver, device.pool, device.name
    assert migdevices.of_slices(OURS)[key] == MigDevice("GPU-1", Slot(profile, start))
    assert not device.share


def test_the_claim_names_it_and_needs_no_words_of_ours() -> None:
    pinned = migdevices.on_host([leased("3g.40gb", [4, 5, 6, 7], "gpu.nvidia.com")], nvidia())
    claim, status = host_claim(as_lease({"metadata": {"name": "lease-1"}}), pinned)
    (result,) = status["allocation"]["devices"]["results"]
    assert (result["driver"], result["device"]) == ("gpu.nvidia.com", "gpu-1-mig-3g40gb-9-4")
    assert "config" not in claim["spec"]["devices"]


def test_fractions_whole_gpus_and_what_nobody_publishes_stay_what_they_were() -> None:
    half, whole = leased("1/2", [0, 1, 2, 3]), leased("", [])
    unknown = leased("1g.10gb", [7])
    elsewhere = leased("1g.10gb", [2], node="other")
    for one in (half, whole, unknown, elsewhere):
        assert migdevices.on_host([one], OURS) == [one]


def test_a_part_has_a_name_of_its_own_in_its_agents_plane() -> None:
    assert migdevices.shown_name(leased("1g.10gb", [3])) == "gpu-1-1g-10gb-3"
    assert migdevices.shown_name(leased("", [])) == "gpu-1"


def test_what_parts_say_of_their_card_is_what_it_was_cut_by() -> None:
    whole = migdevices.joined(map(migdevices.cards, OURS))
    assert whole == {f"GPU-{at}": dict(mig.profiles(80)) for at in (0, 1)}
    assert migdevices.in_table("80Gi")
    assert migdevices.in_table("81559Mi")
    assert not migdevices.in_table("96Gi")
    assert not migdevices.in_table("much")
    plain = msgspec.structs.replace(MACHINE.gpus[0], mig=False)
    assert (
        migdevices.joined(map(migdevices.cards, slices_of(Machine(name="n", gpus=(plain,))))) == {}
    )
