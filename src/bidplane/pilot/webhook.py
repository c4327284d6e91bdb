"""A webhook in Slack's shape: one POST with a text. One that fails is logged and not repeated."""

from __future__ import annotations

import msgspec
import structlog

from bidplane.errors import ApiError, UserError
from bidplane.http.client.caller import HttpCaller, trust

_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Webhook:
    def __init__(self, url: str) -> None:
        if not url.startswith(("https://", "http://")):
            raise UserError(f"--webhook {url!r}: write an address that begins with https://")
        self._url = url

    async def tell(self, text: str) -> None:
        try:
            async with HttpCaller(trust=trust(), seconds=_SECONDS) as http:
                answer = await http.call(
                    "POST",
                    self._url,
                    headers={"Content-Type": "application/json"},
                    body=msgspec.json.encode({"text": text}),
                )
                answer.accepted()
        except (ApiError, UserError) as error:
            log.warning("nobody was told: the webhook failed", error=str(error))
