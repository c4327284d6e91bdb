"""
The engine under everything that can happen to it, in any order, with crashes.

Hypothesis opens agents, bids (for terms, within budgets, urgently, for parts, gangs, several lots),
orders from the float, claims, leaves, moves the clock, and kills the exchange in the middle of its
writing. After each step the ledger must be sound, and every lease's rent, levy and compensation
must be what its life says.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bidplane.api.lease import Phase
from bidplane.api.money import rent as rent_of
from bidplane.core.devices.chain import CHAIN, Chain
from bidplane.exchange.engine import Engine
from bidplane.exchange.snapshot import AgentView, DeviceView, HostSnapshot
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import HoldState, Lease, TransferKind
from bidplane.ledger.store import SqliteStore
from bidplane.ledger.tables import HOLD, LEASE, TRANSFER, Table
from bidplane.ledger.verify import verify_store

from .words import CREDIT, PRICE, agent, bid, gpus, parted, pool, with_memory

NAMES = ("ann-1", "ann-2", "bob", "carl")  # the first two have one owner
REFILLS = {"ann-1": 50, "ann-2": 50, "bob": 5, "carl": 1}


def beside(views: tuple[DeviceView, ...]) -> tuple[DeviceView, ...]:
    """Devices of a machine that has others of their names."""
    return tuple(
        msgspec.structs.replace(
            view, device=msgspec.structs.replace(view.device, name=f"other-{view.device.name}")
        )
        for view in views
    )


class Killed(BaseException):
    """The process died here."""


class MortalStore(SqliteStore):
    """Dies at the write that it is told to."""

    writes_left = -1

    def insert(self, table: Table[Any], *records: Any) -> None:
        for record in records:
            self._count()
            super().insert(table, record)

    def update(self, table: Table[Any], *records: Any) -> None:
        for record in records:
            self._count()
            super().update(table, record)

    def _count(self) -> None:
        if self.writes_left == 0:
            raise Killed
        self.writes_left -= 1


class ExchangeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1_000_000.0
        self.made = 0
        self.verified = 0  # the commit after which all was replayed last
        self.budgets: dict[tuple[str, str], int] = {}
        self.world = HostSnapshot(
            agents=tuple(self.new_agent(name) for name in NAMES),
            # One pool is cheap, the other dear: in it, the poor run out of credits.
            pools=(
                pool("h100"),
                pool("a100", notice=5, floor=PRICE),
                parted(pool("l40")),
                parted(pool("h200"), mig=True),
                msgspec.structs.replace(parted(pool("t4")), float_percent=5),
            ),
            devices=(
                *gpus(8),
                *gpus(3, node="n2"),
                *gpus(4, node="n3", product="A100"),
                *gpus(2, node="n4", product="L40"),
                *beside(gpus(1, node="n2", product="L40")),
                *with_memory(gpus(2, node="n5", product="H200")),
                *gpus(8, node="n6", product="T4"),
                *gpus(12, node="n7", product="T4"),
            ),
        )
        self.devices = self.world.devices
        self.open()

    def open(self) -> None:
        self.store = MortalStore(self.folder / "ledger.db", durable=False)
        self.ledger = Ledger(self.store)
        self.engine = Engine(self.ledger)

    def teardown(self) -> None:
        try:
            self.verify()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    def change(self, **changes: Any) -> None:
        self.world = msgspec.structs.replace(self.world, **changes)

    def leases(self) -> list[Lease]:
        return self.store.find(LEASE)

    def new_agent(self, name: str) -> AgentView:
        self.made += 1
        made = agent(name, owner=name.split("-")[0], refill=REFILLS[name])
        # A name may come again; its uid does not. Two of them let their leases be moved.
        uid = f"{name}-{self.made}"
        return msgspec.structs.replace(made, uid=uid, movable=name in ("ann-1", "bob"))

    # What others do

    @precondition(lambda self: len(self.world.agents) < len(NAMES))
    @rule()
    def create_agent(self) -> None:
        here = {a.name for a in self.world.agents}
        made = self.new_agent(next(name for name in NAMES if name not in here))
        self.change(agents=(*self.world.agents, made))

    @precondition(lambda self: len(self.world.agents) > 2)
    @rule(data=st.data(), vanish=st.booleans())
    def delete_agent(self, data: st.DataObject, vanish: bool) -> None:
        gone = data.draw(st.sampled_from(self.world.agents))
        rest = tuple(a for a in self.world.agents if a != gone)
        kept = () if vanish else (msgspec.structs.replace(gone, deleting=True),)
        self.change(
            agents=rest + kept, bids=tuple(b for b in self.world.bids if b.agent != gone.name)
        )

    @rule(
        name=st.sampled_from(NAMES),
        gpus=st.sampled_from([1, 2, 3, 4, 8, 9]),
        price=st.sampled_from([50_000, 100_000, 150_000, 200_000, PRICE, 2 * PRICE, 40 * PRICE]),
        where=st.sampled_from(["", "h100", "a100", "nowhere"]),
        wait=st.sampled_from([1, 20]),
    )
    def bid_and_claim(self, name: str, gpus: int, price: int, where: str, wait: int) -> None:
        self.made += 1
        made = bid(f"bid-{self.made}", name, gpus, price, pool=where, created=int(self.now))
        self.change(bids=(*self.world.bids, made))
        self.run_round(wait)
        self.claim_all()

    @rule(
        name=st.sampled_from(NAMES),
        what=st.sampled_from(
            [
                ("l40", "1/2"),
                ("l40", "0.3"),
                ("l40", "0.4"),
                ("l40", "1/8"),
                ("h200", "1g.10gb"),
                ("h200", "3g.40gb"),
            ]
        ),
        blocks=st.sampled_from([1, 1, 1, 2, 3]),
        price=st.sampled_from([100_000, 200_000, PRICE, 2 * PRICE, 3 * PRICE]),
    )
    def bid_for_parts(self, name: str, what: tuple[str, str], blocks: int, price: int) -> None:
        self.made += 1
        where, share = what
        uid = f"bid-{self.made}"
        made = bid(uid, name, 1, price, pool=where, created=int(self.now), share=share)
        self.change(bids=(*self.world.bids, msgspec.structs.replace(made, blocks=blocks)))
        self.run_round(1)
        self.claim_all()

    @rule(name=st.sampled_from(NAMES), price=st.sampled_from([200_000, PRICE, 2 * PRICE]))
    def bid_for_a_gang(self, name: str, price: int) -> None:
        self.made += 1
        made = bid(f"bid-{self.made}", name, 2, price, created=int(self.now), blocks=3)
        self.change(bids=(*self.world.bids, made))
        self.run_round(1)
        self.claim_all()

    @rule(
        name=st.sampled_from(NAMES),
        needs=st.lists(
            st.tuples(st.sampled_from(["", "h100", "a100", "l40"]), st.sampled_from([1, 2, 3])),
            min_size=2,
            max_size=3,
        ),
        one_node=st.booleans(),
        price=st.sampled_from([200_000, PRICE, 2 * PRICE, 40 * PRICE]),
    )
    def bid_for_several(
        self, name: str, needs: list[tuple[str, int]], one_node: bool, price: int
    ) -> None:
        self.made += 1
        first, *others = (
            bid(f"bid-{self.made}", name, gpus, price, pool=where, created=int(self.now))
            for where, gpus in needs
        )
        made = msgspec.structs.replace(first, also=tuple(others), one_node=one_node)
        self.change(bids=(*self.world.bids, made))
        self.run_round(1)
        self.claim_all()

    @rule(
        name=st.sampled_from(NAMES[:3]),
        gpus=st.sampled_from([1, 2, 4]),
        seconds=st.sampled_from([20, 90, 600]),
        renews=st.booleans(),
        price=st.sampled_from([200_000, PRICE, 3 * PRICE]),
    )
    def bid_for_a_term(self, name: str, gpus: int, seconds: int, renews: bool, price: int) -> None:
        self.made += 1
        made = bid(f"bid-{self.made}", name, gpus, price, created=int(self.now))
        made = msgspec.structs.replace(made, term_seconds=seconds, renews=renews)
        self.change(bids=(*self.world.bids, made))
        self.run_round(1)
        self.claim_all()

    @rule(
        name=st.sampled_from(NAMES),
        work=st.sampled_from(["w1", "w2"]),
        budget=st.sampled_from([20_000, 200_000, 2 * CREDIT]),
        price=st.sampled_from([200_000, PRICE, 2 * PRICE]),
    )
    def bid_within_a_budget(self, name: str, work: str, budget: int, price: int) -> None:
        """A work's budget is what its first bid said: who raised it in between has raised it."""
        self.made += 1
        budget = self.budgets.setdefault((name, work), budget)
        made = bid(f"bid-{self.made}", name, 1, price, created=int(self.now))
        made = msgspec.structs.replace(made, budget=budget, work=work)
        self.change(bids=(*self.world.bids, made))
        self.run_round(1)
        self.claim_all()

    @rule(name=st.sampled_from(NAMES), price=st.sampled_from([50_000, PRICE, 40 * PRICE]))
    def bid_urgently(self, name: str, price: int) -> None:
        self.made += 1
        made = bid(f"bid-{self.made}", name, 1, price, created=int(self.now))
        made = msgspec.structs.replace(made, urgent=True)
        self.change(bids=(*self.world.bids, made))
        self.now += 0.05
        for _ in range(2):  # told of twice, it pays once
            self.engine.run_round(self.world, self.now, frozenset({made.uid}))

    @rule(
        name=st.sampled_from(NAMES),
        price=st.sampled_from([100_000, 105_000, PRICE]),
        share=st.sampled_from(["", "1/2", "0.3", "1g.10gb"]),
        killed=st.booleans(),
    )
    def order(self, name: str, price: int, share: str, killed: bool) -> None:
        """From the float; the same key again buys nothing more, whoever died in between."""
        self.made += 1
        key, now = f"key-{self.made}", round(self.now * 1000)
        for again in (False, True):
            found = [wallet for wallet in self.ledger.wallets_named(name) if wallet.is_open]
            if not found:
                return
            before = self.ledger.head
            if killed and not again:
                self.store.writes_left = self.made % 5
            try:
                sold = self.engine.desk.buy(
                    found[-1], pool="t4", max_price=price, key=key, now=now, share=share
                )
            except Killed:
                assert self.ledger.head == before, "half an order was written"
                self.store.close()
                self.open()
                self.engine.run_round(self.world, self.now)
                continue
            self.store.writes_left = -1
            if isinstance(sold, Lease) and again:
                made = [one for one in self.leases() if one.bid_uid.endswith(f"/{key}")]
                assert len(made) == 1

    @rule(
        name=st.sampled_from(NAMES),
        price=st.sampled_from([100_000, 105_000, PRICE]),
        share=st.sampled_from(["", "1/2", "0.3"]),
        claims=st.booleans(),
    )
    def bid_for_the_float(self, name: str, price: int, share: str, claims: bool) -> None:
        self.made += 1
        made = bid(f"bid-{self.made}", name, 1, price, share=share, created=int(self.now))
        made = msgspec.structs.replace(made, instant=True, pool="t4")
        self.change(bids=(*self.world.bids, made))
        for who in self.world.agents:
            if who.name == name:
                self.engine.desk.serve(made, who, now=round(self.now * 1000))
        if claims:
            self.claim_all()

    @rule(data=st.data())
    def a_device_goes(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.devices))
        self.change(devices=tuple(d for d in self.world.devices if d != gone))

    @rule(
        name=st.sampled_from(["h100", "a100", "l40", "t4"]),
        chain=st.sampled_from([CHAIN, (3, 1), (6, 3, 1), (12, 4, 1), (1,)]),
    )
    def a_pool_sells_other_sizes(self, name: str, chain: Chain) -> None:
        """Whoever runs keeps what it has; only what is sold from now on is of these sizes."""
        changed = (
            msgspec.structs.replace(pool, chain=chain) if pool.name == name else pool
            for pool in self.world.pools
        )
        self.change(pools=tuple(changed))

    @rule()
    def every_device_is_back(self) -> None:
        self.change(devices=self.devices)

    @precondition(lambda self: self.world.bids)
    @rule(data=st.data())
    def withdraw_bid(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.world.bids))
        self.change(bids=tuple(b for b in self.world.bids if b != gone))

    def claim_all(self) -> None:
        ids = {lease.id for lease in self.ledger.live_leases()}
        self.change(claimed=self.world.claimed | ids)
        self.run_round(1)

    @rule(price=st.sampled_from([PRICE, 2 * PRICE]), name=st.sampled_from(NAMES))
    def bid_and_do_not_claim(self, price: int, name: str) -> None:
        self.made += 1
        made = bid(f"bid-{self.made}", name, 1, price, created=int(self.now))
        self.change(bids=(*self.world.bids, made))

    @rule()
    def those_with_notice_leave(self) -> None:
        drained = {lease.id for lease in self.ledger.live_leases() if lease.notice_at}
        self.change(left=self.world.left | drained)

    @precondition(lambda self: self.ledger.live_leases())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.ledger.live_leases()))
        self.change(left=self.world.left | {lease.id})

    # What the exchange does

    @rule()
    def run_until_the_money_is_gone(self) -> None:
        others = {lease.id for lease in self.ledger.live_leases() if lease.pool == "a100"}
        self.change(left=self.world.left | others)
        self.bid_and_claim("carl", 4, 2 * PRICE, "a100", 1)
        for _ in range(7):
            self.run_round(25)

    @precondition(lambda self: any(lease.active_at for lease in self.ledger.live_leases()))
    @rule(name=st.sampled_from(NAMES[:3]), wait=st.sampled_from([1, 20]))
    def outbid_everybody(self, name: str, wait: int) -> None:
        running = [lease for lease in self.ledger.live_leases() if lease.active_at]
        price = 3 * max(lease.max_price for lease in running)
        self.bid_and_claim(name, 4, min(price, 3 * PRICE), running[0].pool, wait)

    @rule(seconds=st.sampled_from([0, 0.4, 1, 7, 31, 61, 4000]))
    def run_round(self, seconds: float) -> None:
        self.now += seconds
        self.engine.run_round(self.world, self.now)

    @rule(writes=st.integers(0, 12))
    def be_killed_in_a_round(self, writes: int) -> None:
        before = self.ledger.head
        self.now += 1
        self.store.writes_left = writes
        try:
            self.engine.run_round(self.world, self.now)
        except Killed:
            assert self.ledger.head == before, "half a round was written"
        self.store.close()
        self.open()

    @rule()
    def settle_down(self) -> None:
        """When nothing changes, a few rounds later nothing is written."""
        for _ in range(4):
            self.engine.run_round(self.world, self.now)
        head = self.ledger.head
        self.engine.run_round(self.world, self.now)
        assert self.ledger.head == head

    # What must always be true

    @invariant()
    def the_ledger_is_sound(self) -> None:
        # It is replayed from its beginning: after every few commits, and at the end.
        if self.ledger.head.sequence >= self.verified + 10:
            self.verify()

    def verify(self) -> None:
        report = verify_store(self.store)
        assert report.is_sound, report.problem
        self.verified = report.commits

    @invariant()
    def every_lease_has_paid_what_its_life_says(self) -> None:
        transfers = self.store.find(TRANSFER)
        for lease in self.leases():
            mine = [t for t in transfers if t.lease == lease.id]
            rent = sum(t.amount for t in mine if t.kind is TransferKind.RENT)
            levy = sum(t.amount for t in mine if t.kind is TransferKind.LEVY)
            back = sum(t.amount for t in mine if t.kind is TransferKind.COMPENSATION)
            ahead = sum(t.amount for t in mine if t.kind is TransferKind.PREEMPTION)
            assert rent + levy + ahead == lease.charged
            assert back == lease.compensation <= lease.charged
            end = min(t for t in (lease.released_at, lease.reclaim_at, 10**15) if t)
            seconds = -(-(end - lease.active_at) // 1000) if lease.active_at else 0
            most = rent_of(lease.max_price, lease.weight, seconds)
            assert lease.charged <= max(lease.minimum, most)
            # A win that was outranked before it was claimed is void, and pays nothing.
            outranked = lease.reason == "Outbid" and not lease.active_at
            void = lease.breached_at or lease.reason == "InventoryChanged" or outranked
            if lease.phase is Phase.RELEASED and not void:
                least = rent_of(lease.max_price, lease.weight, 10)
                assert lease.charged >= min(lease.minimum, least)

    @invariant()
    def a_fund_is_never_less_than_its_owner_and_the_levies_made_it(self) -> None:
        transfers = self.store.find(TRANSFER)
        for fund in (a for a in self.ledger.accounts() if a.kind == "fund"):
            came = [t for t in transfers if t.credit == fund.id]
            went = [t for t in transfers if t.debit == fund.id]
            ahead = sum(t.amount for t in came if t.kind is TransferKind.PREEMPTION)
            levies = sum(t.amount for t in came if t.kind is TransferKind.LEVY)
            assert {t.kind for t in went} <= {TransferKind.COMPENSATION}
            assert sum(t.amount for t in went) == ahead, "displacing drains the fund"
            assert fund.posted == fund.seeded + levies

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        used: dict[tuple[str, str, int], int] = {}
        holds = {hold.id: hold for hold in self.store.find(HOLD)}
        for lease in self.leases():
            if lease.work:
                held = holds[lease.hold].amount if lease.hold else 0
                key = lease.wallet, lease.work, lease.budget
                used[key] = used.get(key, 0) + lease.charged + held
        for (wallet, work, budget), amount in used.items():
            assert amount <= budget, f"{wallet} has used {amount} of {budget} for {work}"

    @invariant()
    def nobody_is_displaced_in_its_term(self) -> None:
        for lease in self.leases():
            if lease.reason in ("Outbid", "Moved"):
                assert lease.notice_at >= lease.term_until

    @invariant()
    def who_has_asked_for_a_round_has_paid_for_one(self) -> None:
        early = [t for t in self.store.find(TRANSFER) if t.kind is TransferKind.EARLY]
        assert len({t.id for t in early}) == len(early)

    @invariant()
    def what_is_kept_for_who_moved_costs_nothing(self) -> None:
        for lease in self.leases():
            if lease.is_reservation:
                assert (lease.charged, lease.minimum) == (0, 0)
                moved = self.ledger.lease(lease.moved_from)
                assert moved is not None
                assert moved.reason == "Moved"

    @invariant()
    def what_runs_is_held_for(self) -> None:
        holds = {hold.id: hold for hold in self.store.find(HOLD)}
        for lease in self.leases():
            if lease.phase is Phase.RELEASED:
                assert not lease.hold
            else:
                assert holds[lease.hold].state is HoldState.OPEN
        live = {lease.hold for lease in self.leases()}
        assert {h.id for h in holds.values() if h.state is HoldState.OPEN} <= live

    @invariant()
    def no_price_is_above_the_bid(self) -> None:
        for lease in self.leases():
            assert lease.price <= lease.max_price

    @invariant()
    def closed_wallets_are_empty(self) -> None:
        for account in self.ledger.accounts():
            if not account.is_open:
                assert account.posted == account.held == 0
            assert account.posted < 10**6 * CREDIT or account.kind == "mint"


TestExchangeMachine = pytest.mark.slow(ExchangeMachine.TestCase)
TestExchangeMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
