"""
What kubectl's streams must do, whatever serves them. Subclassed once for our plane and once
for a real kube-apiserver.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidplane.testing.cluster import free_port

from .conftest import Kubectl

PATIENCE = 60.0  # a busy machine is not a fault
# Prints, then waits; with a stdin it echoes.
TALKS = "for i in 1 2 3 4 5; do echo line $i; done; exec sleep 1000"
ECHOES = "echo begun; while read -r line; do echo got $line; done"


def pod(name: str, script: str, **container: Any) -> bytes:
    spec = {
        "nodeName": "n1",
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "image": "x", "command": ["sh", "-c", script], **container}
        ],
    }
    found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return json.dumps(found).encode()


def until(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return found


def run_pod(kubectl: Kubectl, name: str, script: str = TALKS, **container: Any) -> str:
    if kubectl.run("get", "pod", name, check=False).returncode:
        kubectl("create", "-f", "-", input=pod(name, script, **container))
        kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Running", "--timeout=30s")
    return name


class Terminal:
    """A program on a terminal of ours: what it shows, and keys to press."""

    def __init__(self, kubectl: Kubectl, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(100, 30)
        self.process = kubectl.start(
            *arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def resize(self, width: int, height: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, f"never {pattern!r} in {self.shown!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._master, 4096).decode(errors="replace")
                except OSError:
                    assert re.search(pattern, self.shown), self.shown

    def close(self) -> int:
        code = self.process.wait(PATIENCE)
        os.close(self._master)
        return code


class Streams:
    """The tests; a subclass gives `kubectl_here`, and says how a container is started again."""

    restart_policy = "Never"

    @pytest.fixture
    def kubectl_here(self) -> Kubectl:
        raise NotImplementedError

    @pytest.fixture
    def shared(self) -> Iterator[Path]:
        """A folder that is the same for us and for what runs in a pod, whoever that runs as."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            yield Path(folder)

    @pytest.fixture
    def talks(self, kubectl_here: Kubectl) -> str:
        name = run_pod(kubectl_here, "talks")
        until(lambda: "line 5" in kubectl_here("logs", name), "five lines")
        return name

    # Logs.

    def test_logs(self, kubectl_here: Kubectl, talks: str) -> None:
        all_of_it = [f"line {n}" for n in range(1, 6)]
        assert kubectl_here("logs", talks).splitlines() == all_of_it
        assert kubectl_here("logs", talks, "--tail=2").splitlines() == all_of_it[-2:]
        assert kubectl_here("logs", talks, "--since=1h").splitlines() == all_of_it
        assert kubectl_here("logs", talks, "--since-time=2999-01-01T00:00:00Z") == ""
        assert kubectl_here("logs", talks, "--limit-bytes=9") == "line 1\nli"
        stamped = kubectl_here("logs", talks, "--timestamps", "--tail=1")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+Z line 5\n", stamped)

    def test_logs_that_are_not_there(self, kubectl_here: Kubectl, talks: str) -> None:
        done = kubectl_here.run("logs", talks, "--previous", check=False)
        assert done.returncode == 1
        assert b'previous terminated container "main" in pod' in done.stderr
        done = kubectl_here.run("logs", talks, "-c", "other", check=False)
        assert b"container other is not valid for pod talks" in done.stderr

    def test_logs_are_followed_until_the_end(self, kubectl_here: Kubectl, shared: Path) -> None:
        wait = f"echo first; until [ -e {shared}/go ]; do sleep 0.05; done; echo last"
        name = f"follow-{time.time_ns()}"
        body = json.loads(pod(name, wait))
        body["spec"]["restartPolicy"] = self.restart_policy
        kubectl_here("create", "-f", "-", input=json.dumps(body).encode())
        kubectl_here("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Running")
        following = kubectl_here.start("logs", "-f", name)
        assert following.stdout is not None
        assert following.stdout.readline() == b"first\n"
        (shared / "go").touch()
        assert following.stdout.readline() == b"last\n"
        assert following.wait(PATIENCE) == 0
        self.restart(kubectl_here, name)
        until(
            lambda: (
                kubectl_here.run("logs", "--previous", name, check=False).stdout == b"first\nlast\n"
            ),
            "the log of the one before",
        )

    def restart(self, kubectl: Kubectl, name: str) -> None:
        """The small runtime of these tests does it when it is told to."""
        kubectl("annotate", "pod", name, "restart=now")

    # Exec.

    def test_exec(self, kubectl_here: Kubectl, talks: str) -> None:
        script = "echo out; echo err >&2; exit 3"
        done = kubectl_here.run("exec", talks, "--", "sh", "-c", script, check=False)
        assert done.returncode == 3
        assert done.stdout == b"out\n"
        assert done.stderr.startswith(b"err\n")
        assert b"exit code 3" in done.stderr
        assert kubectl_here("exec", talks, "--", "true") == ""

    def test_exec_of_what_is_not_there(self, kubectl_here: Kubectl, talks: str) -> None:
        done = kubectl_here.run("exec", talks, "--", "/no/such/thing", check=False)
        assert done.returncode
        assert b"/no/such/thing" in done.stderr
        done = kubectl_here.run("exec", talks, "-c", "other", "--", "true", check=False)
        assert b"container other is not valid for pod talks" in done.stderr
        done = kubectl_here.run("exec", "nobody", "--", "true", check=False)
        assert b'pods "nobody" not found' in done.stderr

    def test_stdin_is_read_to_its_end(self, kubectl_here: Kubectl, talks: str) -> None:
        data = os.urandom(1 << 20)
        done = kubectl_here.run("exec", "-i", talks, "--", "cat", input=data)
        assert done.stdout == data, "to the byte, both ways"
        done = kubectl_here.run("exec", "-i", talks, "--", "wc", "-c", input=data)
        assert done.stdout.strip() == str(1 << 20).encode()

    def test_a_terminal(self, kubectl_here: Kubectl, talks: str) -> None:
        terminal = Terminal(kubectl_here, "exec", "-it", talks, "--", "sh")
        terminal.type("stty size; echo a$((1+1))b\n")
        terminal.until(r"30 100\s")
        terminal.until(r"a2b")
        terminal.resize(61, 17)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.type("until [ \"$(stty size)\" = '17 61' ]; do sleep 0.05; done; echo re''sized\n")
        terminal.until(r"resized")
        terminal.type("exit 7\n")
        assert terminal.close() == 7

    def test_who_leaves_takes_the_command_along(
        self, kubectl_here: Kubectl, talks: str, shared: Path
    ) -> None:
        pid_file = shared / "pid"
        script = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 1000"
        running = kubectl_here.start("exec", talks, "--", "sh", "-c", script)
        until(pid_file.exists, "the command's number")
        pid = int(pid_file.read_text())
        running.kill()
        running.wait()
        until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the command")

    def test_who_does_not_read_is_waited_for(self, kubectl_here: Kubectl, talks: str) -> None:
        """A slow reader: what is printed meanwhile waits where it is made."""
        script = "yes 0123456789 | head -c 20000000; echo; echo end"
        running = kubectl_here.start("exec", talks, "--", "sh", "-c", script)
        assert running.stdout is not None
        got = running.stdout.read(1000)
        time.sleep(0.2)
        got += running.stdout.read()
        assert running.wait(PATIENCE) == 0
        assert len(got) == 20_000_005
        assert got.endswith(b"\nend\n")

    # Attach, copy, forward.

    def test_attach(self, kubectl_here: Kubectl) -> None:
        name = run_pod(kubectl_here, "echoes", ECHOES, stdin=True)
        attached = kubectl_here.start("attach", "-i", name)
        assert attached.stdin is not None
        assert attached.stdout is not None
        attached.stdin.write(b"hello\n")
        attached.stdin.flush()
        assert attached.stdout.readline() == b"got hello\n"
        attached.kill()
        attached.wait()
        # It was only attached: the container runs on.
        again = kubectl_here.start("attach", "-i", name)
        assert again.stdin is not None
        assert again.stdout is not None
        again.stdin.write(b"again\n")
        again.stdin.flush()
        assert again.stdout.readline() == b"got again\n"
        again.kill()
        again.wait()

    def test_cp_both_ways(
        self, kubectl_here: Kubectl, talks: str, shared: Path, tmp_path: Path
    ) -> None:
        there, back = shared / "there", tmp_path / "back"
        source = tmp_path / "source"
        source.write_bytes(os.urandom(1 << 20))
        kubectl_here("cp", str(source), f"{talks}:{there}")
        assert there.read_bytes() == source.read_bytes()
        kubectl_here("cp", f"{talks}:{there}", str(back))
        assert back.read_bytes() == source.read_bytes()

    def test_port_forward(self, kubectl_here: Kubectl, shared: Path) -> None:
        (shared / "large").write_bytes(os.urandom(3 << 20))
        (shared / "large").chmod(0o644)
        port = free_port()
        script = f"cd {shared} && exec python3 -u -m http.server {port}"
        name = run_pod(kubectl_here, f"web-{time.time_ns()}", script)
        until(lambda: "Serving" in kubectl_here("logs", name), "a server")
        closed = 1  # nothing listens there
        forward = kubectl_here.start("port-forward", f"pod/{name}", f":{port}", f":{closed}")
        try:
            assert forward.stdout is not None
            local = [
                int(re.search(rb":(\d+) ->", _forwarding(forward.stdout))[1])  # type: ignore[index]
                for _ in range(2)
            ]
            for _ in range(3):  # one connection each
                with urllib.request.urlopen(f"http://127.0.0.1:{local[0]}/large") as answer:
                    assert answer.read() == (shared / "large").read_bytes()
            with pytest.raises(OSError):  # noqa: PT011 refused, reset or cut short
                urllib.request.urlopen(f"http://127.0.0.1:{local[1]}/")
            assert forward.stderr is not None
            until_line(forward.stderr, b"rror forwarding port")
        finally:
            forward.kill()
            forward.wait()


def _forwarding(stream: Any) -> bytes:
    """The next line about IPv4."""
    while True:
        line: bytes = stream.readline()
        assert line, "it ended"
        if line.startswith(b"Forwarding from 127.0.0.1"):
            return line


def until_line(stream: Any, words: bytes) -> None:
    while line := stream.readline():
        if words in line:
            return
    raise AssertionError(f"never {words!r}")
