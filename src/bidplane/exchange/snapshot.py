"""
The host's objects as the exchange sees them, decoded once, before anything is decided.

Everything a user may have written badly is met here, so that what follows only meets
whole values: a bid with a price that cannot be read carries the reason instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from bidplane.api import labels
from bidplane.api.agent import (
    MAX_BIDS,
    RestartClass,
    Strategy,
    carry_over_cap,
    host_namespace,
    hourly_grant,
)
from bidplane.api.bid import BidBeside, BidChoice, BidReason, NodeTerm, shape_problems
from bidplane.api.lease import DEVICE_READY, DeviceRef
from bidplane.api.money import parse_amount, parse_price
from bidplane.api.objects import (
    annotations_of,
    is_deleted,
    labels_of,
    metadata_of,
    name_of,
    namespace_of,
    status_of,
    uid_of,
)
from bidplane.api.pool import MOST_TERM_SECONDS, ClearingMode, Divides, list_price
from bidplane.api.reading import Invalid, ViewCache, read_agent, read_bid, read_lease, read_pool
from bidplane.api.shape import Choice, Need, fields_of
from bidplane.api.times import parse_or_zero, parse_rfc3339
from bidplane.core.devices import foreignuse, migdevices
from bidplane.core.devices.chain import CHAIN, Chain, chain_problem
from bidplane.core.devices.companions import Unpriced
from bidplane.core.devices.mig import Slot
from bidplane.core.market.lots import LOTS_MOST
from bidplane.core.nodes import availability
from bidplane.exchange.round.conditions import (
    LeaseMarks,
    lease_marks,
    leases_given_back,
    unused_since,
)
from bidplane.exchange.round.devices import (
    DeviceView,
    device_views,
    for_sale,
    foreign_devices,
    nodes_down,
    with_node_trouble,
)
from bidplane.kube.client import Object
from bidplane.ledger.leases import Terms


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str
    owner: str = ""
    refill: int = 0  # each hour, priority included
    cap: int = 0
    default_refill: bool = False  # its spec names none: `round.grants` sets it
    default_cap: bool = False
    strategy: Strategy = Strategy.MANUAL
    deleting: bool = False
    suspended: bool = False
    heavy: bool = False  # its restart class
    movable: bool = False  # its leases may be moved
    priority: int = 1
    max_price: int = 0  # for its bids that name no price; 0: by the list price
    max_bids: int = MAX_BIDS  # that stand
    team: str = ""
    marks: str = ""  # its labels, as JSON
    problem: str = ""  # why it is neither granted credits nor served


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    product: str
    floor: int
    list_price: int = 0
    sell_by: tuple[str, ...] = ()
    chain: Chain = CHAIN
    divides: Divides = Divides.WHOLE
    geometry: tuple[Slot, ...] = ()
    max_lots: int = LOTS_MOST
    target_percent: int
    terms: Terms
    heavy_restart_seconds: int = 0
    exact: bool = False
    float_percent: int = 0
    # None here; of a pool that states none, `PoolSpec` has them.
    float_owner_percent: int = 1_000_000
    term_percent: int = 100
    term_owner_percent: int = 100
    longest_term_seconds: int = MOST_TERM_SECONDS
    idle_seconds: int = 300


class BidView(Choice, frozen=True, kw_only=True):
    """A bid as a round sees it: its first choice, and the others as bids of their own."""

    uid: str
    namespace: str
    name: str
    agent: str
    plane_namespace: str = ""  # the namespace of its agent's plane that it came from
    price: int = 0  # 0: it names none; see `round.defaultprices`
    otherwise: tuple[BidView, ...] = ()  # its alternatives: the same bid with another ask
    beside: tuple[BidBeside, ...] = ()  # without a price, in each of its machines
    # Of its pod, for each set of its GPUs.
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    terms: tuple[NodeTerm, ...] = ()  # of which its machine must match one
    deadline: int = 0  # seconds; 0 is none
    term_seconds: int = 0
    renews: bool = True
    urgent: bool = False
    instant: bool = False  # may be sold from the float
    budget: int = 0  # that the leases of its work may cost; 0 is no limit
    work: str = ""
    created: int = 0  # seconds
    problem: str = ""  # why it cannot be read
    bad: BidReason = BidReason.BAD_PRICE  # and which part of it

    @property
    def is_loose(self) -> bool:
        """Return whether any GPUs of one machine will do, and nothing is needed beside."""
        return self.one_node and self.spread and not self.also and not self.beside

    @property
    def every_need(self) -> Iterator[Need]:
        """The needs of all its alternatives."""
        for choice in (self, *self.otherwise):
            yield choice
            yield from choice.also


class HostSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    agents: tuple[AgentView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    bids: tuple[BidView, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    cards: migdevices.Cards = {}  # of GPUs that are sold in parts which no table has
    claimed: frozenset[str] = frozenset()  # leases whose devices are claimed for a pod
    left: frozenset[str] = frozenset()  # leases whose release was asked for
    up: frozenset[str] = frozenset()  # leases on which what runs was ready
    void: frozenset[str] = frozenset()  # leases without what must be beside them
    unpriced: Unpriced = Unpriced()  # devices nobody sells, if a bid asks for any
    hosts: Mapping[str, Object] = {}  # the nodes by name
    foreign: frozenset[DeviceRef] = frozenset()  # that somebody has who leases nothing
    unusable: frozenset[str] = frozenset()  # with a device that its node could not make ready
    # By node that is gone (0) or not ready: since when, in milliseconds.
    down: Mapping[str, int] = {}
    # By lease, since when: no pod is on it; its GPUs do nothing, as they tell themselves.
    unused: Mapping[str, int] = {}
    idle: Mapping[str, int] = {}
    used: frozenset[str] = frozenset()  # leases whose GPUs are known to work


def take(
    *,
    agents: Iterable[Object],
    pools: Iterable[Object],
    bids: Iterable[Object],
    slices: Iterable[Object],
    leases: Iterable[Object],
    nodes: Iterable[Object],
    claims: Iterable[Object] = (),
    classes: Iterable[Object] = (),
    pods: Iterable[Object] = (),
) -> HostSnapshot:
    return Reader().take(
        agents=agents,
        pools=pools,
        bids=bids,
        slices=slices,
        leases=leases,
        nodes=nodes,
        claims=claims,
        classes=classes,
        pods=pods,
    )


class Reader:
    """Takes snapshots one after the other, and decodes anew only what has changed."""

    def __init__(self) -> None:
        self._agents = ViewCache(agent_view)
        self._pools = ViewCache(pool_view)
        self._bids = ViewCache(bid_view)
        self._slices = ViewCache(lambda slice_: tuple(device_views(slice_)))
        self._nodes = ViewCache(availability.state_of)
        self._leases = ViewCache(_marks)
        self._parts = ViewCache(migdevices.cards)
        self._claims = ViewCache(foreignuse.held_by_claim)
        self._pods = ViewCache(foreignuse.held_by_pod)
        self._parents = ViewCache(foreignuse.parents)
        self._seen_unpriced: list[Object] = []
        self._unpriced = Unpriced()

    def take(
        self,
        *,
        agents: Iterable[Object],
        pools: Iterable[Object],
        bids: Iterable[Object],
        slices: Iterable[Object],
        leases: Iterable[Object],
        nodes: Iterable[Object],
        claims: Iterable[Object] = (),
        classes: Iterable[Object] = (),
        pods: Iterable[Object] = (),
    ) -> HostSnapshot:
        """
        Take a snapshot of the host's objects. `pods`: those of the host that belong to no agent.
        """
        slices, claims, nodes = list(slices), list(claims), list(nodes)
        marks = [lease for lease in self._leases.of(leases) if lease is not None]
        node_states = {node.name: node for node in self._nodes.of(nodes)}
        published = self._slices.of(slices)
        all_devices = [
            view for views in published for view in with_node_trouble(views, node_states)
        ]
        foreign = foreignuse.held(self._claims.of(claims), self._pods.of(pods))
        cut = self._cut(slices) if foreign.devices else {}
        devices = tuple(for_sale(all_devices, foreign, cut) if any(foreign) else all_devices)
        terms = tuple(view for view in self._pools.of(pools) if view is not None)
        bid_views = tuple(view for view in self._bids.of(bids) if view is not None)
        return HostSnapshot(
            agents=tuple(self._agents.of(agents)),
            pools=terms,
            bids=bid_views,
            devices=devices,
            cards=self._cards(slices) if _asks_for_cards(terms, devices) else {},
            # Of a gang, time is charged from the first block that is claimed, and it has left
            # when no block of it is in use any more.
            claimed=frozenset(lease.id for lease in marks if lease.claimed),
            left=frozenset(leases_given_back(marks)),
            up=frozenset(lease.id for lease in marks if lease.up),
            void=frozenset(lease.id for lease in marks if lease.void),
            unpriced=self._unpriced_now(slices, claims, list(classes))
            if any(bid.beside for bid in bid_views)
            else Unpriced(),
            hosts={name_of(node): node for node in nodes},
            foreign=foreign_devices(all_devices, foreign, cut),
            unusable=frozenset(_unusable(claims, marks)),
            down=nodes_down(
                node_states, published, {node for lease in marks for node in lease.nodes}
            ),
            unused=unused_since(marks),
        )

    def _unpriced_now(
        self, slices: list[Object], claims: list[Object], classes: list[Object]
    ) -> Unpriced:
        """The unpriced devices, computed again only when an object has changed."""
        objects = [*slices, *claims, *classes]
        before = self._seen_unpriced
        if len(objects) != len(before) or any(map(operator.is_not, objects, before)):
            self._unpriced, self._seen_unpriced = Unpriced(slices, claims, classes), objects
        return self._unpriced

    def _cut(self, slices: Iterable[Object]) -> dict[foreignuse.DeviceKey, str]:
        """Return the UUID of the GPU that each published part is of."""
        parents: dict[foreignuse.DeviceKey, str] = {}
        for slice_parents in self._parents.of(slices):
            parents.update(slice_parents)
        return parents

    def _cards(self, slices: Iterable[Object]) -> migdevices.Cards:
        return migdevices.joined(self._parts.of(slices))


def _asks_for_cards(pools: Iterable[PoolView], devices: Iterable[DeviceView]) -> bool:
    """Return True if GPUs are sold in parts that no table has."""
    cut = {pool.product for pool in pools if pool.divides is Divides.MIG}
    return bool(cut) and any(
        device.product in cut and not migdevices.in_table(device.traits.get("memory", ""))
        for device in devices
    )


def _marks(lease: Object) -> LeaseMarks | None:
    """The conditions on a lease's object; None if it cannot be read."""
    struct = read_lease(lease)
    return None if isinstance(struct, Invalid) else lease_marks(struct)


