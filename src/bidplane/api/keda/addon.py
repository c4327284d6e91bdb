"""
KEDA's HTTP add-on: its two kinds as structs, with the names and defaults of its CRDs.

`HTTPScaledObject` v1alpha1 is read in its present shape and in the older one, whose scaleTargetRef
has `deployment`. Unknown fields stay in the objects, so that they can be refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from bidplane.api.endpoint import EndpointPhase

SKIP_SCALED_OBJECT = "httpscaledobject.keda.sh/skip-scaledobject-creation"
READY = "Ready"  # the condition of both kinds

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0)]
_ONE_PORT = [
    {
        "rule": "has(self.portName) != has(self.port)",
        "message": "must define either the 'portName' or the 'port'",
    }
]


class KedaHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    value: str | None = None


class ScaleTargetRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = _ONE_PORT

    service: str
    name: str = ""
    deployment: str = ""  # of the older shape, in place of `name`
    api_version: str = ""
    kind: str = ""
    port: Port | None = None
    port_name: str | None = None
    target_pending_requests: Count | None = None  # of the older shape


class FailoverRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = _ONE_PORT

    service: str
    port: Port | None = None
    port_name: str | None = None
    timeout_seconds: Count = 30


class KedaReplicas(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    min: Count | None = None
    max: Count | None = None


class ConcurrencyMetric(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_value: Annotated[int, msgspec.Meta(ge=1)] = 100


class RateMetric(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_value: Annotated[int, msgspec.Meta(ge=1)] = 100
    window: str = "1m"
    granularity: str = "1s"


class ScalingMetric(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    concurrency: ConcurrencyMetric | None = None
    request_rate: RateMetric | None = None


class ScaledObjectTimeouts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    condition_wait: str = ""
    response_header: str = ""


class HTTPScaledObjectSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    scale_target_ref: ScaleTargetRef
    host: str = ""  # of the oldest shape
    hosts: tuple[str, ...] = ()
    path_prefixes: tuple[str, ...] = ()
    headers: tuple[KedaHeader, ...] = ()
    cold_start_timeout_failover_ref: FailoverRef | None = None
    replicas: KedaReplicas | None = None
    target_pending_requests: Count | None = None
    scaledown_period: Count | None = None
    initial_cooldown_period: Count | None = None
    scaling_metric: ScalingMetric | None = None
    timeouts: ScaledObjectTimeouts | None = None


class HTTPScaledObjectStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_workload: str = ""
    target_service: str = ""
    phase: EndpointPhase | None = None  # ours: of the Endpoint


class PathMatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    value: str


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    hosts: tuple[str, ...] = ()
    paths: tuple[PathMatch, ...] = ()
    headers: tuple[KedaHeader, ...] = ()


class ServiceTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = _ONE_PORT

    service: str
    port: Port | None = None
    port_name: str | None = None


class FallbackService(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = _ONE_PORT

    name: str
    port: Port | None = None
    port_name: str | None = None


class ColdStartFallback(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    service: FallbackService | None = None


class BodyReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    key: str = ""


class StaticResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    status_code: Annotated[int, msgspec.Meta(ge=100, le=599)] | None = None
    body: str = ""
    body_from_config_map: BodyReference | None = None
    headers: dict[str, str] = {}


class ColdStartPlaceholder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    response: StaticResponse | None = None


class ColdStartRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    fallback: ColdStartFallback | None = None
    placeholder: ColdStartPlaceholder | None = None
    max_pending_requests: Annotated[int, msgspec.Meta(ge=0)] | None = None
    overflow: str = ""  # Reject, or Placeholder


class RouteTimeouts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    readiness: str = ""
    request: str = ""
    response_header: str = ""


class StaticRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    rules: tuple[RoutingRule, ...]
    response: StaticResponse
    response_mode: str = "WhenUnavailable"


class InterceptorRouteSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target: ServiceTarget
    scaling_metric: ScalingMetric
    rules: tuple[RoutingRule, ...] = ()
    cold_start: ColdStartRules | None = None
    timeouts: RouteTimeouts | None = None
    static_routes: tuple[StaticRoute, ...] = ()


class InterceptorRouteStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: EndpointPhase | None = None  # ours: of the Endpoint
