"""
The rule by which several activators let a service sleep, against every order of messages.

The model is a store of versions, of which each activator has read some prefix. Whatever happens, no
request may have been sent to a pod at the moment the demand to sleep is written; and once all is
read, an unused service sleeps and a held request wakes it.
"""

from __future__ import annotations

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bidplane.api.endpoint import ActivatorReport, Demand
from bidplane.api.times import rfc3339
from bidplane.core.activation import joining
from bidplane.core.activation.joining import Step
from effort import effort

WINDOW = 10
NAMES = ("a", "b", "c")


class Version(msgspec.Struct, frozen=True):
    demand: Demand
    reports: dict[str, ActivatorReport]


class Host:
    """The object's versions; activators read them one after the other, in their own time."""

    def __init__(self) -> None:
        self.versions = [Version(Demand(number=1, awake=True), {})]
        self.now = 1000.0
        self.over: set[str] = set()  # lives that have ended
        self.lives = 0

    def new_life(self) -> str:
        self.lives += 1
        return f"life-{self.lives}"


class Worker:
    """An activator, as `activator.joined` is one."""

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host
        self.leads = False
        self.begin()

    def begin(self) -> None:
        self.alive, self.life = True, self.host.new_life()
        self.seen = len(self.host.versions) - 1  # a new process reads the newest version
        self.is_known, self.agreed, self.voted, self.wish = False, False, 0, 0
        self.holds = self.in_flight = 0
        self.last_use = self.host.now
        self.last: Demand | None = None
        self.own: list[Demand] = []
        self.demand = self.view.demand
        self.read()

    @property
    def view(self) -> Version:
        return self.host.versions[self.seen]

    @property
    def is_open(self) -> bool:
        asked = bool(self.demand.proposes) and self.agreed and self.voted == self.demand.proposal
        return self.alive and self.is_known and self.demand.awake and not asked

    def read(self) -> None:
        """React to the version that it has read."""
        before, self.last = self.last, self.view.demand
        written = self.last
        if not self.leads or joining.is_of_another(before, written, self.own):
            if written.number != self.demand.number:
                self.wish = 0
            self.demand = written
        self.answer()
        if not self.demand.awake and self.holds and not self.leads:
            self.wish = self.demand.number
        if self.leads:
            self.lead()
        if self.is_open:  # what it held is passed on
            self.in_flight, self.holds = self.in_flight + self.holds, 0

    def answer(self) -> None:
        if self.demand.proposes and self.voted != self.demand.proposal:
            self.voted = self.demand.proposal
            self.agreed = self.is_quiet()

    def is_quiet(self) -> bool:
        return joining.may_sleep(
            holds=self.holds,
            in_flight=self.in_flight,
            idle_seconds=self.host.now - self.last_use,
            window=WINDOW,
        )

    def report(self) -> ActivatorReport:
        return ActivatorReport(
            life=self.life,
            last_request=rfc3339(self.last_use),
            holds=self.holds,
            in_flight=self.in_flight,
            wakes=self.wish,
            answers=self.voted,
            agrees=self.agreed,
        )

    def step(self) -> Step:
        over = self.host.over
        reports = joining.counted_reports(
            self.view.reports, self.name, lambda name, life: life not in over
        )
        return joining.next_step(
            self.demand,
            self.report(),
            reports,
            is_quiet=self.is_quiet(),
            now=self.host.now,
            window=WINDOW,
        )

    def lead(self) -> None:
        if not self.demand.awake and (
            self.holds or joining.asks_to_wake(self.demand, self.view.reports.values())
        ):
            number = self.demand.number + 1
            self.demand = replace(self.demand, number=number, awake=True)

    def write(self, workers: list[Worker]) -> None:
        """Write the report; as the leader also the demand, if nobody wrote meanwhile."""
        newest = self.host.versions[-1]
        demand = newest.demand
        if self.leads:
            step = self.step()
            if self.seen != len(self.host.versions) - 1:
                return  # a conflict
            demand = self.demand
            proposal = demand.proposal
            if step is Step.PROPOSE:
                demand = replace(demand, proposal=proposal + 1, proposes="Idle")
            elif step is Step.WITHDRAW:
                demand = replace(demand, proposes="")
            elif step is Step.SLEEP:
                demand = Demand(number=demand.number + 1, proposal=proposal)
                for worker in workers:  # the pods end now
                    assert not worker.in_flight, f"{worker.name} has sent a request"
            self.own.append(demand)
        reports = {**newest.reports, self.name: self.report()}
        self.host.versions.append(Version(demand, reports))
        self.is_known = True
        if self.leads:
            self.demand = demand
            self.answer()
        if self.is_open:
            self.in_flight, self.holds = self.in_flight + self.holds, 0

    def request(self) -> None:
        self.last_use = self.host.now
        if self.is_open:
            self.in_flight += 1
        else:
            self.holds += 1
            if not self.demand.awake and not self.leads:
                self.wish = self.demand.number
            if self.leads:
                self.lead()

    def end(self) -> None:
        if self.in_flight:
            self.in_flight -= 1
            self.last_use = self.host.now

    def crash(self) -> None:
        self.alive, self.leads = False, False
        self.in_flight = self.holds = 0


