"""Proxies in front of one backend, each a process with one worker: ours, nginx, HAProxy, Go's."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

_START_SECONDS = 30.0
_GO = """package main
import ("net/http";"net/http/httputil";"net/url";"os")
func main() {
  target, _ := url.Parse("http://127.0.0.1:" + os.Args[2])
  proxy := httputil.NewSingleHostReverseProxy(target)
  proxy.FlushInterval = -1
  proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 1024}
  panic(http.ListenAndServe("127.0.0.1:" + os.Args[1], proxy))
}
"""


class RunningProxy(msgspec.Struct, frozen=True):
    """A process that proxies from a port."""

    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time that its threads have used, to the nanosecond."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def resident_bytes(self) -> int:
        """Return the memory that it has in use."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096


@contextmanager
def listening_module(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a module of ours with a listening socket; yield its port and process id."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    descriptor = listener.fileno()
    with _process(
        [sys.executable, "-m", module, str(descriptor), *arguments], inherits=(descriptor,)
    ) as pid:
        yield listener.getsockname()[1], pid
    listener.close()


@contextmanager
def nginx(backend: int, folder: Path) -> Iterator[RunningProxy]:
    port = _free_port()
    config = folder / "nginx.conf"
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;"
        " events { worker_connections 4096; }"
        f" http {{ access_log off; {temporary} keepalive_requests 10000000;"
        f" upstream pods {{ server 127.0.0.1:{backend}; keepalive 512;"
        " keepalive_requests 10000000; }"
        f" server {{ listen 127.0.0.1:{port} backlog=4096; location / {{"
        " proxy_pass http://pods; proxy_http_version 1.1; proxy_buffering off;"
        ' proxy_set_header Host $host; proxy_set_header Connection "";'
        " proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; } } }"
    )
    with _process(["nginx", "-c", str(config), "-p", str(folder)], port=port) as pid:
        yield RunningProxy("nginx", port, pid)


@contextmanager
def haproxy(backend: int, folder: Path) -> Iterator[RunningProxy]:
    port = _free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n  maxconn 8000\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
        "  option forwardfor\n  http-reuse always\n"
        f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
        f"backend b\n  server pod 127.0.0.1:{backend}\n"
    )
    with _process(["haproxy", "-db", "-q", "-f", str(config)], port=port) as pid:
        yield RunningProxy("HAProxy", port, pid)


@contextmanager
def go(backend: int, folder: Path) -> Iterator[RunningProxy]:
    source = folder / "main.go"
    source.write_text(_GO)
    subprocess.run(["go", "build", "-o", "proxy", "main.go"], cwd=folder, check=True)
    port = _free_port()
    with _process([str(folder / "proxy"), str(port), str(backend)], port=port) as pid:
        yield RunningProxy("Go ReverseProxy", port, pid)


PEERS = {"nginx": nginx, "haproxy": haproxy, "go": go}


def installed() -> list[str]:
    """Return the programs of peers that this machine has."""
    return [program for program in PEERS if shutil.which(program)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _process(
    command: Sequence[str], *, port: int = 0, inherits: Sequence[int] = ()
) -> Iterator[int]:
    """Run a program until the block ends; with a port, wait until it listens there."""
    process = subprocess.Popen(
        command, pass_fds=inherits, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while port:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start")
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        process.wait()
