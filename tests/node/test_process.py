"""Pods as processes: they start, say how they are, end, and leave nothing behind."""

import asyncio
import base64
import json

import pytest

from bidplane.api.kinds import CONFIG_MAP, JOB, LEASE, NODE, POD, RESOURCE_SLICE, SECRET
from bidplane.api.times import parse_rfc3339
from bidplane.errors import ApiError
from bidplane.testing.cluster import Cluster

from .processes import Box, ClusterApi, pids_with

SERVER = """
import http.server, os, signal, sys, time
sick = "/data/sick"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if os.path.exists(sick) else 200)
        self.end_headers()
        self.wfile.write(b"here")
    def log_message(self, *a): pass
def end(*_):
    print("draining", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("serving", flush=True)
http.server.HTTPServer((os.environ["POD_IP"], 8080), Handler).serve_forever()
"""


def terminated(pod, index=0):
    return pod["status"]["containerStatuses"][index]["state"]["terminated"]


def test_a_pod_runs_prints_and_succeeds(box):
    async def story(box):
        await box.create("hello", "echo hello from $POD_IP; sleep 0.05; echo sad >&2")
        pod = await box.until_phase("hello", "Succeeded")
        assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (0, "Completed")
        said = await box.logs("hello")
        assert said == f"hello from {pod['status']['podIP']}\nsad\n"
        await box.until_event("hello", "Started")

    box(story)


def test_the_node_registers_with_its_devices_and_keeps_its_lease(box):
    async def story(box):
        node = await box.client.get(NODE, box.name)
        conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
        assert conditions["Ready"] == "True"
        assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 1
        slices = await box.client.list(RESOURCE_SLICE, fields=f"spec.nodeName={box.name}")
        assert len(slices.items[0]["spec"]["devices"]) == 2
        lease = await box.client.get(LEASE, box.name, "kube-node-lease")
        first = parse_rfc3339(lease["spec"]["renewTime"])
        box.clock.advance(11)

        async def renewed():
            now = await box.client.get(LEASE, box.name, "kube-node-lease")
            return parse_rfc3339(now["spec"]["renewTime"]) > first + 10

        await box.until(renewed)

    box(story)


def test_a_server_becomes_ready_serves_falls_sick_restarts_and_drains(box):
    async def story(box):
        get = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
        await box.create(
            "web",
            "/usr/bin/python3",
            "-c",
            SERVER,
            ports=[{"name": "web", "containerPort": 8080}],
            readinessProbe={**get, "failureThreshold": 1},
            livenessProbe={**get, "failureThreshold": 2},
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
            pod={"restartPolicy": "Always", "volumes": [{"name": "data", "emptyDir": {}}]},
        )
        pod = await box.until_ready("web")
        reader, writer = await asyncio.open_connection(pod["status"]["podIP"], 8080)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"here")
        writer.close()
        code, _, _ = await box.exec("web", "touch", "/data/sick")
        assert code == 0
        # Unready after one bad answer, restarted after two.
        again = await box.until_container("web", lambda c: c["restartCount"] == 1)
        assert again["lastState"]["terminated"]["exitCode"] == 0  # it drained
        assert await box.logs("web", previous=True) == "serving\ndraining\n"
        assert "Liveness probe failed" in (await box.events("web"))["Unhealthy"]
        await box.exec("web", "rm", "/data/sick")
        await box.until_ready("web")
        await box.delete("web")
        await box.until(lambda: not box.node.runtime.pods())
        assert await box.get("web") is None
        await box.until_event("web", "Killing")

    box(story)


@pytest.mark.slow
def test_a_job_of_fifty_pods_completes(box):
    async def story(box):
        template = {
            "spec": {
                "nodeName": box.name,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "main",
                        "image": "tools",
                        "command": ["sh", "-c", "echo $JOB_COMPLETION_INDEX"],
                    }
                ],
            }
        }
        spec = {
            "completions": 50,
            "parallelism": 50,
            "completionMode": "Indexed",
            "template": template,
        }
        await box.client.create(JOB, {"metadata": {"name": "fifty"}, "spec": spec}, box.space)

        async def complete():
            job = await box.client.get(JOB, "fifty", box.space)
            conditions = (job.get("status") or {}).get("conditions") or ()
            return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)

        await box.until(complete, within=90)
        pods = (await box.client.list(POD, box.space)).items
        assert len(pods) == 50
        said = sorted([int(await box.logs(pod["metadata"]["name"])) for pod in pods])
        assert said == list(range(50))
        assert len({pod["status"]["podIP"] for pod in pods}) == 50

    box(story)


