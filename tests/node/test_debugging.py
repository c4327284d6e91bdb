"""Ephemeral containers: who joins a pod that runs, to look around in it."""

import pytest

from bidplane.api.kinds import POD
from bidplane.node.process.sandbox.confinement import find_bubblewrap

from .processes import pids_with

pytestmark = pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")


async def join(box, pod, name, *command, **more):
    known = (await box.get(pod))["spec"].get("ephemeralContainers") or []
    one = {"name": name, "image": "tools", "command": list(command), **more}
    patch = {"spec": {"ephemeralContainers": [*known, one]}}
    await box.client.patch(POD, pod, patch, box.space, subresource="ephemeralcontainers")


async def status(box, pod, name):
    told = (await box.get(pod))["status"].get("ephemeralContainerStatuses") or ()
    return next((one for one in told if one["name"] == name), None)


async def state(box, pod, name, wanted):
    async def there():
        return ((await status(box, pod, name) or {}).get("state") or {}).get(wanted)

    return await box.until(there)


def test_a_container_that_joins_runs_beside_the_others(box):
    async def story(box):
        await box.create(
            "web",
            "echo mine > /tmp/own; exec sleep 661.25",
            pod={"volumes": [{"name": "v", "emptyDir": {}}], "restartPolicy": "Always"},
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
        )
        await box.until_phase("web", "Running")
        # By itself: it has the pod's volumes and address, and its own files and processes.
        volume = [{"name": "v", "mountPath": "/w"}]
        await join(
            box, "web", "alone", "sh", "-c", "echo $POD_IP > /w/seen; ls /tmp/own; ps ax | wc -l",
            volumeMounts=volume,
        )  # fmt: skip
        ended = await state(box, "web", "alone", "terminated")
        assert ended["exitCode"] == 0
        said = await box.logs("web", "alone")
        assert "cannot access '/tmp/own'" in said
        seen = (await box.exec("web", "cat", "/v/seen"))[1].strip()
        assert seen == (await box.get("web"))["status"]["podIP"]
        # With a target: among its processes and files.
        await join(
            box, "web", "with", "sh", "-c", "cat /tmp/own; ps ax; id -u; exec sleep 662.25",
            targetContainerName="main",
        )  # fmt: skip
        await state(box, "web", "with", "running")

        async def looked():
            said = await box.logs("web", "with")
            return "mine" in said and "sleep 661.25" in said

        await box.until(looked)
        assert "sleep 662.25" in (await box.exec("web", "ps", "ax", container="with"))[1]
        before = await box.get("web")
        assert before["status"]["phase"] == "Running"
        assert before["status"]["containerStatuses"][0]["ready"]
        # A new agent of the node finds it; the pod's end is its own.
        await box.stop()
        await box.start()
        await box.until(lambda: box.node.runtime.pods())
        assert await state(box, "web", "with", "running")
        assert len(pids_with("662.25")) >= 1
        await box.delete("web", grace_seconds=1)
        await box.until(lambda: not box.node.runtime.pods())
        assert not pids_with("662.25")

    box(story)


def test_an_image_nobody_mapped_and_a_target_that_is_over_are_said(box):
    async def story(box):
        tools = {"image": "tools"}
        main = {"name": "main", "command": ["sleep", "663.25"], **tools}
        over = {"name": "over", "command": ["true"], **tools}
        await box.create("web", "true", pod={"containers": [main, over]})
        await box.until_container("web", lambda c: c["state"].get("terminated"), "over")
        await join(box, "web", "late", "true", targetContainerName="over")
        waiting = await state(box, "web", "late", "waiting")
        assert waiting["message"] == "the target container over is not running"
        await join(box, "web", "odd", "sh", image="other")
        waiting = await state(box, "web", "odd", "waiting")
        assert waiting["reason"] == "ErrImageNeverPull"
        assert "--images" in waiting["message"]

    box(story)
