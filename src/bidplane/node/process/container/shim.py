"""
The supervisor of one container: a process of its own, forked for it (see `forkserver`).

The agent may be killed at any time; somebody must still wait for the process, keep its
log and write down how it ended. That is all this does. There is one for every container,
so it imports little.

It takes the lock of its folder, and refuses to run if anything was ever started there: of
two agents that both believe they must start this container, one does. In its folder:

    lock      held while it lives
    state     who was started, once it was
    exit      how it ended, once it did
    N.log     what it printed: see `keeping`
    control   a named pipe: what goes to stdin, and the size of the terminal
"""

# ruff: noqa: SIM105 -- contextlib takes longer to import than all of this

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import resource
import select
import time
from collections.abc import Callable

from bidplane.node.process.container.lineage import descendants, start_time
from bidplane.node.process.logs.writer import Log
from bidplane.node.process.sandbox import descriptors

INFO_DESCRIPTOR = 3  # where bubblewrap tells the pid inside
_FIRST_DESCRIPTOR = INFO_DESCRIPTOR + 1  # of those that an order names
_CHUNK = 1 << 16
_DRAIN_SECONDS = 1.0  # for what the pipes still hold when the process is gone
_REAP_MS = 2000
_CANNOT_RUN = 128


def _write_whole(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


class SupervisedContainer:
    """The main process, its pipes, and the processes it leaves behind."""

    def __init__(self, order: dict) -> None:  # type: ignore[type-arg]
        self.order = order
        self.streams: dict[int, str] = {}
        self.stdin = -1
        self.pid = 0
        self.inside = 0  # bubblewrap's first process, as seen from here
        self._info = -1

    def start(self) -> str:
        """Fork and exec; return the error, or an empty text."""
        order = self.order
        stdin, self.stdin, outputs = self._pipes()
        self._info, info = os.pipe()
        failed, tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._exec_child(stdin, outputs, info, tell)
            except BaseException as error:
                os.write(tell, f"{error}".encode()[:1000])
            os._exit(_CANNOT_RUN)
        for descriptor in {stdin, *outputs, info, tell}:
            os.close(descriptor)
        problem = os.read(failed, 1000).decode(errors="replace")  # ends when exec closes it
        os.close(failed)
        if problem:
            os.waitpid(self.pid, 0)
            return problem
        if order["tells_inside"]:
            self.inside = self._read_inside()
        os.close(self._info)
        return ""

    def _pipes(self) -> tuple[int, int, tuple[int, int]]:
        if self.order["tty"]:
            outer, inner = os.openpty()
            self.streams[outer] = "stdout"
            return inner, outer, (inner, inner)
        if self.order["stdin"]:
            stdin, to_stdin = os.pipe()
        else:
            stdin, to_stdin = os.open(os.devnull, os.O_RDONLY), -1
        read_out, out = os.pipe()
        read_err, err = os.pipe()
        self.streams = {read_out: "stdout", read_err: "stderr"}
        return stdin, to_stdin, (out, err)

    def _exec_child(self, stdin: int, outputs: tuple[int, int], info: int, tell: int) -> None:
        """Set up the child between fork and exec, and exec."""
        order = self.order
        os.setsid()
        if order["tty"]:
            fcntl.ioctl(stdin, 0x540E, 0)  # TIOCSCTTY
        # Out of the way of the numbers they are about to be copied to.
        high = _FIRST_DESCRIPTOR + len(order["descriptors"]) + 1
        tell, info, stdin, out, err, *opened = (
            fcntl.fcntl(number, fcntl.F_DUPFD, high)
            for number in (
                tell,
                info,
                stdin,
                *outputs,
                *map(descriptors.open_descriptor, order["descriptors"]),
            )
        )
        places = [(0, stdin), (1, out), (2, err), (INFO_DESCRIPTOR, info)]
        numbers = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + len(opened))
        for number, descriptor in (*places, *zip(numbers, opened, strict=True)):
            os.dup2(descriptor, number, inheritable=True)
        os.set_inheritable(tell, False)
        if not order["tells_inside"]:
            os.close(INFO_DESCRIPTOR)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > INFO_DESCRIPTOR and number != tell and number not in numbers:
                try:
                    os.close(number)
                except OSError:
                    pass  # the one that listed the folder
        for path in order["cgroups"]:
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        for which, limit in order["rlimits"]:
            resource.setrlimit(which, (limit, limit))
        os.umask(0o022)
        for sign in (_signal.SIGPIPE, _signal.SIGHUP, _signal.SIGTERM, _signal.SIGINT):
            _signal.signal(sign, _signal.SIG_DFL)
        argv = descriptors.fill_places(order["argv"], list(numbers))
        os.execve(argv[0], argv, order["env"])

    def _read_inside(self) -> int:
        info = b""
        while not info.rstrip().endswith(b"}"):
            more = os.read(self._info, 4096)
            if not more:
                return 0
            info += more
        number = info.partition(b'"child-pid":')[2].strip()
        digits = bytes(c for c in number.split(b",")[0].split(b"}")[0] if 48 <= c <= 57)
        return int(digits or b"0")

    def kill_leftovers(self) -> None:
        """Kill the processes that the main process left behind, as any container engine does."""
        for path in self.order["cgroups"]:
            for _ in range(20):  # they may fork while we count them
                try:
                    with open(path) as file:
                        pids = [int(pid) for pid in file.read().split()]
                except OSError:
                    break
                if not pids:
                    break
                for pid in pids:
                    _kill(pid)
                time.sleep(0.005)
        try:
            os.killpg(self.pid, _signal.SIGKILL)
        except OSError:
            pass
        if self.order["adopts"]:
            for _ in range(50):
                children = descendants(os.getpid())
                if not children:
                    return
                for pid in children:
                    _kill(pid)
                _reap()
                time.sleep(0.005)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _signal.SIGKILL)
    except OSError:
        pass


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def adopt_orphans() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _oom_kills(path: str) -> int:
    """Return the number of OOM kills in a cgroup (`memory.events`, or v1: `memory.oom_control`)."""
    try:
        with open(path) as file:
            for line in file:
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
    except (OSError, ValueError):
        pass
    return 0


