"""
The system calls that no container may make, as a program for the kernel's filter.

What a sandbox without rights could do all the same is mostly the kernel's less tried ground: its
own namespaces and mounts, keyrings, performance counters, programs loaded into the kernel,
io_uring. Container engines refuse these by default; so do we. The rest is allowed: a filter that
lists what may be called breaks programs with every new kernel.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

# By name: the number on x86_64 and on aarch64; None where it is not there.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
}
_CLONE, _CLONE3, _IOCTL = (56, 220), (435, 435), (16, 29)
_NAMESPACES = 0x7E020000  # clone's flags for new namespaces of any kind
_PUSH_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: keystrokes for whoever holds the terminal

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000  # x86_64's second set of numbers

# struct seccomp_data: number, architecture, instruction pointer, six arguments.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS  # programs then try the older call


def program(machine: str = "") -> bytes:
    """Return the filter for a machine, as the kernel reads it; empty where none is known."""
    architecture = _ARCHITECTURES.get(machine or platform.machine())
    return b"".join(_lines(*architecture)) if architecture else b""


def _lines(column: int, architecture: int) -> Iterator[bytes]:
    yield _line(_LOAD, _ARCHITECTURE)
    yield _line(_EQUAL, architecture, then=1)
    yield _line(_RETURN, _UNKNOWN)
    yield _line(_LOAD, _NUMBER)
    if column == 0:
        yield _line(_AT_LEAST, _X32, otherwise=1)
        yield _line(_RETURN, _UNKNOWN)
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            yield _line(_EQUAL, number, otherwise=1)
            yield _line(_RETURN, _REFUSE)
    yield _line(_EQUAL, _CLONE3[column], otherwise=1)
    yield _line(_RETURN, _UNKNOWN)
    yield _line(_EQUAL, _CLONE[column], otherwise=4)
    yield _line(_LOAD, _FIRST_ARGUMENT)
    yield _line(_ANY_BIT, _NAMESPACES, otherwise=1)
    yield _line(_RETURN, _REFUSE)
    yield _line(_RETURN, _ALLOW)
    yield _line(_EQUAL, _IOCTL[column], otherwise=2 + 2 * len(_PUSH_INPUT))
    yield _line(_LOAD, _SECOND_ARGUMENT)
    for request in _PUSH_INPUT:
        yield _line(_EQUAL, request, otherwise=1)
        yield _line(_RETURN, _REFUSE)
    yield _line(_RETURN, _ALLOW)
    yield _line(_RETURN, _ALLOW)


def _line(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one instruction; `then` and `otherwise` are numbers of instructions to skip."""
    return struct.pack("HBBI", code, then, otherwise, value)