def test_environment_from_everywhere(box):
    async def story(box):
        await box.client.create(
            CONFIG_MAP, {"metadata": {"name": "conf"}, "data": {"a": "one", "b": "two"}}, box.space
        )
        secret = {"metadata": {"name": "hush"}, "data": {"s": base64.b64encode(b"shh").decode()}}
        await box.client.create(SECRET, secret, box.space)
        env = [
            {"name": "PLAIN", "value": "x"},
            {"name": "MADE", "value": "$(PLAIN)-$(FROM_A)-$$(PLAIN)-$(NOPE)"},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "hush", "key": "s"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "MEM", "valueFrom": {"resourceFieldRef": {
                "resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {
                "name": "gone", "key": "k", "optional": True}}},
        ]  # fmt: skip
        await box.create(
            "env",
            pod={},
            env=env,
            envFrom=[{"prefix": "FROM_", "configMapRef": {"name": "conf"}}],
            command=["sh", "-c", 'echo "$@"; pwd; env', "sh"],
            args=["$(MADE)", "$(S)"],
            workingDir="/usr",
            resources={"limits": {"memory": "64Mi"}},
        )
        pod = await box.until_phase("env", "Succeeded")
        first, cwd, *rest = (await box.logs("env")).splitlines()
        found = dict(line.split("=", 1) for line in rest if "=" in line)
        assert first == "x-$(FROM_A)-$(PLAIN)-$(NOPE) shh"
        assert cwd == "/usr"
        assert found["FROM_a"] == "one"
        assert (found["IP"], found["ME"], found["MEM"]) == (pod["status"]["podIP"], "env", "64")
        assert "NONE" not in found
        assert found["NVIDIA_VISIBLE_DEVICES"] == "void"

    box(story)


def test_volumes_from_objects_are_there_and_follow_them(box):
    async def story(box):
        await box.client.create(
            CONFIG_MAP, {"metadata": {"name": "conf"}, "data": {"a": "one", "b": "two"}}, box.space
        )
        await box.client.create(
            SECRET, {"metadata": {"name": "hush"}, "stringData": {"s": "shh"}}, box.space
        )
        label = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
        volumes = [
            {"name": "conf", "configMap": {
                "name": "conf", "items": [{"key": "a", "path": "deep/a", "mode": 0o400}]}},
            {"name": "hush", "secret": {"secretName": "hush", "defaultMode": 0o440}},
            {"name": "me", "downwardAPI": {"items": [label]}},
            {"name": "all", "projected": {"sources": [
                {"configMap": {"name": "conf"}}, {"secret": {"name": "hush"}},
                {"downwardAPI": {"items": [label]}}]}},
        ]  # fmt: skip
        mounts = [{"name": v["name"], "mountPath": f"/v/{v['name']}"} for v in volumes]
        mounts.append({"name": "all", "mountPath": "/one/b", "subPath": "b"})
        await box.create(
            "files",
            "cd /v; cat conf/deep/a hush/s me/name all/a all/s /one/b;"
            " stat -L -c %a conf/deep/a hush/s; echo; sleep 600",
            volumeMounts=mounts,
            pod={"volumes": volumes},
        )
        await box.until_phase("files", "Running")

        await box.until_said("files", "oneshhfilesoneshhtwo400\n440\n\n")
        await box.client.patch(CONFIG_MAP, "conf", {"data": {"a": "new", "b": "more"}}, box.space)
        box.clock.advance(31)

        async def followed():
            return (await box.exec("files", "cat", "/v/conf/deep/a", "/v/all/a"))[1] == "newnew"

        await box.until(followed)
        # A part of a volume that is mounted by itself stays what it was, as in Kubernetes.
        assert (await box.exec("files", "cat", "/v/all/b", "/one/b"))[1] == "moretwo"
        assert (await box.exec("files", "sh", "-c", "echo x > /v/conf/x"))[0] != 0  # read-only

    box(story)


