"""The node's agent may be killed at any moment: no pod is lost, none is started twice."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bidplane.api.kinds import NODE
from bidplane.node.process.container.lineage import descendants
from bidplane.node.process.records import pod_folders

from .processes import pids_with


class Agent:
    """`bidplane node` as a process of its own, in place of the box's."""

    def __init__(self, box):
        self._box = box
        self._process = None
        self._kubeconfig = box.folder / "kubeconfig"
        self._images = box.folder / "images.yaml"
        self._images.write_text('images: {"tools": {}}')
        self._volumes = box.folder / "volumes.yaml"
        self._volumes.write_text(f"hostPaths: [{box.folder / 'kept'}]")
        self._kubeconfig.write_text(
            f"""
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: c}}}}]
clusters: [{{name: c, cluster: {{server: "{box.api.url}",
             certificate-authority: "{box.api.ca_file}"}}}}]
users: [{{name: c, user: {{token: "{box.api.token}"}}}}]
"""
        )

    def _command(self):
        command = [sys.executable, "-m", "bidplane", "node", "--name", self._box.name]
        command += ["--kubeconfig", str(self._kubeconfig), "--images", str(self._images)]
        command += ["--volumes", str(self._volumes), "--trusted", "*"]
        return [*command, "--state", str(self._box.settings.state), "--network", "loopback"]

    async def refused(self):
        """A second one, in the same folder."""
        second = await asyncio.create_subprocess_exec(
            *self._command(), stderr=asyncio.subprocess.PIPE
        )
        _, said = await second.communicate()
        assert second.returncode
        return said.decode()

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            *self._command(), stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        said = b""
        while b"Ctrl-C stops" not in said:
            line = await self._process.stdout.readline()
            assert line, said.decode()
            said += line
        return said.decode()

    async def kill(self):
        """All of it, at once, with no chance to say anything."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()


@pytest.mark.slow
def test_a_killed_agent_loses_no_pod_and_starts_none_twice(box):
    async def story(box):
        await box.stop()
        agent = Agent(box)
        said = await agent.start()
        assert box.name in said
        assert "a node already runs with its state in" in await agent.refused()
        await box.create("stays", "echo started >> /kept/log; sleep 777.25",
                         pod=kept(box), volumeMounts=MOUNT)  # fmt: skip
        await box.create("ends", "echo done; sleep 1; exit 5")
        await box.until_phase("stays", "Running")
        await box.until_phase("ends", "Running")
        # A pod runs once its supervisor has started its command; `sleep` comes after the `echo`.
        await box.until(lambda: pids_with("777.25"))
        before = pids_with("777.25")
        await agent.kill()
        await box.until(lambda: not pids_with("echo done; sleep 1; exit 5"))
        # It ended while nobody looked; and another one is bound to a node that is away.
        await box.create("waits", "echo late")
        assert pids_with("777.25") == before
        await agent.start()
        pod = await box.until_phase("ends", "Failed")
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
        await box.until_phase("waits", "Succeeded")
        assert pids_with("777.25") == before
        pod = await box.get("stays")
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        await agent.kill()
        # Deleted while nobody looked, for good.
        await box.delete("ends", grace_seconds=0)
        await box.delete("stays", grace_seconds=0)
        await agent.start()
        await box.until(lambda: not pids_with("777.25"))
        await agent.kill()
        assert len(kept_lines(box)) == 1
        await box.start()

    box(story)


@pytest.mark.slow
def test_kills_at_any_moment_of_many_starts(box):
    """Every pod writes a line when it starts: each writes one, whatever was killed when."""

    async def story(box):
        await box.stop()
        agent = Agent(box)
        await agent.start()
        names = [f"p{number}" for number in range(12)]
        creating = asyncio.create_task(create_all(box, names))
        for _ in range(3):
            await asyncio.sleep(0.15)
            await agent.kill()
            await agent.start()
        await creating

        async def done():
            return all([await box.phase(name) == "Succeeded" for name in names])

        await box.until(done, within=60)
        await agent.kill()
        assert sorted(kept_lines(box)) == sorted(names)
        await box.start()

    async def create_all(box, names):
        for name in names:
            await box.create(name, f"echo {name} >> /kept/log", pod=kept(box), volumeMounts=MOUNT)
            await asyncio.sleep(0.05)

    box(story)


MOUNT = [{"name": "kept", "mountPath": "/kept"}]


def kept(box):
    folder = box.folder / "kept"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    (folder / "log").touch()
    (folder / "log").chmod(0o666)  # the pods' users differ
    return {"volumes": [{"name": "kept", "hostPath": {"path": str(folder)}}]}


def kept_lines(box):
    return (box.folder / "kept" / "log").read_text().split()


def test_an_agent_that_starts_again_goes_on_with_probes_and_status(box):
    async def story(box):
        probe = {"exec": {"command": ["test", "-e", "/v/up"]}, "periodSeconds": 1}
        await box.create(
            "ready",
            "touch /v/up; sleep 600",
            readinessProbe=probe,
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod={"volumes": [{"name": "v", "emptyDir": {}}]},
        )
        await box.until_ready("ready")
        await box.stop()
        await box.start()
        pod = await box.until_ready("ready")
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert (await box.exec("ready", "rm", "/v/up"))[0] == 0
        await box.until_ready("ready", ready=False)

    box(story)


def test_a_supervisor_that_is_killed_takes_its_container_along(box):
    async def story(box):
        await box.create("orphan", "sleep 888.25", pod={"restartPolicy": "Always"})
        await box.until_phase("orphan", "Running")
        [folder] = pod_folders(box.settings.pods)
        [attempt] = folder.attempts("main")
        os.kill(attempt.state().shim, signal.SIGKILL)
        again = await box.until_container("orphan", lambda c: c["restartCount"] == 1)
        ended = again["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
        await box.until_container("orphan", lambda c: c["state"].get("running"))
        await box.until(lambda: len(set(pids_with("888.25")) - set(pids_with("bwrap"))) == 1)

    box(story)


def test_what_is_left_of_a_pod_whose_removal_was_cut_short_goes(box):
    async def story(box):
        await box.create("over", "true")
        await box.until_phase("over", "Succeeded")
        await box.stop()
        [folder] = pod_folders(box.settings.pods)
        await box.delete("over", grace_seconds=0)
        (folder.path / "pod.json").unlink()  # as when the agent was killed while it removed it
        await box.start()
        await box.until(lambda: not folder.path.exists())

    box(story)


def test_whoever_forks_supervisors_may_be_killed(box):
    """What runs goes on, and what comes is started by another."""

    async def story(box):
        await box.create("before", "sleep 889.25")
        await box.until_phase("before", "Running")
        await box.until(lambda: pids_with("889.25"))
        forkers = [pid for pid in descendants(os.getpid()) if is_forker(pid)]
        [forker] = [pid for pid in forkers if set(descendants(pid)) & set(pids_with("889.25"))]
        os.kill(forker, signal.SIGKILL)
        await box.create("after", "sleep 889.5")
        await box.until_phase("after", "Running")
        before = await box.get("before")
        assert before["status"]["containerStatuses"][0]["restartCount"] == 0
        assert before["status"]["phase"] == "Running"
        await box.until(lambda: pids_with("889.25"))

    box(story)


def is_forker(pid):
    """Tell whether a process is one that forks supervisors, and none of these."""
    try:
        process = Path(f"/proc/{pid}")
        is_forkserver = "forkserver" in (process / "cmdline").read_text()
        return is_forkserver and (process / "comm").read_text().strip() != "bidplane-shim"
    except OSError:
        return False


def test_a_node_that_is_registered_again_is_the_same_node(box):
    async def story(box):
        before = (await box.client.get(NODE, box.name))["metadata"]["uid"]
        await box.stop()
        await box.start()
        assert (await box.client.get(NODE, box.name))["metadata"]["uid"] == before

    box(story)
