"""A request for a sleeping service waits, wakes it once, and passes when it answers."""

from __future__ import annotations

import asyncio
import json

from .conftest import OK, get, header


def test_requests_are_held_and_one_wake_serves_them_all(play):
    async def story(service):
        await service.endpoint()
        await service.start_pod()
        asked = [asyncio.create_task(service.ask(get(f"/{i}"))) for i in range(50)]
        await service.held(50)
        number = await service.demanded(awake=True)
        assert number == 2, "found asleep, then one demand"
        await service.says(phase="Waking", answers=number)
        assert len(service.live().holds) == 50
        assert not service.requests
        await service.ready(number)
        answers = await asyncio.gather(*asked)
        assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
        assert {header(answer, "X-KEDA-HTTP-Cold-Start") for answer in answers} == {"true"}
        assert all(float(header(a, "Bidplane-Cold-Start-Seconds")) > 0 for a in answers)
        served = {head.split(b" ")[1] for head in service.requests}
        assert served == {b"/%d" % i for i in range(50)}
        assert header(await service.ask(get()), "X-KEDA-HTTP-Cold-Start") == "false"
        status = await service.status()
        assert status["demand"]["number"] == 2
        cold_start = status["coldStart"]
        assert cold_start["total"] == cold_start["load"] + cold_start["probe"] >= 0

    play(story)


def test_a_body_is_held_with_its_request(play):
    async def story(service):
        bodies = []

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            bodies.append(await reader.readexactly(300_000))
            writer.write(OK)
            await writer.drain()
            writer.close()

        pod = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
        service.port = pod.sockets[0].getsockname()[1]
        await service.endpoint()
        body = bytes(range(250)) * 1200
        request = get("/", f"Content-Length: {len(body)}", method="POST") + body
        asked = asyncio.create_task(service.ask(request))
        await service.held(1)
        await service.ready(await service.demanded(awake=True))
        assert (await asked).endswith(b"ok")
        assert bodies == [body]
        pod.close()

    play(story)


def test_a_backend_of_an_earlier_life_is_never_used(play):
    async def story(service):
        await service.awake(idleSeconds=10)
        service.pass_time(11)
        number = await service.demanded(awake=False)
        asked = asyncio.create_task(service.ask(get()))
        assert await service.demanded(awake=True) == number + 1
        # The controller's last words about the life that ended: its pod is about to be deleted.
        await service.ready(number)
        await service.ready(number - 1)
        await asyncio.sleep(0.1)
        assert len(service.live().holds) == 1
        await service.ready(number + 1)
        assert (await asked).endswith(b"ok")

    play(story)


def test_places_are_bounded_and_a_client_that_leaves_frees_its_own(play):
    async def story(service):
        await service.endpoint(maxHeld=2)
        _, first = await service.open(get())
        second = asyncio.create_task(service.ask(get()))
        await service.held(2)
        refused = await service.ask(get())
        assert refused.startswith(b"HTTP/1.1 429 ")
        # Nothing is known yet about how long it takes: half a minute is a guess.
        assert 25 <= int(header(refused, "Retry-After")) <= 30
        first.close()
        await service.held(1)
        third = asyncio.create_task(service.ask(get()))
        await service.held(2)
        await service.start_pod()
        await service.ready(await service.demanded(awake=True))
        for answer in await asyncio.gather(second, third):
            assert answer.endswith(b"ok")

    play(story)


def test_retry_after_is_what_is_left_of_the_last_cold_start(play):
    async def story(service):
        await service.endpoint(onCold="reject")
        await service.says(coldStart={"total": 60_000, "load": 1, "probe": 1})
        service.live().cold_start = service.live().status.cold_start
        assert header(await service.ask(get()), "Retry-After") == "60"
        service.clock.ahead += 45
        assert header(await service.ask(get()), "Retry-After") in ("15", "14")
        service.clock.ahead += 555  # ten times as long as the last: it may take a fifth more
        assert 115 <= int(header(await service.ask(get()), "Retry-After")) <= 121

    play(story)


def test_a_hold_ends_after_its_time_with_the_reason(play):
    async def story(service):
        await service.endpoint(holdSeconds=600)
        asked = asyncio.create_task(service.ask(get()))
        await service.held(1)
        number = await service.demanded(awake=True)
        await service.says(
            phase="Waking", answers=number, reason="Outbid", message="2.31 would have won"
        )
        service.pass_time(599)
        assert len(service.live().holds) == 1
        service.pass_time(2)
        answer = await asked
        assert answer.startswith(b"HTTP/1.1 504 ")
        assert b"2.31 would have won" in answer

    play(story)


