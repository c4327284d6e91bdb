"""Pods with ResourceClaims: inside what is leased, else by a bid, else refused in words."""

from bidplane.api.kinds import (
    BID,
    NAMESPACE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
)
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.slices import slices_of


def scheduled(pod):
    return next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")


def devices(count=1, device_class="gpu.nvidia.com", selectors=(), **more):
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}], **more}}


async def fleet(site):
    # Published whole and in parts: what is leased is whole all the same.
    node = NodeDeclaration(name="h100-a", product="H100", gpus=8, nvlink=18, mig=True)
    for slice_ in slices_of(machine_of(node)):
        await site.host.create(RESOURCE_SLICE, slice_)


async def claim(site, name, spec):
    await site.plane.create(RESOURCE_CLAIM, {"metadata": {"name": name}, "spec": spec}, "default")


async def claim_pod(site, name="train", **reference):
    pod = {
        "metadata": {"name": name},
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"claims": [{"name": "mine"}]}}
            ],
            "resourceClaims": [{"name": "mine", **reference}],
            "restartPolicy": "Never",
        },
    }
    await site.plane.create(POD, pod, "default")
    await site.settle(3)


def given(claim):
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {})
    return [result["device"] for result in results.get("results") or ()]


async def lease_two(site):
    """By a bid written by hand, so that any pod may use what it wins."""
    spec = {"gpus": 2, "maxPrice": "1.00"}
    await site.plane.create(BID, {"metadata": {"name": "mine"}, "spec": spec}, "default")
    await site.settle()
    await site.win()
    await site.settle()


