"""Pods as processes, where it hurts: too much output, memory, processes; no sandbox; one port."""

import asyncio
import os
import subprocess

import pytest

from bidplane.api import labels
from bidplane.api.kinds import NAMESPACE
from bidplane.errors import ApiError
from bidplane.node.process.network.addresses import Namespaces, _no_namespaces
from bidplane.node.process.network.isolation import table_of
from bidplane.node.process.sandbox.confinement import Bare, find_bubblewrap
from bidplane.node.process.sandbox.limits import Cgroups

from .processes import NoCgroups, pids_with

LISTEN = """
import http.server, os, socketserver
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["ME"].encode())
    def log_message(self, *a): pass
socketserver.TCPServer((os.environ["LISTEN"], 8080), H).serve_forever()
"""

needs_namespaces = pytest.mark.skipif(bool(_no_namespaces()), reason=_no_namespaces() or "-")


def _limited():
    """What a cgroup can limit here."""
    groups = Cgroups("bidplane-probe")
    groups.close()
    return groups.controllers


LIMITED = _limited()


async def answer(reader, writer):
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    said = await reader.read()
    writer.close()
    return said.rpartition(b"\r\n")[2]


def listening(**env):
    return {
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }


def test_two_pods_on_one_port_where_all_share_the_network(box):
    async def story(box):
        script = LISTEN.replace('os.environ["LISTEN"]', 'os.environ["POD_IP"]')
        for name in ("a", "b"):
            await box.create(name, "/usr/bin/python3", "-c", script, **listening(ME=name))
        for name in ("a", "b"):
            pod = await box.until_ready(name)
            connected = await box.node.runtime.connect(pod, 8080)
            assert await answer(*connected) == name.encode()
        with pytest.raises(ApiError, match="port 8081"):
            await box.node.runtime.connect(pod, 8081)

    box(story)


def there(uid):
    return os.path.exists(Namespaces().find(uid, "").namespace)


@needs_namespaces
def test_two_pods_on_one_port_each_in_its_own_network(box):
    async def story(box):
        for name, listen in (("a", "0.0.0.0"), ("b", "0.0.0.0"), ("c", "127.0.0.1")):
            more = listening(ME=name, LISTEN=listen)
            if name == "c":
                del more["readinessProbe"]
            await box.create(name, "/usr/bin/python3", "-c", LISTEN, **more)
        addresses = {}
        for name in ("a", "b"):
            pod = await box.until_ready(name)
            addresses[name] = pod["status"]["podIP"]
            met = await asyncio.open_connection(addresses[name], 8080)
            assert await answer(*met) == name.encode()
            assert await answer(*await box.node.runtime.connect(pod, 8080)) == name.encode()
        # As a kubelet does: to localhost inside, though it listens nowhere else.
        pod = await box.until_ready("c")

        async def connected():
            try:
                return await box.node.runtime.connect(pod, 8080)
            except ApiError:
                return None

        assert await answer(*await box.until(connected)) == b"c"
        # Pods reach each other.
        fetch = (
            f"import urllib.request as u; print(u.urlopen('http://{addresses['b']}:8080').read())"
        )
        assert (await box.exec("a", "/usr/bin/python3", "-c", fetch))[1] == "b'b'\n"
        # After a restart of the agent, too.
        await box.stop()
        await box.start(network="namespace")
        pod = await box.until_ready("c")
        assert await answer(*await box.node.runtime.connect(pod, 8080)) == b"c"
        await box.delete("a", grace_seconds=0)
        await box.until(lambda: len(box.node.runtime.pods()) == 2)
        uid = pod["metadata"]["uid"]
        assert there(uid)
        await box.delete("c", grace_seconds=0)
        await box.until(lambda: len(box.node.runtime.pods()) == 1)
        assert not there(uid)

    box(story, network="namespace")


@needs_namespaces
def test_pods_of_different_agents_do_not_meet(box):
    """Whoever they are, they reach what is their own agent's; the machine reaches all."""

    async def story(box):
        owners = {"a1": "a", "a2": "a", "b1": "b", "o1": "", "o2": ""}
        agents = {letter: f"{letter}-{box.name}" for letter in "ab"}
        spaces = {letter: f"agent-{agent}" for letter, agent in agents.items()} | {"": box.space}
        for letter in agents:
            await box.client.create(NAMESPACE, {"metadata": {"name": spaces[letter]}})
        addresses = {}
        for name, letter in owners.items():
            box.space = spaces[letter]
            label = {labels.AGENT: agents[letter]} if letter else {}
            more = listening(ME=name, LISTEN="0.0.0.0")
            await box.create(name, "/usr/bin/python3", "-c", LISTEN, labels=label, **more)
            addresses[name] = (await box.until_ready(name))["status"]["podIP"]
            met = await asyncio.open_connection(addresses[name], 8080)
            assert await answer(*met) == name.encode()

        async def reaches(name):
            box.space = spaces[owners[name]]
            tried = f"{TRY}all({list(addresses.values())})"
            return set((await box.exec(name, "/usr/bin/python3", "-c", tried))[1].split())

        assert await reaches("a1") == {"a1", "a2"}
        assert await reaches("b1") == {"b1"}
        assert await reaches("o1") == {"o1", "o2"}
        # After a restart of the node's agent, too; and nothing is left when they are gone.
        await box.stop()
        await box.start(network="namespace")
        await box.until(lambda: len(box.node.runtime.pods()) == len(owners))
        assert await box.until(lambda: reaches("a1")) == {"a1", "a2"}
        tables = [str(table_of(agent)) for agent in agents.values()]
        assert all(table in routing() for table in tables)
        for name, letter in owners.items():
            box.space = spaces[letter]
            await box.delete(name, grace_seconds=0)
        await box.until(lambda: not box.node.runtime.pods())
        assert not any(table in routing() for table in tables)

    box(story, network="namespace")