def _unusable(claims: Iterable[Object], marks: Iterable[LeaseMarks]) -> Iterator[str]:
    """The leases with a claim that says that a device of it could not be made ready."""
    failed = {labels_of(claim).get(labels.LEASE) for claim in claims if _has_failed(claim)}
    if failed:
        yield from (lease.id for lease in marks if lease.name in failed)


def _has_failed(claim: Object) -> bool:
    return any(
        condition.get("type") == DEVICE_READY and condition.get("status") == "False"
        for device in status_of(claim).get("devices") or ()
        for condition in device.get("conditions") or ()
    )


def agent_view(obj: Object) -> AgentView:
    """The view of an agent; of one whose spec cannot be used, with the problem and little else."""
    agent = read_agent(obj)
    view = AgentView(
        name=name_of(obj),
        uid=uid_of(obj),
        deleting=is_deleted(obj),
        marks=msgspec.json.encode(labels_of(obj), order="sorted").decode(),
    )
    if isinstance(agent, Invalid):  # the API refuses such an Agent; one that got in is left out
        return msgspec.structs.replace(view, problem=f"its spec cannot be used: {agent.problem}")
    spec = agent.spec
    view = msgspec.structs.replace(view, suspended=spec.suspended, team=spec.team)
    try:
        refill = hourly_grant(spec.refill, spec.priority)
        cap = carry_over_cap(spec.carry_over, refill)
        max_price = parse_price(spec.max_price) if spec.max_price else 0
    except ValueError as error:
        return msgspec.structs.replace(view, problem=f"its spec cannot be used: {error}")
    return msgspec.structs.replace(
        view,
        owner=spec.owner,
        refill=refill,
        cap=cap,
        default_refill=not spec.refill,
        default_cap=not spec.carry_over,
        strategy=spec.strategy,
        heavy=spec.restart_class is RestartClass.HEAVY,
        movable=spec.movable,
        priority=spec.priority,
        max_price=max_price,
        max_bids=spec.max_bids,
    )