def test_the_downward_api_follows_an_annotation_at_once(box):
    async def story(box):
        note = {"path": "notice", "fieldRef": {"fieldPath": "metadata.annotations['notice']"}}
        await box.create(
            "told",
            "sleep 600",
            volumeMounts=[{"name": "me", "mountPath": "/me"}],
            pod={"volumes": [{"name": "me", "downwardAPI": {"items": [note]}}]},
        )
        await box.until_phase("told", "Running")
        assert (await box.exec("told", "cat", "/me/notice"))[1] == ""
        change = {"metadata": {"annotations": {"notice": "leave"}}}
        await box.client.patch(POD, "told", change, box.space)

        async def told():
            return (await box.exec("told", "cat", "/me/notice"))[1] == "leave"

        await box.until(told)  # the clock was not moved: no timer brought it

    box(story)


def test_a_missing_config_map_is_said_and_waited_for(box):
    async def story(box):
        await box.create(
            "late",
            "cat /c/k",
            volumeMounts=[{"name": "c", "mountPath": "/c"}],
            pod={"volumes": [{"name": "c", "configMap": {"name": "late"}}]},
        )
        await box.until_container("late", lambda c: "waiting" in c["state"])

        await box.until_event("late", "FailedMount")
        assert '"late" not found' in (await box.events("late"))["FailedMount"]
        await box.client.create(
            CONFIG_MAP, {"metadata": {"name": "late"}, "data": {"k": "v"}}, box.space
        )
        box.clock.advance(60)
        await box.until_phase("late", "Succeeded")
        assert await box.logs("late") == "v"

    box(story)


def test_a_service_account_token_is_projected_and_renewed(box):
    async def story(box):
        async def account():
            try:
                await box.client.request_token(
                    box.space, "default", {"spec": {"expirationSeconds": 600}}
                )
            except ApiError:
                return False
            return True

        await box.until(account)
        source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
        await box.create(
            "who",
            "sleep 600",
            volumeMounts=[{"name": "t", "mountPath": "/t"}],
            pod={"volumes": [{"name": "t", "projected": {"sources": [source]}}]},
        )
        await box.until_phase("who", "Running")
        _, first, _ = await box.exec("who", "cat", "/t/token")
        claims = json.loads(base64.urlsafe_b64decode(first.split(".")[1] + "==="))
        assert claims["sub"] == f"system:serviceaccount:{box.space}:default"
        box.clock.advance(500)

        async def renewed():
            return (await box.exec("who", "cat", "/t/token"))[1] not in ("", first)

        await box.until(renewed)

    box(story)


def test_init_containers_come_one_by_one_and_sidecars_go_last(box):
    async def story(box):
        def one(name, script, **more):
            return {
                "name": name,
                "image": "tools",
                "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                **more,
            }

        side = one(
            "side",
            "echo side >> /v/log; trap 'echo side gone >> /v/log; exit 0' TERM;"
            " while :; do sleep 0.05; done",
            restartPolicy="Always",
            startupProbe={"exec": {"command": ["grep", "side", "/v/log"]}, "periodSeconds": 1},
        )
        # Reads what the sidecar writes when it ends, if it is there long enough to.
        spec = {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "initContainers": [
                one("first", "echo first >> /v/log"),
                side,
                one("second", "echo second >> /v/log"),
            ],
        }
        await box.create(
            "inits",
            "echo main >> /v/log; cat /v/log; sleep 0.3",
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod=spec,
        )
        pod = await box.until_phase("inits", "Succeeded")
        assert await box.logs("inits") == "first\nside\nsecond\nmain\n"
        states = {c["name"]: c["state"] for c in pod["status"]["initContainerStatuses"]}
        assert all(state["terminated"]["exitCode"] == 0 for state in states.values())

    box(story)


def test_a_failing_init_container_fails_a_pod_that_never_restarts(box):
    async def story(box):
        init = {"name": "init", "image": "tools", "command": ["sh", "-c", "exit 7"]}
        await box.create("bad", "echo no", pod={"initContainers": [init]})
        pod = await box.until_phase("bad", "Failed")
        assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
        with pytest.raises(ApiError, match="waiting to start"):
            await box.logs("bad")

    box(story)


