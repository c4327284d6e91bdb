"""KEDA's fields: each is honoured, or refused by its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import FallbackTarget, HeaderMatch, OnCold, TargetRate
from bidplane.core.activation.keda import (
    seconds_of,
    translate_route,
    translate_scaled_object,
)
from bidplane.core.activation.routes import RouteTable, rules_of

# As the add-on's reference has it, without what is refused.
REFERENCE = {
    "hosts": ["myhost.com", "other.com"],
    "pathPrefixes": ["/test"],
    "headers": [{"name": "X-Custom-Header", "value": "CustomValue"}, {"name": "X-Any"}],
    "scaleTargetRef": {
        "name": "xkcd",
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "service": "xkcd",
        "port": 8080,
    },
    "replicas": {"min": 5, "max": 10},
    "scaledownPeriod": 1800,
    "initialCooldownPeriod": 60,
    "scalingMetric": {"requestRate": {"granularity": "5s", "targetValue": 20, "window": "1m30s"}},
    "timeouts": {"conditionWait": "2m", "responseHeader": "1500ms"},
}
TARGET = {"name": "a", "service": "a", "port": 80}
ROUTE = {
    "target": {"service": "web", "port": 80},
    "scalingMetric": {"concurrency": {"targetValue": 7}},
}
WEB = {"spec": {"selector": {"app": "web"}}}


def scaled_object(annotations=None, **spec):
    spec.setdefault("scaleTargetRef", TARGET)
    return {"metadata": {"name": "a", "annotations": annotations or {}}, "spec": spec}


def deployment(name, **labels):
    template = {"metadata": {"labels": labels}}
    return {"metadata": {"name": name}, "spec": {"template": template}}


def route(service=WEB, deployments=None, **spec):
    obj = {"metadata": {"name": "a"}, "spec": {**ROUTE, **spec}}
    return translate_route(obj, service, deployments or [deployment("web-1", app="web", tier="x")])


def test_every_field_of_the_reference_is_honoured():
    translation = translate_scaled_object(scaled_object(**REFERENCE))
    assert translation.problems == ()
    assert (translation.workload, translation.service) == ("apps/v1/Deployment/xkcd", "xkcd:8080")
    spec = translation.spec
    assert (spec.target.deployment, spec.target.service, spec.target.port) == ("xkcd", "xkcd", 8080)
    assert spec.hosts == ("myhost.com", "other.com")
    assert spec.path_prefixes == ("/test",)
    assert spec.headers == (
        HeaderMatch(name="X-Custom-Header", value="CustomValue"),
        HeaderMatch(name="X-Any"),
    )
    assert (spec.replicas, spec.max_replicas, spec.always_awake) == (5, 10, True)
    assert (spec.idle_seconds, spec.initial_seconds) == (1800, 60)
    rate = TargetRate(per_second=20, window_seconds=90, granularity_seconds=5)
    assert (spec.target_rate, spec.target_concurrency) == (rate, 0)
    assert (spec.hold_seconds, spec.response_seconds) == (120, 2)


def test_the_defaults_are_the_add_ons():
    spec = translate_scaled_object(scaled_object()).spec
    assert (spec.replicas, spec.max_replicas, spec.always_awake) == (1, 100, False)
    assert (spec.idle_seconds, spec.target_concurrency, spec.target_rate) == (300, 100, None)
    rate = translate_scaled_object(scaled_object(scalingMetric={"requestRate": {}})).spec
    assert rate.target_rate == TargetRate(per_second=100, window_seconds=60, granularity_seconds=1)


def test_the_older_shapes_are_read():
    older = {"deployment": "xkcd", "service": "web", "port": 8080, "targetPendingRequests": 7}
    spec = translate_scaled_object(scaled_object(scaleTargetRef=older, host="a.test")).spec
    assert (spec.target.deployment, spec.target.service) == ("xkcd", "web")
    assert (spec.hosts, spec.target_concurrency) == (("a.test",), 7)
    assert (
        translate_scaled_object(scaled_object(targetPendingRequests=9)).spec.target_concurrency == 9
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"hosts": ["*.example.com"]}, "hosts"),
        (
            {"coldStartTimeoutFailoverRef": {"service": "b", "port": 1, "timeoutSeconds": 4000}},
            "coldStartTimeoutFailoverRef",
        ),
        ({"scaleTargetRef": {"service": "a", "port": 1}}, "scaleTargetRef.name"),
        ({"scaleTargetRef": {**TARGET, "kind": "StatefulSet"}}, "scaleTargetRef.kind"),
        ({"scaleTargetRef": {**TARGET, "apiVersion": "apps/v2"}}, "scaleTargetRef.kind"),
        ({"scaleTargetRef": {**TARGET, "deployment": "b"}}, "scaleTargetRef.deployment"),
        ({"replicas": {"max": 500}}, "replicas.max"),
        ({"replicas": {"max": 0}}, "replicas.max"),
        ({"replicas": {"min": 3, "max": 2}}, "replicas.max"),
        ({"scalingMetric": {"concurrency": {}, "requestRate": {}}}, "scalingMetric"),
        ({"scalingMetric": {"requestRate": {"window": "2h"}}}, "scalingMetric.requestRate.window"),
        (
            {"scalingMetric": {"requestRate": {"granularity": "500ms"}}},
            "scalingMetric.requestRate.granularity",
        ),
        ({"timeouts": {"conditionWait": "soon"}}, "timeouts.conditionWait"),
        ({"timeouts": {"responseHeader": "11m"}}, "timeouts.responseHeader"),
        ({"headers": [{"name": "X", "value": ""}]}, "headers"),
        ({"placeholderConfig": {"enabled": True}}, "placeholderConfig"),
        ({"replicas": {"idle": 1}}, "replicas.idle"),
        ({"headers": [{"name": "X", "regex": "y"}]}, "headers[0].regex"),
    ],
)
def test_what_an_endpoint_cannot_keep_is_refused_by_name(fields, name):
    translation = translate_scaled_object(scaled_object(**fields))
    assert translation.spec is None
    assert any(problem.startswith(f"{name}:") for problem in translation.problems), translation


def test_an_annotation_that_leaves_the_scaling_to_others_is_refused():
    note = {"httpscaledobject.keda.sh/skip-scaledobject-creation": "true"}
    (problem,) = translate_scaled_object(scaled_object(note)).problems
    assert "skip-scaledobject-creation" in problem
    assert translate_scaled_object(scaled_object({**dict.fromkeys(note, "false")})).spec


def test_every_problem_is_named_at_once():
    spec = {"hosts": ["*"], "placeholderConfig": {}, "replicas": {"idle": 1}}
    assert len(translate_scaled_object(scaled_object(**spec)).problems) == 3


def test_a_route_has_both_metrics_timeouts_and_a_placeholder():
    metric = {"concurrency": {"targetValue": 7}, "requestRate": {"targetValue": 3, "window": "10s"}}
    response = {
        "statusCode": 202,
        "body": "soon",
        "headers": {"content-type": "text/html", "X-A": "b"},
    }
    translation = route(
        scalingMetric=metric,
        timeouts={"readiness": "0s", "request": "0s", "responseHeader": "30s"},
        coldStart={"placeholder": {"response": response}, "maxPendingRequests": 5},
    )
    assert translation.problems == ()
    spec = translation.spec
    assert (spec.target.deployment, spec.target.service, spec.target.port) == ("web-1", "web", 80)
    assert (spec.target_concurrency, spec.target_rate.per_second) == (7, 3)
    assert (spec.hold_seconds, spec.response_seconds, spec.max_held) == (3600, 30, 5)
    assert spec.on_cold is OnCold.PLACEHOLDER
    assert (spec.placeholder.status, spec.placeholder.body) == (202, "soon")
    assert (spec.placeholder.content_type, spec.placeholder.headers) == ("text/html", {"X-A": "b"})


def test_a_route_of_several_rules_matches_any_of_them():
    by_path = {"hosts": ["a.test"], "paths": [{"value": "/v1"}, {"value": "v2"}]}
    by_header = {"hosts": ["b.test"], "headers": [{"name": "X-Team", "value": "one"}]}
    spec = route(rules=[by_path, by_header]).spec
    table = RouteTable((rule, "it") for rule in rules_of(spec, ("a.test", "b.test")))
    assert table.find(b"a.test", b"/v1/x", []) == "it"
    assert table.find(b"a.test", b"/v2", []) == "it"
    assert table.find(b"a.test", b"/", [(b"x-team", b"one")]) is None
    assert table.find(b"b.test", b"/", [(b"x-team", b"one")]) == "it"
    assert table.find(b"b.test", b"/", []) is None
    # A name that was not granted has no route.
    only_a = RouteTable((rule, "it") for rule in rules_of(spec, ("a.test",)))
    assert only_a.find(b"b.test", b"/", [(b"x-team", b"one")]) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"coldStart": {"overflow": "Placeholder"}}, "coldStart.overflow"),
        (
            {"coldStart": {"placeholder": {"response": {"bodyFromConfigMap": {"name": "p"}}}}},
            "coldStart.placeholder.response.bodyFromConfigMap",
        ),
        (
            {"coldStart": {"placeholder": {"response": {"statusCode": 100}}}},
            "coldStart.placeholder.response.statusCode",
        ),
        (
            {"staticRoutes": [{"rules": [{}], "response": {}, "responseMode": "Never"}]},
            "staticRoutes[0].responseMode",
        ),
        (
            {"staticRoutes": [{"rules": [{}], "response": {"bodyFromConfigMap": {"name": "p"}}}]},
            "staticRoutes[0].response.bodyFromConfigMap",
        ),
        (
            {"staticRoutes": [{"rules": [{"hosts": ["*.a"]}], "response": {}}]},
            "staticRoutes[0].rules[0].hosts",
        ),
        ({"timeouts": {"request": "30s"}}, "timeouts.request"),
        ({"timeouts": {"readiness": "2h"}}, "timeouts.readiness"),
        ({"rules": [{}, {"hosts": ["*"]}]}, "rules[1].hosts"),
        ({"rules": [{"method": "GET"}]}, "rules[0].method"),
        ({"scalingMetric": {}}, "scalingMetric"),
        ({"service": None}, "target.service"),
        ({"service": {"spec": {"selector": {"app": "none"}}}}, "target.service"),
        (
            {"deployments": [deployment("a", app="web"), deployment("b", app="web")]},
            "target.service",
        ),
    ],
)
def test_what_a_route_cannot_keep_is_refused_by_name(fields, name):
    translation = route(**fields)
    assert translation.spec is None
    assert any(problem.startswith(f"{name}:") for problem in translation.problems), translation


def test_static_routes_are_the_same():
    health = {"rules": [{"paths": [{"value": "/healthz"}]}], "response": {"body": "fine"}}
    page = {
        "rules": [{"hosts": ["a.test"], "headers": [{"name": "X-Closed"}]}],
        "response": {"statusCode": 503, "headers": {"Content-Type": "text/html"}},
        "responseMode": "Always",
    }
    first, second = route(staticRoutes=[health, page]).spec.static_routes
    assert (first.status, first.body, first.always) == (200, "fine", False)
    assert first.routes[0].path_prefixes == ("/healthz",)
    assert (second.status, second.content_type, second.always) == (503, "text/html", True)
    assert second.routes[0].hosts == ("a.test",)


def test_a_failover_is_a_fallback():
    failover = {"service": "cloud", "portName": "http"}
    spec = translate_scaled_object(scaled_object(coldStartTimeoutFailoverRef=failover)).spec
    assert spec.fallback == FallbackTarget(service="cloud", port_name="http", after_seconds=30)
    assert spec.hold_seconds == 600
    cold = {"fallback": {"service": {"name": "cloud", "port": 80}}}
    for readiness, after in (("", 30), ("0s", 30), ("45s", 45)):
        spec = route(coldStart=cold, timeouts={"readiness": readiness}).spec
        assert spec.fallback == FallbackTarget(service="cloud", port=80, after_seconds=after)
        assert spec.hold_seconds == 600


@given(hours=st.integers(0, 20), minutes=st.integers(0, 59), millis=st.integers(0, 59_999))
def test_durations_as_go_writes_them(hours, minutes, millis):
    text = f"{hours}h{minutes}m{millis / 1000:g}s"
    assert seconds_of(text, "x") == pytest.approx(hours * 3600 + minutes * 60 + millis / 1000)
