"""
A mind that asks a model, within a budget of tokens per hour; else the rules decide.

A model that is away, slow or over its budget costs nothing but its judgment: the rules are asked
instead. Every exchange is written down as it was, for `bidplane pilot explain`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from bidplane.core.minds.asking import ANSWER_SCHEMA, SYSTEM, intentions_in, question
from bidplane.core.minds.observation import Intention, Observation
from bidplane.models.chat import ChatModel, ModelFailed

_HOUR = 3600.0

log = structlog.get_logger(__name__)


class ModelExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a model, exactly, and its answer."""

    at: float
    observation: str  # digest
    system: str = ""
    question: str = ""
    answer: str = ""
    tokens: int = 0
    problem: str = ""  # why the rules decided instead; "" if the model did


class ExchangeLog(Protocol):
    """Keeps exchanges for `bidplane pilot explain`."""

    def write(self, exchange: ModelExchange) -> None: ...


class ModelMind:
    def __init__(
        self,
        model: ChatModel,
        fallback: Callable[[Observation], Sequence[Intention]],
        exchanges: ExchangeLog,
        *,
        tokens_per_hour: int,
    ) -> None:
        self._model, self._fallback, self._exchanges = model, fallback, exchanges
        self._most_tokens = tokens_per_hour
        self._spent: deque[tuple[float, int]] = deque()  # when, and how many

    async def __call__(self, observation: Observation) -> Sequence[Intention]:
        exchange = ModelExchange(at=observation.at, observation=observation.digest)
        if (spent := self._spent_in_hour(observation.at)) >= self._most_tokens:
            budget = f"budget: {spent} of {self._most_tokens} tokens of this hour are used"
            return self._by_rules(observation, exchange, budget)
        asked_text = question(observation)
        exchange = msgspec.structs.replace(exchange, system=SYSTEM, question=asked_text)
        try:
            reply = await self._model.ask(SYSTEM, asked_text, ANSWER_SCHEMA)
        except ModelFailed as error:
            # An endpoint that counts nothing is charged for what it was sent.
            self._spend(observation.at, len(SYSTEM + asked_text) // 4)
            return self._by_rules(observation, exchange, str(error))
        tokens = reply.tokens or len(SYSTEM + asked_text + reply.text) // 4
        self._spend(observation.at, tokens)
        self._exchanges.write(msgspec.structs.replace(exchange, answer=reply.text, tokens=tokens))
        return intentions_in(reply.text, observation)

    def _by_rules(
        self, observation: Observation, exchange: ModelExchange, problem: str
    ) -> Sequence[Intention]:
        log.warning("the rules decide instead of the model", problem=problem)
        self._exchanges.write(msgspec.structs.replace(exchange, problem=problem))
        return self._fallback(observation)

    def _spend(self, now: float, tokens: int) -> None:
        self._spent.append((now, tokens))

    def _spent_in_hour(self, now: float) -> int:
        while self._spent and self._spent[0][0] <= now - _HOUR:
            self._spent.popleft()
        return sum(tokens for _, tokens in self._spent)