TRY = """
import sys, threading, urllib.request as u
def one(address):
    try: print(u.urlopen(f"http://{address}:8080", timeout=5).read().decode(), flush=True)
    except OSError: pass
def all(addresses):
    threads = [threading.Thread(target=one, args=[a]) for a in addresses]
    for t in threads: t.start()
    for t in threads: t.join()
"""


def routing():
    """All rules and routes of this machine."""
    said = [["rule", "show"], ["route", "show", "table", "all"]]
    return "".join(
        subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
        for words in said
    )


@pytest.mark.skipif("OUTSIDE" not in os.environ, reason="see test_elsewhere.py")
@pytest.mark.parametrize("egress", [False, True])
def test_a_pod_reaches_beyond_the_machine_if_the_owner_says_so(box, egress):
    async def story(box):
        fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=2).read())"
        await box.create("calls", "/usr/bin/python3", "-c", fetch, os.environ["OUTSIDE"])
        if egress:
            await box.until_phase("calls", "Succeeded")
            assert "outside" in await box.logs("calls")
        else:
            await box.until_phase("calls", "Failed")
            assert "timed out" in await box.logs("calls")

    box(story, network="namespace", egress=egress)


@pytest.mark.slow
def test_two_hundred_megabytes_of_log_keep_to_their_files(box):
    async def story(box):
        # 200 MB in lines of a hundred bytes, each with its number.
        await box.create("loud", "seq -f '%099.0f' 1 2000000")
        await box.until_phase("loud", "Succeeded", within=120)
        [pod] = box.node.runtime.pods()
        folder = box.settings.pods / pod["metadata"]["uid"] / "containers" / "main" / "0"
        files = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
        assert len(files) == 5
        most = box.settings.log_bytes + (1 << 18)
        assert all(file.stat().st_size <= most for file in files)
        assert await box.logs("loud", tail_lines=2) == f"{1999999:099d}\n{2000000:099d}\n"
        whole = (await box.logs("loud")).splitlines()
        first = int(whole[0])
        assert [int(line) for line in whole] == list(range(first, 2000001))  # none lost between
        assert len((await box.logs("loud", limit_bytes=1000)).encode()) == 1000

    box(story)


def test_logs_can_be_followed_tailed_and_dated(box):
    async def story(box):
        await box.create(
            "talks", "for i in 1 2 3; do echo line $i; done; sleep 0.3; printf unfinished"
        )
        pod = await box.until_phase("talks", "Running")
        followed = await box.logs("talks", follow=True)
        assert followed == "line 1\nline 2\nline 3\nunfinished"
        await box.until_phase("talks", "Succeeded")
        assert await box.logs("talks", tail_lines=2) == "line 3\nunfinished"
        assert await box.logs("talks", tail_lines=0) == ""
        dated = await box.logs("talks", timestamps=True, tail_lines=1)
        assert dated.split(" ", 1)[1] == "unfinished"
        began = pod["status"]["startTime"]
        assert dated[:10] == began[:10]
        assert await box.logs("talks", since=box.clock.now() + 10) == ""
        with pytest.raises(ApiError, match="previous terminated container"):
            await box.logs("talks", previous=True)
        with pytest.raises(ApiError, match="container nobody is not valid"):
            await box.logs("talks", container="nobody")

    box(story)


def test_exec_with_and_without_a_terminal(box):
    async def story(box):
        await box.create("shell", "sleep 600", workingDir="/usr",
                         env=[{"name": "WHO", "value": "me"}])  # fmt: skip
        await box.until_phase("shell", "Running")
        code, out, err = await box.exec("shell", "sh", "-c", "pwd; echo $WHO; echo no >&2; exit 4")
        assert (code, out, err) == (4, "/usr\nme\n", "no\n")
        assert await box.exec("shell", "cat", stdin=b"through\n") == (0, "through\n", "")
        pod = box.node.runtime.find(box.space, "shell")
        session = await box.node.runtime.exec(pod, "main", ["sh"], stdin=True, tty=True)
        session.resize(91, 23)
        await session.write(b"stty size; exit 7\n")
        said = b"".join([data async for data in session.stdout()])
        assert b"23 91" in said, said
        assert await session.wait() == 7, said
        await session.close()
        # Whoever leaves takes along what was started.
        session = await box.node.runtime.exec(
            pod, "main", ["sleep", "4321.5"], stdin=False, tty=False
        )
        await box.until(lambda: pids_with("4321.5"))
        await session.close()
        await box.until(lambda: not pids_with("4321.5"))
        with pytest.raises(ApiError, match="does not take stdin"):
            await box.node.runtime.attach(pod, "main", stdin=True)

    box(story)