def test_a_service_that_cannot_start_fails_its_requests_at_once(play):
    async def story(service):
        await service.endpoint()
        asked = asyncio.create_task(service.ask(get()))
        await service.held(1)
        number = await service.demanded(awake=True)
        await service.says(
            phase="Waking",
            answers=number,
            failed=True,
            reason="WalletTooSmall",
            message="the wallet has 0.10 credits",
        )
        answer = await asked
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"WalletTooSmall: the wallet has 0.10 credits" in answer
        again = await service.ask(get())
        assert again.startswith(b"HTTP/1.1 503 ")
        assert b"WalletTooSmall" in again
        # Somebody fills the wallet: the same wake succeeds.
        await service.start_pod()
        await service.ready(number, failed=False, reason="", message="")
        assert (await service.ask(get())).endswith(b"ok")

    play(story)


def test_reject_and_placeholder_answer_at_once_and_wake(play):
    async def story(service):
        await service.endpoint("first", onCold="reject")
        answer = await service.ask(get(host="first"))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert header(answer, "Retry-After")
        await service.demanded(awake=True, name="first")
        await service.endpoint(
            "second",
            onCold="placeholder",
            placeholder={"status": 202, "body": "<b>soon</b>", "contentType": "text/html"},
        )
        answer = await service.ask(get(host="second"))
        assert answer.startswith(b"HTTP/1.1 202 Accepted")
        assert header(answer, "Content-Type") == "text/html"
        assert answer.endswith(b"<b>soon</b>")
        await service.demanded(awake=True, name="second")

    play(story)


def test_a_browser_gets_a_page_whose_own_request_is_held(play):
    async def story(service):
        await service.endpoint()
        accept = "Accept: text/html,application/xhtml+xml"
        page = await service.ask(get("/", accept, "Sec-Fetch-Mode: navigate"))
        assert page.startswith(b"HTTP/1.1 503 ")
        assert b"llm.alice.localhost</b> was asleep" in page
        assert header(page, "Cache-Control") == "no-store"
        asked = asyncio.create_task(
            service.ask(get("/", accept, "Sec-Fetch-Mode: cors", "Bidplane-Wait: 1"))
        )
        await service.held(1)
        await service.start_pod()
        await service.ready(await service.demanded(awake=True))
        answer = await asked
        assert answer.endswith(b"ok")
        assert header(answer, "Bidplane-State") is None
        assert (await service.ask(get("/", accept, "Sec-Fetch-Mode: navigate"))).endswith(b"ok")

    play(story)


def _completion(path: str) -> bytes:
    body = json.dumps({"model": "m", "stream": True}).encode()
    head = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return get(path, *head, method="POST") + body


def test_held_streams_get_heartbeats_then_the_answer(play):
    beats = {
        "/v1/chat/completions": b": the service is waking\n\n",
        "/v1/messages": b'event: ping\ndata: {"type": "ping"}\n\n',
    }

    async def story(service):
        service.answers = lambda head: (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Content-Length: 14\r\nConnection: close\r\n\r\ndata: [DONE]\n\n"
        )
        await service.start_pod()
        for index, (path, beat) in enumerate(beats.items()):
            name = f"llm{index}"
            await service.endpoint(name)
            request = _completion(path).replace(b"llm.alice", name.encode() + b".alice")
            reader, _ = await service.open(request)
            await service.held(1, name)
            service.pass_time(5)
            assert not service.live(name)._streams
            service.pass_time(6)
            head = await reader.readuntil(b"\r\n\r\n")
            assert header(head, "Content-Type") == "text/event-stream"
            assert await reader.readuntil(beat + b"\r\n") == b"%x\r\n%b\r\n" % (len(beat), beat)
            await service.ready(await service.demanded(awake=True, name=name), name)
            assert await reader.read() == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    play(story)


def test_a_held_stream_that_fails_ends_with_an_error_and_is_not_whole(play):
    async def story(service):
        await service.endpoint()
        reader, _ = await service.open(_completion("/v1/messages"))
        await service.held(1)
        service.pass_time(11)
        await reader.readuntil(b"\r\n\r\n")
        number = await service.demanded(awake=True)
        await service.says(answers=number, phase="Waking", failed=True, reason="R", message="M")
        rest = await reader.read()
        assert b"event: error\n" in rest
        assert b"the service cannot start: R: M" in rest
        assert not rest.endswith(b"0\r\n\r\n")

    play(story)


def test_a_pod_that_refuses_connections_sends_requests_back_to_wait(play):
    async def story(service):
        await service.awake()
        await service.stop_pod()
        await service.pool.close()
        asked = asyncio.create_task(service.ask(get()))
        await service.held(1)
        await service.start_pod()
        assert (await asked).endswith(b"ok")

    play(story)


def test_an_endpoint_that_goes_answers_what_it_held(play):
    async def story(service):
        await service.endpoint()
        asked = asyncio.create_task(service.ask(get()))
        await service.held(1)
        from bidplane.api.kinds import ENDPOINT

        await service.host.delete(ENDPOINT, "llm", "agent-alice")
        assert (await asked).startswith(b"HTTP/1.1 503 ")
        assert (await service.ask(get())).startswith(b"HTTP/1.1 404 ")

    play(story)
