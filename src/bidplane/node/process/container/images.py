"""
The node's mapping of image names to programs and file systems.

    images:
      python:3.12:                 # exactly this name, or with `*` at its end
        command: [/usr/bin/python3]
        env: {PYTHONUNBUFFERED: "1"}
        paths: [/opt/venv]         # seen by the container, read-only
      "vllm/*":
        root: /srv/images/vllm     # its whole file system
      "*": {}                      # everything else: the machine's own programs

Nothing is pulled. A pod whose image is not mapped does not start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from bidplane.errors import UserError

T = TypeVar("T")


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
        """Return the image of a name, by the exact name or the longest pattern that matches."""
        exact = self.images.get(name)
        if exact is not None:
            return exact
        fitting = [
            pattern
            for pattern in self.images
            if pattern[-1:] == "*" and name.startswith(pattern[:-1])
        ]
        return self.images[max(fitting, key=len)] if fitting else None


def load(path: Path) -> Images:
    images = read(path, Images, "images")
    for name, image in images.images.items():
        for folder in filter(None, [image.root, *image.paths]):
            if not Path(folder).is_absolute() or not Path(folder).exists():
                raise UserError(
                    f"the images file {path}: {name!r}: there is no {folder} on this machine"
                )
    return images


def read(path: Path, type_: type[T], subject: str) -> T:
    """Decode a YAML file; raises `UserError` that says what is wrong with it."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=type_)
    except OSError as error:
        raise UserError(f"cannot read the {subject} file {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UserError(f"the {subject} file {path} is not valid: {error}") from error
