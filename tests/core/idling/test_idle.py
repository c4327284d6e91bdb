"""Unknown is never idle: what applications answer, and the verdict on it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.idling.ladder import IdleSpec, QueueKind, QueueProbe
from bidplane.core.idling.predicate import Reading, judge, read_answer, read_exit

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %s
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} %s
"""
RUNNING = [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]


def work(kind, body, *, code=200, path="", field=""):
    probe = QueueProbe(kind=kind, path=path, field=field)
    return read_answer(probe, code, body).work


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (QueueKind.OPENAI, VLLM % (b"2.0", b"1.0"), 3),
        (QueueKind.OPENAI, VLLM % (b"0.0", b"0.0"), 0),
        (QueueKind.OPENAI, b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n", 1),
        (QueueKind.OPENAI, b'sglang:num_running_reqs{a="b c"} 4\nsglang:num_queue_reqs 0\n', 4),
        (QueueKind.OPENAI, b"llamacpp:requests_processing 0\n", None),  # half of it
        (QueueKind.OPENAI, VLLM % (b"NaN", b"0.0"), None),
        (QueueKind.OPENAI, b"up 1\n", None),
        (QueueKind.LLAMA_CPP, json.dumps(RUNNING).encode(), 1),
        (QueueKind.LLAMA_CPP, b'[{"id": 0, "is_processing": false}]', 0),
        (QueueKind.LLAMA_CPP, b'[{"id": 0}]', None),
        (QueueKind.LLAMA_CPP, b"[]", None),
        (QueueKind.LLAMA_CPP, b'{"error": {"code": 501}}', None),
        (QueueKind.COMFYUI, b'{"queue_running": [[1]], "queue_pending": [[2], [3]]}', 3),
        (QueueKind.COMFYUI, b'{"queue_running": [], "queue_pending": []}', 0),
        (QueueKind.COMFYUI, b'{"queue_running": []}', None),
        (QueueKind.GRADIO, b'{"msg": "estimation", "queue_size": 2}', 2),
        (QueueKind.GRADIO, b'{"queue_size": 0, "active_jobs": [null, "x"]}', 1),
        (QueueKind.GRADIO, b'{"queue_size": null}', None),
        (QueueKind.GRADIO, b'{"detail": "Not Found"}', None),
    ],
)
def test_what_applications_answer(kind, body, expected):
    assert work(kind, body) == expected
    assert work(kind, body, code=503) is None


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("queue.running", 2),
        ("queue.jobs", 3),
        ("queue.busy", 1),
        ("list.1.n", 7),
        ("queue.none", None),
        ("queue.text", None),
        ("list.9", None),
    ],
)
def test_a_field_of_json(field, expected):
    body = {
        "queue": {"running": 2, "jobs": [1, 2, 3], "busy": True, "text": "0"},
        "list": [{}, {"n": 7}],
    }
    assert work(QueueKind.JSON, json.dumps(body).encode(), path="/s", field=field) == expected


@given(st.sampled_from([kind for kind in QueueKind if kind is not QueueKind.COMMAND]), st.binary())
def test_no_answer_breaks_a_reader(kind, body):
    reading = read_answer(QueueProbe(kind=kind, path="/x", field="a.b"), 200, body)
    assert (reading.work is None) == bool(reading.problem)


@pytest.mark.parametrize(
    ("body", "is_partial"),
    [
        # Of Gradio 6.31, while a job ran and none waited.
        (b'{"msg":"estimation","event_id":null,"rank":null,"queue_size":0,"rank_eta":null}', True),
        (b'{"queue_size": 0, "active_jobs": [null]}', False),
    ],
)
def test_gradios_queue_leaves_out_the_jobs_that_run(body, is_partial):
    reading = read_answer(QueueProbe(kind=QueueKind.GRADIO), 200, body)
    assert (reading.work, reading.is_partial) == (0.0, is_partial)


def test_exit_codes():
    assert [read_exit(code).work for code in (0, 1, 2, 127)] == [0, 1, None, None]


QUEUE = IdleSpec(queue=QueueProbe(kind=QueueKind.COMFYUI))
GPU = IdleSpec(gpu_percent=5)
GRADIO = IdleSpec(queue=QueueProbe(kind=QueueKind.GRADIO))
GRADIO_AND_GPU = IdleSpec(queue=QueueProbe(kind=QueueKind.GRADIO), gpu_percent=5)
WAITING_ONLY = Reading(0.0, is_partial=True)


@pytest.mark.parametrize(
    ("spec", "readings", "percents", "reason"),
    [
        (IdleSpec(), [], [], ""),
        (QUEUE, [], [], "QueueUnknown"),
        (QUEUE, [Reading(0.0), Reading(None, "gone")], [], "QueueUnknown"),
        (QUEUE, [Reading(0.0), Reading(1.0)], [], "QueueBusy"),
        (QUEUE, [Reading(0.0)], [], ""),
        (GPU, [], [], "GpuUnknown"),
        (GPU, [], [0.0, None], "GpuUnknown"),
        (GPU, [], [0.0, 5.0], "GpuBusy"),
        (GPU, [], [0.0, 4.9], ""),
        (GRADIO, [WAITING_ONLY], [], "QueueUnknown"),
        (GRADIO, [Reading(2.0, is_partial=True)], [], "QueueBusy"),
        (GRADIO_AND_GPU, [WAITING_ONLY], [0.0], ""),
        (GRADIO_AND_GPU, [WAITING_ONLY], [50.0], "GpuBusy"),
    ],
)
def test_unknown_is_never_idle(spec, readings, percents, reason):
    verdict = judge(spec, readings, percents)
    assert verdict.idle == (not reason)
    assert verdict.reason.partition(":")[0] == reason
