"""Small calls over connections of our own, to servers that do as they please."""

import asyncio
import ssl

import pytest

from bidplane.http.client.connections import Broken, Connections, HttpReply

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each request with the next of its answers; None closes the connection."""

    def __init__(self, *answers):
        self.answers, self.heads, self.accepted = list(answers), [], 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.calls = Connections(
            f"http://127.0.0.1:{self.port}/base", ssl.create_default_context(), timeout=5
        )
        return self

    async def __aexit__(self, *_):
        self.calls.close()
        self.server.close()

    async def serve(self, reader, writer):
        self.accepted += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = [x for x in head.split(b"\r\n") if x.startswith(b"Content-Length")]
                body = await reader.readexactly(int(size[0].split()[1])) if size else b""
                self.heads.append((head, body))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for part in answer if isinstance(answer, list) else [answer]:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def call(self, method="GET", body=None, **headers):
        return await self.calls.call(method, "/base/x", headers, body)


def test_calls_one_after_the_other_share_a_connection():
    async def story():
        async with Server(OK, OK) as server:
            assert await server.call() == HttpReply(200, b"{}")
            assert await server.call("POST", b"sent", Authorization="Bearer t") == HttpReply(
                200, b"{}"
            )
            assert server.accepted == 1
            head, body = server.heads[1]
            assert head.startswith(b"POST /base/x HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nAuthorization: Bearer t\r\n" in head
            assert body == b"sent"

    asyncio.run(story())


def test_calls_at_once_have_a_connection_each():
    async def story():
        async with Server(*[OK] * 20) as server:
            answers = await asyncio.gather(*(server.call() for _ in range(20)))
            assert answers == [HttpReply(200, b"{}")] * 20
            assert server.accepted == 20
            assert repr(server.calls).endswith("busy 0, idle 20>")

    asyncio.run(story())


@pytest.mark.parametrize(
    "answer",
    [
        [OK[:9], OK[9:30], OK[30:]],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
    ids=["in pieces", "chunked", "after an interim word"],
)
def test_an_answer_is_whole_however_it_comes(answer):
    async def story():
        async with Server(answer, OK) as server:
            assert await server.call() == HttpReply(200, b"{}")
            assert await server.call() == HttpReply(200, b"{}")
            assert server.accepted == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    "answer", [None, OK[:-1], b"220 mail\r\n\r\n"], ids=["none", "cut short", "not HTTP"]
)
def test_no_whole_answer_is_said_and_the_connection_not_used_again(answer):
    async def story():
        cut = [answer] if answer else []
        async with Server(*cut, None, OK) as server:
            # What was cut short stays so: its server says no more, and hangs up.
            call = asyncio.create_task(server.call())
            while len(server.heads) < 1:
                await asyncio.sleep(0)
            if answer == OK[:-1]:
                server.calls.close()
                server.calls = Connections(
                    f"http://127.0.0.1:{server.port}", ssl.create_default_context(), timeout=5
                )
            with pytest.raises(Broken):
                await call
            server.answers[:] = [OK]
            assert await server.call() == HttpReply(200, b"{}")
            assert server.accepted == 2

    asyncio.run(story())


def test_a_server_that_hung_up_meanwhile_is_connected_to_anew():
    async def story():
        async with Server([OK, b""], OK) as server:
            await server.call()
            [connection] = server.calls._idle
            connection._transport.abort()
            while connection.usable:
                await asyncio.sleep(0)
            assert await server.call() == HttpReply(200, b"{}")
            assert server.accepted == 2

    asyncio.run(story())


def test_who_stops_waiting_leaves_no_answer_to_the_next():
    async def story():
        async with Server(b"", OK) as server:
            call = asyncio.create_task(server.call())
            while not server.heads:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await server.call() == HttpReply(200, b"{}")
            assert server.accepted == 2

    asyncio.run(story())


def test_closing_when_told_to_is_obeyed():
    async def story():
        last = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
        async with Server(last, OK) as server:
            await server.call()
            await server.call()
            assert server.accepted == 2

    asyncio.run(story())


def test_nobody_listens_and_nobody_answers_are_said():
    async def story():
        async with Server(b"") as server:
            server.calls._timeout = 0.01
            with pytest.raises(Broken, match=r"no answer within 0\.01 s"):
                await server.call()
            port = server.port
        gone = Connections(f"http://127.0.0.1:{port}", ssl.create_default_context(), timeout=5)
        with pytest.raises(Broken):
            await gone.call("GET", "/", {}, None)

    asyncio.run(story())


@pytest.mark.parametrize("head", [("/x\r\nEvil: 1", {}), ("/x", {"A": "b\r\nEvil: 1"})])
def test_nothing_can_be_smuggled_into_the_head(head):
    target, headers = head
    calls = Connections("http://127.0.0.1:1", ssl.create_default_context(), timeout=5)
    with pytest.raises(ValueError, match="line break"):
        asyncio.run(calls.call("GET", target, headers, None))