def test_a_crash_loop_backs_off(box):
    async def story(box):
        await box.create("crash", "echo $$; exit 3", pod={"restartPolicy": "OnFailure"})
        # The first restart is at once, the next after ten seconds.
        waiting = await box.until_container(
            "crash", lambda c: (c["state"].get("waiting") or {}).get("reason") == "CrashLoopBackOff"
        )
        assert waiting["restartCount"] == 1
        assert "back-off 10s" in waiting["state"]["waiting"]["message"]
        assert waiting["lastState"]["terminated"]["exitCode"] == 3
        box.clock.advance(10.5)
        waiting = await box.until_container("crash", lambda c: c["restartCount"] == 2)
        waiting = await box.until_container("crash", lambda c: "waiting" in c["state"])
        assert "back-off 20s" in waiting["state"]["waiting"]["message"]

    box(story)


def test_exit_codes_and_messages_are_told(box):
    async def story(box):
        await box.create("says", "echo because > /dev/termination-log; exit 9")
        await box.create("falls", "echo last words; exit 1",
                         terminationMessagePolicy="FallbackToLogsOnError")  # fmt: skip
        await box.create("absent", "no-such-program", "x")
        says = terminated(await box.until_phase("says", "Failed"))
        assert (says["exitCode"], says["reason"], says["message"]) == (9, "Error", "because\n")
        falls = terminated(await box.until_phase("falls", "Failed"))
        assert falls["message"] == "last words"
        absent = terminated(await box.until_phase("absent", "Failed"))
        assert (absent["exitCode"], absent["reason"]) == (128, "StartError")
        assert "no-such-program" in absent["message"]

    box(story)


def test_an_image_nobody_mapped_is_refused_by_name(box):
    async def story(box):
        await box.create("pull", "true", image="registry.example/secret:1")
        waiting = await box.until_container("pull", lambda c: c["state"].get("waiting"))
        waiting = await box.until_container(
            "pull", lambda c: (c["state"].get("waiting") or {}).get("reason") != "ContainerCreating"
        )
        assert waiting["state"]["waiting"]["reason"] == "ErrImageNeverPull"
        assert "registry.example/secret:1" in waiting["state"]["waiting"]["message"]
        assert await box.phase("pull") == "Pending"

    box(story)


def test_a_process_that_ignores_sigterm_is_killed_when_its_grace_is_over(box):
    async def story(box):
        await box.create(
            "deaf",
            "trap '' TERM; echo up; while :; do sleep 0.1; done",
            pod={"terminationGracePeriodSeconds": 30},
        )
        await box.until_phase("deaf", "Running")

        await box.until_said("deaf", "up\n")
        await box.delete("deaf")

        await box.until_event("deaf", "Killing")
        await asyncio.sleep(0.3)
        assert await box.get("deaf") is not None  # it has its grace
        box.clock.advance(30)
        await box.until(lambda: not box.node.runtime.pods())
        assert await box.get("deaf") is None

    box(story)


def test_a_probe_that_hangs_fails_by_its_timeout(box):
    async def story(box):
        probe = {
            "exec": {"command": ["sleep", "12345.25"]},
            "timeoutSeconds": 1,
            "periodSeconds": 1,
            "failureThreshold": 1,
        }
        await box.create("hang", "sleep 600", readinessProbe=probe)

        await box.until_event("hang", "Unhealthy")
        assert "timed out" in (await box.events("hang"))["Unhealthy"]
        await box.until_ready("hang", ready=False)
        await box.delete("hang", grace_seconds=0)
        await box.until(lambda: not pids_with("12345.25"))

    box(story)


