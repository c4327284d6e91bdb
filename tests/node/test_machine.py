"""What a node says of its machine's GPUs: how they are joined, and which link is not as it was."""

import asyncio

from bidplane.api.kinds import EVENT, NODE, RESOURCE_SLICE
from bidplane.core.devices.topology import LINKS_ANNOTATION, matrix, read_machine
from bidplane.node.fleet import Card, Fleet, NodeDeclaration
from bidplane.node.inventory.nvml import NvmlDevices

from .recorded import RecordedNvml, gpu


async def events_of(client, node, reason):
    found = (await client.list(EVENT)).items
    return [
        event["message"]
        for event in found
        if event["reason"] == reason and event["involvedObject"]["name"] == node
    ]


def test_this_machines_links_are_published_for_whoever_draws_them(box, tmp_path):
    async def story(box):
        await box.stop()
        cards = [gpu(0, links=[1] * 4), gpu(1, links=[0] * 4), gpu(2, links=[])]
        nvml = RecordedNvml(cards, near={(0, 1): 20, (0, 2): 50, (1, 2): 50})
        box.inventory = NvmlDevices(box.name, nvml=nvml, sysfs=tmp_path)
        await box.start()
        node = await box.client.get(NODE, box.name)
        slices = (await box.client.list(RESOURCE_SLICE, fields=f"spec.nodeName={box.name}")).items
        drawn = read_machine(box.name, slices, node["metadata"]["annotations"][LINKS_ANNOTATION])
        assert matrix(drawn) == matrix(box.inventory.machine())
        assert matrix(drawn)[1][1:4] == ["X", "NV4", "SYS"]
        # One bridge is taken out: so it is said within a look.
        nvml.gpus = [gpu(0, links=[]), gpu(1, links=[]), gpu(2, links=[])]
        box.clock.advance(6)

        async def told():
            said = (await box.client.get(NODE, box.name))["metadata"]["annotations"]
            return '"nvlinks":{}' in said[LINKS_ANNOTATION]

        await box.until(told)

    box(story)


def test_a_link_below_its_width_is_an_event_of_its_node(box, tmp_path):
    async def story(box):
        await box.stop()
        nvml = RecordedNvml([gpu(0), gpu(1)])
        box.inventory = NvmlDevices(box.name, nvml=nvml, sysfs=tmp_path)
        await box.start()
        assert await events_of(box.client, box.name, "LinkDegraded") == []
        nvml.gpus[1] = gpu(1, width=4)  # trained anew after a reset, on fewer lanes
        box.clock.advance(6)

        async def told():
            return await events_of(box.client, box.name, "LinkDegraded")

        (words,) = await box.until(told)
        assert words.startswith("gpu-1: its PCIe link is trained at x4 of x16: reseat the card")
        nvml.events.append((0, 79))

        async def tainted():
            box.clock.advance(6)  # it may still have been busy with the look before
            found = await box.client.get(RESOURCE_SLICE, f"{box.name}-gpus")
            return found["spec"]["devices"][0].get("taints")

        (taint,) = await box.until(tainted)
        assert (taint["key"], taint["value"]) == ("bidplane.dev/xid", "79")
        assert box.inventory.xids() == {"GPU-0": 79}

    box(story)


def test_a_declared_card_that_is_degraded_is_an_event_too(stories):
    async def story(site):
        await site.kill()
        cards = [Card(width=16), Card(width=4, max_width=16)]
        site.start(Fleet(nodes=[NodeDeclaration(name="box", product="L40", cards=cards)]))
        await asyncio.sleep(1)
        (words,) = await events_of(site.client, "box", "LinkDegraded")
        assert "gpu-1: its PCIe link is trained at x4 of x16" in words

    stories(story)
