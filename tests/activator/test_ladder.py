"""A service goes down its ladder, and any number of requests bring it back up once."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.api.kinds import ENDPOINT
from bidplane.api.reading import read_endpoint
from bidplane.core.gate.snapshot import HostObjects, fleet_state

from .applications import Application
from .conftest import get, header

VLLM = {"sleep": {"kind": "vllm", "seconds": 900}}


async def rung(service, wanted):
    while service.live().ladder.rung != wanted:
        await asyncio.sleep(0.005)


async def written(service, **fields):
    """The ladder in the status, once these fields are written there."""
    while not fields.items() <= (ladder := (await service.status()).get("ladder", {})).items():
        await asyncio.sleep(0.005)
    return ladder


async def asleep(service, app, **ladder):
    """A service that fell asleep after its window."""
    service.answers = app.answer
    await service.awake(idleSeconds=100, ladder={**VLLM, **ladder})
    service.pass_time(101)
    await rung(service, "Asleep")


def test_requests_wake_a_sleeping_engine_once(play):
    async def story(service):
        app = Application()
        await asleep(service, app)
        assert app.asleep
        assert app.calls == ["POST /sleep?level=1", "GET /is_sleeping"]
        assert service.live().demand.awake, "its pod stays"
        assert not service.live().is_open
        assert (await service.ask(get("/healthz"))).startswith(b"HTTP/1.1 503 ")
        app.calls.clear()
        answers = await asyncio.gather(*(service.ask(get(f"/{n}")) for n in range(20)))
        assert all(answer.endswith(b"ok") for answer in answers)
        assert "true" in {header(answer, "X-KEDA-HTTP-Cold-Start") for answer in answers}
        assert app.calls[:2] == ["POST /wake_up", "GET /is_sleeping"]
        assert sorted(app.calls[2:]) == sorted(f"client /{n}" for n in range(20))
        assert service.live().demand.number == 1
        ladder = await written(service, rung="Ready")
        assert ladder["wake"]["asleep"] >= 0
        assert ladder["windows"] == {"ready": 100, "asleep": 900, "stopped": 0}

    play(story)


def test_level_2_reads_the_weights_again(play):
    async def story(service):
        app = Application()
        await asleep(service, app, sleep={"kind": "vllm", "level": 2})
        app.calls.clear()
        assert (await service.ask(get())).endswith(b"ok")
        assert app.calls[:3] == [
            "POST /wake_up?tags=weights",
            "POST /collective_rpc",
            "POST /wake_up?tags=kv_cache",
        ]

    play(story)


def test_a_request_while_it_falls_asleep_waits_until_it_is_awake_again(play):
    async def story(service):
        app = Application()
        service.answers = app.answer
        asked = []
        app.on_call = lambda call: (
            asked.append(asyncio.create_task(service.ask(get("/early"))))
            if "sleep?" in call
            else None
        )
        await service.awake(idleSeconds=100, ladder=VLLM)
        service.pass_time(101)
        while not asked:
            await asyncio.sleep(0.005)
        assert (await asked[0]).endswith(b"ok")
        assert "client /early" in app.calls, "it was not passed on while the engine slept"

    play(story)


@pytest.mark.parametrize(("on_failure", "ends"), [("stop", "Released"), ("stay", "Ready")])
def test_a_sleep_that_fails_is_named(play, on_failure, ends):
    async def story(service):
        app = Application()
        app.refuses = {"/sleep"}
        service.answers = app.answer
        sleep = {"kind": "vllm", "onFailure": on_failure}
        await service.awake(idleSeconds=100, ladder={"sleep": sleep})
        service.pass_time(101)
        while "ladder" not in (status := await service.status()) or not status["ladder"].get(
            "problem"
        ):
            await asyncio.sleep(0.005)
        await rung(service, ends)
        ladder = await written(service, problem="SleepFailed")
        assert "POST /sleep?level=1 answered 500" in ladder["message"]
        assert service.live().demand.awake == (on_failure == "stay")

    play(story)


def test_an_engine_that_does_not_wake_is_started_anew(play):
    async def story(service):
        app = Application()
        await asleep(service, app)
        app.refuses = {"/wake_up"}
        asked = asyncio.create_task(service.ask(get()))
        number = await service.demanded(awake=False)
        assert (await service.status())["demand"]["reason"] == "Restart"
        await service.says(phase="Stopping", answers=number, backends=[])
        app.asleep = False
        await service.ready(await service.demanded(awake=True))
        assert (await asked).endswith(b"ok")
        assert service.live().ladder.rung == "Ready"

    play(story)


def test_down_to_released_by_the_windows_of_the_rungs(play):
    async def story(service):
        app = Application()
        await asleep(service, app, keepLeaseSeconds=600)
        service.pass_time(899)
        assert service.live().ladder.rung == "Asleep"
        service.pass_time(2)
        number = await service.demanded(awake=False)
        assert (await service.status())["demand"]["keepLease"]
        holding = {"keepsLease": True, "leases": ["l"], "devices": 1, "paidPerHour": "1.00"}
        await service.says(phase="Asleep", answers=number, backends=[], holding=holding)
        service.pass_time(599)
        assert service.live().ladder.rung == "Stopped"
        service.pass_time(2)
        await rung(service, "Released")
        assert service.live().demand.number == number + 1
        assert not service.live().demand.keep_lease

    play(story)


def test_a_kept_lease_that_somebody_outbids_is_not_waited_for(play):
    async def story(service):
        await service.awake(idleSeconds=100, ladder={"keepLeaseSeconds": 600})
        service.pass_time(101)
        number = await service.demanded(awake=False)
        await service.says(
            phase="Asleep", answers=number, backends=[], holding={"keepsLease": True}
        )
        assert service.live().ladder.rung == "Stopped"
        await service.says(holding={"keepsLease": False})
        await rung(service, "Released")

    play(story)


def test_a_busy_or_unknown_queue_keeps_it_ready_and_is_asked_only_at_the_end(play):
    async def story(service):
        app = Application()
        service.answers = app.answer
        await service.awake(idleSeconds=100, idle={"queue": {"kind": "comfyui"}})

        async def ends_window(reason):
            app.calls.clear()
            service.pass_time(20)  # more than the pause between two questions
            while reason not in service.live().ladder.status().idle:
                await asyncio.sleep(0.005)
            assert app.calls == ["GET /queue"]
            assert service.live().is_open

        service.pass_time(99)
        assert not app.calls
        app.running = [1]
        await ends_window("QueueBusy: its application has 1 jobs")
        app.queue_body = b"<html>"
        await ends_window("QueueUnknown")
        app.queue_body, app.running = None, []
        service.pass_time(20)
        await service.demanded(awake=False)

    play(story)


def test_the_gate_and_the_pilot_know_what_its_application_said(play):
    async def story(service):
        app = Application()
        service.answers = app.answer

        async def known(reason):
            while True:
                objects = (await service.host.list(ENDPOINT)).items
                host = HostObjects(endpoints=[read_endpoint(obj) for obj in objects])
                (endpoint,) = fleet_state(host).endpoints
                if endpoint.own_work == reason:
                    return
                await asyncio.sleep(0.005)

        await service.awake(idleSeconds=100, idle={"queue": {"kind": "comfyui"}})
        await known("QueueUnknown: it is asked when its window has ended")
        app.running = [1]
        service.pass_time(120)
        await known("QueueBusy: its application has 1 jobs")
        app.running = []
        service.pass_time(20)
        await service.demanded(awake=False)
        await service.says(phase="Asleep")
        await known("")

    play(story)


def test_one_that_is_asked_to_sleep_first_ends_its_own_jobs(play):
    async def story(service):
        app = Application()
        service.answers = app.answer
        await service.awake(idleSeconds=1000, idle={"queue": {"kind": "comfyui"}})
        app.running = [1]
        service.live().sleep()
        while "QueueBusy" not in service.live().ladder.status().idle:
            await asyncio.sleep(0.005)
        assert service.live().is_open
        app.running = []
        service.pass_time(20)  # more than the pause between two questions
        await service.demanded(awake=False)
        assert app.calls == ["GET /queue", "GET /queue"]

    play(story)


def test_comfyui_and_llama_cpp(play):
    async def story(service):
        app = Application()
        service.answers = app.answer
        ladder = {"sleep": {"kind": "comfyui"}}
        await service.awake(idleSeconds=100, ladder=ladder)
        await service.awake("llama", idleSeconds=100, ladder={"sleep": {"kind": "llama.cpp"}})
        service.pass_time(101)
        await rung(service, "Asleep")
        assert "POST /free" in app.calls
        # llama.cpp falls asleep by its own timer; until then it is asked, and gets no request.
        assert service.live("llama").ladder.rung == "FallingAsleep"
        assert not service.live("llama").is_open
        app.asleep = True
        while service.live("llama").ladder.rung != "Asleep":
            await asyncio.sleep(0.01)
        assert (await service.ask(get(host="llama"))).endswith(b"ok")
        assert "POST /completion" in app.calls
        assert (await service.ask(get())).endswith(b"ok")

    play(story)


def test_clients_may_not_call_what_puts_vllm_to_sleep(play):
    async def story(service):
        app = Application()
        service.answers = app.answer
        await service.awake(ladder=VLLM)
        for path in ("/sleep?level=2", "/wake_up", "/collective_rpc"):
            assert (await service.ask(get(path, method="POST"))).startswith(b"HTTP/1.1 403 ")
        assert app.calls == []

    play(story)
