"""Whoever waits for the next round is told of it, once it is recorded."""

from __future__ import annotations

import asyncio

from bidplane.exchange.http.news import News


def test_a_recorded_round_ends_the_wait_of_those_who_still_wait() -> None:
    async def story() -> None:
        news = News()
        waits, left = news.next(), news.next()
        left.cancel()
        news.publish((), recorded=False)
        assert not waits.done(), "nothing was recorded yet"
        news.publish((), recorded=True)
        assert waits.done()
        assert left.cancelled()
        later = news.next()
        assert not later.done(), "it waits for the round after"
        assert news.lots == ()

    asyncio.run(story())