WEIGHTS = {"round": 6, "time": 4, "request": 3, "end": 3, "read": 2, "write": 2, "begin": 2}
ACTS = [*(act for act, weight in WEIGHTS.items() for _ in range(weight)), "lead", "crash", "over"]
acts = st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(NAMES)), max_size=120)


def acts_of(text: str) -> list[tuple[str, str]]:
    """Return a story from words such as `read:a`."""
    return [(act, name) for act, _, name in (word.partition(":") for word in text.split())]


ALL = "round:a round:b round:c round:a "
# b agreed to a proposal that c refused; the next one it has not read, and has sent a request.
STALE_ANSWER = acts_of(
    ALL
    + "time:a request:c round:a round:b round:c round:a read:b read:b read:b end:c round:c time:a"
    " request:b round:a round:c round:a"
)
# All agreed; before a writes, b leads too and withdraws the proposal, and c sends what it held.
TWO_LEADERS = acts_of(
    ALL + "time:a round:a round:b round:c read:a read:a read:a lead:b request:c write:c round:b"
    " round:c write:a"
)


def play(story: list[tuple[str, str]]) -> tuple[Host, list[Worker]]:
    host = Host()
    workers = {name: Worker(name, host) for name in NAMES}
    workers["a"].leads = True
    for act, name in story:
        worker = workers[name]
        if act == "time":
            host.now += WINDOW + 1
        elif act == "over" and not worker.alive:
            host.over.add(worker.life)
        elif act == "begin" and not worker.alive:
            host.over.add(worker.life)
            worker.begin()
        elif not worker.alive:
            continue
        elif act == "read":
            worker.seen = min(worker.seen + 1, len(host.versions) - 1)
            worker.read()
        elif act == "write":
            worker.write(list(workers.values()))
        elif act == "round":  # it hears of everything, and answers
            worker.seen = len(host.versions) - 1
            worker.read()
            worker.write(list(workers.values()))
        elif act == "request":
            worker.request()
        elif act == "end":
            worker.end()
        elif act == "lead":  # the one before may not have noticed yet
            worker.leads = not worker.leads
        elif act == "crash":
            worker.crash()
    return host, list(workers.values())


def settle(host: Host, workers: list[Worker], rounds: int = 12) -> None:
    """Let everything be read and written, with one leader."""
    for worker in workers:
        if not worker.alive:
            host.over.add(worker.life)
    alive = [worker for worker in workers if worker.alive]
    for number, worker in enumerate(alive):
        worker.leads = number == 0
    for _ in range(rounds):
        for worker in alive:
            worker.seen = len(host.versions) - 1
            worker.read()
            worker.write(workers)


@settings(max_examples=effort(300, 20_000), deadline=None)
@given(acts)
@example(STALE_ANSWER)
@example(TWO_LEADERS)
def test_nothing_is_in_flight_when_a_service_is_put_to_sleep(story: list[tuple[str, str]]) -> None:
    host, workers = play(story)
    settle(host, workers)


@settings(max_examples=effort(150, 5_000), deadline=None)
@given(acts)
def test_in_the_end_an_unused_service_sleeps_and_a_held_request_wakes_it(
    story: list[tuple[str, str]],
) -> None:
    host, workers = play(story)
    for worker in workers:
        if not worker.alive:
            host.over.add(worker.life)
            worker.begin()
    settle(host, workers)
    for worker in workers:
        assert not worker.holds, "what was held was passed on"
        worker.in_flight = 0
    host.now += 2 * WINDOW
    settle(host, workers)
    assert not host.versions[-1].demand.awake
    number = host.versions[-1].demand.number
    workers[2].request()
    assert not workers[2].in_flight
    settle(host, workers)
    assert host.versions[-1].demand.awake
    assert host.versions[-1].demand.number == number + 1
    assert workers[2].in_flight == 1


def test_the_joined_demand_has_the_traffic_of_all() -> None:
    own = ActivatorReport(
        holds=1, concurrency=3, drained=2, free_pods=("p", "q"), whole_window=True
    )
    other = ActivatorReport(in_flight=2, concurrency=4, drained=2, free_pods=("q",))
    demand = joining.joined(Demand(number=3, awake=True), own, [other])
    assert (demand.holds, demand.in_flight, demand.concurrency) == (1, 2, 7)
    assert (demand.drained, demand.free_pods, demand.whole_window) == (2, ("q",), False)
    behind = replace(other, drained=1)
    demand = joining.joined(Demand(number=3, awake=True), own, [behind])
    assert (demand.drained, demand.free_pods) == (1, ())
