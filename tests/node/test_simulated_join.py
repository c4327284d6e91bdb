"""`bidplane node --runtime simulated`: a fleet that is not there, in any cluster."""

import asyncio
import contextlib
import signal
import sys

import msgspec
import pytest

from bidplane.api.kinds import LEASE, NAMESPACE, NODE, POD
from bidplane.errors import NotFound
from bidplane.kube.http import HttpClient

from .processes import ClusterApi, PlaneApi

FLEET = """
nodes:
  - {name: sim-x, product: H100, gpus: 8}
  - {name: sim-y, product: A100, memory: 40Gi, gpus: 2, mig: true}
"""


@pytest.fixture(params=["plane", pytest.param("kube", marks=[pytest.mark.kube, pytest.mark.slow])])
def api(request, tmp_path):
    if request.param == "kube":
        return ClusterApi(request.getfixturevalue("cluster"))
    return PlaneApi(tmp_path)


def kubeconfig(api):
    server = {"server": api.url, "certificate-authority": api.ca_file}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": api.token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }


async def until(there, within=30.0):
    async with asyncio.timeout(within):
        while not (found := await there()):
            await asyncio.sleep(0.05)
        return found


def test_a_fleet_joins_runs_pods_and_beats(api, tmp_path):
    async def story():
        await api.open()
        (tmp_path / "fleet.yaml").write_text(FLEET)
        (tmp_path / "kubeconfig").write_bytes(msgspec.json.encode(kubeconfig(api)))
        words = ["node", "--runtime", "simulated", "--fleet", "fleet.yaml"]
        words += ["--kubeconfig", "kubeconfig", "--state", str(tmp_path / "state")]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bidplane", *words, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        client = HttpClient(api.url, token=api.token, ca_file=api.ca_file)
        try:
            assert process.stdout is not None
            said = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
            assert said == "2 simulated nodes are ready: sim-x, sim-y\n"
            node = await client.get(NODE, "sim-x")
            # Its GPUs are in its slices, which a scheduler counts; a number would count twice.
            assert "nvidia.com/gpu" not in node["status"]["capacity"]

            async def beaten():
                try:
                    return await client.get(LEASE, "sim-y", "kube-node-lease")
                except NotFound:
                    return None

            assert (await until(beaten))["spec"]["holderIdentity"] == "sim-y"
            with contextlib.suppress(Exception):
                await client.create(NAMESPACE, {"metadata": {"name": "sims"}})
            pod = {
                "metadata": {
                    "name": "work",
                    "annotations": {"bidplane.dev/simulated-seconds": "0"},
                },
                "spec": {
                    "nodeName": "sim-x",
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "main", "image": "x"}],
                },
            }
            await client.create(POD, pod, "sims")

            async def over():
                found = await client.get(POD, "work", "sims")
                return (found.get("status") or {}).get("phase") == "Succeeded"

            await until(over)
        finally:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            for name in ("sim-x", "sim-y"):
                with contextlib.suppress(NotFound):
                    await client.delete(NODE, name)
            await client.close()
            await api.close()

    asyncio.run(story())


def test_it_must_be_told_which_nodes_there_are(capsys, tmp_path):
    from bidplane.cli.devices.node import _simulated_fleet
    from bidplane.errors import UserError

    with pytest.raises(UserError, match="needs --fleet FILE"):
        _simulated_fleet(None, "")
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    assert [node.name for node in _simulated_fleet(path, "sim-y").nodes] == ["sim-y"]
    with pytest.raises(UserError, match=r"declares no node 'sim-z'; it has sim-x, sim-y"):
        _simulated_fleet(path, "sim-z")
