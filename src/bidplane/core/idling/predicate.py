"""
Is a service idle? A predicate over its requests, its application's own queue, and its GPUs. Pure.

Each reader takes the bytes that an application answered and returns the work that it has, or None
where the answer does not say. Unknown is never idle: a service stays ready, and its status says
what could not be read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bidplane.api.idling.ladder import IdleSpec, QueueKind, QueueProbe

MOST_BYTES = 4 << 20  # of an answer


class Verdict(msgspec.Struct, frozen=True):
    """Idle, or why not."""

    idle: bool
    reason: str = ""  # "" if it is idle


class Reading(msgspec.Struct, frozen=True):
    """The work that one pod's application reports; None is unknown, and `problem` says why."""

    work: float | None
    problem: str = ""
    is_partial: bool = False  # it has the work that waits, and not that which runs


# The gauges of requests that run or wait, by server. Any of them will do; all that are there count.
_GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "tgi_queue_size",
    "tgi_batch_current_size",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
)
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)")
_WAITING_ONLY = (
    "it tells the jobs that wait, and not the one that runs: set idle.gpuPercent, too, or use a"
    " queue of kind json or command"
)
# A queue is read only where both halves are: what runs without what waits is not enough.
_PAIRS = tuple(zip(_GAUGES[::2], _GAUGES[1::2], strict=True))
DEFAULT_PATHS = {
    QueueKind.OPENAI: "/metrics",
    QueueKind.LLAMA_CPP: "/slots",
    QueueKind.COMFYUI: "/queue",
    QueueKind.GRADIO: "/queue/status",
}


def read_openai(body: bytes) -> float | None:
    """Return the requests that run or wait, from a page of Prometheus metrics."""
    totals: dict[str, float] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[1] not in _GAUGES:
            continue
        try:
            value = float(sample[2])
        except ValueError:
            return None
        if not math.isfinite(value):
            return None
        totals[sample[1]] = totals.get(sample[1], 0.0) + value
    complete = [pair for pair in _PAIRS if all(name in totals for name in pair)]
    return sum(totals[name] for pair in complete for name in pair) if complete else None


def read_slots(body: bytes) -> float | None:
    """Return the slots of llama.cpp that work."""
    slots = _json(body)
    if not isinstance(slots, list) or not slots:
        return None
    states = [slot.get("is_processing") if isinstance(slot, dict) else None for slot in slots]
    if any(not isinstance(state, bool) for state in states):
        return None
    return float(sum(state is True for state in states))


def read_comfyui(body: bytes) -> float | None:
    """Return the prompts of ComfyUI that run or wait."""
    queue = _json(body)
    if not isinstance(queue, dict):
        return None
    halves = [queue.get("queue_running"), queue.get("queue_pending")]
    if any(not isinstance(half, list) for half in halves):
        return None
    return float(sum(len(half) for half in halves if isinstance(half, list)))


def read_gradio(body: bytes) -> float | None:
    """Return the events of a Gradio app that wait, and those that run if it tells them."""
    status = _json(body)
    if not isinstance(status, dict):
        return None
    size = _number(status.get("queue_size"))
    if size is None:
        return None
    active = status.get("active_jobs")
    running = sum(job is not None for job in active) if isinstance(active, list) else 0
    return size + running


def read_field(body: bytes, field: str) -> float | None:
    """Return the number, or the length of the list, at a dotted path of a JSON answer."""
    value = _json(body)
    for part in field.split(".") if field else ():
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    if isinstance(value, list | dict):
        return float(len(value))
    if isinstance(value, bool):
        return float(value)
    return _number(value)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


_READERS: Mapping[QueueKind, Callable[[bytes], float | None]] = {
    QueueKind.OPENAI: read_openai,
    QueueKind.LLAMA_CPP: read_slots,
    QueueKind.COMFYUI: read_comfyui,
    QueueKind.GRADIO: read_gradio,
}


def read_answer(probe: QueueProbe, code: int, body: bytes) -> Reading:
    """Return the work in an application's answer."""
    path = path_of(probe)
    if code != 200:
        return Reading(None, f"GET {path} answered {code}")
    if len(body) > MOST_BYTES:
        return Reading(None, f"GET {path} answered more than {MOST_BYTES >> 20} MiB")
    if probe.kind is QueueKind.JSON:
        work = read_field(body, probe.field)
    else:
        work = _READERS[probe.kind](body)
    if work is None:
        return Reading(None, f"GET {path} does not tell a queue of kind {probe.kind.value}")
    is_partial = probe.kind is QueueKind.GRADIO and b'"active_jobs"' not in body
    return Reading(work, is_partial=is_partial)


def read_exit(code: int) -> Reading:
    """Return the work that a command reports by its exit code."""
    if code in (0, 1):
        return Reading(float(code))
    return Reading(None, f"its command ended with exit code {code}, which is neither 0 nor 1")


def path_of(probe: QueueProbe) -> str:
    """Return the path at which an application tells its queue."""
    return probe.path or DEFAULT_PATHS.get(probe.kind, "")


def judge(
    spec: IdleSpec, readings: Iterable[Reading], gpu_percents: Iterable[float | None]
) -> Verdict:
    """
    Return the verdict on a service that nobody has sent a request for its window: one reading for
    each of its pods, and the use of each of its GPUs.
    """
    if spec.queue is not None:
        answers = list(readings)
        if not answers:
            return Verdict(False, "QueueUnknown: it has no pod to ask")
        for reading in answers:
            if reading.work is None:
                return Verdict(False, f"QueueUnknown: {reading.problem}")
        work = sum(reading.work or 0.0 for reading in answers)
        if work > 0:
            return Verdict(False, f"QueueBusy: its application has {work:g} jobs")
        if any(reading.is_partial for reading in answers) and not spec.gpu_percent:
            return Verdict(False, f"QueueUnknown: {_WAITING_ONLY}")
    if spec.gpu_percent:
        percents = list(gpu_percents)
        reported = [percent for percent in percents if percent is not None]
        if not percents or len(reported) < len(percents):
            return Verdict(False, "GpuUnknown: no counter tells what its GPUs do")
        if max(reported) >= spec.gpu_percent:
            return Verdict(False, f"GpuBusy: a GPU works {max(reported):.0f} % of the time")
    return Verdict(True)
