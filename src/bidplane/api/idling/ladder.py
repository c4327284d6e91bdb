"""
The idle ladder of an Endpoint: the rungs between ready and released, and when a service is idle.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar

import msgspec

Command = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(max_length=32)
]
Window = Annotated[int, msgspec.Meta(ge=1, le=30 * 86400)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_PATH = {"pattern": "^(/[^#\\s]*)?$", "maxLength": 1024}
_PRICE = {"pattern": "^[0-9]{1,9}([.][0-9]{1,6})?$"}


class Rung(enum.StrEnum):
    """A service's place on the ladder, or its way between two places."""

    READY = "Ready"
    FALLING_ASLEEP = "FallingAsleep"  # it was told to sleep
    ASLEEP = "Asleep"  # its pods and leases stay; its model has left the GPU's memory
    ROUSING = "Rousing"  # it was told to wake
    STOPPED = "Stopped"  # no pod; the lease is kept
    RELEASED = "Released"  # no pod, no lease
    STARTING = "Starting"  # its pods are to be started


class SleepKind(enum.StrEnum):
    """The servers that can free a GPU's memory and stay, each by its own API."""

    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"  # it falls asleep by itself: --sleep-idle-seconds
    COMFYUI = "comfyui"
    COMMAND = "command"


class OnSleepFailure(enum.StrEnum):
    """The rung of a service that did not fall asleep."""

    STOP = "stop"  # the next one below
    STAY = "stay"  # ready, for another window


class SleepRung(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The way in which a service sleeps while its pods and leases stay."""

    VALIDATIONS: ClassVar[list[dict[str, Any]]] = [
        {
            "rule": "self.kind != 'command' || (has(self.sleepCommand) && has(self.wakeCommand)"
            " && size(self.sleepCommand) > 0 && size(self.wakeCommand) > 0)",
            "message": "kind: command needs sleepCommand and wakeCommand",
        },
    ]

    kind: SleepKind
    level: Annotated[int, msgspec.Meta(ge=1, le=2)] = 1  # of vLLM; 2 discards the weights
    port: Port = 0  # of the pod, for its API; 0 is the target's
    sleep_command: Command = ()
    wake_command: Command = ()
    container: str = ""  # of the commands; "" is the pod's first
    seconds: Window = 900  # asleep without a request for so long, it takes the next rung
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60  # to fall asleep, or to wake
    on_failure: OnSleepFailure = OnSleepFailure.STOP


class AutoWindows(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Windows computed from cold starts, arrivals and the price, in place of fixed ones."""

    VALIDATIONS: ClassVar[list[dict[str, Any]]] = [
        {
            "rule": "!has(self.leastSeconds) || !has(self.mostSeconds)"
            " || self.leastSeconds <= self.mostSeconds",
            "message": "leastSeconds is above mostSeconds: exchange them",
        },
    ]

    least_seconds: Window = 30
    most_seconds: Window = 3600
    # Credits per hour that a client's waiting for a cold start is worth avoiding.
    wait_price: Annotated[str, msgspec.Meta(extra_json_schema=_PRICE)] = "10"


class LadderSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The rungs below ready. Without any, an idle service is released."""

    sleep: SleepRung | None = None
    # Stopped: so long its lease is kept without a pod. 0 leaves this rung out.
    keep_lease_seconds: Annotated[int, msgspec.Meta(ge=0, le=30 * 86400)] = 0
    auto: AutoWindows | None = None


class QueueKind(enum.StrEnum):
    """The adapters that read an application's own queue."""

    OPENAI = "openai"  # Prometheus metrics of vLLM, SGLang, TGI, llama.cpp
    LLAMA_CPP = "llama.cpp"  # GET /slots
    COMFYUI = "comfyui"  # GET /queue
    GRADIO = "gradio"  # Gradio, Wan2GP
    JSON = "json"  # a number or a list at `field`
    COMMAND = "command"  # exit 0 is idle, 1 is busy; another one is unknown


class QueueProbe(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The application's own queue: it is idle only if that is empty."""

    VALIDATIONS: ClassVar[list[dict[str, Any]]] = [
        {
            "rule": "self.kind != 'json' || (has(self.path) && self.path != '')",
            "message": "kind: json needs a path",
        },
        {
            "rule": "self.kind != 'command' || (has(self.command) && size(self.command) > 0)",
            "message": "kind: command needs a command",
        },
    ]

    kind: QueueKind
    path: Annotated[str, msgspec.Meta(extra_json_schema=_PATH)] = ""  # "" is the kind's own
    port: Port = 0  # of the pod; 0 is the target's
    field: Annotated[str, msgspec.Meta(max_length=256)] = ""  # of `json`: "queue.running"
    command: Command = ()
    container: str = ""


class IdleSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The signals beside the requests that must be quiet. Unknown is never idle."""

    queue: QueueProbe | None = None
    # Its GPUs work for less than so many percent of the time; 0 does not ask them.
    gpu_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0


class WakeTimes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The milliseconds that the last wake from each rung took; 0 is not known."""

    asleep: int = 0
    stopped: int = 0
    released: int = 0


class LadderWindows(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The windows of the rungs, in seconds; 0 for a rung that the ladder does not have."""

    ready: int = 0
    asleep: int = 0
    stopped: int = 0


class LadderStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A service's place on its ladder, by the activator alone."""

    rung: Rung = Rung.READY
    since: str = ""
    holds: str = ""  # what it still holds there
    windows: LadderWindows = LadderWindows()
    wake: WakeTimes = WakeTimes()
    idle: str = ""  # why it was not idle when its window ended
    problem: str = ""  # the last step that failed, by name
    message: str = ""  # what happened in it


class HoldingStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The leases that a service holds, and their rent, by the endpoint controller alone."""

    leases: tuple[str, ...] = ()
    devices: int = 0
    paid_per_hour: str = ""  # credits
    keeps_lease: bool = False  # a Bid of the Endpoint keeps them without a pod
    message: str = ""  # why none is kept, where one should be
