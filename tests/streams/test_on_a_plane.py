"""kubectl's streams on our own plane: the host's, and an agent's through to the host."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from kubernetes import client, config
from kubernetes.stream import portforward, stream

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.core.hosting.translation import host_name
from bidplane.testing.cluster import free_port

from .behaviour import TALKS, Streams, pod, run_pod, until
from .conftest import Kubectl

pytestmark = [pytest.mark.kubectl, pytest.mark.slow]


class TestOverWebSockets(Streams):
    @pytest.fixture
    def kubectl_here(self, on_plane: Kubectl) -> Kubectl:
        return on_plane


class TestOverSpdy(Streams):
    """As kubectl before 1.31 speaks."""

    @pytest.fixture
    def kubectl_here(self, on_plane: Kubectl) -> Kubectl:
        on_plane.env["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] = "false"
        on_plane.env["KUBECTL_PORT_FORWARD_WEBSOCKETS"] = "false"
        return on_plane


class TestAskingAPod:
    """`pods/NAME:PORT/proxy`: HTTP to a port of a pod, through its node."""

    @pytest.fixture
    def web(self, on_plane: Kubectl, tmp_path: Path) -> str:
        (tmp_path / "large").write_bytes(os.urandom(1 << 20).hex().encode())
        (tmp_path / "said").write_text(SAYS_BACK)
        port = free_port()
        name = run_pod(on_plane, f"web-{port}", f"cd {tmp_path} && exec python3 -u said {port}")
        until(lambda: "ready" in on_plane("logs", name), "a server")
        return f"/api/v1/namespaces/default/pods/{name}:{port}/proxy"

    def test_answers_are_passed_on_whole(self, on_plane: Kubectl, web: str, tmp_path: Path) -> None:
        assert on_plane("get", "--raw", f"{web}/large") == (tmp_path / "large").read_text()
        done = on_plane.run("get", "--raw", f"{web}/nothing", check=False)
        assert b"NotFound" in done.stderr or b"could not find" in done.stderr

    def test_what_is_sent_arrives_but_not_who_sent_it(self, on_plane: Kubectl, web: str) -> None:
        said = json.loads(on_plane("create", "--raw", f"{web}/a%20b?q=1", "-f", "-", input=b"{}"))
        assert (said["method"], said["path"], said["body"]) == ("POST", "/a%20b?q=1", "{}")
        assert "authorization" not in said["headers"], "a pod is not told the plane's token"

    def test_a_port_nobody_listens_on(self, on_plane: Kubectl, web: str) -> None:
        name = web.split("/")[-2].partition(":")[0]
        path = f"/api/v1/namespaces/default/pods/{name}:1/proxy/"
        done = on_plane.run("get", "--raw", path, check=False)
        assert b"error trying to reach service: error forwarding port 1" in done.stderr


SAYS_BACK = """
import http.server, json, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        headers = {k.lower(): v for k, v in self.headers.items()}
        said = {"method": "POST", "path": self.path, "body": body, "headers": headers}
        raw = json.dumps(said).encode()
        self.send_response(201)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
