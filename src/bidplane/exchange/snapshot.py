"""
What the exchange sees of the host, decoded once, before anything is decided.

Everything a user may have written badly is met here, so that what follows only meets
whole values: a bid with a price that cannot be read carries the reason instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from bidplane.api import labels
from bidplane.api.agent import AgentSpec, RestartClass, host_namespace
from bidplane.api.bid import BidBeside, BidChoice, BidReason, BidSpec
from bidplane.api.lease import DEVICE_READY
from bidplane.api.money import parse_credits, parse_price
from bidplane.api.pool import Clearing, Divides, PoolSpec
from bidplane.core import nodestate, parts
from bidplane.core.asks import shape_problems
from bidplane.core.beside import Unpriced
from bidplane.core.chain import CHAIN, Chain, chain_problem
from bidplane.core.market.lots import LOTS_MOST
from bidplane.core.mig import Slot
from bidplane.exchange.devices import DeviceView, device_views, down, where_they_are
from bidplane.exchange.marks import (
    LEASE_PREFIX,
    is_deleted,
    lease_marks,
    left,
    seconds_of,
    unused,
)
from bidplane.kube.client import Object
from bidplane.ledger.leases import Terms


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str
    owner: str = ""
    refill: int = 0  # each hour, priority included
    cap: int = 0
    deleting: bool = False
    suspended: bool = False
    heavy: bool = False  # its restart class
    movable: bool = False  # its leases may be moved
    team: str = ""
    marks: str = ""  # its labels, as JSON


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    product: str
    floor: int
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
    idle_seconds: int = 300


class BidView(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    agent: str
    gpus: int
    price: int = 0
    pool: str = ""
    blocks: int = 1
    spread: bool = False
    whole_domain: bool = False
    share: str = ""
    selector: str = ""
    match: tuple[str, ...] = ()
    distinct: str = ""
    otherwise: tuple[BidView, ...] = ()  # its alternatives: the same bid with another ask
    also: tuple[BidView, ...] = ()  # what it needs beside, all or none
    one_node: bool = False  # all of it in one machine; `blocks` counts such sets
    beside: tuple[BidBeside, ...] = ()  # without a price, in each of its machines
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
    def is_joint(self) -> bool:
        return bool(self.also) or self.one_node

    @property
    def needs(self) -> tuple[BidView, ...]:
        """What it needs at once; of sets, what one of them has."""
        if not self.one_node:
            return (self, *self.also)
        return (msgspec.structs.replace(self, blocks=1), *self.also)

    @property
    def sets(self) -> int:
        return self.blocks if self.one_node else 1

    @property
    def asked(self) -> int:
        """How many GPUs, or parts of one, in all."""
        return self.sets * sum(need.gpus * need.blocks for need in self.needs)

    @property
    def every_need(self) -> Iterator[BidView]:
        """Of all its alternatives."""
        for choice in (self, *self.otherwise):
            yield choice
            yield from choice.also


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    agents: tuple[AgentView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    bids: tuple[BidView, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    cards: parts.Cards = {}  # of GPUs that are sold in parts which no table has
    claimed: frozenset[str] = frozenset()  # leases whose devices are claimed for a pod
    left: frozenset[str] = frozenset()  # leases whose release was asked for
    up: frozenset[str] = frozenset()  # leases on which what runs was ready
    void: frozenset[str] = frozenset()  # leases without what must be beside them
    unpriced: Unpriced = Unpriced()  # devices nobody sells, if a bid asks for any
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
) -> Snapshot:
    return Reader().take(
        agents=agents,
        pools=pools,
        bids=bids,
        slices=slices,
        leases=leases,
        nodes=nodes,
        claims=claims,
        classes=classes,
    )


class Reader:
    """Takes snapshots one after the other, and decodes anew only what has changed."""

    def __init__(self) -> None:
        self._agents = Decoded(agent_view)
        self._pools = Decoded(pool_view)
        self._bids = Decoded(bid_view)
        self._slices = Decoded(lambda slice_: tuple(device_views(slice_)))
        self._nodes = Decoded(nodestate.state_of)
        self._leases = Decoded(lease_marks)
        self._parts = Decoded(parts.cards)
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
    ) -> Snapshot:
        slices, claims, marks = list(slices), list(claims), self._leases.of(leases)
        known = {node.name: node for node in self._nodes.of(nodes)}
        published = self._slices.of(slices)
        devices = tuple(view for some in published for view in where_they_are(some, known))
        terms = tuple(view for view in self._pools.of(pools) if view is not None)
        asked = tuple(view for view in self._bids.of(bids) if view is not None)
        return Snapshot(
            agents=tuple(self._agents.of(agents)),
            pools=terms,
            bids=asked,
            devices=devices,
            cards=self._cards(slices) if _asks_for_cards(terms, devices) else {},
            # Of a gang, time is charged from the first block that is claimed, and it has left
            # when no block of it is in use any more.
            claimed=frozenset(lease.id for lease in marks if lease.claimed),
            left=frozenset(left(marks)),
            up=frozenset(lease.id for lease in marks if lease.up),
            void=frozenset(lease.id for lease in marks if lease.void),
            unpriced=self._unpriced_now(slices, claims, list(classes))
            if any(bid.beside for bid in asked)
            else Unpriced(),
            unusable=frozenset(_unusable(claims)),
            down=down(known, published, {node for lease in marks for node in lease.nodes}),
            unused=unused(marks),
        )

    def _unpriced_now(
        self, slices: list[Object], claims: list[Object], classes: list[Object]
    ) -> Unpriced:
        """As it was, for as long as the very same objects come again."""
        seen = [*slices, *claims, *classes]
        before = self._seen_unpriced
        if len(seen) != len(before) or any(map(operator.is_not, seen, before)):
            self._unpriced, self._seen_unpriced = Unpriced(slices, claims, classes), seen
        return self._unpriced

    def _cards(self, slices: Iterable[Object]) -> parts.Cards:
        return parts.joined(self._parts.of(slices))


def _asks_for_cards(pools: Iterable[PoolView], devices: Iterable[DeviceView]) -> bool:
    """Whether GPUs are sold in parts that no table has."""
    cut = {pool.product for pool in pools if pool.divides is Divides.MIG}
    return bool(cut) and any(
        device.product in cut and not parts.in_table(device.traits.get("memory", ""))
        for device in devices
    )


V = TypeVar("V")


class Decoded(Generic[V]):
    """What `decode` made of objects, kept for as long as the very same objects come again."""

    def __init__(self, decode: Callable[[Object], V]) -> None:
        self._decode = decode
        self._known: dict[int, tuple[Object, V]] = {}  # by identity, which the object keeps

    def of(self, objects: Iterable[Object]) -> list[V]:
        known, self._known = self._known, {}
        for obj in objects:
            self._known[id(obj)] = known.get(id(obj)) or (obj, self._decode(obj))
        return [view for _, view in self._known.values()]


def _unusable(claims: Iterable[Object]) -> Iterator[str]:
    """Leases whose claim says that a device of theirs could not be made ready."""
    for claim in claims:
        lease = (claim["metadata"].get("labels") or {}).get(labels.LEASE, "")
        conditions = [
            condition
            for device in (claim.get("status") or {}).get("devices") or ()
            for condition in device.get("conditions") or ()
            if condition.get("type") == DEVICE_READY
        ]
        if lease and any(condition.get("status") == "False" for condition in conditions):
            yield lease.removeprefix(LEASE_PREFIX).partition("-")[0]


def agent_view(agent: Object) -> AgentView:
    metadata = agent["metadata"]
    view = AgentView(
        name=metadata["name"],
        uid=metadata["uid"],
        deleting=is_deleted(agent),
        suspended=bool(agent["spec"].get("suspended")),
        team=str(agent["spec"].get("team") or ""),
        marks=msgspec.json.encode(metadata.get("labels") or {}, order="sorted").decode(),
    )
    try:
        spec = msgspec.convert(agent.get("spec") or {}, AgentSpec)
        refill = parse_credits(spec.refill) * max(0, spec.priority)
        cap = parse_credits(spec.carry_over) if spec.carry_over else 2 * refill
    except ValueError:  # the API refuses such an Agent; one that got in gets no refill
        return view
    return msgspec.structs.replace(
        view,
        owner=spec.owner,
        refill=refill,
        cap=cap,
        heavy=spec.restart_class is RestartClass.HEAVY,
        movable=spec.movable,
    )


def pool_view(pool: Object) -> PoolView | None:
    """None for a pool whose terms cannot be read: nothing is sold on guessed terms."""
    try:
        spec = msgspec.convert(pool.get("spec") or {}, PoolSpec)
        floor = parse_price(spec.floor_price)
    except ValueError:
        return None
    if chain_problem(spec.chain):
        return None
    return PoolView(
        name=pool["metadata"]["name"],
        product=spec.product,
        floor=floor,
        sell_by=tuple(spec.sell_by),
        chain=tuple(spec.chain),
        divides=spec.divides,
        geometry=tuple(Slot(slot.profile, slot.start) for slot in spec.geometry),
        max_lots=spec.max_lots,
        target_percent=spec.target_utilisation_percent,
        terms=Terms(spec.notice_seconds, spec.restart_seconds, spec.epoch_seconds),
        heavy_restart_seconds=spec.heavy_restart_seconds,
        exact=spec.clearing is Clearing.EXACT,
        float_percent=spec.instant_float_percent,
        idle_seconds=spec.idle_seconds,
    )


def bid_view(bid: Object) -> BidView | None:
    """None for a bid that is going, or is not in the namespace of the agent it names."""
    metadata = bid["metadata"]
    agent = (metadata.get("labels") or {}).get(labels.AGENT, "")
    # The namespace decides whose wallet pays; a label cannot point at another's.
    if is_deleted(bid) or not agent or metadata["namespace"] != host_namespace(agent):
        return None
    view = BidView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        agent=agent,
        gpus=0,
        created=seconds_of(metadata.get("creationTimestamp", "")),
    )
    try:
        spec = msgspec.convert(bid.get("spec") or {}, BidSpec)
        deadline, budget = _deadline(spec.deadline), _budget(spec.budget)
        for problem in shape_problems(spec):
            raise ValueError(problem)
    except ValueError as error:
        return msgspec.structs.replace(view, problem=str(error), bad=BidReason.BAD_BID)
    try:
        first = _choice(view, spec)
        rest = [_choice(view, choice) for choice in spec.otherwise]
    except ValueError as error:
        return msgspec.structs.replace(view, problem=str(error))
    common: dict[str, Any] = {
        "deadline": deadline,
        "term_seconds": spec.term_seconds,
        "renews": spec.renew,
        "urgent": spec.urgent,
        "beside": tuple(spec.beside),
        "instant": spec.instant,
        "budget": budget,
        "work": (spec.work or view.uid) if budget else "",
    }
    otherwise = tuple(msgspec.structs.replace(choice, **common) for choice in rest)
    return msgspec.structs.replace(first, otherwise=otherwise, **common)


def _choice(view: BidView, choice: BidSpec | BidChoice) -> BidView:
    made = msgspec.structs.replace(
        view,
        gpus=choice.gpus,
        price=parse_price(choice.max_price),
        pool=choice.pool,
        blocks=choice.blocks,
        spread=choice.spread,
        whole_domain=choice.whole_domain,
        share=choice.share,
        selector=choice.selector,
        match=tuple(choice.match_attribute),
        distinct=choice.distinct_attribute,
        one_node=choice.one_node,
    )
    also = tuple(
        msgspec.structs.replace(
            view,
            price=made.price,
            gpus=need.gpus,
            pool=need.pool,
            blocks=need.blocks,
            spread=need.spread,
            selector=need.selector,
            match=tuple(need.match_attribute),
        )
        for need in choice.also
    )
    return msgspec.structs.replace(made, also=also)


def _budget(text: str) -> int:
    amount = parse_credits(text) if text else 0
    if text and amount <= 0:
        raise ValueError(f"budget: {text!r} buys nothing; leave it out for no limit")
    return amount


def _deadline(text: str) -> int:
    if not text:
        return 0
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError(
            f"deadline: {text!r} is not a time: write it as RFC 3339, for example"
            ' "2026-11-15T23:00:00Z"'
        )
    return int(at.timestamp())
