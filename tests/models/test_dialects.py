"""
Both dialects against a server of ours on a real socket; it only pretends to be a model.

What a model may do wrong is here: nothing, garbage, too much, too slowly, a refusal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bidplane.core.gate.fleet import FleetNode, FleetState
from bidplane.core.minds.asking import ANSWER_SCHEMA
from bidplane.core.minds.observation import Intention, Observation
from bidplane.errors import UserError
from bidplane.models.anthropic import AnthropicModel
from bidplane.models.chat import ChatModel, ModelFailed
from bidplane.models.openai import OpenAiModel
from bidplane.pilot.exchanges import ExchangeFiles
from bidplane.pilot.modelmind import ModelExchange, ModelMind
from bidplane.pilot.webhook import Webhook

ACTIONS = {"actions": [{"kind": "CordonNode", "name": "n1", "reason": "r"}]}
TEXT = json.dumps(ACTIONS)
OPENAI = {"choices": [{"message": {"content": TEXT}}], "usage": {"total_tokens": 70}}
ANTHROPIC = {
    "content": [{"type": "tool_use", "name": "propose", "id": "1", "input": ACTIONS}],
    "usage": {"input_tokens": 50, "output_tokens": 20},
}
OBSERVATION = Observation(at=1000.0, fleet=FleetState(nodes=(FleetNode(name="n1"),)))


class PretendedModel:
    """A server that reads one request for each connection, and answers with what it is given."""

    def __init__(self, body: bytes, *, code: int = 200, wait: float = 0.0) -> None:
        self.body, self.code, self.wait = body, code, wait
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((head[0], headers, json.loads(body)))
        length = f"HTTP/1.1 {self.code} x\r\ncontent-length: {len(self.body)}\r\n\r\n"
        writer.write(length.encode())
        await writer.drain()
        if self.wait:
            await asyncio.sleep(self.wait)
        writer.write(self.body)
        writer.close()


def play(server: PretendedModel, story: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening:
            await story(f"http://127.0.0.1:{port}")

    asyncio.run(whole())


def model_of(dialect: str, url: str, *, seconds: float = 5.0) -> ChatModel:
    if dialect == "openai":
        return OpenAiModel("m", url=f"{url}/v1", key="k", seconds=seconds)
    return AnthropicModel("m", url=url, key="k", seconds=seconds)


@pytest.mark.parametrize(
    ("dialect", "reply", "line"),
    [
        ("openai", OPENAI, "POST /v1/chat/completions HTTP/1.1"),
        ("anthropic", ANTHROPIC, "POST /v1/messages HTTP/1.1"),
    ],
)
def test_the_question_and_the_answer(dialect: str, reply: Any, line: str) -> None:
    server = PretendedModel(json.dumps(reply).encode())

    async def story(url: str) -> None:
        model = model_of(dialect, url)
        answer = await model.ask("be careful", "{}", ANSWER_SCHEMA)
        await model.close()
        assert (json.loads(answer.text), answer.tokens) == (ACTIONS, 70)

    play(server, story)
    ((request, headers, body),) = server.requests
    assert request == line
    assert body["model"] == "m"
    if dialect == "openai":
        assert headers["authorization"] == "bearer k"
        assert [m["role"] for m in body["messages"]] == ["system", "user"]
        assert body["response_format"]["json_schema"]["schema"] == ANSWER_SCHEMA
    else:
        assert headers["x-api-key"] == "k"
        assert (body["system"], body["messages"][0]["content"]) == ("be careful", "{}")
        assert body["tools"][0]["input_schema"] == ANSWER_SCHEMA


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (PretendedModel(b"<html>"), "no (completion|message)"),
        (PretendedModel(b"{}"), "no (completion|message)"),
        (PretendedModel(b'{"error": "no credit"}', code=429), "answered 429: .*no credit"),
        (PretendedModel(b"x" * 300_000), "larger than"),
        (PretendedModel(b"{}", wait=5.0), "no whole answer within 0.3 s"),
    ],
)
def test_a_model_that_fails(dialect: str, server: PretendedModel, problem: str) -> None:
    async def story(url: str) -> None:
        model = model_of(dialect, url, seconds=0.3)
        with pytest.raises(ModelFailed, match=problem):
            await model.ask("s", "q", ANSWER_SCHEMA)
        await model.close()

    play(server, story)


def test_nobody_listens() -> None:
    async def story() -> None:
        model = model_of("openai", "http://127.0.0.1:1")
        with pytest.raises(ModelFailed, match="does not answer"):
            await model.ask("s", "q", ANSWER_SCHEMA)
        await model.close()

    asyncio.run(story())


class Exchanges:
    def __init__(self) -> None:
        self.all: list[ModelExchange] = []

    def write(self, exchange: ModelExchange) -> None:
        self.all.append(exchange)


def test_within_the_budget_the_model_decides_and_beyond_it_the_rules() -> None:
    server, exchanges = PretendedModel(json.dumps(OPENAI).encode()), Exchanges()
    by_rules: list[Intention] = []

    async def story(url: str) -> None:
        model = model_of("openai", url)
        mind = ModelMind(model, lambda observation: by_rules, exchanges, tokens_per_hour=100)
        for at, decides in ((0.0, "model"), (1.0, "model"), (2.0, "rules"), (3601.0, "model")):
            observation = Observation(at=at, fleet=OBSERVATION.fleet)
            intentions = await mind(observation)
            assert (intentions is by_rules) is (decides == "rules"), at
            last = exchanges.all[-1]
            assert last.observation == observation.digest
            if decides == "model":
                assert (last.answer, last.tokens, last.problem) == (TEXT, 70, "")
                assert json.loads(last.question)["nodes"][0]["name"] == "n1"
            else:
                assert last.problem == "budget: 140 of 100 tokens of this hour are used"
        server.body = b"garbage"
        assert await mind(Observation(at=9999.0, fleet=OBSERVATION.fleet)) is by_rules
        assert "no completion" in exchanges.all[-1].problem
        await model.close()

    play(server, story)
    assert len(server.requests) == 4


def test_exchanges_are_kept_as_they_were(tmp_path: Any) -> None:
    files = ExchangeFiles(tmp_path / "pilot")
    exchange = ModelExchange(at=1.0, observation=OBSERVATION.digest, question="q", answer="a\u202e")
    files.write(exchange)
    assert files.read(OBSERVATION.digest) == exchange
    assert (tmp_path / "pilot").stat().st_mode & 0o077 == 0
    for digest, problem in (("0" * 64, "the rules decided"), ("../x", "cites no observation")):
        with pytest.raises(Exception, match=problem):
            files.read(digest)


def test_a_webhook_gets_a_text_and_may_fail() -> None:
    server = PretendedModel(b"ok")

    async def story(url: str) -> None:
        await Webhook(f"{url}/services/x").tell("n1 waits for you")
        server.code = 500
        await Webhook(f"{url}/services/x").tell("again")
        await Webhook("http://127.0.0.1:1/").tell("to nobody")

    play(server, story)
    assert [body for _, _, body in server.requests] == [
        {"text": "n1 waits for you"},
        {"text": "again"},
    ]
    with pytest.raises(UserError, match="begins with https://"):
        Webhook("slack")