def pool_view(obj: Object) -> PoolView | None:
    """The view of a pool; None if its terms cannot be read: nothing is sold on guessed terms."""
    pool = read_pool(obj)
    if isinstance(pool, Invalid) or chain_problem(pool.spec.chain):
        return None
    spec = pool.spec
    try:
        floor, listed = parse_price(spec.floor_price), list_price(spec)
    except ValueError:
        return None
    return PoolView(
        name=pool.name,
        product=spec.product,
        floor=floor,
        list_price=listed,
        sell_by=tuple(spec.sell_by),
        chain=tuple(spec.chain),
        divides=spec.divides,
        geometry=tuple(Slot(slot.profile, slot.start) for slot in spec.geometry),
        max_lots=spec.max_lots,
        target_percent=spec.target_utilisation_percent,
        terms=Terms(spec.notice_seconds, spec.restart_seconds, spec.epoch_seconds),
        heavy_restart_seconds=spec.heavy_restart_seconds,
        exact=spec.clearing is ClearingMode.EXACT,
        float_percent=spec.instant_float_percent,
        float_owner_percent=spec.float_owner_percent,
        term_percent=spec.term_percent,
        term_owner_percent=spec.term_owner_percent,
        longest_term_seconds=spec.longest_term_seconds,
        idle_seconds=spec.idle_seconds,
    )


