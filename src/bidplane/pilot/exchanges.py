"""The exchanges with a model, in the installation's folder: one file each, the newest thousand."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bidplane.errors import UserError
from bidplane.pilot.modelmind import ModelExchange

_MOST_FILES = 1000
_SHORTEST_DIGEST = 64


class ExchangeFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, exchange: ModelExchange) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{exchange.observation}.json"
        temporary = path.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(exchange))
        temporary.replace(path)
        files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in files[:-_MOST_FILES]:
            old.unlink(missing_ok=True)

    def read(self, digest: str) -> ModelExchange:
        """Return the exchange about an observation; raise `UserError` if there is none."""
        if len(digest) != _SHORTEST_DIGEST or not digest.isalnum():
            raise UserError("this Proposal cites no observation: the pilot did not make it")
        try:
            raw = (self._folder / f"{digest}.json").read_bytes()
        except FileNotFoundError:
            raise UserError(
                "no model was asked about this observation: the rules decided, or it is older than"
                f" the last {_MOST_FILES}"
            ) from None
        return msgspec.json.decode(raw, type=ModelExchange)
