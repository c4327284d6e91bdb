"""The program `ip`, which makes links, addresses and routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def ip(options: Sequence[str], *lines: str) -> bool:
    """Do all of these, in order; False when one could not be done."""
    process = await asyncio.create_subprocess_exec(
        "ip",
        *options,
        "-batch",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process.communicate("\n".join([*lines, ""]).encode())
    return process.returncode == 0


async def ip_json(*words: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("ip", "-json", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate()
    return said or b"[]"
