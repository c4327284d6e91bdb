"""
Forks a shim for each container to start. A separate program, one per agent.

Most of what a shim's start would take is Python's own; forked from one that has begun, it takes
a millisecond, and shares what it does not change. Shims outlive this process, as they outlive
the agent, whose end this hears (its stdin ends) and follows.

Orders come on stdin, each with a number: eight bytes of that, four of length, and `marshal` (the
same interpreter wrote it). Through a pipe: an order may hold secrets, so it is never on a disk.
Answers go to stdout, a line each: `NUMBER started`, `NUMBER failed`, and `NUMBER over` when a
shim has ended, whatever it said before.
"""

import marshal
import os
import select
import sys

from bidplane.node.process.container import shim

_HEAD = 12
_CHUNK = 1 << 16
_DESCRIPTORS = 4096  # more than this process ever has


def frame(number: int, order: bytes) -> bytes:
    return number.to_bytes(8, "big") + len(order).to_bytes(4, "big") + order


def main() -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    children: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and the order's number
    orders = b""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                pid, number = children.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                os.waitpid(pid, 0)
                _say(1, number, "over")
                continue
            more = os.read(0, _CHUNK)
            if not more:
                return
            orders += more
        while len(orders) >= _HEAD:
            end = _HEAD + int.from_bytes(orders[8:_HEAD], "big")
            if len(orders) < end:
                break
            number, order = int.from_bytes(orders[:8], "big"), marshal.loads(orders[_HEAD:end])
            orders = orders[end:]
            if order["adopts"] or order["descriptors"]:
                import ctypes  # noqa: F401 -- here, once: the shim needs it
            pid = os.fork()
            if not pid:
                _become_shim(number, order)
            child = os.pidfd_open(pid)
            children[child] = pid, number
            poll.register(child, select.POLLIN)


def _become_shim(number: int, order: dict) -> None:  # type: ignore[type-arg]
    try:
        os.setsid()
        with open("/proc/self/comm", "w") as name:  # what `ps` and `top` call it
            name.write("bidplane-shim")
        os.closerange(3, _DESCRIPTORS)
        answers = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.close(nothing)

        def answer(word: str) -> None:
            _say(answers, number, word)
            os.close(answers)

        shim.supervise(order, answer)
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # to the attempt's folder
    finally:
        os._exit(1)


def _say(descriptor: int, number: int, word: str) -> None:
    try:
        os.write(descriptor, f"{number} {word}\n".encode())
    except OSError:
        return  # the agent is gone; its successor reads the files
