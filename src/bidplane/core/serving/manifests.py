"""
The objects of a service that sleeps: claim template, Deployment, Service and Endpoint. Pure.

`objects` is what `bidplane serve` prints or applies.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT,
    RESOURCE_CLAIM_TEMPLATE,
    SERVICE,
    Draft,
    Kind,
)
from bidplane.core.serving import engines
from bidplane.core.serving.engines import PROFILES, EngineKind
from bidplane.errors import UserError

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")
_READY_FAILURES = 40  # weights may take minutes


class ServiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A service, as somebody asks for it."""

    engine: EngineKind
    model: str
    name: str = ""
    image: str = ""
    port: int = 0
    ready: str = ""
    gpus: int = 1
    gpu_memory: str = ""  # of one GPU, in place of a whole one: "18Gi"
    idle_seconds: int = 0
    max_replicas: int = 1
    target_concurrency: int = 0
    hosts: tuple[str, ...] = ()
    models: str = "models"  # the volume claim with the models; "" is none
    max_price: str = ""
    pool: str = ""
    env: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()


def name_of(request: ServiceRequest) -> str:
    """Return the name of a service; by default its model's, as far as a name can have it."""
    if request.name:
        return request.name
    stem = posixpath.basename(request.model.rstrip("/")).lower()
    stem = re.sub(r"\.(gguf|safetensors|bin|py)$", "", stem)
    text = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return text if _NAME.fullmatch(text) else f"{request.engine}-{text}".rstrip("-")


def objects(request: ServiceRequest) -> list[tuple[Kind, Draft]]:
    """Return the objects, in the order to apply them; `UserError` if the request cannot be met."""
    _check(request)
    name = name_of(request)
    manifests: list[tuple[Kind, Draft]] = []
    if request.gpus:
        manifests.append((RESOURCE_CLAIM_TEMPLATE, _claim_template(request, name)))
    if request.engine is EngineKind.COMFYUI and request.models:
        paths = {"extra_model_paths.yaml": engines.comfyui_paths(request.model)}
        manifests.append((CONFIG_MAP, {**_head(CONFIG_MAP, f"{name}-paths"), "data": paths}))
    manifests.append((DEPLOYMENT, _deployment(request, name)))
    manifests.append((SERVICE, _service(request, name)))
    manifests.append((ENDPOINT, _endpoint(request, name)))
    return manifests


def _check(request: ServiceRequest) -> None:
    name = name_of(request)
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name for a service: give one, as --name render")
    if not (request.image or PROFILES[request.engine].image):
        raise UserError(
            f"{request.engine} needs --image: name the one that you trust, as"
            f" --image registry.example/{request.engine}:1"
        )
    if request.engine is EngineKind.PROCESS and not request.arguments:
        raise UserError(
            "no command: write it after --, as in bidplane serve process tiny.gguf --image tools"
            " -- python3 server.py"
        )
    if request.engine is EngineKind.PROCESS and not request.ready:
        raise UserError("no readiness path: name one that answers 2xx once the model is loaded")
    if not 0 <= request.gpus <= 64:
        raise UserError(f"--gpus {request.gpus}: use 0 to 64")
    if request.gpu_memory and request.gpus != 1:
        raise UserError("--gpu-memory asks for a part of one GPU: leave out --gpus")
    if request.max_replicas > 1 and not request.target_concurrency:
        raise UserError("--max-replicas needs --target-concurrency: requests for each replica")
    if not request.models and request.engine is EngineKind.COMFYUI:
        raise UserError("comfyui reads its models from the shared volume: name it with --models")


def _head(kind: Kind, name: str) -> Draft:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}


def _claim_template(request: ServiceRequest, name: str) -> Draft:
    device_class = labels.DEVICE_CLASS if request.gpu_memory else labels.NVIDIA_GPU_CLASS
    # With its defaults, so that `kubectl apply` finds nothing to change later.
    exactly: Draft = {"deviceClassName": device_class, "allocationMode": "ExactCount"}
    exactly["count"] = request.gpus
    if request.gpu_memory:
        exactly["capacity"] = {"requests": {"memory": request.gpu_memory}}
    devices: Draft = {"requests": [{"name": "gpus", "exactly": exactly}]}
    if request.gpus > 1:
        devices["constraints"] = [{"matchAttribute": labels.LINK_DOMAIN_ATTRIBUTE}]
    head = _head(RESOURCE_CLAIM_TEMPLATE, f"{name}-gpus")
    return {**head, "spec": {"spec": {"devices": devices}}}


