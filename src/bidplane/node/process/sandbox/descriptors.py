"""
Open files that a command inherits, in place of paths and texts in its arguments.

An argument may stand for the number of such a file: which number that is, is known when the
command is started. No argument holds a NUL, so a NUL and an index are such a place.
"""

import os
from collections.abc import Sequence

from bidplane.node.process.volumes import paths

# An entry of an order's list of descriptors; tuples, so that they can be marshalled:
# ("path", VOLUME, PATH) is opened beneath the volume; ("data", BYTES) is read.
Descriptor = tuple[str, str, str] | tuple[str, bytes]


def place(index: int) -> str:
    """Return the placeholder argument of the descriptor at `index`."""
    return f"\0{index}"


def fill_places(argv: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return the arguments with the numbers in their places."""
    return [str(numbers[int(word[1:])]) if word.startswith("\0") else word for word in argv]


def open_descriptor(descriptor: Descriptor) -> int:
    """Open a descriptor and return its number; it is not inheritable."""
    if descriptor[0] == "path":
        _, volume, path = descriptor  # type: ignore[misc]
        return paths.open_beneath(str(volume), str(path))
    content = descriptor[1]
    assert isinstance(content, bytes)
    number = os.memfd_create("bidplane", os.MFD_CLOEXEC)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(number, rest) :]
    os.lseek(number, 0, os.SEEK_SET)
    return number
