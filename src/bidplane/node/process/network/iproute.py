"""The program `ip`, which makes links, addresses and routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def ip(options: Sequence[str], *lines: str) -> bool:
    """Run the `ip` commands in order; return False if one fails."""
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


async def ip_json(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("ip", "-json", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return output or b"[]"
