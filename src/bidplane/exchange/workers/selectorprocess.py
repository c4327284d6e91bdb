"""
The process in which selectors of bids are evaluated, one request after another.

A selector is an agent's program. Its cost cannot be told from its text, so the kernel bounds it:
a timer of CPU time ends this process in the middle of an evaluation, whatever library runs, and
a limit of memory does the same to text that grows. The exchange notices, and starts another.
"""

from __future__ import annotations

import resource
import signal
import sys
from typing import BinaryIO

import msgspec

from bidplane.core.cel import CelError
from bidplane.core.market.lots import selects
from bidplane.exchange.workers.worker import read_question, write_answer

MEMORY_MOST = 2 << 30  # bytes of address space


class SelectorQuery(msgspec.Struct, frozen=True, array_like=True):
    selector: str
    facts: list[bytes]  # of each distinct device
    cpu_seconds: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    truths: list[bool | str]  # for each of the facts; a text is the error it gave


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MOST, MEMORY_MOST))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the exchange is gone."""
    while (body := read_question(requests)) is not None:
        question = msgspec.msgpack.decode(body, type=SelectorQuery)
        signal.setitimer(signal.ITIMER_PROF, question.cpu_seconds)  # its signal ends the process
        answer = Answer([_truth(question.selector, facts) for facts in question.facts])
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_answer(answers, msgspec.msgpack.encode(answer))


def _truth(selector: str, facts: bytes) -> bool | str:
    try:
        return selects(selector, facts)
    except CelError as error:
        return str(error)


if __name__ == "__main__":
    main()
