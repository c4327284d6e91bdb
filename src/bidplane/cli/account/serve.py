"""`bidplane serve`: a service that sleeps, as objects of an agent's plane."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

import yaml
from cyclopts import Parameter

from bidplane.api.kinds import CONFIG_MAP, DEPLOYMENT, RESOURCE_CLAIM_TEMPLATE, Draft, Kind
from bidplane.cli.common import console
from bidplane.client import AsyncClient
from bidplane.core.serving.engines import EngineKind
from bidplane.core.serving.manifests import ServiceRequest, name_of, objects
from bidplane.errors import AlreadyExists, UserError
from bidplane.kube.client import KubeClient

Kubeconfig = Annotated[
    Path | None,
    Parameter(help="The agent's kubeconfig; else $BIDPLANE_KUBECONFIG or $KUBECONFIG."),
]
# As `EngineKind`, which the command line would spell by its members' names.
EngineName = Literal["llama-cpp", "vllm", "tensorrt-llm", "comfyui", "wan2gp", "process"]


def serve(
    engine: EngineName,
    model: str,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    name: str = "",
    image: str = "",
    gpus: int = 1,
    gpu_memory: str = "",
    idle: int = 0,
    models: str = "models",
    port: int = 0,
    ready: str = "",
    host: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    max_replicas: int = 1,
    target_concurrency: int = 0,
    max_price: str = "",
    pool: str = "",
    env: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """
    Serve a model that holds a GPU only while somebody uses it.

    Writes a claim template, a Deployment, a Service and an Endpoint into the agent's plane. The
    models are in a shared volume, mounted read-only at /models; the owner of the nodes provides it
    (--volumes of `bidplane node`, or a claim in the agent's namespace).

    For example:
        bidplane serve llama-cpp smollm2.gguf --image tools --kubeconfig mine.kubeconfig
        bidplane serve vllm Qwen/Qwen3-8B --gpus 2 --idle 900 -- --max-model-len 8192
        bidplane serve comfyui sdxl --image registry.example/comfyui:1 --dry-run
        bidplane serve process tiny.gguf --image tools --ready /health -- python3 serve.py

    Args:
        engine: The server.
        model: A file or folder of the shared volume; for vllm and tensorrt-llm also a name of
            Hugging Face, whose cache is then /models/huggingface.
        arguments: More arguments for the server, after --; for process, the command itself.
        name: The name of the service; else the model's.
        image: The container's image; for vllm else vllm/vllm-openai:latest.
        gpus: GPUs of one link; 0 is none.
        gpu_memory: A part of one GPU with so much memory, as 18Gi.
        idle: Seconds without a request until it sleeps; else the engine's default.
        models: The volume claim with the models; "" is none.
        port: The port that the server listens on; else its default.
        ready: The path that answers once the weights are loaded; else the engine's.
        host: A host name, delegated to the agent; may be given more than once.
        max_replicas: Replicas at most, by traffic.
        target_concurrency: Requests in flight for each replica.
        max_price: The most to pay, in credits per GPU-hour.
        pool: The pool to buy from; else the exchange chooses.
        env: NAME=VALUE for the server; may be given more than once.
        dry_run: Print the objects as YAML, and apply nothing.
    """
    request = ServiceRequest(
        engine=EngineKind(engine),
        model=model,
        name=name,
        image=image,
        port=port,
        ready=ready,
        gpus=gpus,
        gpu_memory=gpu_memory,
        idle_seconds=idle,
        max_replicas=max_replicas,
        target_concurrency=target_concurrency,
        hosts=host,
        models=models,
        max_price=max_price,
        pool=pool,
        env=_environment(env),
        arguments=arguments,
    )
    pairs = objects(request)
    if dry_run:
        yaml.safe_dump_all([manifest for _, manifest in pairs], sys.stdout, sort_keys=False)
        return
    asyncio.run(_apply(pairs, kubeconfig))
    service = name_of(request)
    console.print(f"{service} sleeps until its first request. Its name is in the column HOST of")
    console.print("    kubectl get endpoints.bidplane.dev")


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise UserError(f"--env {pair}: write NAME=VALUE")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


async def _apply(pairs: list[tuple[Kind, Draft]], kubeconfig: Path | None) -> None:
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        for kind, manifest in pairs:
            await apply_object(client.kube, kind, manifest, client.namespace)
            console.print(f"{kind.kind} {manifest['metadata']['name']}", markup=False)


async def apply_object(kube: KubeClient, kind: Kind, manifest: Draft, namespace: str) -> None:
    """Create an object, or change it to what it would be."""
    name = manifest["metadata"]["name"]
    try:
        await kube.create(kind, manifest, namespace)
        return
    except AlreadyExists:
        current = await kube.get(kind, name, namespace)
    if kind is RESOURCE_CLAIM_TEMPLATE:  # it never changes
        await kube.delete(kind, name, namespace, uid=current["metadata"]["uid"])
        await kube.create(kind, manifest, namespace)
        return
    part = "data" if kind is CONFIG_MAP else "spec"
    content = dict(manifest[part])
    if kind is DEPLOYMENT:
        content["replicas"] = current["spec"].get("replicas", 0)  # its Endpoint's to set
    await kube.replace(kind, {**current, part: content})
