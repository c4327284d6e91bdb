"""A busy plane waits for itself; its neighbours do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.errors import ApiError
from bidplane.http import replies
from bidplane.plane import fairness
from bidplane.plane.fairness import Fairness
from bidplane.sim.loop import run


def _run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def _turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_neighbour_comes_next() -> None:
    async def story() -> None:
        turns = Fairness(seats=2, share=2, line=100)
        order: list[str] = []
        gate = asyncio.Event()

        async def request(plane: str) -> None:
            async with turns.seat(plane):
                order.append(plane)
                await gate.wait()

        busy = [asyncio.create_task(request("busy")) for _ in range(50)]
        await _turn()
        quiet = asyncio.create_task(request("quiet"))
        await _turn()
        assert order == ["busy", "busy"]
        gate.set()
        await asyncio.gather(*busy, quiet)
        assert order.index("quiet") <= 4, "after those at work, not after those in line"
        assert repr(turns) == "<Fairness [2 free, 0 waiting, 0 planes]>"

    _run(story())


def test_one_plane_never_has_every_seat() -> None:
    async def story() -> None:
        turns = Fairness(seats=4, share=3, line=100)
        for _ in range(3):
            await turns.acquire("busy")
        waiting = asyncio.create_task(turns.acquire("busy"))
        await _turn()
        assert not waiting.done()
        await asyncio.wait_for(turns.acquire("quiet"), 1)
        waiting.cancel()

    _run(story())


def test_a_line_that_is_full() -> None:
    async def story() -> None:
        turns = Fairness(seats=1, share=1, line=2)
        await turns.acquire("busy")
        line = [asyncio.create_task(turns.acquire("busy")) for _ in range(2)]
        await _turn()
        with pytest.raises(ApiError) as refused:
            await turns.acquire("busy")
        assert refused.value.code == 429
        assert refused.value.reason == "TooManyRequests"
        assert refused.value.retry_after == fairness.RETRY_SECONDS  # type: ignore[attr-defined]
        quiet = asyncio.create_task(turns.acquire("quiet"))
        turns.release("busy")
        await _turn()
        assert line[0].done() or quiet.done()
        for task in (*line, quiet):
            task.cancel()

    _run(story())


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["come", "go", "leave"])), max_size=60
    )
)
def test_seats_are_never_lost(steps: list[tuple[str, str]]) -> None:
    async def story() -> None:
        turns = Fairness(seats=3, share=2, line=4)
        tasks: dict[str, list[asyncio.Task[None]]] = {name: [] for name in "abc"}
        for plane, step in steps:
            sitting = [task for task in tasks[plane] if task.done() and not task.cancelled()]
            if step == "come":
                task = asyncio.create_task(turns.acquire(plane))
                await _turn()
                if task.done() and task.exception():
                    continue  # the line was full
                tasks[plane].append(task)
            elif step == "go" and sitting:
                tasks[plane].remove(sitting[0])
                turns.release(plane)
            elif step == "leave":
                waiting = [task for task in tasks[plane] if not task.done()]
                if waiting:
                    waiting[0].cancel()
                    tasks[plane].remove(waiting[0])
            await _turn()
            working = {name: sum(task.done() for task in found) for name, found in tasks.items()}
            assert sum(working.values()) <= 3
            assert max(working.values()) <= 2
            stuck = [n for n, found in tasks.items() if working[n] < 2 and len(found) > working[n]]
            assert not stuck or sum(working.values()) == 3, "nobody waits beside a free seat"
        for found in tasks.values():
            for task in found:
                task.cancel()
        for plane, found in tasks.items():
            for task in found:
                if task.done() and not task.cancelled():
                    turns.release(plane)
        await _turn()
        assert "3 free" in repr(turns)

    _run(story())


def test_watches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "STREAMS", 2)
    turns = Fairness()
    with turns.stream("a"), turns.stream("a"):
        with pytest.raises(ApiError) as refused, turns.stream("a"):
            pass
        assert refused.value.code == 429
        with turns.stream("b"):
            pass
    assert "0 planes" in repr(turns)


def test_a_reader_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "STALL_SECONDS", 0.01)

    async def story() -> None:
        async def never(message: Any) -> None:
            await asyncio.Event().wait()

        async def stalled() -> None:
            await replies.BoundedSend(never)({"type": "http.response.body"})

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(stalled())

    _run(story())


def test_a_reader_that_takes_its_time_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "STALL_SECONDS", 60.0)

    async def story() -> None:
        async def slow(message: Any) -> None:
            await asyncio.sleep(50)

        async def told() -> None:
            send = replies.BoundedSend(slow)
            for _ in range(5):
                await send({"type": "http.response.body"})
            await asyncio.sleep(300)  # nothing to say is not a stall

        await asyncio.create_task(told())

    run(story())
