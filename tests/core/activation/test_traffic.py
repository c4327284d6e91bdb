"""Wakes within their rate, and holds in order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import EndpointSpec, EndpointTarget, Heartbeat, WakeRules
from bidplane.core.activation.holds import HoldQueue
from bidplane.core.activation.streams import ANTHROPIC, OPENAI, error_body, form_of
from bidplane.core.activation.traffic import WakeBudget, counts_as_use, retry_after, wake_problem

TARGET = EndpointTarget(deployment="a", service="a")


@given(st.integers(1, 3600), st.lists(st.floats(0, 4000), max_size=60))
def test_wakes_never_exceed_the_rate_and_the_wait_is_true(per_hour, pauses):
    now, taken = 0.0, []
    budget = WakeBudget(per_hour, now=now)
    for pause in pauses:
        now += pause
        wait = budget.take(now)
        if wait == 0:
            taken.append(now)
        else:
            assert budget.take(now + wait) == 0, "what it says is long enough"
            now += wait
            taken.append(now)
    burst = min(5, per_hour)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            allowed = burst + (taken[last] - taken[first]) * per_hour / 3600
            assert last - first + 1 <= allowed + 1e-6


def test_a_burst_of_wakes_is_followed_by_one_for_each_interval():
    budget = WakeBudget(60, now=0.0)
    assert [budget.take(0.0) for _ in range(6)] == [0, 0, 0, 0, 0, 60]
    assert [budget.take(90.0), budget.take(90.0)] == [0, 30]
    assert [budget.take(4000.0) for _ in range(6)] == [0, 0, 0, 0, 0, 60], "no more than a burst"


def test_paths_that_wake():
    listed = EndpointSpec(target=TARGET, wake=WakeRules(paths=("/healthz", "/v1")))
    # A path that its owner lists wakes, whatever it looks like.
    assert not wake_problem(listed, b"GET", b"/healthz", b"kube-probe/1")
    assert wake_problem(listed, b"HEAD", b"/v1", b"")
    assert wake_problem(listed, b"GET", b"/", b"")
    anywhere = EndpointSpec(target=TARGET, ignore_paths=("/ws",))
    assert not wake_problem(anywhere, b"GET", b"/", b"Mozilla/5.0")
    assert not wake_problem(anywhere, b"GET", b"/wsx", b"")
    assert wake_problem(anywhere, b"GET", b"/ws/1", b"")
    assert not counts_as_use(anywhere, b"GET", b"/ws/1", b"")
    assert counts_as_use(anywhere, b"GET", b"/a", b"")


def test_retry_after_is_at_least_a_second():
    assert retry_after(10, 3.2) == 7
    assert retry_after(10, 30) == 1


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "expire"]), st.integers(0, 5))))
def test_holds_are_bounded_and_leave_in_order(steps):
    queue, now = HoldQueue(3), 0.0
    model: list[tuple[int, float]] = []
    for verb, number in steps:
        now += 1
        if verb == "add" and number not in queue:
            assert queue.add(number, now) == (len(model) < 3)
            if len(model) < 3:
                model.append((number, now))
        elif verb == "remove":
            removed = [since for key, since in model if key == number]
            assert queue.remove(number) == (removed[0] if removed else None)
            model = [entry for entry in model if entry[0] != number]
        elif verb == "expire":
            expired = [key for key, since in model if now - since >= number]
            assert queue.pop_expired(now, number) == expired
            model = [entry for entry in model if entry[0] not in expired]
        assert list(queue.since()) == model


@pytest.mark.parametrize(
    ("path", "accept", "body", "form"),
    [
        (b"/v1/chat/completions", b"", b'{"stream": true}', OPENAI),
        (b"/v1/responses", b"", b'{"stream":true}', OPENAI),
        (b"/v1/messages", b"", b'{"stream": true}', ANTHROPIC),
        (b"/v1/chat/completions", b"", b'{"stream": false}', None),
        (b"/v1/chat/completions", b"", b'{"prompt": "\\"stream\\": true"}', None),
        (b"/v1/chat/completions", b"", b'{"stream": true', None),
        (b"/v1/chat/completions", b"text/event-stream", b"", OPENAI),
        (b"/other", b"text/event-stream", b"", None),
    ],
)
def test_heartbeats_by_path_for_requests_that_ask_for_a_stream(path, accept, body, form):
    arguments = {"accept": accept, "content_type": b"application/json", "body": body}
    assert form_of(Heartbeat.AUTO, path, **arguments) == form
    assert form_of(Heartbeat.NONE, path, **arguments) is None
    if form is not None:
        assert form_of(Heartbeat.ANTHROPIC, path, **arguments) is ANTHROPIC


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        (
            b"/v1/chat/completions",
            503,
            {"error": {"message": "no", "type": "server_error", "code": "service_unavailable"}},
        ),
        (
            b"/v1/embeddings",
            429,
            {"error": {"message": "no", "type": "requests", "code": "rate_limit_exceeded"}},
        ),
        (
            b"/v1/messages",
            504,
            {"type": "error", "error": {"type": "timeout_error", "message": "no"}},
        ),
        (b"/v1/messages", 503, {"type": "error", "error": {"type": "api_error", "message": "no"}}),
        (b"/v1/messages/1", 503, None),
        (b"/", 503, None),
    ],
)
def test_errors_have_the_form_of_the_paths_protocol(path, status, body):
    text = error_body(path, status, "no\n")
    assert (json.loads(text) if text is not None else None) == body
