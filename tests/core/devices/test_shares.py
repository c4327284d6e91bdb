"""A leased MIG instance is the device its driver publishes for it, whatever that is called."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.core.devices import mig, migdevices
from bidplane.core.devices.mig import Slot
from bidplane.core.devices.migdevices import MigDevice
from bidplane.core.devices.topology import Gpu, Machine
from bidplane.core.hosting.translation import host_claim, some_of
from bidplane.node.inventory.slices import slices_of

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


def lease(share: str, slots: list[int], driver: str = "gpu.bidplane.dev") -> dict[str, Any]:
    device = {"node": "box", "driver": driver, "pool": "box", "name": "gpu-1"}
    if share:
        device |= {"share": share, "slots": slots}  # type: ignore[dict-item]
    return {
        "apiVersion": "bidplane.dev/v1alpha1",
        "kind": "GPULease",
        "metadata": {"name": "lease-1", "uid": "u"},
        "spec": {"node": "box", "devices": [device]},
    }


@pytest.mark.parametrize(("profile", "start"), PLACES)
def test_every_place_of_every_profile_is_found(profile: str, start: int) -> None:
    slots = list(range(start, start + mig.profiles(80)[profile].memory))
    found = migdevices.on_host(lease(profile, slots), OURS)
    (device,) = found["spec"]["devices"]
    key = device["driver"], device["pool"], device["name"]
    assert migdevices.of_slices(OURS)[key] == MigDevice("GPU-1", Slot(profile, start))
    assert "share" not in device


def test_the_claim_names_it_and_needs_no_words_of_ours() -> None:
    pinned = migdevices.on_host(lease("3g.40gb", [4, 5, 6, 7], "gpu.nvidia.com"), nvidia())
    claim, status = host_claim("trainer", pinned)
    (result,) = status["allocation"]["devices"]["results"]
    assert (result["driver"], result["device"]) == ("gpu.nvidia.com", "gpu-1-mig-3g40gb-9-4")
    assert "config" not in claim["spec"]["devices"]


def test_fractions_whole_gpus_and_what_nobody_publishes_stay_what_they_were() -> None:
    for one in (lease("1/2", [0, 1, 2, 3]), lease("", [])):
        assert migdevices.on_host(one, OURS) is one
    unknown = lease("1g.10gb", [7])
    assert migdevices.on_host(unknown, OURS) == unknown
    elsewhere = lease("1g.10gb", [2])
    elsewhere["spec"]["node"] = "other"
    assert migdevices.on_host(elsewhere, OURS) == elsewhere


def test_a_pods_own_claim_has_the_part_it_was_given_by_the_name_its_agent_knows() -> None:
    two = lease("1g.10gb", [2])
    other = {**two["spec"]["devices"][0], "slots": [3]}
    two["spec"]["devices"].append(other)
    assert migdevices.shown_name(other) == "gpu-1-1g-10gb-3"
    assert some_of(two, {"gpu-1-1g-10gb-3"})["spec"]["devices"] == [other]


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
