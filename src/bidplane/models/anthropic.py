"""Anthropic's messages. The answer is the input of a tool, which has the schema."""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.http.client.caller import HttpCaller, trust
from bidplane.models.chat import MOST_TOKENS, ModelFailed, ModelReply, post

DEFAULT_URL = "https://api.anthropic.com"
_VERSION = "2023-06-01"
_TOOL = "propose"


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class _Tokens(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0


class _AnthropicMessage(msgspec.Struct):
    content: list[_Block]
    usage: _Tokens = msgspec.field(default_factory=_Tokens)


class AnthropicModel:
    def __init__(
        self,
        model: str,
        *,
        url: str = DEFAULT_URL,
        key: str = "",
        seconds: float = 60.0,
        answer_tokens: int = MOST_TOKENS,
    ) -> None:
        self._answer_tokens = answer_tokens
        self._model, self._key, self._seconds = model, key, seconds
        headers = {"Accept-Encoding": "identity"}
        self._http = HttpCaller(
            url.rstrip("/") + "/", trust=trust(), headers=headers, seconds=seconds
        )

    async def ask(self, system: str, question: str, schema: dict[str, Any]) -> ModelReply:
        tool = {"name": _TOOL, "description": "Propose actions.", "input_schema": schema}
        body = {
            "model": self._model,
            "max_tokens": self._answer_tokens,
            "system": system,
            "messages": [{"role": "user", "content": question}],
            "tools": [tool],
            "tool_choice": {"type": "tool", "name": _TOOL},
        }
        headers = {"x-api-key": self._key, "anthropic-version": _VERSION}
        answer = await post(self._http, "v1/messages", body, headers, seconds=self._seconds)
        try:
            message = msgspec.json.decode(answer, type=_AnthropicMessage)
        except msgspec.MsgspecError as error:
            raise ModelFailed(f"the endpoint's answer is no message: {error}") from error
        tokens = message.usage.input_tokens + message.usage.output_tokens
        for block in message.content:
            if block.type == "tool_use" and block.name == _TOOL:
                return ModelReply(text=msgspec.json.encode(block.input).decode(), tokens=tokens)
        text = "".join(block.text for block in message.content)
        return ModelReply(text=text, tokens=tokens)

    async def close(self) -> None:
        await self._http.close()
