"""An index says what a walk through all of the cache would."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.kinds import POD
from bidplane.api.views import Pod
from bidplane.machinery.informer import Informer
from bidplane.machinery.typed import TypedCache
from bidplane.sim.loop import VirtualClock
from machinery.scripted import ScriptedServer

writes = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "x", "y"]), st.booleans()), max_size=30
)


@given(writes)
def test_an_index_is_what_a_walk_would_find(steps: list[tuple[str, str, bool]]) -> None:
    async def story() -> None:
        informer = Informer(ScriptedServer(), POD, clock=VirtualClock())
        index = TypedCache(informer, Pod).index(lambda pod: str(pod["mark"]))
        for number, (name, mark, gone) in enumerate(steps, start=1):
            metadata = {"namespace": "n", "name": name, "uid": name, "resourceVersion": str(number)}
            pod = {"metadata": metadata, "mark": mark}
            informer._apply("DELETED" if gone else "MODIFIED", pod)
            for value in ("x", "y"):
                walked = [pod for pod in informer.items() if pod["mark"] == value]
                assert sorted(str(pod.json) for pod in index[value]) == sorted(map(str, walked))
        assert index[""] == []

    asyncio.run(story())
