"""A lease that stays when its pods have gone says so; one that a program holds says nothing."""

from bidplane.api import labels
from bidplane.api.kinds import BID


async def lease_by_hand(site, **metadata):
    spec = {"gpus": 2, "maxPrice": "1.00"}
    manifest = {"metadata": {"name": "mine", **metadata}, "spec": spec}
    await site.plane.create(BID, manifest, "default")
    await site.settle()
    await site.win()
    await site.settle()


async def said(site):
    """What the condition `InUse` says, and since when."""
    conditions = (await site.lease())["status"].get("conditions") or ()
    return [(c["status"], c["lastTransitionTime"]) for c in conditions if c["type"] == "InUse"]


def test_a_lease_won_by_hand_says_whether_a_pod_is_on_it(stories):
    async def story(site):
        await lease_by_hand(site)
        note = {labels.BID_NAME: "mine"}
        await site.create_pod(annotations=note)
        await site.settle(3)
        await site.run_host_pod()
        await site.settle(60)
        assert await said(site) == [], "one that was never left counts as used"
        await site.run_host_pod("Succeeded")
        await site.remove_host_pod()
        await site.settle(20)
        ((status, since),) = await said(site)
        assert status == "False"
        await site.settle(120)
        assert await said(site) == [("False", since)], "said once"
        await site.create_pod("again", annotations=note)
        await site.settle(20)
        ((status, _),) = await said(site)
        assert status == "True"

    stories(story)


def test_a_lease_that_a_program_holds_has_no_pod_and_says_nothing(stories):
    async def story(site):
        await lease_by_hand(site, annotations={labels.HOLD_SECONDS: "600", labels.HOLD_BEAT: "1"})
        await site.settle(3)
        assert (await site.lease())["status"]["phase"] == "Active"
        await site.settle(120)
        assert await said(site) == []

    stories(story)


def test_a_pods_own_lease_goes_with_it_and_is_not_written_to(stories):
    async def story(site):
        await site.running()
        await site.settle(120)
        assert await said(site) == []

    stories(story)
