"""OpenAI's chat completions, as many servers speak them."""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.http.client.caller import HttpCaller, trust
from bidplane.models.chat import MOST_TOKENS, ModelFailed, ModelReply, post

DEFAULT_URL = "https://api.openai.com/v1"


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Usage(msgspec.Struct):
    total_tokens: int = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class OpenAiModel:
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
        self._model, self._seconds = model, seconds
        headers = {"Accept-Encoding": "identity"}
        self._http = HttpCaller(
            url.rstrip("/") + "/", trust=trust(), token=key, headers=headers, seconds=seconds
        )

    async def ask(self, system: str, question: str, schema: dict[str, Any]) -> ModelReply:
        body = {
            "model": self._model,
            "temperature": 0,
            "max_tokens": self._answer_tokens,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "actions", "strict": True, "schema": schema},
            },
        }
        answer = await post(self._http, "chat/completions", body, {}, seconds=self._seconds)
        try:
            completion = msgspec.json.decode(answer, type=_Completion)
            text = completion.choices[0].message.content
        except (msgspec.MsgspecError, IndexError) as error:
            raise ModelFailed(f"the endpoint's answer is no completion: {error}") from error
        tokens = completion.usage.total_tokens if completion.usage is not None else 0
        return ModelReply(text=text or "", tokens=tokens)

    async def close(self) -> None:
        await self._http.close()
