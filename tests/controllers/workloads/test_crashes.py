"""
However far behind a cache is, and wherever the controllers are killed: never more pods
than were asked for, and in the end exactly as many.
"""

import asyncio
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.kinds import DEPLOYMENT, JOB, NAMESPACE, POD, REPLICA_SET
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.sim.loop import VirtualClock, run
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

from .conftest import template


class Laggy:
    """A client whose watches tell late, and whose calls take a while, by a seed."""

    def __init__(self, inner, dice):
        self._inner, self._dice = inner, dice

    def __getattr__(self, name):
        call = getattr(self._inner, name)

        async def late(*args, **kwargs):
            await asyncio.sleep(self._dice.choice([0, 0, 0.05]))
            answer = await call(*args, **kwargs)
            await asyncio.sleep(self._dice.choice([0, 0, 0.05]))
            return answer

        return late

    async def watch(self, *args, **kwargs):
        async for event in self._inner.watch(*args, **kwargs):
            await asyncio.sleep(self._dice.choice([0, 0.01, 0.5, 2.0]))
            yield event

    async def follow(self, since):
        async for kind, events in self._inner.follow(since):
            await asyncio.sleep(self._dice.choice([0, 0.01, 0.5, 2.0]))
            yield kind, events


async def story(folder, seed, sizes, kills):
    dice, clock = random.Random(seed), VirtualClock()
    planes = Planes(
        folder, clock=clock, tokens=Tokens(b"t" * 32), crds=crds_for, durable=False, inline=True,
        dice=random.Random(seed),
    )  # fmt: skip
    await prepare_host(planes, None)
    host, driver = planes.client(HOST_PLANE), EmbeddedDriver(planes, "https://test")
    await host.create(NAMESPACE, {"metadata": {"name": "t"}})

    def start():
        controllers = Controllers(Laggy(host, dice), driver, clock=clock, own_host=True)
        return asyncio.create_task(controllers.run())

    async def live(**expected):
        pods = (await host.list(POD, "t")).items
        return [p for p in pods if expected.items() <= p["metadata"]["labels"].items()]

    most = {"web": 0, "train": 0}

    async def watch_over():
        while True:
            most["web"] = max(most["web"], len(await live(app="web")))
            most["train"] = max(most["train"], len(await live(**{"job-name": "train"})))
            await asyncio.sleep(0.01)

    working, watching = start(), asyncio.create_task(watch_over())
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template()}
    spec["replicas"] = sizes[0]
    await host.create(DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec}, "t")
    job = {"template": {"spec": template()["spec"] | {"restartPolicy": "Never"}}}
    job |= {"completions": 3, "parallelism": 3}
    await host.create(JOB, {"metadata": {"name": "train"}, "spec": job}, "t")
    for size, after in zip(sizes, kills, strict=False):
        await host.patch(DEPLOYMENT, "web", {"spec": {"replicas": size}}, "t")
        await asyncio.sleep(after)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        working = start()
    await asyncio.sleep(120)
    assert len(await live(app="web")) == ([sizes[0], *sizes[: len(kills)]][-1])
    assert len(await live(**{"job-name": "train"})) == 3
    assert len((await host.list(REPLICA_SET, "t")).items) == 1
    assert most["web"] <= max(sizes), "more pods than were ever asked for"
    assert most["train"] <= 3
    assert not working.done()
    for task in (working, watching):
        task.cancel()
    await asyncio.gather(working, watching, return_exceptions=True)
    await planes.close()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    kills=st.lists(st.sampled_from([0.0, 0.03, 0.1, 0.4, 3.0]), max_size=4),
)
def test_never_more_than_asked_for(seed, sizes, kills):
    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder), seed, sizes, kills))
