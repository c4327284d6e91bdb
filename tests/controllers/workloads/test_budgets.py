"""Disruption budgets: how many pods may be evicted."""

import pytest

from bidplane.api.kinds import DEPLOYMENT, DISRUPTION_BUDGET, POD

from .conftest import template


def deployment(replicas):
    selector = {"matchLabels": {"app": "web"}}
    return {"replicas": replicas, "selector": selector, "template": template()}


def budget(**spec):
    return {"selector": {"matchLabels": {"app": "web"}}, **spec}


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 1),
        ({"minAvailable": "50%"}, 2, 1),
        ({"maxUnavailable": 2}, 1, 2),
        ({"maxUnavailable": "34%"}, 1, 2),
        ({"minAvailable": 5}, 5, 0),
    ],
    ids=str,
)
def test_what_is_allowed(stories, spec, desired, allowed):
    async def story(site):
        await site.create(DEPLOYMENT, "web", deployment(3))
        await site.ready(*await site.pods_are(3))
        await site.create(DISRUPTION_BUDGET, "b", budget(**spec))
        status = await site.status(
            DISRUPTION_BUDGET, "b", currentHealthy=3, desiredHealthy=desired, expectedPods=3
        )
        assert status["disruptionsAllowed"] == allowed
        (condition,) = status["conditions"]
        assert (condition["type"], condition["status"]) == (
            "DisruptionAllowed",
            "True" if allowed else "False",
        )

    stories(story)


def test_a_pod_without_an_owner_counts_by_itself(stories):
    async def story(site):
        await site.create(POD, "lone", template()["spec"], labels={"app": "web"})
        await site.ready(*await site.pods_are(1))
        await site.create(DISRUPTION_BUDGET, "b", budget(minAvailable=1))
        await site.status(
            DISRUPTION_BUDGET, "b", currentHealthy=1, disruptionsAllowed=0, expectedPods=1
        )

    stories(story)
