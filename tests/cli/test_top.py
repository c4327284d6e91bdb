"""`bidplane top` without a server: what is joined, and that it fits whatever terminal."""

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from bidplane.api.http.exchange import PoolPrice
from bidplane.cli.devices.loads import lease_loads
from bidplane.cli.devices.top import Picture, _draw, top
from bidplane.cli.devices.toprows import DeviceRow, FleetReadings, pilot_line, rows
from bidplane.errors import UserError
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.slices import slices_of
from bidplane.telemetry.model import Counters, HolderProcess, ProcessMemory

NODE = {
    "metadata": {"name": "box"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def piece(*names, **more):
    devices = [
        {
            "name": name,
            "attributes": {
                "uuid": {"string": f"GPU-{name}"},
                "productName": {"string": "H100"},
                "bidplane.dev/linkDomain": {"string": "box/0"},
            },
            **more,
        }
        for name in names
    ]
    pool = {"name": "box", "generation": 1}
    return {"spec": {"driver": "d", "nodeName": "box", "pool": pool, "devices": devices}}


def lease(*names, phase="Active"):
    devices = [{"node": "box", "driver": "d", "pool": "box", "name": name} for name in names]
    return {
        "metadata": {"name": "lease-7"},
        "spec": {
            "agent": "trainer",
            "bid": {"namespace": "agent-trainer", "name": "b", "uid": "u"},
            "pool": "h100",
            "node": "box",
            "devices": devices,
            "maxPrice": "3.00",
        },
        "status": {"phase": phase, "price": "2.10"},
    }


CLAIM = {
    "metadata": {"namespace": "agent-trainer", "name": "c"},
    "status": {
        "reservedFor": [{"resource": "pods", "name": "train-x"}],
        "allocation": {"devices": {"results": [{"driver": "d", "pool": "box", "device": "gpu-1"}]}},
    },
}
POD = {
    "metadata": {
        "namespace": "agent-trainer",
        "name": "train-x",
        "annotations": {
            "bidplane.dev/plane-namespace": "team",
            "bidplane.dev/plane-name": "train",
        },
    }
}


def counters(index=1, **more):
    return Counters(node="box", index=index, uuid=f"GPU-gpu-{index}", **more)


def test_who_holds_what():
    snapshot = FleetReadings(
        nodes=[NODE],
        slices=[piece("gpu-10", "gpu-1", "gpu-2")],
        leases=[lease("gpu-1"), lease("gpu-2", phase="Released")],
        claims=[CLAIM],
        pods=[POD],
        counters=[counters(utilisation_percent=97.0, memory_used_bytes=3, memory_free_bytes=5)],
    )
    first, second, third = rows(snapshot)
    assert [first.device, second.device, third.device] == ["gpu-1", "gpu-2", "gpu-10"]
    assert (first.agent, first.lease, first.phase, first.price) == (
        "trainer",
        "lease-7",
        "Active",
        "2.10",
    )
    assert first.pod == "team/train", "as its agent calls it"
    assert (first.utilisation_percent, first.memory_total_bytes, first.health) == (97.0, 8, "ok")
    assert (second.agent, second.lease, second.pod) == ("", "", ""), "released is free"
    assert third.utilisation_percent is None, "nobody told; not zero"


def test_a_lease_is_as_busy_as_its_busiest_gpu_where_it_has_the_whole_of_it():
    slices = [piece("gpu-1", "gpu-2", "gpu-3")]
    measured = [
        counters(1, utilisation_percent=4.0),
        counters(2, utilisation_percent=60.0),
        counters(3, utilisation_percent=99.0),
    ]
    two = FleetReadings(slices=slices, leases=[lease("gpu-1", "gpu-2")], counters=measured)
    assert lease_loads(two) == {("trainer", "lease-7"): 60.0}
    assert lease_loads(FleetReadings(slices=slices, leases=[lease("gpu-1")])) == {}
    half = lease("gpu-3")
    half["spec"]["devices"][0]["share"] = "1/2"
    shared = FleetReadings(slices=slices, leases=[half], counters=measured)
    assert lease_loads(shared) == {}, "somebody else may work on it"


def test_a_declared_device_says_so_and_nothing_is_made_up():
    process = HolderProcess(pid=7, memory_bytes=5, cpu_seconds=0.5)
    snapshot = FleetReadings(
        nodes=[NODE],
        slices=[piece("gpu-1")],
        counters=[counters(declared=True, holder_processes=(process,))],
    )
    [row] = table = rows(snapshot)
    assert (row.declared, row.holder_processes) == (True, [process])
    assert (row.utilisation_percent, row.memory_used_bytes, row.power_watts) == (None, None, None)
    *_, line = drawn(Picture(rows=table), 80, 24)
    assert "declared" in line
    assert "%" not in line


def test_a_shared_device_has_a_row_for_each_who_holds_it():
    half = lease("gpu-1")
    half["spec"]["devices"][0]["share"] = "1/2"
    other = {
        "metadata": {"name": "lease-8"},
        "spec": {**half["spec"], "agent": "chat"},
        "status": {"phase": "Active", "price": "1.00"},
    }
    cut = {"name": "gpu-1-mig-0", "attributes": {"type": {"string": "mig"}}}
    slices = [piece("gpu-1")]
    slices[0]["spec"]["devices"].append(cut)
    snapshot = FleetReadings(
        nodes=[NODE], slices=slices, leases=[half, other], claims=[CLAIM], pods=[POD]
    )
    table = rows(snapshot)
    assert [(row.agent, row.share, row.pod) for row in table] == [
        ("trainer", "1/2", "team/train"),
        ("chat", "1/2", ""),
    ], "each with its own pod; ways to cut a card that nobody took are not shown"
    assert "1 GPUs  1 leased  0 free" in drawn(Picture(rows=table), 80, 24)[0]


def test_parts_of_a_cut_card_and_who_has_them_at_eighty_columns():
    node = NodeDeclaration(name="box", product="H100", memory="80Gi", gpus=1, mig=True)
    place = {"node": "box", "driver": "gpu.bidplane.dev", "pool": "box", "name": "gpu-0"}
    leased = lease()
    leased["spec"] |= {"node": "box", "devices": [{**place, "share": "1g.10gb", "slots": [2]}]}
    results = [
        {"driver": "gpu.bidplane.dev", "pool": "box", "device": f"gpu-0-mig-{name}"}
        for name in ("1g10gb-2", "3g40gb-4")
    ]
    claims = [
        {
            "metadata": {"namespace": space, "name": name},
            "status": {
                "reservedFor": [{"resource": "pods", "name": pod}],
                "allocation": {"devices": {"results": [result]}},
                "devices": [{**result, "data": {"uuid": "MIG-1", "gpuInstance": number}}],
            },
        }
        for result, space, name, pod, number in (
            (results[0], "agent-trainer", "lease-7", "train-x", 9),
            (results[1], "other", "c", "by-hand", 2),
        )
    ]
    identity = {"node": "box", "index": 0, "uuid": "GPU-box-0"}
    counters = [
        Counters(**identity, power_watts=300.0, pcie_link_width=16, memory_used_bytes=9),
        Counters(
            **identity,
            profile="1g.10gb",
            instance="9",
            engine_percent=43.0,
            memory_used_bytes=6 << 30,
            memory_free_bytes=4 << 30,
            processes=(ProcessMemory(pid=7, bytes=6 << 30),),
        ),
    ]
    table = rows(
        FleetReadings(
            nodes=[NODE],
            slices=slices_of(machine_of(node)),
            leases=[leased],
            claims=claims,
            pods=[POD],
            counters=counters,
        )
    )
    assert [(row.device, row.share, row.agent, row.pod) for row in table] == [
        ("gpu-0", "1g.10gb", "trainer", "team/train"),
        ("gpu-0", "3g.40gb", "", "by-hand"),
    ]
    first_row, second_row = table
    assert (first_row.utilisation_percent, first_row.memory_total_bytes, first_row.power_watts) == (
        43,
        10 << 30,
        300,
    )
    assert first_row.processes == [ProcessMemory(pid=7, bytes=6 << 30)]
    assert second_row.memory_used_bytes is None, "nobody told of that instance"
    *_, first, second = drawn(Picture(rows=table), 80, 24)
    for text in ("0 1g.10gb", "43%", "6/10", "trainer", "team/train", "2.10"):
        assert text in first
    assert "0 3g.40gb" in second
    assert "by-hand" in second


def test_a_claim_that_is_not_reserved_is_its_pods():
    claim = {**CLAIM, "status": {"allocation": CLAIM["status"]["allocation"]}}
    user = {**POD, "spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]}}
    (row,) = rows(FleetReadings(nodes=[NODE], slices=[piece("gpu-1")], claims=[claim], pods=[user]))
    assert row.pod == "team/train"
    over = {**user, "status": {"phase": "Succeeded"}}
    (row,) = rows(FleetReadings(nodes=[NODE], slices=[piece("gpu-1")], claims=[claim], pods=[over]))
    assert row.pod == ""


@pytest.mark.parametrize(
    ("node", "device", "told", "health"),
    [
        ([], {}, {}, "no node"),
        ([{"metadata": {"name": "box"}}], {}, {}, "not ready"),
        ([NODE], {}, {"xid": 79}, "xid 79"),
        ([NODE], {}, {"xid": 0}, "ok"),
        ([NODE], {"taints": [{"key": "k", "effect": "NoExecute"}]}, {}, "tainted"),
        ([NODE], {}, {"pcie_link_width": 4, "pcie_link_width_max": 16}, "slow link"),
    ],
)
def test_health_names_the_worst(node, device, told, health):
    snapshot = FleetReadings(
        nodes=node, slices=[piece("gpu-1", **device)], counters=[counters(**told)]
    )
    (row,) = rows(snapshot)
    assert row.health == health
    if health == "slow link":
        assert row.link == "x4/16"


def test_a_device_without_a_uuid_is_known_by_its_place():
    bare = piece("gpu-1")
    bare["spec"]["devices"][0]["attributes"] = {}
    (row,) = rows(
        FleetReadings(nodes=[NODE], slices=[bare], counters=[counters(power_watts=300.0)])
    )
    assert row.power_watts == 300.0


# A busy machine is not a fault.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORDS = st.text("abcdefghij-é界", max_size=70)
ROWS = st.builds(
    DeviceRow,
    node=WORDS,
    device=WORDS,
    product=WORDS,
    agent=WORDS,
    lease=WORDS,
    pod=WORDS,
    price=st.just("1234.56"),
    link=st.sampled_from(["", "x16", "x4/16"]),
    health=st.sampled_from(["ok", "xid 79", "not ready"]),
    utilisation_percent=st.none() | st.floats(0, 100),
    memory_used_bytes=st.none() | st.integers(0, 200 << 30),
    memory_total_bytes=st.none() | st.integers(0, 200 << 30),
    power_watts=st.none() | st.floats(0, 1500),
)


def drawn(picture, width, height):
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None
    )
    console.print(_draw(picture, console, height=height))
    return console.file.getvalue().splitlines()


@BUSY
@given(st.lists(ROWS, max_size=30), st.integers(80, 200), st.integers(8, 60))
def test_it_fits_the_terminal(found, width, height):
    pool = PoolPrice(pool="h100", price="2.10", base="2", devices=8, leased=6)
    lines = drawn(Picture(rows=found, pools=[pool] * 9, silent=1), width, height)
    measure = Console(width=500)
    assert all(measure.measure(line).maximum <= width for line in lines if line)
    assert len(lines) <= height


def test_eighty_columns_show_what_matters():
    row = DeviceRow(
        node="h100-a",
        device="gpu-0",
        agent="trainer",
        lease="lease-7",
        pod="default/train-1",
        price="2.10",
        utilisation_percent=85.0,
        memory_used_bytes=48 << 30,
        memory_total_bytes=80 << 30,
        link="x16",
    )
    *_, head, line = drawn(Picture(rows=[row]), 80, 24)
    assert head.split() == [
        "NODE",
        "GPU",
        "UTIL",
        "MEM",
        "GIB",
        "LINK",
        "AGENT",
        "POD",
        "PRICE",
        "HEALTH",
    ]
    for text in ("h100-a", "85%", "48/80", "x16", "trainer", "train-1", "2.10", "ok"):
        assert text in line


@pytest.mark.parametrize("every", [0.0, -1.0, float("nan")])
def test_too_often_is_refused(every):
    with pytest.raises(UserError, match="--every must be at least"):
        top(every=every)


def proposal(phase, *, created, action="CordonNode", **target):
    spec = {"action": {"kind": action, **target}, "proposer": {"name": "pilot", "role": "pilot"}}
    metadata = {"name": created[11:13], "creationTimestamp": created}
    return {"metadata": metadata, "spec": spec, **({"status": {"phase": phase}} if phase else {})}


def test_proposals_have_a_line_that_fits_80_columns_with_the_newest_ones_phase():
    proposals = [
        proposal("Waiting", created="2026-11-18T04:00:00Z", name="n1"),
        proposal(
            "Waiting",
            created="2026-11-18T05:00:00Z",
            action="ReleaseLease",
            namespace="agent-a-name-of-many-words",
            name="a-lease-with-a-long-name-too",
        ),
        proposal("Denied", created="2026-11-18T03:00:00Z", name="n2"),
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(_draw(Picture(rows=[], pilot=pilot_line(proposals)), console, height=24))
    lines = console.file.getvalue().splitlines()
    (line,) = (line for line in lines if "proposals" in line)
    assert line.startswith("proposals: 2 wait for you  newest: Waiting: ReleaseLease agent-a")
    assert len(line.rstrip()) <= 80
    assert (
        pilot_line(proposals[2:]) == "proposals: none waits  newest: Denied: CordonNode n2 by pilot"
    )
    assert pilot_line([]) == ""