def test_hooks_run_around_a_containers_life(box):
    async def story(box):
        await box.create(
            "hooks",
            "trap 'exit 0' TERM; while :; do sleep 0.05; done",
            lifecycle={
                "postStart": {"exec": {"command": ["sh", "-c", "echo began > /v/post"]}},
                "preStop": {"exec": {"command": ["sh", "-c", "cp /v/post /kept/pre"]}},
            },
            volumeMounts=[
                {"name": "v", "mountPath": "/v"},
                {"name": "kept", "mountPath": "/kept"},
            ],
            pod={
                "volumes": [
                    {"name": "v", "emptyDir": {}},
                    {"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}},
                ]
            },
        )
        await box.until_ready("hooks")
        await box.delete("hooks")
        await box.until(lambda: not box.node.runtime.pods())
        (kept,) = (box.folder / "claims" / box.space).glob("kept@*/pre")
        assert kept.read_text() == "began\n"

    from bidplane.node.process.volumes.mounts import Declared

    box(story, volumes=lambda box: Declared(claims_folder=str(box.folder / "claims")))


def test_a_pod_that_is_active_too_long_fails(box):
    async def story(box):
        await box.create("slow", "sleep 600", pod={"activeDeadlineSeconds": 60})
        await box.until_phase("slow", "Running")
        box.clock.advance(61)
        pod = await box.until_phase("slow", "Failed")
        assert pod["status"]["reason"] == "DeadlineExceeded"

    box(story)


def test_host_paths_are_those_the_owner_lists(box, tmp_path):
    from bidplane.node.process.volumes.mounts import Declared

    async def story(box):
        allowed = box.folder / "models"
        (allowed / "w").write_text("weights")
        for name, path in (("may", allowed), ("mustnot", "/etc/shadow")):
            await box.create(
                name,
                "cat /m/w",
                volumeMounts=[{"name": "m", "mountPath": "/m", "readOnly": True}],
                pod={"volumes": [{"name": "m", "hostPath": {"path": str(path)}}]},
            )
        await box.until_phase("may", "Succeeded")
        assert await box.logs("may") == "weights"

        await box.until_event("mustnot", "FailedMount")
        assert "/etc/shadow is not allowed" in (await box.events("mustnot"))["FailedMount"]
        assert await box.phase("mustnot") == "Pending"

    def declared(box):
        (box.folder / "models").mkdir(mode=0o755)
        return Declared(host_paths=[str(box.folder / "models")])

    box(story, volumes=declared)


def test_claimed_gpus_reach_the_process(box):
    async def story(box):
        await box.claim("two", "gpu-0", "gpu-1")
        claim = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "two"}]}
        await box.create(
            "train",
            "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES; sleep 600",
            pod=claim,
            resources={"claims": [{"name": "gpus"}]},
        )
        pod = await box.until_phase("train", "Running")
        ids = f"GPU-{box.name}-0,GPU-{box.name}-1"
        await box.until_said("train", f"{ids} {ids}\n")
        held = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]
        assert [one["health"] for one in held["resources"]] == ["Healthy", "Healthy"]
        # One falls off the bus.
        slices = box.inventory.slices()
        spec = {**slices[0]["spec"], "devices": slices[0]["spec"]["devices"][:1]}
        box.inventory.slices = lambda: ({**slices[0], "spec": spec},)
        box.clock.advance(6)
        lost = await box.until_container(
            "train",
            lambda c: any(
                one["health"] == "Unhealthy"
                for one in c["allocatedResourcesStatus"][0]["resources"]
            ),
        )
        assert lost["state"].get("running")  # its owner decides

        await box.until_event("train", "DeviceLost")

        async def told():
            known = await box.client.list(RESOURCE_SLICE, fields=f"spec.nodeName={box.name}")
            return len(known.items[0]["spec"]["devices"]) == 1 and known.items[0]

        assert (await box.until(told))["spec"]["pool"]["generation"] == 2

    box(story)


def test_what_is_claimed_beside_gpus_is_no_gpu(box):
    async def story(box):
        await box.claim("one", "gpu-0")
        await box.claim("nic", "gpu-0", driver="nic.example.com")  # by another driver, so called
        claims = [
            {"name": "gpus", "resourceClaimName": "one"},
            {"name": "beside", "resourceClaimName": "nic"},
        ]
        await box.create(
            "train",
            "echo $CUDA_VISIBLE_DEVICES; sleep 600",
            pod={"resourceClaims": claims},
            resources={"claims": [{"name": "gpus"}, {"name": "beside"}]},
        )
        pod = await box.until_phase("train", "Running")
        await box.until_said("train", f"GPU-{box.name}-0\n")
        held = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
        health = {one["name"]: one["resources"][0]["health"] for one in held}
        assert health == {"claim:gpus": "Healthy", "claim:beside": "Unknown"}

    box(story)


