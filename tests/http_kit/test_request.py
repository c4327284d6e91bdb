"""Requests as the kit reads them: paths, parameters, credentials, bodies within bounds."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.http.asgi import CLIENT_CERTIFICATE, Message
from bidplane.http.request import BodyLimit, Disconnected, Request, whole_number
from bidplane.sim.loop import run
from bidplane.wire.status import StatusError

from .requests import body_of, scope_of


def request(target: str = "/", **headers: str) -> Request:
    return Request(scope_of(target, headers=headers), body_of(b""))


def test_a_quoted_slash_splits_no_name() -> None:
    assert request("/wallets/a%2Fb/fund/").parts == ["wallets", "a/b", "fund"]


def test_a_server_without_raw_paths_is_read_the_same() -> None:
    scope = scope_of("/wallets/x")
    del scope["raw_path"]
    scope["path"] = "/wallets/ä b"
    assert Request(scope, body_of(b"")).parts == ["wallets", "ä b"]


def test_parameters() -> None:
    asked = request("/?a=1&a=2&empty=&flag=true&off=no")
    assert asked.query["a"] == "2"
    assert asked.values("a") == ["1", "2"]
    assert asked.first("a") == "1"
    assert asked.first("none") == ""
    assert asked.query["empty"] == ""
    assert asked.flag("flag")
    assert not asked.flag("off")
    assert not asked.flag("none")


@pytest.mark.parametrize("text", ["-9223372036854775808", "9223372036854775807", "+5"])
def test_numbers_of_64_bits(text: str) -> None:
    assert request(f"/?n={text.replace('+', '%2B')}").number("n") == int(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "1_0", "1.5", "٣", "x", "9" * 5000])
def test_no_other_numbers(text: str) -> None:
    with pytest.raises(StatusError, match="n must be a number of 64 bits") as caught:
        request(f"/?n={text}").number("n")
    assert caught.value.code == 400
    assert len(str(caught.value)) < 100
    assert request("/?n=").number("n") is None


def test_a_long_number_is_none_at_once() -> None:
    assert whole_number("9" * 41) is None
    assert whole_number("-40") == -40


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", ""),
        ("Bearer", ""),
        ("", ""),
    ],
)
def test_bearer_tokens(header: str, token: str) -> None:
    assert request(authorization=header).bearer == token


def test_a_certificate_is_the_servers_word() -> None:
    scope = scope_of("/")
    assert Request(scope, body_of(b"")).certificate is None
    scope["state"] = {CLIENT_CERTIFICATE: b"DER"}
    assert Request(scope, body_of(b"")).certificate == b"DER"


def test_a_body_is_read_once_and_whole() -> None:
    async def read() -> None:
        asked = Request(scope_of("/", "POST"), body_of(b"a", b"b", b"c"))
        assert await asked.body() == b"abc"
        assert await asked.body() == b"abc"

    asyncio.run(read())


def test_a_declared_length_is_refused_before_anything_is_read() -> None:
    async def receive() -> Message:
        raise AssertionError("nothing is read")

    scope = scope_of("/", "POST", {"content-length": "101"})
    with pytest.raises(StatusError, match="limit is 100") as caught:
        asyncio.run(Request(scope, receive).body(BodyLimit(100)))
    assert (caught.value.code, caught.value.reason) == (413, "RequestEntityTooLarge")


def test_the_text_of_a_refusal_is_the_servers() -> None:
    with pytest.raises(StatusError, match=r"^a letter has one page$"):
        asyncio.run(
            Request(scope_of("/", "POST"), body_of(b"x" * 9)).body(
                BodyLimit(8, too_large="a letter has one page")
            )
        )


def test_a_body_that_never_ends_is_refused_in_time() -> None:
    async def receive() -> Message:
        await asyncio.sleep(7)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def read() -> float:
        with pytest.raises(StatusError, match="did not arrive within 60 seconds") as caught:
            await Request(scope_of("/", "POST"), receive).body()
        assert caught.value.code == 408
        return asyncio.get_running_loop().time()

    assert run(read()) == pytest.approx(60, abs=1)


def test_a_client_that_leaves_is_answered_by_nobody() -> None:
    with pytest.raises(Disconnected):
        asyncio.run(Request(scope_of("/", "POST"), body_of()).body())
