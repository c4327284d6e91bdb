"""
What an image's name stands for on this node.

    images:
      python:3.12:                 # exactly this name, or with `*` at its end
        command: [/usr/bin/python3]
        env: {PYTHONUNBUFFERED: "1"}
        paths: [/opt/venv]         # seen by the container, read-only
      "vllm/*":
        root: /srv/images/vllm     # its whole file system
      "*": {}                      # everything else: the machine's own programs

Nothing is pulled. A name that is not here is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bidplane.errors import UserError


class Image(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    command: list[str] = []
    args: list[str] = []
    env: dict[str, str] = {}
    root: str = ""
    paths: list[str] = []
    working_dir: str = ""


class Images(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    images: dict[str, Image] = {}

    def find(self, name: str) -> Image | None:
        """The longest name that fits wins."""
        exact = self.images.get(name)
        if exact is not None:
            return exact
        fitting = [
            known for known in self.images if known[-1:] == "*" and name.startswith(known[:-1])
        ]
        return self.images[max(fitting, key=len)] if fitting else None


def load(path: Path) -> Images:
    images: Images = read(path, Images, "images")
    for name, image in images.images.items():
        for folder in filter(None, [image.root, *image.paths]):
            if not Path(folder).is_absolute() or not Path(folder).exists():
                raise UserError(
                    f"the images file {path}: {name!r}: there is no {folder} on this machine"
                )
    return images


def read(path: Path, type_: type[Any], what: str) -> Any:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=type_)
    except OSError as error:
        raise UserError(f"cannot read the {what} file {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UserError(f"the {what} file {path} is not valid: {error}") from error
