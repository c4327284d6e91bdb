"""
KEDA's HTTP add-on in terms of Endpoints: each field is honoured, or refused by its name. Pure.

Nothing is dropped silently: an object with a field that an Endpoint cannot keep, or that we do not
know, is not served until the field goes. What has no counterpart is in `_refusals_of_…` below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from bidplane.api.endpoint import (
    EndpointSpec,
    EndpointTarget,
    FallbackTarget,
    HeaderMatch,
    OnCold,
    Placeholder,
    RequestMatch,
    StaticAnswer,
    TargetRate,
)
from bidplane.api.keda import addon as keda
from bidplane.api.kinds import Object
from bidplane.api.objects import annotations_of, labels_of, metadata_of, spec_of

_MOST_REPLICAS = 100
_LONGEST_HOLD_SECONDS = 3600
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class Translation(msgspec.Struct, frozen=True):
    """The Endpoint of a KEDA object; or the fields that keep it from being one."""

    spec: EndpointSpec | None = None
    problems: tuple[str, ...] = ()  # "PATH: reason"
    workload: str = ""  # as the add-on's status has it
    service: str = ""


class Unsupported(Exception):
    """A field has a value that an Endpoint cannot keep."""


def seconds_of(text: str, path: str) -> float:
    """Return the seconds of a duration as Go writes it: `1m30s`."""
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) == text and text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if text == "0":
        return 0.0
    raise Unsupported(f"{path}: {text!r} is no duration: write it as 90s or 1m30s")


def translate_scaled_object(obj: Object) -> Translation:
    """Return the Endpoint of an HTTPScaledObject."""
    problems = list(_unknown(spec_of(obj), keda.HTTPScaledObjectSpec, ""))
    try:
        spec = msgspec.convert(spec_of(obj), keda.HTTPScaledObjectSpec)
    except msgspec.ValidationError as error:
        return Translation(problems=(*problems, str(error)))
    problems.extend(_refusals_of_scaled_object(obj, spec))
    ref = spec.scale_target_ref
    service = f"{ref.service}:{ref.port or ref.port_name or 0}"
    workload = f"{ref.api_version or 'apps/v1'}/{ref.kind or 'Deployment'}/{_deployment(ref)}"
    endpoint = None
    try:
        endpoint = _scaled_object(spec)
    except Unsupported as error:
        problems.append(str(error))
    return Translation(None if problems else endpoint, tuple(problems), workload, service)


def _deployment(ref: keda.ScaleTargetRef) -> str:
    return ref.name or ref.deployment


def _refusals_of_scaled_object(obj: Object, spec: keda.HTTPScaledObjectSpec) -> Iterator[str]:
    ref = spec.scale_target_ref
    if annotations_of(obj).get(keda.SKIP_SCALED_OBJECT, "").lower() == "true":
        yield (
            f"metadata.annotations[{keda.SKIP_SCALED_OBJECT}]: who else scales the Deployment is"
            " not known: remove it"
        )
    if not _deployment(ref):
        yield "scaleTargetRef.name: missing: name the Deployment"
    if ref.name and ref.deployment and ref.name != ref.deployment:
        yield "scaleTargetRef.deployment: differs from scaleTargetRef.name: remove it"
    if (ref.kind or "Deployment") != "Deployment" or (ref.api_version or "apps/v1") != "apps/v1":
        yield "scaleTargetRef.kind: only a Deployment of apps/v1 is scaled"
    metric = spec.scaling_metric
    if metric is not None and metric.concurrency is not None and metric.request_rate is not None:
        yield "scalingMetric: concurrency and requestRate exclude each other: remove one"


def _scaled_object(spec: keda.HTTPScaledObjectSpec) -> EndpointSpec:
    ref, replicas = spec.scale_target_ref, spec.replicas or keda.KedaReplicas()
    timeouts = spec.timeouts or keda.ScaledObjectTimeouts()
    metric = spec.scaling_metric or keda.ScalingMetric()
    if metric.concurrency is None and metric.request_rate is None:
        pending = spec.target_pending_requests or ref.target_pending_requests or 100
        metric = keda.ScalingMetric(concurrency=keda.ConcurrencyMetric(target_value=pending))
    least, most = replicas.min or 0, 100 if replicas.max is None else replicas.max
    if most > _MOST_REPLICAS:
        raise Unsupported(f"replicas.max: {most} is more than {_MOST_REPLICAS}: lower it")
    if most < max(1, least):
        raise Unsupported(f"replicas.max: {most} is less than {max(1, least)}: raise it")
    failover = spec.cold_start_timeout_failover_ref
    idle = 300 if spec.scaledown_period is None else spec.scaledown_period
    concurrency, rate = _targets(metric)
    return EndpointSpec(
        target=EndpointTarget(
            deployment=_deployment(ref),
            service=ref.service,
            port=ref.port or 0,
            port_name=ref.port_name or "",
        ),
        hosts=_hosts((*spec.hosts, *filter(None, (spec.host,))), "hosts"),
        path_prefixes=_prefixes(spec.path_prefixes),
        headers=_headers(spec.headers, "headers"),
        replicas=max(1, least),
        max_replicas=most,
        always_awake=least > 0,
        target_concurrency=concurrency,
        target_rate=rate,
        fallback=None
        if failover is None
        else FallbackTarget(
            service=failover.service,
            port=failover.port or 0,
            port_name=failover.port_name or "",
            after_seconds=_most(failover.timeout_seconds, "coldStartTimeoutFailoverRef"),
        ),
        idle_seconds=max(1, idle),
        initial_seconds=spec.initial_cooldown_period or 0,
        hold_seconds=_hold_seconds(timeouts.condition_wait, "timeouts.conditionWait", zero=600),
        response_seconds=_response_seconds(timeouts.response_header),
    )


def translate_route(
    obj: Object, service: Object | None, deployments: Iterable[Object]
) -> Translation:
    """
    Return the Endpoint of an InterceptorRoute.

    It names no Deployment; the one of its namespace that its Service selects is the target.
    """
    problems = list(_unknown(spec_of(obj), keda.InterceptorRouteSpec, ""))
    try:
        spec = msgspec.convert(spec_of(obj), keda.InterceptorRouteSpec)
    except msgspec.ValidationError as error:
        return Translation(problems=(*problems, str(error)))
    problems.extend(_refusals_of_route(spec))
    endpoint = None
    try:
        deployment = _selected_deployment(spec.target.service, service, deployments)
        endpoint = _route(spec, deployment)
    except Unsupported as error:
        problems.append(str(error))
    return Translation(None if problems else endpoint, tuple(problems))


def _selected_deployment(name: str, service: Object | None, deployments: Iterable[Object]) -> str:
    if service is None:
        raise Unsupported(f"target.service: there is no Service {name}: create it")
    selector = spec_of(service).get("selector") or {}
    names: list[str] = sorted(
        metadata_of(deployment)["name"]
        for deployment in deployments
        if selector
        and selector.items() <= labels_of(spec_of(deployment).get("template") or {}).items()
    )
    if len(names) != 1:
        which = ", ".join(names) or "none"
        raise Unsupported(
            f"target.service: the Service {name} must select the pods of one Deployment, and"
            f" selects those of {which}"
        )
    return names[0]


def _refusals_of_route(spec: keda.InterceptorRouteSpec) -> Iterator[str]:
    cold = spec.cold_start or keda.ColdStartRules()
    if cold.overflow not in ("", "Reject"):
        yield f"coldStart.overflow: {cold.overflow} is not served: use Reject (429)"
    timeouts = spec.timeouts or keda.RouteTimeouts()
    if timeouts.request and _is_set(timeouts.request, "timeouts.request"):
        yield "timeouts.request: an answer may take any time: use responseHeader; remove it"
    if spec.scaling_metric.concurrency is None and spec.scaling_metric.request_rate is None:
        yield "scalingMetric: at least one of 'concurrency' or 'requestRate' must be set"


def _is_set(text: str, path: str) -> bool:
    try:
        return seconds_of(text, path) > 0
    except Unsupported:
        return True


def _route(spec: keda.InterceptorRouteSpec, deployment: str) -> EndpointSpec:
    timeouts = spec.timeouts or keda.RouteTimeouts()
    cold = spec.cold_start or keda.ColdStartRules()
    response = cold.placeholder.response if cold.placeholder is not None else None
    concurrency, rate = _targets(spec.scaling_metric)
    hold_seconds = _hold_seconds(
        timeouts.readiness, "timeouts.readiness", zero=_LONGEST_HOLD_SECONDS
    )
    fallback = _fallback(cold, timeouts)
    if fallback is not None:  # `readiness` is the time until then
        hold_seconds = max(600, fallback.after_seconds)
    return EndpointSpec(
        target=EndpointTarget(
            deployment=deployment,
            service=spec.target.service,
            port=spec.target.port or 0,
            port_name=spec.target.port_name or "",
        ),
        routes=_matches(spec.rules, "rules"),
        static_routes=tuple(
            _static(entry, f"staticRoutes[{index}]")
            for index, entry in enumerate(spec.static_routes)
        ),
        replicas=1,
        max_replicas=_MOST_REPLICAS,
        target_concurrency=concurrency,
        target_rate=rate,
        on_cold=OnCold.HOLD if response is None else OnCold.PLACEHOLDER,
        placeholder=None
        if response is None
        else _response(response, "coldStart.placeholder.response"),
        fallback=fallback,
        max_held=cold.max_pending_requests or 1000,
        hold_seconds=hold_seconds,
        response_seconds=_response_seconds(timeouts.response_header),
    )


def _matches(rules: Sequence[keda.RoutingRule], path: str) -> tuple[RequestMatch, ...]:
    return tuple(
        RequestMatch(
            hosts=_hosts(rule.hosts, f"{path}[{index}].hosts"),
            path_prefixes=_prefixes(match.value for match in rule.paths),
            headers=_headers(rule.headers, f"{path}[{index}].headers"),
        )
        for index, rule in enumerate(rules)
    )


def _static(route: keda.StaticRoute, path: str) -> StaticAnswer:
    if route.response_mode not in ("Always", "WhenUnavailable"):
        raise Unsupported(f"{path}.responseMode: {route.response_mode} is not known")
    text = _response(route.response, f"{path}.response")
    return StaticAnswer(
        routes=_matches(route.rules, f"{path}.rules"),
        status=text.status,
        body=text.body,
        content_type=text.content_type,
        headers=text.headers,
        always=route.response_mode == "Always",
    )


def _fallback(cold: keda.ColdStartRules, timeouts: keda.RouteTimeouts) -> FallbackTarget | None:
    service = cold.fallback.service if cold.fallback is not None else None
    if service is None:
        return None
    after = math.ceil(seconds_of(timeouts.readiness or "0s", "timeouts.readiness")) or 30
    return FallbackTarget(
        service=service.name,
        port=service.port or 0,
        port_name=service.port_name or "",
        after_seconds=_most(after, "timeouts.readiness"),
    )


def _most(seconds: int, path: str) -> int:
    if seconds > _LONGEST_HOLD_SECONDS:
        raise Unsupported(f"{path}: {seconds} s is more than {_LONGEST_HOLD_SECONDS} s")
    return seconds


def _response(response: keda.StaticResponse, path: str) -> Placeholder:
    if response.body_from_config_map is not None:
        raise Unsupported(f"{path}.bodyFromConfigMap: write the text into {path}.body")
    status = response.status_code or 200
    if status < 200:
        raise Unsupported(f"{path}.statusCode: {status} is no final status")
    headers = dict(response.headers)
    content_type = next(
        (headers.pop(name) for name in list(headers) if name.lower() == "content-type"),
        "text/plain; charset=utf-8",
    )
    return Placeholder(
        status=status, body=response.body, content_type=content_type, headers=headers
    )


def _targets(metric: keda.ScalingMetric) -> tuple[int, TargetRate | None]:
    rate = metric.request_rate
    concurrency = metric.concurrency.target_value if metric.concurrency is not None else 0
    if rate is None:
        return concurrency, None
    path = "scalingMetric.requestRate"
    window = _whole(seconds_of(rate.window, f"{path}.window"), f"{path}.window")
    granularity = seconds_of(rate.granularity, f"{path}.granularity")
    step = _whole(granularity, f"{path}.granularity")
    if step > window:
        raise Unsupported(f"{path}.granularity: is more than the window")
    return concurrency, TargetRate(
        per_second=rate.target_value, window_seconds=window, granularity_seconds=step
    )


def _whole(seconds: float, path: str) -> int:
    if seconds != int(seconds) or not 1 <= seconds <= 3600:
        raise Unsupported(f"{path}: {seconds:g} s: use whole seconds, from 1 to 3600")
    return int(seconds)


def _hosts(hosts: Sequence[str], path: str) -> tuple[str, ...]:
    for host in hosts:
        if "*" in host:
            raise Unsupported(f"{path}: {host}: an Endpoint has no wildcards: name each host")
    return tuple(dict.fromkeys(host.lower() for host in hosts))


def _prefixes(prefixes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys("/" + prefix.lstrip("/") for prefix in prefixes))


def _headers(headers: Sequence[keda.KedaHeader], path: str) -> tuple[HeaderMatch, ...]:
    for header in headers:
        if header.value == "":
            raise Unsupported(f"{path}: {header.name}: an empty value cannot be asked for")
    return tuple(HeaderMatch(name=header.name, value=header.value or "") for header in headers)


def _hold_seconds(text: str, path: str, *, zero: int) -> int:
    seconds = math.ceil(seconds_of(text, path)) if text else 600
    if seconds > _LONGEST_HOLD_SECONDS:
        raise Unsupported(f"{path}: {text} is more than {_LONGEST_HOLD_SECONDS} s")
    return seconds or zero


def _response_seconds(text: str) -> int:
    path = "timeouts.responseHeader"
    seconds = math.ceil(seconds_of(text, path)) if text else 0
    if seconds > 600:
        raise Unsupported(f"{path}: {text} is more than 600 s")
    return seconds


def _unknown(fields: Mapping[str, Any], struct: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Yield the fields of an object that its struct does not have."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    types = {field.encode_name: field.type for field in info.fields}
    for name, value in fields.items():
        where = f"{path}{name}"
        if name not in types:
            yield f"{where}: this field is not known: remove it"
            continue
        inner = _struct_in(types[name])
        if inner is None:
            continue
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, Mapping):
                place = f"{where}[{index}]." if isinstance(value, list) else f"{where}."
                yield from _unknown(item, inner, place)


def _struct_in(info: inspect.Type) -> type[msgspec.Struct] | None:
    match info:
        case inspect.StructType(cls=cls):
            return cls
        case inspect.UnionType(types=types):
            return next(filter(None, map(_struct_in, types)), None)
        case inspect.VarTupleType(item_type=item):
            return _struct_in(item)
    return None