def _deployment(request: ServiceRequest, name: str) -> Draft:
    template: Draft = {"metadata": {"labels": {"app": name}}, "spec": _pod(request, name)}
    notes = {labels.MAX_PRICE: request.max_price, labels.POOL: request.pool}
    if any(notes.values()):
        template["metadata"]["annotations"] = {key: text for key, text in notes.items() if text}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {**_head(DEPLOYMENT, name), "spec": spec}


def _pod(request: ServiceRequest, name: str) -> Draft:
    container, pod = _container(request), Draft(terminationGracePeriodSeconds=30)
    profile = PROFILES[request.engine]
    volumes: list[Draft] = []
    mounts: list[Draft] = []
    if request.models:
        source = {"claimName": request.models, "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": source})
        mount: Draft = {"name": "models", "mountPath": engines.MODELS, "readOnly": True}
        if profile.model_path:
            mount |= {"mountPath": profile.model_path, "subPath": request.model.strip("./")}
        mounts.append(mount)
    if request.engine is EngineKind.COMFYUI:
        volumes.append({"name": "paths", "configMap": {"name": f"{name}-paths"}})
        mounts.append({"name": "paths", "mountPath": "/etc/bidplane", "readOnly": True})
    if volumes:
        container["volumeMounts"], pod["volumes"] = mounts, volumes
    if request.gpus:
        container["resources"] = {"claims": [{"name": "gpus"}]}
        pod["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": f"{name}-gpus"}]
    return {**pod, "containers": [container]}


def _container(request: ServiceRequest) -> Draft:
    profile, port = PROFILES[request.engine], _port(request)
    command, arguments = engines.command(
        request.engine, request.model, port=port, gpus=request.gpus, more=request.arguments
    )
    variables = {**engines.environment(request.engine, request.model), **request.env}
    if not request.models:
        variables.pop("MODEL", None)
    if "PORT" in variables:
        variables["PORT"] = variables["PORT"] or str(port)
    env: list[Draft] = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    ]
    env.extend({"name": name, "value": value} for name, value in variables.items())
    container: Draft = {"name": "main", "image": request.image or profile.image, "env": env}
    if command:
        container["command"] = command
    if arguments:
        container["args"] = arguments
    container["ports"] = [{"name": "http", "containerPort": port}]
    container["readinessProbe"] = {
        "httpGet": {"path": _ready(request), "port": "http"},
        "periodSeconds": 3,
        "failureThreshold": _READY_FAILURES,
    }
    return container


def _service(request: ServiceRequest, name: str) -> Draft:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {**_head(SERVICE, name), "spec": {"selector": {"app": name}, "ports": ports}}


def _endpoint(request: ServiceRequest, name: str) -> Draft:
    profile = PROFILES[request.engine]
    spec: Draft = {
        "target": {"deployment": name, "service": name, "portName": "http"},
        "idleSeconds": request.idle_seconds or profile.idle_seconds,
        "probePath": _ready(request),
    }
    if profile.ignore:
        spec["ignorePaths"] = list(profile.ignore)
    if profile.queue is not None:
        spec["idle"] = {"queue": {"kind": profile.queue.value}}
    if profile.gpu_percent and request.gpus:
        spec["idle"] = {"gpuPercent": profile.gpu_percent}
    if request.hosts:
        spec["hosts"] = list(request.hosts)
    if request.max_replicas > 1:
        spec["maxReplicas"] = request.max_replicas
        spec["targetConcurrency"] = request.target_concurrency
    return {**_head(ENDPOINT, name), "spec": spec}


def _port(request: ServiceRequest) -> int:
    return request.port or PROFILES[request.engine].port


def _ready(request: ServiceRequest) -> str:
    return request.ready or PROFILES[request.engine].ready