def test_attach_to_a_container_that_listens(box):
    async def story(box):
        await box.create("cat", "while read line; do echo got $line; done; echo over", stdin=True)
        pod = await box.until_phase("cat", "Running")
        session = await box.node.runtime.attach(pod, "main", stdin=True)
        await session.write(b"one\ntwo\n")
        await session.close_stdin()
        said = b"".join([data async for data in session.stdout()])
        assert said == b"got one\ngot two\nover\n"
        assert await session.wait() == 0
        await session.close()

    box(story)


@pytest.mark.parametrize("by", ["cgroup", "rlimit"])
def test_a_fork_bomb_hits_its_limit_and_ends_with_its_pod(box, by):
    if by == "cgroup" and "pids" not in LIMITED:
        pytest.skip("no pids cgroup can be written")
    if by == "rlimit" and find_bubblewrap() is None:
        pytest.skip("there is no bubblewrap")

    async def story(box):
        bomb = "sleep 0.2; n=0; while [ $n -lt 400 ]; do sleep 5432.5 & n=$((n+1)); done; wait"
        await box.create("bomb", bomb)
        await box.until_container("bomb", lambda c: "waiting" not in c["state"])

        async def bounded():
            return "fork" in (await box.logs("bomb")).lower()  # it was refused

        await box.until(bounded)
        assert len(pids_with("5432.5")) < 60
        await box.delete("bomb", grace_seconds=0)
        await box.until(lambda: not pids_with("5432.5"))

    box(story, pids=40, **({"cgroups": NoCgroups("none")} if by == "rlimit" else {}))


@pytest.mark.skipif("memory" not in LIMITED, reason="no memory cgroup can be written")
def test_too_much_memory_is_told_as_such(box):
    async def story(box):
        eat = "x = [bytearray(10**7) for _ in range(50)]; print(len(x))"
        await box.create("eats", "/usr/bin/python3", "-c", eat,
                         resources={"limits": {"memory": "64Mi"}})  # fmt: skip
        pod = await box.until_phase("eats", "Failed")
        ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")

    box(story)


def test_without_a_sandbox_only_trusted_pods_run(box):
    async def story(box):
        await box.create("stranger", "true")
        pod = await box.until_phase("stranger", "Failed")
        assert pod["status"]["reason"] == "NoSandbox"
        assert "bubblewrap" in pod["status"]["message"]

    box(story, engine=Bare(), trusted=["friends"])


def test_without_a_sandbox_what_a_process_leaves_behind_ends_with_it(box):
    async def story(box):
        volume = {
            "volumeMounts": [{"name": "v", "mountPath": f"{box.folder}/mounted"}],
            "pod": {"volumes": [{"name": "v", "emptyDir": {}}]},
        }
        await box.create(
            "daemon",
            "setsid sh -c 'sleep 6543.5 & sleep 6543.5' & sleep 0.2; echo $$",
            **(volume if os.geteuid() == 0 else {}),
        )
        if os.geteuid() != 0:
            # Nobody may mount anything: that is said, and the pod waits.
            await box.create("mounts", "true", **volume)
            cannot = await box.until_event("mounts", "Failed")
            assert "no bubblewrap and does not run as root" in cannot
            await box.delete("mounts", grace_seconds=0)
        await box.until_phase("daemon", "Succeeded")
        await box.until(lambda: not pids_with("6543.5"))
        await box.create("long", "sleep 600", livenessProbe={"exec": {"command": ["true"]}})
        await box.until_phase("long", "Running")
        assert (await box.exec("long", "echo", "hi"))[1] == "hi\n"
        await box.delete("long")
        await box.until(lambda: len(box.node.runtime.pods()) == 1)

    box(story, engine=Bare())


def test_what_cannot_be_done_is_said(box):
    async def story(box):
        disk = {"name": "d", "persistentVolumeClaim": {"claimName": "d"}}
        raw = [{"name": "d", "devicePath": "/dev/d"}]
        await box.create("block", "true", volumeDevices=raw, pod={"volumes": [disk]})
        await box.create("nfs", "true", pod={
            "volumes": [{"name": "n", "nfs": {"server": "s", "path": "/"}}]})  # fmt: skip
        block = await box.until_phase("block", "Failed")
        assert "raw block volumes are not supported" in block["status"]["message"]
        nfs = await box.until_phase("nfs", "Failed")
        assert "volume n: nfs is not supported" in nfs["status"]["message"]

    box(story)