@pytest.mark.parametrize("box", ["plane"], indirect=True)
def test_a_node_that_stops_its_heartbeat_is_told_to_be_so_and_loses_its_pods(box):
    """On a plane; on a cluster it is the kube-controller-manager that sees it, in its own time."""

    async def story(box):
        stay = {"tolerations": [{"operator": "Exists"}]}
        await box.create("stays", "sleep 600", pod=stay)
        await box.create("leaves", "sleep 600", pod={"tolerations": []})
        await box.until_ready("leaves")
        await box.stop()
        box.api.clock.advance(45)
        await box.client.patch(NODE, box.name, {"metadata": {"labels": {"look": "now"}}})

        async def unknown():
            node = await box.client.get(NODE, box.name)
            conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
            taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
            return conditions["Ready"] == "Unknown" and taints

        assert await box.until(unknown) == {"node.kubernetes.io/unreachable"}
        await box.until_ready("leaves", ready=False)
        box.api.clock.advance(301)
        await box.client.patch(NODE, box.name, {"metadata": {"labels": {"look": "again"}}})

        async def leaving():
            return (await box.get("leaves"))["metadata"].get("deletionTimestamp")

        await box.until(leaving)
        assert not (await box.get("stays"))["metadata"].get("deletionTimestamp")
        # It comes back: what had to leave leaves, what may stay stays, and it is ready.
        box.clock.advance(400)
        await box.start()

        async def back():
            node = await box.client.get(NODE, box.name)
            conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
            return conditions["Ready"] == "True" and not node["spec"].get("taints")

        await box.until(back)
        await box.until(lambda: len(box.node.runtime.pods()) == 1)
        assert await box.phase("stays") == "Running"

    box(story)


@pytest.mark.kube
@pytest.mark.slow
def test_a_cluster_sees_the_nodes_heartbeat_stop_and_begin_again(kube_binaries, open_folder):
    async def ready(box, value, *taints):
        node = await box.client.get(NODE, box.name)
        conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
        known = {taint["key"].split("/")[1] for taint in node["spec"].get("taints") or ()}
        return conditions["Ready"] == value and known == set(taints)

    async def story(box):
        await box.create("stays", "sleep 600")
        await box.until_ready("stays")
        assert await ready(box, "True")
        await box.stop()
        await box.until(lambda: ready(box, "Unknown", "unreachable"), within=60)
        await box.start()
        await box.until(lambda: ready(box, "True"), within=60)
        assert await box.phase("stays") == "Running"
        assert (await box.get("stays"))["status"]["containerStatuses"][0]["restartCount"] == 0

    async def whole(cluster):
        box = Box(ClusterApi(cluster), open_folder)
        await box.open()
        try:
            await story(box)
        finally:
            await box.close()

    # Longer than it takes the node to say again that it lives.
    with Cluster(kube_binaries, node_grace=12) as cluster:
        asyncio.run(whole(cluster))


def test_on_notice_the_checkpoint_command_is_run_and_said(box):
    async def story(box):
        await box.create(
            "train",
            "while [ ! -f /data/it ]; do sleep 0.05; done; cat /data/it; sleep 60",
            pod={"volumes": [{"name": "data", "emptyDir": {}}]},
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
        )
        await box.until_phase("train", "Running")
        said = {
            "bidplane.dev/checkpoint-command": "sh -c 'echo saved > /data/it'",
            "bidplane.dev/notice": '{"reason":"Outbid"}',
        }
        await box.client.patch(POD, "train", {"metadata": {"annotations": said}}, box.space)
        await box.until_said("train", "saved\n")
        await box.until_event("train", "Checkpointed")
        found = await box.get("train")
        assert found["metadata"]["annotations"]["bidplane.dev/checkpoint"].endswith("exit 0")
        assert found["status"]["phase"] == "Running"  # its end is somebody else's to ask for

    box(story)
