"""`Endpoint`: a service that may sleep, the requests that reach it, and the ones that wake it."""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar

import msgspec

from bidplane.api.idling.ladder import HoldingStatus, IdleSpec, LadderSpec, LadderStatus

_NAME = {"pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", "maxLength": 253}
_HOST = {
    "pattern": "^[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?([.][a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)*$",
    "maxLength": 253,
}
HostName = Annotated[str, msgspec.Meta(extra_json_schema=_HOST)]
Path = Annotated[
    str, msgspec.Meta(extra_json_schema={"pattern": "^/[^?#\\s]*$", "maxLength": 1024})
]
Text = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 65536})]
HeaderName = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"}),
]
PlainText = Annotated[
    str, msgspec.Meta(extra_json_schema={"pattern": "^[\\x20-\\x7e]*$", "maxLength": 1024})
]
Method = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[A-Z]{1,16}$"})]


class OnCold(enum.StrEnum):
    """The answer to a request while the service sleeps; the service wakes in every case."""

    HOLD = "hold"  # wait for the service
    REJECT = "reject"  # 503 with a Retry-After
    PLACEHOLDER = "placeholder"  # the Endpoint's own answer


class Heartbeat(enum.StrEnum):
    """The form of the heartbeats that a held stream gets."""

    AUTO = "auto"  # by the path, for requests that ask for a stream
    OPENAI = "openai"  # comment lines
    ANTHROPIC = "anthropic"  # `event: ping`
    NONE = "none"


class WarmPath(enum.StrEnum):
    """The way of requests while the service is awake."""

    ACTIVATOR = "activator"
    DIRECT = "direct"  # gateways send them to the pods: the Service's slices lead past us


class Urgency(enum.StrEnum):
    """The urgency with which the pods of a wake bid, as in `bidplane.dev/urgency`."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class EndpointPhase(enum.StrEnum):
    REFUSED = "Refused"  # the reason says why; nothing is routed
    ASLEEP = "Asleep"
    WAKING = "Waking"
    READY = "Ready"
    STOPPING = "Stopping"  # scaled to 0; its pods have not begun to end


class HeaderMatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A header that a request must have."""

    name: HeaderName
    value: str = ""  # "" is any value


class EndpointTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The Deployment that sleeps, and the Service that leads to its pods; of one namespace."""

    deployment: Annotated[str, msgspec.Meta(extra_json_schema=_NAME)]
    service: Annotated[str, msgspec.Meta(extra_json_schema=_NAME)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # of the Service; 0 is its only one
    port_name: str = ""


class FallbackTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Another Service, whose pods answer in place of a service that takes too long to wake."""

    service: Annotated[str, msgspec.Meta(extra_json_schema=_NAME)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # of the Service; 0 is its only one
    port_name: str = ""
    after_seconds: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 30  # of being held


class Placeholder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of `onCold: placeholder`."""

    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 503
    body: Text = ""
    content_type: Annotated[
        str, msgspec.Meta(extra_json_schema={"pattern": "^[\\x20-\\x7e]{1,256}$"})
    ] = "text/plain; charset=utf-8"
    headers: dict[HeaderName, PlainText] = {}


class WakeAuth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Secret of the Endpoint's namespace with the token that a request needs to wake it."""

    secret: Annotated[str, msgspec.Meta(extra_json_schema=_NAME)]
    key: Annotated[
        str, msgspec.Meta(extra_json_schema={"pattern": "^[-._a-zA-Z0-9]+$", "maxLength": 253})
    ] = "token"


class WakeRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The requests that may wake the service, and how often. HEAD and OPTIONS never do."""

    methods: Annotated[tuple[Method, ...], msgspec.Meta(max_length=16)] = (
        "GET",
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
    )
    # Prefixes of paths; none is every path but those of known probes and scanners.
    paths: Annotated[tuple[Path, ...], msgspec.Meta(max_length=64)] = ()
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60
    auth: WakeAuth | None = None  # None: no token is needed


class TargetRate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The requests per second that one replica serves, averaged over a window."""

    per_second: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    window_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60
    granularity_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 1  # counted in such steps


class RequestMatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One set of hosts, path prefixes and headers of an Endpoint that has several."""

    hosts: Annotated[tuple[HostName, ...], msgspec.Meta(max_length=16)] = ()
    path_prefixes: Annotated[tuple[Path, ...], msgspec.Meta(max_length=16)] = ()
    headers: Annotated[tuple[HeaderMatch, ...], msgspec.Meta(max_length=8)] = ()


class StaticAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Requests that are no use of the service, and their answer while it is not awake."""

    routes: Annotated[tuple[RequestMatch, ...], msgspec.Meta(min_length=1, max_length=16)]
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    body: Text = ""
    content_type: Annotated[
        str, msgspec.Meta(extra_json_schema={"pattern": "^[\\x20-\\x7e]{1,256}$"})
    ] = "text/plain; charset=utf-8"
    headers: dict[HeaderName, PlainText] = {}
    always: bool = False  # also while it is awake


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = [
        {
            "rule": "self.onCold == 'placeholder' || !has(self.placeholder)",
            "message": "placeholder is the answer of onCold: placeholder: set that, or remove it",
        },
        {
            "rule": "!has(self.target.portName) || self.target.portName == ''"
            " || !has(self.target.port) || self.target.port == 0",
            "message": "target has port and portName: remove one of them",
        },
        {
            "rule": "!has(self.maxReplicas) || self.maxReplicas == 0"
            " || self.maxReplicas >= self.replicas",
            "message": "maxReplicas is less than replicas: raise it, or remove it",
        },
        {
            "rule": "!has(self.maxReplicas) || self.maxReplicas <= self.replicas"
            " || has(self.targetRate)"
            " || (has(self.targetConcurrency) && self.targetConcurrency > 0)",
            "message": "maxReplicas needs a target: set targetConcurrency or targetRate",
        },
        {
            "rule": "!has(self.maxReplicas) || self.maxReplicas <= self.replicas"
            " || self.warmPath != 'direct'",
            "message": "maxReplicas needs warmPath: activator: what passes by is not counted",
        },
        {
            "rule": "!has(self.targetRate)"
            " || self.targetRate.granularitySeconds <= self.targetRate.windowSeconds",
            "message": "targetRate: granularitySeconds is more than windowSeconds",
        },
        {
            "rule": "!has(self.maxReplicas) || self.maxReplicas <= self.replicas"
            " || !has(self.ladder) || !has(self.ladder.keepLeaseSeconds)"
            " || self.ladder.keepLeaseSeconds == 0",
            "message": "ladder.keepLeaseSeconds keeps the leases of `replicas`: remove maxReplicas",
        },
    ]

    target: EndpointTarget
    # Each must be delegated to the agent (`Agent.spec.hosts`); none is NAME.AGENT.DOMAIN.
    hosts: Annotated[tuple[HostName, ...], msgspec.Meta(max_length=16)] = ()
    path_prefixes: Annotated[tuple[Path, ...], msgspec.Meta(max_length=16)] = ()
    headers: Annotated[tuple[HeaderMatch, ...], msgspec.Meta(max_length=8)] = ()
    # Each one as the three fields above, for an Endpoint with several such sets.
    routes: Annotated[tuple[RequestMatch, ...], msgspec.Meta(max_length=16)] = ()
    static_routes: Annotated[tuple[StaticAnswer, ...], msgspec.Meta(max_length=16)] = ()
    replicas: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1  # while it is awake, at least
    max_replicas: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0  # 0 is `replicas`
    # Requests in flight or held for which one replica is there; 0 is no such target.
    target_concurrency: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    target_rate: TargetRate | None = None
    always_awake: bool = False  # it does not sleep by itself
    # After it was created it does not sleep for so long.
    initial_seconds: Annotated[int, msgspec.Meta(ge=0, le=30 * 86400)] = 0
    # Once awake, nobody may displace its pods for so long: a term, for a surcharge.
    stay_seconds: Annotated[int, msgspec.Meta(ge=0, le=14400)] = 0
    idle_seconds: Annotated[int, msgspec.Meta(ge=1, le=30 * 86400)] = 300  # then it sleeps
    # Requests that do not count as use, as prefixes of paths.
    ignore_paths: Annotated[tuple[Path, ...], msgspec.Meta(max_length=64)] = ()
    on_cold: OnCold = OnCold.HOLD
    placeholder: Placeholder | None = None
    fallback: FallbackTarget | None = None
    heartbeat: Heartbeat = Heartbeat.AUTO
    max_held: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    hold_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 600
    # For the head of an answer, from when the request was passed on; 0 is the activator's limit.
    response_seconds: Annotated[int, msgspec.Meta(ge=0, le=600)] = 0
    wake: WakeRules = WakeRules()
    # Awake once a GET here answers 2xx or 3xx; "" once the pod is Ready and takes connections.
    probe_path: Annotated[
        str, msgspec.Meta(extra_json_schema={"pattern": "^(/[^#\\s]*)?$", "maxLength": 1024})
    ] = ""
    urgency: Urgency = Urgency.HIGH
    warm_path: WarmPath = WarmPath.ACTIVATOR
    ladder: LadderSpec = LadderSpec()
    idle: IdleSpec = IdleSpec()


class Backend(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod of an Endpoint that has an address, and is not ending."""

    pod: str
    address: str
    port: int
    ready: bool = False


class Demand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    The state that the traffic asks for, by the activator alone.

    `number` counts demands: a phase that answers an earlier one is stale.
    """

    number: int = 0
    awake: bool = False
    keep_lease: bool = False  # while it is not awake
    since: str = ""
    reason: str = ""
    last_request: str = ""
    holds: int = 0
    in_flight: int = 0
    concurrency: int = 0  # requests in flight or held, also WebSockets that are idle
    recent: int = 0  # requests within the window of `targetRate`
    whole_window: bool = False  # that window was observed from its beginning
    drained: int = 0  # the number of the last drain that it followed
    free_pods: tuple[str, ...] = ()  # those of that drain that serve nothing any more
    proposal: int = 0  # counts the proposals to sleep, where there are several activators
    proposes: str = ""  # the reason of the one that is open; "" if none is
    next_wake: str = ""  # no request may wake it before


class ActivatorReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The traffic of one activator, where there are several; by that one alone."""

    life: str = ""  # of its process: another one remembers nothing
    last_request: str = ""
    holds: int = 0
    in_flight: int = 0
    wakes: int = 0  # the number of the sleeping demand that its requests may end; 0 is none
    answers: int = 0  # the last proposal that it answered
    agrees: bool = False  # to that one: it sends nothing any more
    concurrency: int = 0
    recent: int = 0
    whole_window: bool = False
    drained: int = 0
    free_pods: tuple[str, ...] = ()


class Drain(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The pods that get no new requests, because they are to be removed; numbered."""

    number: int = 0
    pods: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # of these, the ones that are being deleted


class Milestones(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When the first pod of a demand was seen to reach each state; "" before that."""

    number: int = 0  # of the demand
    won: str = ""
    bound: str = ""
    started: str = ""  # it has an address


class ColdStart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The milliseconds that the last cold start took, by the activator alone."""

    total: int = 0  # from the request until a pod answered: the sum of the others
    bid: int = 0  # until its pod had won devices
    bind: int = 0  # until it was bound to their node
    start: int = 0  # until it had an address
    load: int = 0  # until it was Ready; with `probePath` nobody waits for that
    probe: int = 0  # until the activator's probe succeeded


class EndpointStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: EndpointPhase = EndpointPhase.ASLEEP
    reason: str = ""
    message: str = ""
    failed: bool = False  # it cannot start by itself; the message is the pod's
    host: str = ""  # the first of them
    hosts: tuple[str, ...] = ()
    gpus: int = 0  # that a replica asks for
    answers: int = 0  # the number of the demand that `phase` answers
    backends: tuple[Backend, ...] = ()
    fallbacks: tuple[Backend, ...] = ()  # the pods of the fallback
    drain: Drain = Drain()
    wake_digest: str = ""  # on the host: of the token of `wake.auth`; "" is that there is none
    milestones: Milestones = Milestones()
    demand: Demand | None = None
    activators: dict[str, ActivatorReport] = {}  # by name, where there are several
    cold_start: ColdStart | None = None
    ladder: LadderStatus | None = None
    holding: HoldingStatus = HoldingStatus()
