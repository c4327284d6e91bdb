"""Whatever a client sends to the exchange, it gets a clear 4xx: never a 500, never a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .test_http import Site

TRANSFER = "wallets/trainer/transfer"
DEEP = b"[" * 30_000 + b"]" * 30_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "ledger.db")
    yield made
    made.ledger.close()


def send(
    site: Site, path: str, body: bytes = b"", query: bytes = b"", method: str = "POST"
) -> tuple[int, str]:
    """Return the code and the message of the answer to exactly these bytes."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body} if not sent else {"type": "http.disconnect"}

    async def collect(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": f"/exchange/v1/{path}",
        "query_string": query,
        "headers": [(b"authorization", f"Bearer {site.token('trainer')}".encode())],
    }
    asyncio.run(site.app(scope, receive, collect))
    code = sent[0]["status"]
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return code, msgspec.json.decode(text)["message"] if code >= 400 else ""


@pytest.mark.parametrize(
    "query",
    ["after=²", "after=%C2%B2", "after=%FF", "after=1e9", "after=--1", "after=", "after=0x10",
     "after=99999999999999999999", "after=-99999999999999999999", "after=%D9%A3", "limit=0",
     "limit=-1", "limit=x", "after=NaN", "after=1%00", "&".join(f"a{n}=1" for n in range(99))],
)  # fmt: skip
def test_a_bad_query_is_named(site: Site, query: str) -> None:
    code, message = send(site, "rounds", query=query.encode(), method="GET")
    if query == "after=":
        assert code == 200  # a parameter without a value is as if it were not there
    else:
        assert code == 400
        assert "whole number" in message or "percent-encoded" in message


@pytest.mark.parametrize("limit", ["0", "²", "-5", "x"])
def test_a_bad_limit_of_a_statement_is_named(site: Site, limit: str) -> None:
    path, query = "wallets/trainer/statement", f"limit={limit}".encode()
    code, message = send(site, path, query=query, method="GET")
    assert code == 400
    assert "limit" in message or "percent" in message


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"to": "\xff", "amount": "1", "key": "k"}',
    "half a character": b'{"to": "\\ud800", "amount": "1", "key": "k"}',
    "a NUL": b'{"to": "chat", "amount": "1", "key": "k\\u0000"}',
    "a list": b"[]",
    "null": b"null",
    "a number for a text": b'{"to": 1, "amount": "1", "key": "k"}',
    "a number for an amount": b'{"to": "chat", "amount": 1, "key": "k"}',
    "NaN": b'{"to": "chat", "amount": NaN, "key": "k"}',
    "Infinity": b'{"to": "chat", "amount": Infinity, "key": "k"}',
    "NaN as text": b'{"to": "chat", "amount": "NaN", "key": "k"}',
    "Infinity as text": b'{"to": "chat", "amount": "Infinity", "key": "k"}',
    "superscript two": '{"to": "chat", "amount": "²", "key": "k"}'.encode(),
    "Arabic digits": '{"to": "chat", "amount": "٣", "key": "k"}'.encode(),
    "an exponent": b'{"to": "chat", "amount": "1e3", "key": "k"}',
    "a huge amount": b'{"to": "chat", "amount": "' + b"9" * 5000 + b'", "key": "k"}',
    "a negative amount": b'{"to": "chat", "amount": "-1", "key": "k"}',
    "a key twice": b'{"to": "chat", "amount": "1", "amount": "2", "key": "k"}',
    "deep": b'{"to": "chat", "amount": "1", "key": "k", "more": ' + DEEP + b"}",
    "deeper": DEEP,
    "no key": b'{"to": "chat", "amount": "1", "key": ""}',
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", [TRANSFER, "orders"])
def test_a_bad_body_is_named_and_moves_nothing(site: Site, name: str, path: str) -> None:
    before = [(account.id, account.posted) for account in site.ledger.accounts()]
    code, message = send(site, path, BODIES[name])
    assert code in (400, 404, 409, 413)
    assert message
    assert [(account.id, account.posted) for account in site.ledger.accounts()] == before


@pytest.mark.parametrize(
    "path", ["bids/\ud800/explain", "wallets/a\0b", "rounds/²", "rounds/-1", "", "wallets//x/y"]
)
def test_a_bad_path_is_not_found(site: Site, path: str) -> None:
    code, message = send(site, path, method="GET")
    assert code in (400, 403, 404)
    assert message


_TEXT = st.text("k01.9-eNaI ²٣é\0", max_size=12)
_JSON = st.none() | st.booleans() | st.floats() | st.integers() | _TEXT | st.lists(_TEXT)


def test_no_body_makes_the_exchange_fail(site: Site) -> None:
    @given(
        path=st.sampled_from([TRANSFER, "orders", "wallets/trainer/fund"]),
        body=st.binary(max_size=80)
        | st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("to", "amount", "key", "pool", "maxPrice"), _JSON)
        ).map(lambda value: msgspec.json.encode(value)),
    )
    def check(path: str, body: bytes) -> None:
        site.app._rates = type(site.app._rates)()  # the rate is another test's subject
        assert send(site, path, body)[0] < 500

    check()