def test_a_template_becomes_a_claim_a_bid_and_an_allocation(stories):
    async def story(site):
        await fleet(site)
        match = [{"matchAttribute": "bidplane.dev/linkDomain"}]
        wide = 'device.attributes["bidplane.dev"].pcieLinkWidth == 16'
        requested = devices(2, selectors=[wide], constraints=match)
        template = {"metadata": {"name": "two"}, "spec": {"spec": requested}}
        await site.plane.create(RESOURCE_CLAIM_TEMPLATE, template, "default")
        await claim_pod(site, resourceClaimTemplateName="two")
        (bid,) = await site.all(site.host, BID)
        assert (bid["spec"]["gpus"], bid["spec"]["maxPrice"]) == (2, "1.00")
        (created,) = await site.all(site.plane, RESOURCE_CLAIM)
        pod = await site.pod()
        assert pod["status"]["resourceClaimStatuses"] == [
            {"name": "mine", "resourceClaimName": created["metadata"]["name"]}
        ]
        await site.win()
        await site.settle(3)
        await site.settle(3)
        (created,) = await site.all(site.plane, RESOURCE_CLAIM)
        assert given(created) == ["gpu-0", "gpu-1"]
        assert [user["uid"] for user in created["status"]["reservedFor"]] == [
            pod["metadata"]["uid"]
        ]
        assert (await site.pod())["spec"]["nodeName"] == "lease-1"
        (copy,) = await site.all(site.host, POD)
        (pinned,) = await site.all(site.host, RESOURCE_CLAIM)
        assert given(pinned) == ["gpu-0", "gpu-1"]
        assert copy["spec"]["resourceClaims"] == [
            {"name": "gpus", "resourceClaimName": pinned["metadata"]["name"]}
        ]
        assert copy["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
        await site.run_host_pod("Succeeded")
        await site.settle(3)
        (created,) = await site.all(site.plane, RESOURCE_CLAIM)
        assert not given(created), "given back when the pod is over"
        assert not (created.get("status") or {}).get("reservedFor")

    stories(story)


def test_two_pods_share_a_lease_and_no_device(stories):
    async def story(site):
        await fleet(site)
        await lease_two(site)
        for name in ("one", "two", "three"):
            await claim(site, name, devices(1))
            await claim_pod(site, name, resourceClaimName=name)
            await site.settle(3)
        devices_by_claim = {
            c["metadata"]["name"]: given(c) for c in await site.all(site.plane, RESOURCE_CLAIM)
        }
        assert devices_by_claim == {"one": ["gpu-0"], "two": ["gpu-1"], "three": []}
        assert (await site.pod("one"))["spec"]["nodeName"] == "lease-1"
        assert (await site.pod("two"))["spec"]["nodeName"] == "lease-1"
        pinned = sorted(given(c) for c in await site.all(site.host, RESOURCE_CLAIM))
        assert pinned == [["gpu-0"], ["gpu-1"]]
        # The third is a block of the market: it bids.
        assert len(await site.all(site.host, BID)) == 2
        await site.plane.delete(POD, "one", "default", grace_seconds=0)
        await site.settle(3)
        await site.settle(3)
        devices_by_claim = {
            c["metadata"]["name"]: given(c) for c in await site.all(site.plane, RESOURCE_CLAIM)
        }
        assert devices_by_claim == {"one": [], "two": ["gpu-1"], "three": ["gpu-0"]}

    stories(story)


def test_what_cannot_be_is_said(stories):
    async def story(site):
        await fleet(site)
        cases = {
            "taught": (
                devices(4, selectors=["device.attributes['pcie'].linkWidth == 16"]),
                ("BadClaim", 'write: "pcieLinkWidth" in device.attributes["bidplane.dev"] && '),
            ),
            "typo": (devices(selectors=["device.atributes == 1"]), ("BadClaim", "undefined field")),
            "class": (devices(device_class="tpu"), ("ClaimDoesNotFit", "lease first, with a Bid")),
            "apart": (
                devices(2, constraints=[{"distinctAttribute": "bidplane.dev/linkDomain"}]),
                ("ClaimDoesNotFit", "lease first, with a Bid for 2 GPUs"),
            ),
        }
        for name, (spec, (reason, message)) in cases.items():
            await claim(site, name, spec)
            await claim_pod(site, name, resourceClaimName=name)
            condition = scheduled(await site.pod(name))
            assert condition["reason"] == reason, condition
            assert message in condition["message"]
        await claim_pod(site, "nothing", resourceClaimName="nowhere")
        assert scheduled(await site.pod("nothing"))["reason"] == "ClaimNotFound"
        assert await site.all(site.host, BID) == []

    stories(story)


def test_an_unknown_attribute_is_an_error_on_what_is_leased(stories):
    async def story(site):
        await fleet(site)
        await lease_two(site)
        wants = 'device.attributes["bidplane.dev"].linkdomain == "x"'
        await claim(site, "odd", devices(selectors=[wants]))
        await claim_pod(site, "odd", resourceClaimName="odd")
        condition = scheduled(await site.pod("odd"))
        assert condition["reason"] == "BadClaim"
        assert "did you mean bidplane.dev/linkDomain?" in condition["message"]

    stories(story)


def test_admin_access_is_for_namespaces_that_say_so(stories):
    async def story(site):
        await fleet(site)
        await lease_two(site)
        for name in ("work", "watch"):
            requested = devices(2)
            if name == "watch":
                requested["devices"]["requests"][0]["exactly"]["adminAccess"] = True
            await claim(site, name, requested)
            await claim_pod(site, name, resourceClaimName=name)
        condition = scheduled(await site.pod("watch"))
        assert condition["reason"] == "BadClaim"
        assert (
            "resource.kubernetes.io/admin-access=true on the namespace default"
            in condition["message"]
        )
        label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        await site.plane.patch(NAMESPACE, "default", label)
        await site.settle(5)
        devices_by_claim = {
            c["metadata"]["name"]: given(c) for c in await site.all(site.plane, RESOURCE_CLAIM)
        }
        assert devices_by_claim == {"work": ["gpu-0", "gpu-1"], "watch": ["gpu-0", "gpu-1"]}
        assert (await site.pod("watch"))["spec"]["nodeName"] == "lease-1"

    stories(story)
