"""A round waits a moment for new selectors' answers, and that wait ends when it is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.exchange.workers.selectors import Selectors


@pytest.mark.parametrize("turns", range(8))
def test_a_wait_for_answers_that_is_cancelled_ends(turns: int) -> None:
    """At whatever turn of the event loop: asyncio.wait_for forgets a cancellation at some."""

    async def story() -> None:
        selectors = Selectors()

        async def rounds() -> None:
            while True:
                await selectors.wait(1.0)
                await asyncio.sleep(0)

        task = asyncio.create_task(rounds())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        ended = task.done()
        task.cancel()
        assert ended

    asyncio.run(story())