def bid_view(obj: Object) -> BidView | None:
    """
    The view of a bid; None if it is being deleted, or is not in the namespace of the agent it
    names.
    """
    agent, namespace = labels_of(obj).get(labels.AGENT, ""), namespace_of(obj)
    # The namespace decides whose wallet pays; a label cannot point at another's.
    if is_deleted(obj) or not agent or namespace != host_namespace(agent):
        return None
    view = BidView(
        uid=uid_of(obj),
        namespace=namespace,
        name=name_of(obj),
        agent=agent,
        gpus=0,
        plane_namespace=annotations_of(obj).get(labels.PLANE_NAMESPACE, ""),
        created=parse_or_zero(metadata_of(obj).get("creationTimestamp", "")),
    )
    bid = read_bid(obj)
    if isinstance(bid, Invalid):
        return msgspec.structs.replace(view, problem=bid.problem, bad=BidReason.BAD_BID)
    spec = bid.spec
    try:
        deadline, budget = _deadline(spec.deadline), _budget(spec.budget)
        for problem in shape_problems(spec):
            raise ValueError(problem)
    except ValueError as error:
        return msgspec.structs.replace(view, problem=str(error), bad=BidReason.BAD_BID)
    common = msgspec.structs.replace(
        view,
        deadline=deadline,
        term_seconds=spec.term_seconds,
        renews=spec.renew,
        urgent=spec.urgent,
        beside=spec.beside,
        requests=spec.requests,
        terms=spec.node_selector_terms,
        instant=spec.instant,
        budget=budget,
        work=(spec.work or view.uid) if budget else "",
    )
    try:
        otherwise = tuple(_choice(common, choice) for choice in spec.otherwise)
        return msgspec.structs.replace(_choice(common, spec), otherwise=otherwise)
    except ValueError as error:
        return msgspec.structs.replace(view, problem=str(error))


def _choice(view: BidView, choice: BidChoice) -> BidView:
    price = parse_price(choice.max_price) if choice.max_price else 0
    return msgspec.structs.replace(view, price=price, **fields_of(Choice, choice))


def _budget(text: str) -> int:
    amount = parse_amount(text) if text else 0
    if text and amount <= 0:
        raise ValueError(f"budget: {text!r} buys nothing; leave it out for no limit")
    return amount


def _deadline(text: str) -> int:
    if not text:
        return 0
    try:
        return int(parse_rfc3339(text))
    except ValueError:
        raise ValueError(
            f"deadline: {text!r} is not a time: write it as RFC 3339, for example"
            ' "2026-11-15T23:00:00Z"'
        ) from None
