"""
The servers that `bidplane serve` knows: images, arguments, ports and paths, after their own
documentation (docs/endpoints.md names the pages). Pure.

Every server listens on the pod's address, which a process node gives it in POD_IP; for a container
`serving` sets POD_IP itself. The readiness path answers once the weights are loaded.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Sequence

import msgspec

from bidplane.api.idling.ladder import QueueKind

MODELS = "/models"  # where the shared volume is, in every pod


class EngineKind(enum.StrEnum):
    LLAMA_CPP = "llama-cpp"
    VLLM = "vllm"
    TENSORRT_LLM = "tensorrt-llm"
    COMFYUI = "comfyui"
    WAN2GP = "wan2gp"
    PROCESS = "process"


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One server."""

    port: int
    ready: str  # a GET here answers 2xx once requests can be served
    image: str = ""  # "" if a person must name one
    ignore: tuple[str, ...] = ()  # what its own page or a monitor asks for all the time
    idle_seconds: int = 300
    queue: QueueKind | None = None  # of one that answers a job at once, and works later
    gpu_percent: int = 0  # idle below that, of one that works later and tells it nowhere
    model_path: str = ""  # where the model's folder is mounted, if not below MODELS


PROFILES: dict[EngineKind, EngineProfile] = {
    EngineKind.LLAMA_CPP: EngineProfile(
        port=8080,
        ready="/health",  # 503 while it loads
        ignore=("/health", "/metrics", "/props", "/slots"),
    ),
    EngineKind.VLLM: EngineProfile(
        image="vllm/vllm-openai:latest",
        port=8000,
        ready="/v1/models",  # /health may answer before the weights are loaded
        ignore=("/health", "/metrics", "/version"),
        idle_seconds=600,
    ),
    EngineKind.TENSORRT_LLM: EngineProfile(
        port=8000,
        ready="/health",
        ignore=("/health", "/metrics", "/version"),
        idle_seconds=600,
    ),
    EngineKind.COMFYUI: EngineProfile(
        port=8188,
        ready="/system_stats",  # it has no other health path
        ignore=("/system_stats", "/queue", "/history"),
        queue=QueueKind.COMFYUI,
        idle_seconds=1800,
    ),
    EngineKind.WAN2GP: EngineProfile(
        port=7860,
        ready="/",  # a Gradio application has no health path
        ignore=("/heartbeat", "/gradio_api/heartbeat", "/assets", "/static"),
        gpu_percent=5,
        idle_seconds=1800,
        model_path="/workspace/ckpts",
    ),
    EngineKind.PROCESS: EngineProfile(port=8080, ready=""),
}

_COMFYUI_FOLDERS = (
    "checkpoints",
    "clip_vision",
    "controlnet",
    "diffusion_models",
    "embeddings",
    "loras",
    "text_encoders",
    "upscale_models",
    "vae",
)


def is_path(engine: EngineKind, model: str) -> bool:
    """Tell if a model is a file or folder of the shared volume, not a name to look up."""
    if engine in (EngineKind.VLLM, EngineKind.TENSORRT_LLM):
        return model.startswith(("/", "./"))
    return True


def model_file(model: str) -> str:
    """Return the path of a model in a pod."""
    return posixpath.normpath(posixpath.join(MODELS, model))


def command(
    engine: EngineKind, model: str, *, port: int, gpus: int, more: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the command and the arguments of a server's container."""
    where = model_file(model) if is_path(engine, model) else model
    address = ["--host", "$(POD_IP)", "--port", str(port)]
    match engine:
        case EngineKind.LLAMA_CPP:
            return [], ["--model", where, *address, *more]
        case EngineKind.VLLM:
            split = ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
            return ["vllm", "serve"], [where, *address, *split, *more]
        case EngineKind.TENSORRT_LLM:
            split = ["--tp_size", str(gpus)] if gpus > 1 else []
            return ["trtllm-serve"], [where, *address, *split, *more]
        case EngineKind.COMFYUI:
            listen = ["--listen", "$(POD_IP)", "--port", str(port), "--disable-auto-launch"]
            paths = ["--extra-model-paths-config", "/etc/bidplane/extra_model_paths.yaml"]
            return ["python", "main.py"], [*listen, *paths, *more]
        case EngineKind.WAN2GP:
            listen = ["--server-name", "$(POD_IP)", "--server-port", str(port)]
            return ["python", "wgp.py"], [*listen, *more]
        case EngineKind.PROCESS:
            return list(more), []


def environment(engine: EngineKind, model: str) -> dict[str, str]:
    """Return the environment of a server's container."""
    if engine is EngineKind.PROCESS:
        return {"MODEL": model_file(model), "PORT": "", "EAGER_LOAD_MODEL": "1"}
    if not is_path(engine, model):
        # The volume is Hugging Face's cache, and is not written to.
        return {"HF_HOME": f"{MODELS}/huggingface", "HF_HUB_OFFLINE": "1"}
    return {}


def comfyui_paths(model: str) -> str:
    """Return ComfyUI's file of model folders, for a folder of the shared volume."""
    lines = ["bidplane:", f"    base_path: {model_file(model)}"]
    return "\n".join([*lines, *(f"    {folder}: {folder}" for folder in _COMFYUI_FOLDERS), ""])