class Supervision:
    """The shim's event loop: the container's output, orders, and its end."""

    def __init__(self, container: SupervisedContainer, log: Log, control: int) -> None:
        self._container = container
        self._log = log
        self._control = control
        self._poll = select.poll()
        self._orders = b""

    def run(self) -> int:
        """Run until the process has ended and its pipes are read; return the wait status."""
        pidfd = os.pidfd_open(self._container.pid)
        self._poll.register(pidfd, select.POLLIN)
        for descriptor in self._container.streams:
            self._poll.register(descriptor, select.POLLIN | select.POLLHUP)
        if self._control >= 0:
            self._poll.register(self._control, select.POLLIN)
        status = None
        until = 0.0
        while status is None or (self._container.streams and time.monotonic() < until):
            for descriptor, _ in self._poll.poll(_REAP_MS if status is None else 100):
                if descriptor == pidfd:
                    _, status = os.waitpid(self._container.pid, 0)
                    self._poll.unregister(pidfd)
                    self._container.kill_leftovers()
                    until = time.monotonic() + _DRAIN_SECONDS
                elif descriptor == self._control:
                    self._read_orders()
                else:
                    self._read(descriptor)
            if status is None and self._container.order["adopts"]:
                self._reap_orphans()
        return status

    def _reap_orphans(self) -> None:
        for pid in descendants(os.getpid()):
            if pid != self._container.pid:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except OSError:
                    pass

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except OSError:
            data = b""  # a terminal nobody has open any more
        if data:
            self._log.add(self._container.streams[descriptor], data)
        else:
            self._poll.unregister(descriptor)
            del self._container.streams[descriptor]
            if descriptor != self._container.stdin:
                os.close(descriptor)

    def _read_orders(self) -> None:
        """Read and carry out orders: frames of a letter, four bytes of length, and the body."""
        try:
            self._orders += os.read(self._control, _CHUNK)
        except BlockingIOError:
            return
        while len(self._orders) >= 5:
            end = 5 + int.from_bytes(self._orders[1:5], "big")
            if len(self._orders) < end:
                return
            kind, body = self._orders[:1], self._orders[5:end]
            self._orders = self._orders[end:]
            if kind == b"w" and self._container.stdin >= 0:
                self._to_stdin(body)
            elif kind == b"c" and self._container.stdin >= 0 and not self._container.order["tty"]:
                os.close(self._container.stdin)
                self._container.stdin = -1
            elif kind == b"r" and self._container.order["tty"] and len(body) == 4:
                size = body[2:4][::-1] + body[0:2][::-1] + b"\0\0\0\0"  # rows, columns
                fcntl.ioctl(self._container.stdin, 0x5414, size)  # TIOCSWINSZ

    def _to_stdin(self, body: bytes) -> None:
        try:
            while body:
                body = body[os.write(self._container.stdin, body) :]
        except OSError:
            if not self._container.order["tty"]:
                os.close(self._container.stdin)
                self._container.stdin = -1


def supervise(order: dict, answer: Callable[[str], None]) -> None:  # type: ignore[type-arg]
    """Run a container from order to end; call `answer` once, with whether it was started."""
    folder = order["folder"]
    complaints = os.path.join(folder, "shim.err")
    os.dup2(os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    if not _locked(os.path.join(folder, "lock")):
        return
    if os.path.exists(os.path.join(folder, "begun")):
        return  # an earlier agent's order: what it was to start has run
    os.close(os.open(os.path.join(folder, "begun"), os.O_CREAT | os.O_WRONLY, 0o600))
    for sign in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        _signal.signal(sign, _signal.SIG_IGN)
    if order["adopts"]:
        adopt_orphans()
    control = _control(folder) if order["stdin"] or order["tty"] else -1
    log = Log(folder, order["log_bytes"], order["log_files"], at_once=order["tty"])
    kills_before = _oom_kills(order["oom_file"])
    container = SupervisedContainer(order)
    problem = container.start()
    started = time.time()
    if problem:
        _write_whole(os.path.join(folder, "problem"), problem)
        _finish(folder, _CANNOT_RUN << 8, started, oom=False)
        answer("failed")
        return
    pid = container.pid
    _write_whole(
        os.path.join(folder, "state"),
        f"boot {_boot()}\nshim {os.getpid()} {start_time(os.getpid())}\n"
        f"pid {pid} {start_time(pid)}\ninside {container.inside}\nstarted {started!r}\n",
    )
    answer("started")
    status = Supervision(container, log, control).run()
    log.finish()
    # A process with a group of its own for memory may have been killed for its child.
    killed = _oom_kills(order["oom_file"]) > kills_before
    _finish(folder, status, time.time(), oom=killed and bool(order["oom_file"]))


def _locked(path: str) -> bool:
    """Take the lock until this process ends. An agent that tests it holds it for a moment."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.005)
    return False


def _control(folder: str) -> int:
    path = os.path.join(folder, "control")
    os.mkfifo(path, 0o600)
    # Also open for writing, by us: else it would be at its end whenever nobody writes.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _finish(folder: str, status: int, at: float, *, oom: bool) -> None:
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    _write_whole(
        os.path.join(folder, "exit"),
        f"code {code}\nfinished {at!r}\noom {int(oom)}\n",
    )
