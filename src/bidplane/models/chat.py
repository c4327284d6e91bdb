"""The one call that a model gets, and its bounds: time, size, tokens."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from bidplane.errors import ApiError, UserError
from bidplane.http.client.caller import HttpCaller

_MOST_BYTES = 256 << 10
MOST_TOKENS = 2048  # of one answer


class ModelFailed(Exception):
    """A model that did not answer in time, refused, or answered in a form nobody reads."""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    tokens: int = 0  # read and written, as the endpoint counts them


class ChatModel(Protocol):
    """A model behind an endpoint."""

    async def ask(self, system: str, question: str, schema: dict[str, Any]) -> ModelReply:
        """Return the answer, of that schema if the endpoint can; raise `ModelFailed`."""
        ...

    async def close(self) -> None: ...


async def post(
    http: HttpCaller, path: str, body: dict[str, Any], headers: dict[str, str], *, seconds: float
) -> bytes:
    """Return the body of an accepted answer; raise `ModelFailed`. `seconds` bounds all of it."""
    try:
        async with asyncio.timeout(seconds):
            stream = await http.open(
                "POST",
                path,
                headers={"Content-Type": "application/json", **headers},
                body=msgspec.json.encode(body),
            )
            async with stream:
                parts: list[bytes] = []
                size = 0
                async for part in stream.chunks():
                    size += len(part)
                    if size > _MOST_BYTES:
                        raise ModelFailed(f"the answer is larger than {_MOST_BYTES} bytes")
                    parts.append(part)
                answer = b"".join(parts)
                if stream.code >= 400:
                    excerpt = answer[:300].decode(errors="replace")
                    raise ModelFailed(f"the endpoint answered {stream.code}: {excerpt}")
                return answer
    except TimeoutError:
        raise ModelFailed(f"no whole answer within {seconds:g} s") from None
    except (ApiError, UserError) as error:
        raise ModelFailed(f"the endpoint does not answer: {error}") from error
