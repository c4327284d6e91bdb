"""The objects of `bidplane serve`: those of one service belong together, whatever the engine."""

import re
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import EndpointSpec
from bidplane.api.idling.ladder import QueueKind
from bidplane.cli.account.serve import EngineName
from bidplane.core.serving.engines import PROFILES, EngineKind, command, is_path
from bidplane.core.serving.manifests import ServiceRequest, name_of, objects
from bidplane.errors import UserError


def request(engine=EngineKind.VLLM, **fields):
    given = {"model": "m", "image": "image:1", "ready": "/readyz", "arguments": ("x",), **fields}
    return ServiceRequest(engine=engine, **given)


def made(engine=EngineKind.VLLM, **fields):
    return {kind.kind: manifest for kind, manifest in objects(request(engine, **fields))}


def test_every_engine_can_be_named_on_the_command_line():
    assert set(typing.get_args(EngineName)) == set(EngineKind) == set(PROFILES)


def test_ports_paths_and_windows_are_those_of_the_page():
    page = (Path(__file__).parents[3] / "docs/endpoints.md").read_text()
    row = r"^\| `([a-z0-9-]+)` \| .*? \| (\d+), `(\S+)` \| ([\d,]+) s \|"
    rows = re.findall(row, page, re.MULTILINE)
    shown = {
        name: (int(port), "" if ready == "--ready" else ready, int(idle.replace(",", "")))
        for name, port, ready, idle in rows
    }
    profiles = PROFILES.items()
    assert shown == {kind.value: (p.port, p.ready, p.idle_seconds) for kind, p in profiles}


@pytest.mark.parametrize("engine", EngineKind)
def test_a_model_is_a_file_unless_its_engine_takes_names(engine):
    takes_names = engine in (EngineKind.VLLM, EngineKind.TENSORRT_LLM)
    assert is_path(engine, "org/model") is not takes_names
    assert is_path(engine, "./folder")
    assert is_path(engine, "/folder")


@pytest.mark.parametrize("engine", EngineKind)
def test_the_objects_of_a_service_name_each_other(engine):
    parts = (
        made(engine, name="svc", ready="")
        if engine is not EngineKind.PROCESS
        else made(engine, name="svc")
    )
    deployment, service, endpoint = (parts[k] for k in ("Deployment", "Service", "Endpoint"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    spec = msgspec.convert(endpoint["spec"], EndpointSpec)
    assert (spec.target.deployment, spec.target.service) == ("svc", "svc")
    assert spec.target.port_name == service["spec"]["ports"][0]["name"]
    (port,) = container["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    probe = container["readinessProbe"]
    assert probe["httpGet"] == {"path": spec.probe_path, "port": port["name"]}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120
    (claim,) = pod["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == parts["ResourceClaimTemplate"]["metadata"]["name"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    model = next(mount for mount in container["volumeMounts"] if mount["name"] == "models")
    assert model["readOnly"]
    assert deployment["spec"]["replicas"] == 0
    # It listens on the port that is said, at the pod's address.
    words = [*container.get("command", ()), *container.get("args", ())]
    if engine is not EngineKind.PROCESS:
        assert str(port["containerPort"]) in words
        assert "$(POD_IP)" in words
    assert spec.probe_path not in ("/", "") or engine is EngineKind.WAN2GP


def test_comfyui_answers_a_prompt_at_once_so_its_own_queue_is_asked():
    spec = msgspec.convert(made(EngineKind.COMFYUI)["Endpoint"]["spec"], EndpointSpec)
    assert spec.idle.queue is not None
    assert spec.idle.queue.kind is QueueKind.COMFYUI


def test_wan2gp_tells_its_renders_nowhere_so_its_gpu_is_asked():
    assert made(EngineKind.WAN2GP)["Endpoint"]["spec"]["idle"] == {"gpuPercent": 5}
    # Without a GPU there is no counter, and unknown would never be idle.
    assert "idle" not in made(EngineKind.WAN2GP, gpus=0)["Endpoint"]["spec"]


def test_several_gpus_are_of_one_link_and_split_the_model():
    claim = made(gpus=4)["ResourceClaimTemplate"]["spec"]["spec"]["devices"]
    assert claim["requests"][0]["exactly"]["count"] == 4
    assert claim["constraints"] == [{"matchAttribute": "bidplane.dev/linkDomain"}]
    for engine, flag in (
        (EngineKind.VLLM, "--tensor-parallel-size"),
        (EngineKind.TENSORRT_LLM, "--tp_size"),
    ):
        _, words = command(engine, "m", port=1, gpus=4, more=["--more"])
        assert words[words.index(flag) + 1] == "4"
        assert words[-1] == "--more"
        assert flag not in command(engine, "m", port=1, gpus=1, more=[])[1]


def test_without_gpus_and_without_a_volume_nothing_is_claimed():
    parts = made(EngineKind.LLAMA_CPP, model="/opt/tiny.gguf", gpus=0, models="")
    assert "ResourceClaimTemplate" not in parts
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    assert "resourceClaims" not in pod
    assert "volumes" not in pod
    assert "/opt/tiny.gguf" in pod["containers"][0]["args"]


def test_a_name_is_looked_up_and_a_path_is_of_the_volume():
    def container(model):
        return made(EngineKind.VLLM, model=model)["Deployment"]["spec"]["template"]["spec"][
            "containers"
        ][0]

    by_name = container("Qwen/Qwen3-8B")
    assert "Qwen/Qwen3-8B" in by_name["args"]
    assert {"name": "HF_HOME", "value": "/models/huggingface"} in by_name["env"]
    assert "/models/qwen" in container("./qwen")["args"]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"engine": EngineKind.COMFYUI, "image": ""}, "--image"),
        ({"engine": EngineKind.COMFYUI, "models": ""}, "--models"),
        ({"engine": EngineKind.PROCESS, "arguments": ()}, "no command"),
        ({"engine": EngineKind.PROCESS, "ready": ""}, "readiness"),
        ({"gpus": 65}, "--gpus"),
        ({"gpus": -1}, "--gpus"),
        ({"gpus": 2, "gpu_memory": "1Gi"}, "--gpu-memory"),
        ({"max_replicas": 2}, "--target-concurrency"),
        ({"name": "Not_A_Name"}, "--name"),
    ],
)
def test_what_cannot_be_served_says_what_to_change(fields, part):
    with pytest.raises(UserError, match=part):
        objects(request(**fields))


@given(model=st.text(max_size=80))
def test_a_name_of_a_model_is_a_name_or_refused(model):
    service = request(model=model)
    try:
        manifests = [manifest for _, manifest in objects(service)]
    except UserError:
        return
    names = [manifest["metadata"]["name"] for manifest in manifests]
    assert all(name.startswith(name_of(service)) and len(name) <= 63 for name in names)
    assert name_of(service).isascii()
