"""The use of Endpoints in the installation's folder, so that a restart forgets no rhythm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from bidplane.core.minds.tracking import EndpointUse, SavedUse

log = structlog.get_logger(__name__)


class UseFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> EndpointUse:
        """Return what was saved. A file that cannot be read is begun anew, and said so."""
        try:
            saved = msgspec.json.decode(self._path.read_bytes(), type=dict[str, SavedUse])
        except FileNotFoundError:
            return EndpointUse()
        except msgspec.MsgspecError as error:
            log.warning("the history of Endpoints' use begins anew", error=str(error))
            return EndpointUse()
        return EndpointUse(saved)

    def save(self, tracker: EndpointUse) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(tracker.saved()))
        temporary.replace(self._path)
