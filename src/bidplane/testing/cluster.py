"""
A real control plane for a test: etcd, kube-apiserver, and if asked the controllers and scheduler.

    with Cluster(rig.find()) as cluster:
        cluster.kubectl("create", "configmap", "x", "--from-literal=a=b")

Everything listens on free loopback ports and lives in one temporary folder; `guard` ends the
processes and removes the folder even when this process is killed. There are no kubelets: a bound
pod stays Pending, and is deleted with `--grace-period=0 --force`.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bidplane.testing import certificates, guard
from bidplane.testing.rig import Binaries

READY_SECONDS = 60.0  # on a busy machine; 3 to 6 is usual
POLL_SECONDS = 0.02
ATTEMPTS = 3
# Controllers that need kubelets or disks.
NODE_CONTROLLERS = (
    "horizontal-pod-autoscaler-controller",
    "node-ipam-controller",
    "node-lifecycle-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
)


class ClusterError(Exception):
    """Raised when the control plane did not start; the message ends with the log that says why."""


class Cluster:
    """One control plane. `durable` makes etcd sync its writes: needed by benchmarks, not tests."""

    def __init__(
        self,
        binaries: Binaries,
        *,
        controllers: bool = True,
        scheduler: bool = False,
        durable: bool = False,
        node_grace: float | None = None,
        apiserver_flags: Sequence[str] = (),
        scheduler_flags: Sequence[str] = (),
    ) -> None:
        self.binaries = binaries
        self.token = secrets.token_urlsafe(24)
        self.url = ""
        self.scheduler_port = 0
        self._controllers = controllers
        self._scheduler = scheduler
        self._durable = durable
        self._node_grace = node_grace  # seconds; None: no controller looks after nodes
        self._apiserver_flags = apiserver_flags
        self._scheduler_flags = scheduler_flags
        self._pids: dict[int, str] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Cluster {self.url or 'stopped'} {' '.join(self._pids.values())}>".strip()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> Mapping[int, str]:
        """Process ids, by command."""
        return self._pids

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of a member of system:masters."""
        return self.folder / "admin.kubeconfig"

    def start(self) -> None:
        """Return when every part asked for answers. Raises `ClusterError`, and leaves nothing."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._start()
                return
            except ClusterError as error:
                # Another process took a port before the server did: choose new ports.
                if attempt == ATTEMPTS or "address already in use" not in str(error):
                    raise

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bidplane-cluster-"))
        self._start_guard()
        try:
            self._prepare()
            self._start_etcd()
            self._start_apiserver()
            if self._scheduler:
                self._start_scheduler()
            if self._controllers:
                self._start_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and remove the folder. Safe to call twice."""
        if self._guard is None:
            return
        guard_process, self._guard = self._guard, None
        atexit.unregister(self.stop)
        guard_process.communicate()  # closes its stdin, which is the order to end
        self._pids = {}
        self.url = ""

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin. With `check`, a failure raises with kubectl's output."""
        command = [str(self.binaries["kubectl"]), *arguments]
        completed = subprocess.run(
            command,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            # HOME: kubectl keeps its discovery cache there, and ports are used again.
            env={
                "HOME": str(self.folder),
                "KUBECONFIG": str(self.kubeconfig),
                "PATH": os.environ.get("PATH", ""),
            },
        )
        if check and completed.returncode:
            output = f"{completed.stdout}{completed.stderr}".strip()
            raise ClusterError(
                f"kubectl {' '.join(arguments)} exited {completed.returncode}: {output}"
            )
        return completed

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
    ) -> tuple[int, bytes]:
        """One HTTP request to the apiserver, as admin unless another token is given."""
        host, _, port = self.url.removeprefix("https://").partition(":")
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=30)
        headers = {"Authorization": f"Bearer {token or self.token}", "Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(
        self, path: str, *, accept: str = "application/json", token: str | None = None
    ) -> tuple[int, bytes]:
        return self.request("GET", path, accept=accept, token=token)

    def kubeconfig_for(self, user: str, group: str) -> Path:
        """Write a kubeconfig for another user, such as a node, with a client certificate."""
        name = user.replace(":", "-")
        certificate, key = self._authority.issue_client(name, user=user, group=group)
        path = self.folder / f"{name}.kubeconfig"
        credential = {"client-certificate": str(certificate), "client-key": str(key)}
        self._write_kubeconfig(path, credential)
        return path

    def start_scheduler(self) -> None:
        """Start the scheduler of a cluster that was started without one."""
        self._start_scheduler()

    # Parts, in the order they start.

    def _start_guard(self) -> None:
        program = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self.folder)]
        self._guard = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        atexit.register(self.stop)

    def _prepare(self) -> None:
        self._authority = authority = certificates.Authority(self.folder)
        authority.issue_server("apiserver")
        authority.issue_client("admin", user="admin", group="system:masters")
        certificates.write_key(self.folder / "service-accounts.key")
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        parts = ("kube-controller-manager", "kube-scheduler")
        self._part_tokens = {part: secrets.token_urlsafe(24) for part in parts}
        rows = [f'{self.token},admin,admin,"system:masters"']
        rows += [f"{token},system:{part},{part}," for part, token in self._part_tokens.items()]
        tokens.write_text("\n".join(rows) + "\n")

    def _start_etcd(self) -> None:
        client, peer = free_port(), free_port()
        self._etcd_url = f"http://127.0.0.1:{client}"
        peer_url = f"http://127.0.0.1:{peer}"
        flags = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            # A cluster of one member can elect itself at once.
            "--heartbeat-interval=20",
            "--election-timeout=200",
        ]
        self._spawn("etcd", flags if self._durable else [*flags, "--unsafe-no-fsync"])
        self._wait_ready("etcd", lambda: _answers(client, "/readyz"))

    def _start_apiserver(self) -> None:
        port = free_port()
        # Without its controller the service account that every pod needs is never made.
        disabled_plugins = ["TaintNodesByCondition"] + (
            [] if self._controllers else ["ServiceAccount"]
        )
        flags = [
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={self.folder / 'apiserver.crt'}",
            f"--tls-private-key-file={self.folder / 'apiserver.key'}",
            f"--client-ca-file={self.ca_file}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'service-accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'service-accounts.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            f"--disable-admission-plugins={','.join(disabled_plugins)}",
            f"--cert-dir={self.folder}",
            *self._apiserver_flags,
        ]
        self._spawn("kube-apiserver", flags)
        self.url = f"https://127.0.0.1:{port}"
        self._write_kubeconfig(self.kubeconfig, {"token": self.token})
        self._wait_ready("kube-apiserver", lambda: self._is_ok("/readyz"))

    def _start_scheduler(self) -> None:
        config = self.folder / "scheduler.json"
        fields = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            # The default rate makes the scheduler the slowest part of every test.
            "clientConnection": {
                "kubeconfig": str(self._part_kubeconfig("kube-scheduler")),
                "qps": 1000,
                "burst": 2000,
            },
        }
        config.write_text(json.dumps(fields))
        self.scheduler_port = port = free_port()
        flags = [f"--config={config}", *self._serving(port), *self._scheduler_flags]
        self._spawn("kube-scheduler", flags)
        self._wait_ready("kube-scheduler", lambda: _answers(port, "/healthz", tls=True))

    def _start_controllers(self) -> None:
        port = free_port()
        disabled = set(NODE_CONTROLLERS)
        node_flags = []
        if self._node_grace is not None:
            disabled.remove("node-lifecycle-controller")
            node_flags = [
                f"--node-monitor-grace-period={self._node_grace}s",
                "--node-monitor-period=1s",
            ]
        without = ",".join(f"-{name}" for name in sorted(disabled))
        flags = [
            f"--kubeconfig={self._part_kubeconfig('kube-controller-manager')}",
            f"--controllers=*,{without}",
            "--leader-elect=false",
            "--authentication-skip-lookup=true",
            # Each controller with its own rights: the shared identity may not empty a namespace.
            "--use-service-account-credentials=true",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            f"--root-ca-file={self.ca_file}",
            f"--cluster-signing-cert-file={self.ca_file}",
            f"--cluster-signing-key-file={self.folder / 'ca.key'}",
            f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
            *self._serving(port),
            *node_flags,
        ]
        self._spawn("kube-controller-manager", flags)
        # The account is made by a controller: it shows that they run, and pods need it.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait_ready("kube-controller-manager", lambda: self._is_ok(account))

    def _serving(self, port: int) -> list[str]:
        return ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={self.folder}"]

    def _part_kubeconfig(self, part: str) -> Path:
        path = self.folder / f"{part}.kubeconfig"
        self._write_kubeconfig(path, {"token": self._part_tokens[part]})
        return path

    def _write_kubeconfig(self, path: Path, user: Mapping[str, str]) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)},
                }
            ],
            "users": [{"name": "test", "user": dict(user)}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))  # JSON is YAML

    # Starting, and waiting.

    def _send_order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order to the guard; return its answer."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(json.dumps(order).encode() + b"\n")
        self._guard.stdin.flush()
        line = self._guard.stdout.readline()
        if not line:
            raise ClusterError("the guard of this cluster was killed, and its processes with it")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _spawn(self, command: str, flags: Sequence[str]) -> None:
        """Start a process under the guard."""
        argv = [str(self.binaries[command]), *flags]
        answer = self._send_order({"argv": argv, "log": str(self.folder / f"{command}.log")})
        if "error" in answer:
            raise ClusterError(f"{command} could not be started: {answer['error']}")
        self._pids[answer["pid"]] = command

    def _wait_ready(self, command: str, ready: Callable[[], bool]) -> None:
        """Wait until the process answers; raises `ClusterError` with its log if it does not."""
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            exited = self._send_order({})["exited"]
            if exited:
                names = ", ".join(self._pids[int(pid)] for pid in exited)
                raise ClusterError(f"{names} exited early:\n{self._log_tail(exited)}")
            if time.monotonic() > deadline:
                tail = self._log_tail([pid for pid, name in self._pids.items() if name == command])
                raise ClusterError(f"{command} not ready after {READY_SECONDS:.0f} s:\n{tail}")
            time.sleep(POLL_SECONDS)

    def _log_tail(self, pids: Sequence[int] | Mapping[str, int]) -> str:
        logs = [self.folder / f"{self._pids[int(pid)]}.log" for pid in pids]
        return "\n".join(
            line for log in logs for line in log.read_text(errors="replace").splitlines()[-15:]
        )

    def _is_ok(self, path: str) -> bool:
        try:
            return self.get(path)[0] == 200
        except OSError:
            return False


def free_port() -> int:
    """A port on which nothing listens now. Another process may still take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, path: str, *, tls: bool = False) -> bool:
    """Return True if the path answers 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    if tls:
        # Only a liveness check: the answer is not used, so the certificate need not be verified.
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=unchecked)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
