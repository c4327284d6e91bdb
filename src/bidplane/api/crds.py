"""
Our kinds as CustomResourceDefinitions, made from the structs.

The structs are the schema: a field added there is served, validated and shown without
being written down again. Installed in Bidplane's own planes and on a real cluster alike.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import inspect

from bidplane.api import kinds
from bidplane.api.agent import AgentSpec, AgentStatus
from bidplane.api.bid import BidSpec, BidStatus
from bidplane.api.endpoint import EndpointSpec, EndpointStatus
from bidplane.api.gate.policy import PolicySpec, PolicyStatus
from bidplane.api.gate.proposal import ProposalSpec, ProposalStatus
from bidplane.api.keda.addon import (
    HTTPScaledObjectSpec,
    HTTPScaledObjectStatus,
    InterceptorRouteSpec,
    InterceptorRouteStatus,
)
from bidplane.api.kinds import Kind
from bidplane.api.lease import LeaseSpec, LeaseStatus
from bidplane.api.pool import PoolSpec, PoolStatus

# Conditions are appended to by parts that do not own the rest of a status.
_CONDITIONS: dict[str, Any] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            name: {"type": "string"}
            for name in ("type", "status", "reason", "message", "lastTransitionTime")
        }
        | {"observedGeneration": {"type": "integer", "format": "int64"}},
    },
}

Column = tuple[str, str, str, int]  # name, type, JSON path, priority

_AGE: Column = ("Age", "date", ".metadata.creationTimestamp", 0)


@functools.cache
def for_agents() -> tuple[dict[str, Any], ...]:
    """The CRDs of an agent's plane; the other kinds do not exist there."""
    kinds_there = ("Bid", "Endpoint", "GPULease")
    ours = tuple(crd for crd in all_crds() if crd["spec"]["names"]["kind"] in kinds_there)
    return (*ours, *_keda_crds())


def _keda_crds() -> tuple[dict[str, Any], ...]:
    """The CRDs of KEDA's HTTP add-on, with its columns and one of ours. Unknown fields stay."""
    ready = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0)
    phase = ("Phase", "string", ".status.phase", 0)
    scaled_object = _crd(
        kinds.HTTP_SCALED_OBJECT,
        HTTPScaledObjectSpec,
        HTTPScaledObjectStatus,
        ["httpso"],
        [
            ("TargetWorkload", "string", ".status.targetWorkload", 0),
            ("TargetService", "string", ".status.targetService", 0),
            ("MinReplicas", "integer", ".spec.replicas.min", 0),
            ("MaxReplicas", "integer", ".spec.replicas.max", 0),
            _AGE,
            ready,
            phase,
        ],
    )
    route = _crd(
        kinds.INTERCEPTOR_ROUTE,
        InterceptorRouteSpec,
        InterceptorRouteStatus,
        [],
        [("TargetService", "string", ".spec.target.service", 0), ready, _AGE, phase],
    )
    for crd in (scaled_object, route):
        (version,) = crd["spec"]["versions"]
        _keep_unknown(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return scaled_object, route


def _keep_unknown(schema: dict[str, Any]) -> None:
    """Let every object below a schema keep fields that it does not name."""
    if "properties" in schema:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    for inner in (*schema.get("properties", {}).values(), *filter(None, (schema.get("items"),))):
        _keep_unknown(inner)


@functools.cache
def all_crds() -> tuple[dict[str, Any], ...]:
    """Every CRD, in the order to install them: what a host needs. Nobody changes them."""
    return (
        _crd(
            kinds.AGENT,
            AgentSpec,
            AgentStatus,
            [],
            [
                ("Phase", "string", ".status.phase", 0),
                ("Priority", "integer", ".spec.priority", 0),
                ("Refill", "string", ".spec.refill", 0),
                ("Owner", "string", ".spec.owner", 0),
                ("Plane", "string", ".status.plane", 1),
                _AGE,
            ],
        ),
        _crd(
            kinds.POOL,
            PoolSpec,
            PoolStatus,
            [],
            [
                ("Product", "string", ".spec.product", 0),
                ("Devices", "integer", ".status.devices", 0),
                ("Leased", "integer", ".status.leased", 0),
                ("Price", "string", ".status.price", 0),
                ("Floor", "string", ".spec.floorPrice", 1),
                _AGE,
            ],
        ),
        _crd(
            kinds.BID,
            BidSpec,
            BidStatus,
            [],
            [
                ("GPUs", "integer", ".spec.gpus", 0),
                ("Max-Price", "string", ".spec.maxPrice", 0),
                ("Phase", "string", ".status.phase", 0),
                ("Reason", "string", ".status.reason", 0),
                ("To-Win", "string", ".status.priceToWin", 0),
                ("Lease", "string", ".status.lease", 1),
                ("Message", "string", ".status.message", 1),
                _AGE,
            ],
        ),
        _crd(
            kinds.GPU_LEASE,
            LeaseSpec,
            LeaseStatus,
            ["glease"],
            [
                ("Phase", "string", ".status.phase", 0),
                ("Node", "string", ".spec.node", 0),
                ("Price", "string", ".status.price", 0),
                ("Charged", "string", ".status.charged", 0),
                ("Reclaim-At", "string", ".status.reclaimAt", 0),
                ("Agent", "string", ".spec.agent", 1),
                ("Message", "string", ".status.message", 1),
                _AGE,
            ],
        ),
        _crd(kinds.POLICY, PolicySpec, PolicyStatus, [], [_AGE]),
        _crd(
            kinds.PROPOSAL,
            ProposalSpec,
            ProposalStatus,
            [],
            [
                ("Action", "string", ".status.summary", 0),
                ("By", "string", ".spec.proposer.name", 0),
                ("Phase", "string", ".status.phase", 0),
                ("Reason", "string", ".status.reason", 0),
                ("Devices", "integer", ".status.effect.devices", 0),
                ("Pods", "integer", ".status.effect.pods", 1),
                ("Message", "string", ".status.message", 1),
                _AGE,
            ],
        ),
        _crd(
            kinds.ENDPOINT,
            EndpointSpec,
            EndpointStatus,
            ["gep"],
            [
                ("Phase", "string", ".status.phase", 0),
                ("Rung", "string", ".status.ladder.rung", 0),
                ("Reason", "string", ".status.reason", 0),
                ("Host", "string", ".status.host", 0),
                ("Held", "integer", ".status.demand.holds", 0),
                ("In-Flight", "integer", ".status.demand.inFlight", 0),
                ("Message", "string", ".status.message", 1),
                _AGE,
            ],
        ),
    )


def _crd(
    kind: Kind,
    spec: type[msgspec.Struct],
    status: type[msgspec.Struct],
    short_names: list[str],
    columns: list[Column],
) -> dict[str, Any]:
    status_schema = schema_of(spec=status)
    status_schema["properties"]["conditions"] = _CONDITIONS
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()}
    return {
        "apiVersion": kinds.CRD.api_version,
        "kind": kinds.CRD.kind,
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names
            | {
                "listKind": f"{kind.kind}List",
                "categories": ["bidplane"],
                **({"shortNames": short_names} if short_names else {}),
            },
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in columns],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {"spec": schema_of(spec=spec), "status": status_schema},
                        }
                    },
                }
            ],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    name, type_, path, priority = column
    return {"name": name, "type": type_, "jsonPath": path, "priority": priority}