"""


class TestThroughAnAgentsPlane:
    """The agent knows its own pod's name only; the process is the host's pod's."""

    @pytest.fixture
    def mine(self, on_agents_plane: Kubectl, on_plane: Kubectl) -> str:
        """A pod in the agent's plane, and what the syncer makes of it on the host."""
        name = "mine"
        if on_agents_plane.run("get", "pod", name, check=False).returncode:
            body = json.loads(pod(name, TALKS))
            body["spec"]["nodeName"] = "lease-1"
            on_agents_plane("create", "-f", "-", input=json.dumps(body).encode())
            uid = on_agents_plane("get", "pod", name, "-o", "jsonpath={.metadata.uid}")
            space = host_namespace("a")
            on_plane("create", "namespace", space)
            twin = json.loads(pod(host_name("default", name), TALKS))
            twin["metadata"] |= {"namespace": space, "annotations": {labels.PLANE_UID: uid}}
            on_plane("create", "-f", "-", input=json.dumps(twin).encode())
            wait = ["wait", "-n", space, f"pod/{twin['metadata']['name']}"]
            on_plane(*wait, "--for=jsonpath={.status.phase}=Running", "--timeout=30s")
            status = {"status": {"phase": "Running"}}
            on_agents_plane(
                "patch",
                "pod",
                name,
                "--subresource=status",
                "--type=merge",
                "-p",
                json.dumps(status),
            )
        return name

    def test_logs_and_exec(self, on_agents_plane: Kubectl, mine: str) -> None:
        until(lambda: "line 5" in on_agents_plane("logs", mine, "--tail=1"), "its last line")
        done = on_agents_plane.run("exec", mine, "--", "sh", "-c", "echo hi; exit 4", check=False)
        assert (done.returncode, done.stdout) == (4, b"hi\n")
        data = os.urandom(100_000)
        assert on_agents_plane.run("exec", "-i", mine, "--", "cat", input=data).stdout == data

    def test_an_agent_reaches_no_pod_of_another(
        self, on_agents_plane: Kubectl, on_plane: Kubectl, mine: str
    ) -> None:
        run_pod(on_plane, "talks")
        done = on_agents_plane.run("exec", "talks", "--", "true", check=False)
        assert b'pods "talks" not found' in done.stderr
        # Its own plane may say what it likes of a pod: only the host's own twin is entered.
        body = json.loads(pod("talks", TALKS))
        on_agents_plane("create", "-f", "-", input=json.dumps(body).encode())
        done = on_agents_plane.run("exec", "talks", "--", "true", check=False)
        assert done.returncode == 1
        assert b'pod "talks" does not run on a node' in done.stderr
        assert b"does not run on a node" in on_agents_plane.run("logs", "talks", check=False).stderr


class TestWhoMayEnter:
    def test_reading_a_pod_is_not_entering_it(self, on_plane: Kubectl) -> None:
        name = run_pod(on_plane, "talks")
        on_plane("create", "serviceaccount", "reader")
        on_plane(
            "create", "role", "reads", "--verb=get", "--resource=pods,pods/exec,pods/portforward"
        )
        on_plane(
            "create", "rolebinding", "reads", "--role=reads", "--serviceaccount=default:reader"
        )
        token = on_plane("create", "token", "reader").strip()
        for command in (["exec", name, "--", "true"], ["port-forward", name, ":80"]):
            done = on_plane.run("--token", token, *command, check=False)
            assert done.returncode
            assert b'cannot create resource "pods/' in done.stderr, done.stderr

    def test_a_pod_without_a_host(self, on_plane: Kubectl) -> None:
        body = json.loads(pod("floats", TALKS))
        del body["spec"]["nodeName"]
        on_plane("create", "-f", "-", input=json.dumps(body).encode())
        done = on_plane.run("exec", "floats", "--", "true", check=False)
        assert b"pod floats does not have a host assigned" in done.stderr
        assert on_plane("logs", "floats") == ""

    def test_a_node_that_is_not_there(self, on_plane: Kubectl) -> None:
        body = json.loads(pod("lost", TALKS))
        body["spec"]["nodeName"] = "n2"
        on_plane("create", "-f", "-", input=json.dumps(body).encode())
        done = on_plane.run("exec", "lost", "--", "true", check=False)
        assert b'nodes "n2" not found' in done.stderr


def test_the_official_python_client(on_plane: Kubectl) -> None:
    """It speaks v4 on a WebSocket, and forwards ports on channels."""
    name = run_pod(on_plane, "talks")
    api = client.CoreV1Api(config.new_client_from_config(str(on_plane.kubeconfig)))
    entered = stream(
        api.connect_get_namespaced_pod_exec,
        name,
        "default",
        command=["sh", "-c", "read -r word; echo got $word; echo bad >&2; exit 5"],
        stdin=True,
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    entered.write_stdin("hello\n")
    entered.run_forever(timeout=20)
    assert (entered.read_stdout(), entered.read_stderr()) == ("got hello\n", "bad\n")
    assert entered.returncode == 5
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        forwarded = portforward(
            api.connect_get_namespaced_pod_portforward, name, "default", ports=str(port)
        )
        ours = forwarded.socket(port)
        theirs, _ = listener.accept()
        ours.sendall(b"ping")
        assert theirs.recv(10) == b"ping"
        theirs.sendall(b"pong")
        theirs.close()
        ours.settimeout(20)
        assert ours.recv(10) == b"pong"
        forwarded.close()
