"""
Joins a container's sandbox and runs a command there. A program: `python -I -S join.py`.

Whoever enters a user namespace has all its rights: could mount again, for writing, what the
sandbox shows read-only. So nothing of the container is run, or looked up, before these are given
up, and nothing of ours is left open. Only what is compiled into Python, and ctypes, is imported.

    joining.py ENVIRONMENT FILTER PID CWD UID GID TTY COMMAND [ARGUMENT …]

ENVIRONMENT and FILTER are descriptors: `NAME=VALUE` with a NUL after each, and a program for
seccomp, which may be empty.
"""

# ruff: noqa: SIM105 -- contextlib takes longer to import than all of this

import ctypes
import fcntl
import os
import sys
import warnings  # noqa: F401 -- `os` wants it later, when our own files are out of sight

_TIOCSCTTY, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 0x540E, 22, 24, 38
_FILTER_MODE = 2
_INSTRUCTION_BYTES = 8
_MOST_CAPABILITIES = 64


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def main() -> int:
    environment, rules, pid, cwd, uid, gid, tty = sys.argv[1:8]
    argv = sys.argv[8:]
    variables = dict(
        entry.split(b"=", 1) for entry in _read(int(environment)).split(b"\0") if b"=" in entry
    )
    refused = _read(int(rules))
    _close_all_but_standard()
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        os.setgroups([])
    _enter(libc, pid)
    child = os.fork()  # who enters a pid namespace is not in it; its children are
    if child:
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF
    if tty == "1":
        os.setsid()
        fcntl.ioctl(0, _TIOCSCTTY, 0)
    if os.getuid() != int(uid):
        os.setgid(int(gid))
        os.setuid(int(uid))
    for capability in range(_MOST_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir(cwd)
    if refused:
        filter_ = _Program(len(refused) // _INSTRUCTION_BYTES, refused)
        if libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(filter_), 0, 0):
            raise OSError(ctypes.get_errno(), "cannot set the filter of system calls")
    try:
        os.execvpe(argv[0], argv, variables)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


def _read(descriptor: int) -> bytes:
    content = b""
    while more := os.read(descriptor, 1 << 16):
        content += more
    return content


def _close_all_but_standard() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that listed the folder


def _enter(libc: ctypes.CDLL, pid: str) -> None:
    """Enter the namespaces; the network first, as it cannot be entered from inside."""
    opened = []
    for name in ("net", "user", "mnt", "ipc", "uts", "pid"):
        theirs, ours = (f"/proc/{process}/ns/{name}" for process in (pid, "self"))
        if os.readlink(theirs) != os.readlink(ours):
            opened.append(os.open(theirs, os.O_RDONLY))
    for descriptor in opened:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), "cannot join the sandbox")
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