def schema_of(*, spec: type[msgspec.Struct]) -> dict[str, Any]:
    """The structural schema of a struct."""
    info = inspect.type_info(spec)
    assert isinstance(info, inspect.StructType)
    return _struct(info)


def _struct(info: inspect.StructType) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    hidden = getattr(info.cls, "NOT_SERVED", ())
    fields = [field for field in info.fields if field.name not in hidden]
    required = [field.encode_name for field in fields if field.required]
    for field in fields:
        schema["properties"][field.encode_name] = _field(field)
    if required:
        schema["required"] = required
    if rules := getattr(info.cls, "VALIDATIONS", ()):
        schema["x-kubernetes-validations"] = list(rules)
    return schema


def _field(field: inspect.Field) -> dict[str, Any]:
    schema = _type(field.type)
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    # An empty default says "not given"; writing it into every object helps nobody.
    if isinstance(default, msgspec.Struct):
        return schema
    if default is not msgspec.NODEFAULT and default not in ("", False, None, (), [], {}):
        schema["default"] = default
    return schema


def _type(info: inspect.Type) -> dict[str, Any]:
    match info:
        case inspect.StrType():
            return {"type": "string"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType(ge=lowest, le=highest):
            bounds = {"minimum": lowest, "maximum": highest}
            return {"type": "integer", "format": "int64"} | {
                key: value for key, value in bounds.items() if value is not None
            }
        case inspect.UnionType():
            # Optional: a missing field, not a null one, says that there is none.
            (inner,) = [t for t in info.types if not isinstance(t, inspect.NoneType)]
            return _type(inner)
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [member.value for member in cls]}
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return _type(inner) | (extra or {})
        case (
            inspect.ListType(item_type=item, min_length=least, max_length=most)
            | inspect.VarTupleType(item_type=item, min_length=least, max_length=most)
        ):
            lengths = {"minItems": least, "maxItems": most}
            return {"type": "array", "items": _type(item)} | {
                key: value for key, value in lengths.items() if value is not None
            }
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _type(value)}
        case inspect.StructType():
            return _struct(info)
    raise TypeError(f"no schema for {info}")
