"""
Joins a container's sandbox and runs a command there. A program: `python -I -S joining.py`.

Whoever enters a user namespace has all its rights: could mount again, for writing, what
the sandbox shows read-only. `nsenter` and then `setpriv` give these up faster; this is for
images that have no `setpriv`. Only what is compiled into Python, and ctypes, is imported.

    joining.py PID CWD UID GID TTY COMMAND [ARGUMENT …]
"""

import ctypes
import fcntl
import os
import sys
import warnings  # noqa: F401 -- `os` wants it later, when our own files are out of sight

_TIOCSCTTY, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 0x540E, 24, 38
_MOST_CAPABILITIES = 64


def main() -> int:
    pid, cwd, uid, gid, tty = sys.argv[1:6]
    libc = ctypes.CDLL(None, use_errno=True)
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
    try:
        os.execvpe(sys.argv[6], sys.argv[6:], os.environ)
    except OSError as error:
        os.write(2, f"{sys.argv[6]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


def _enter(libc: ctypes.CDLL, pid: str) -> None:
    """The network first: it may be the machine's, which from inside nobody may enter."""
    opened = []
    for name in ("net", "user", "mnt", "ipc", "uts", "pid"):
        theirs, ours = (f"/proc/{who}/ns/{name}" for who in (pid, "self"))
        if os.readlink(theirs) != os.readlink(ours):
            opened.append(os.open(theirs, os.O_RDONLY))
    for descriptor in opened:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), "cannot join the sandbox")
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
