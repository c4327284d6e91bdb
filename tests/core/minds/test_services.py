"""The rules about Endpoints: what is pre-warmed, let sleep, retried, and when a person is paged."""

from __future__ import annotations

import msgspec
import pytest

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.api.money import MICRO
from bidplane.api.times import rfc3339
from bidplane.core.gate.fleet import FleetAgent, FleetEndpoint, FleetLease, FleetNode, FleetPool
from bidplane.core.gate.fleet import FleetState as Fleet
from bidplane.core.minds.observation import Intention, Observation, PastProposal
from bidplane.core.minds.recurrence import Likelihood
from bidplane.core.minds.rules import decide
from bidplane.core.minds.services import (
    DEFAULT_SERVICES,
    endpoint_action,
    least_probability,
    next_retry,
    try_seconds,
)

NOW = 1_800_000_000.0
POOL = FleetPool(name="h100", floor_price="0.20", list_price="2.00", idle_seconds=300, waiting=0)
RHYTHM = Likelihood(0.9, "started at 04:00 on the last 3 of 3 days", 3)


def endpoint(**fields: object) -> FleetEndpoint:
    asleep = {"phase": EndpointPhase.ASLEEP, "awake": False, "reason": "Idle"}
    given_fields = {"namespace": "agent-a", "name": "web", "uid": "u", "agent": "a"}
    queue = {"service": "web", "gpus": 1, "holds": 0, "in_flight": 0}
    return FleetEndpoint(**{**given_fields, **asleep, **queue, **fields})  # type: ignore[arg-type]


def warm(*, unused: float = 600, since: float = 4000, **fields: object) -> FleetEndpoint:
    awake = {"phase": EndpointPhase.READY, "awake": True, "reason": "Request"}
    times = {"since": rfc3339(NOW - since), "last_request": rfc3339(NOW - unused)}
    return endpoint(**{**awake, **times, **fields})


def observe(
    service: FleetEndpoint, likely: Likelihood = RHYTHM, *proposals: PastProposal, rent: int = 0
) -> Observation:
    held = FleetLease(
        namespace="agent-b", name="l", uid="l", agent="b", pool="h100", node="n", devices=1,
        rent=rent,
    )  # fmt: skip
    fleet = Fleet(pools=(POOL,), endpoints=(service,), leases=(held,) if rent else ())
    return Observation(at=NOW, fleet=fleet, likely={"u": likely}, proposals=proposals)


def kinds(intentions: list[Intention]) -> list[tuple[ActionKind, str]]:
    return [(x.action.kind, x.action.value) for x in intentions]


def past(action: Action, ago: float, phase: ProposalPhase = ProposalPhase.APPLIED) -> PastProposal:
    return PastProposal(name=f"p{ago}", action=action, phase=phase, created=NOW - ago)


class TestPrewarming:
    def test_a_rhythm_is_sure_and_explains_itself(self) -> None:
        (intention,) = decide(observe(endpoint(cold_start_seconds=42)))
        assert kinds([intention]) == [(ActionKind.PREWARM_ENDPOINT, "sure")]
        assert intention.reason == "started at 04:00 on the last 3 of 3 days"
        assert intention.evidence[0] == "use in ten minutes: 90% likely; it pays from 20%"
        assert intention.evidence[2] == "its last cold start took 42 s"

    @pytest.mark.parametrize(
        ("likely", "certainty"),
        [
            (Likelihood(0.34, "r", 3), "unsure"),
            (Likelihood(0.9, "r", 1), "unsure"),
            (Likelihood(0.35, "r", 2), "sure"),
        ],
    )
    def test_a_person_is_asked_where_it_is_unsure(self, likely: Likelihood, certainty: str) -> None:
        assert kinds(decide(observe(endpoint(), likely))) == [
            (ActionKind.PREWARM_ENDPOINT, certainty)
        ]

    @pytest.mark.parametrize(
        "observation",
        [
            observe(endpoint(), Likelihood(0.19, "r", 3)),
            observe(endpoint(), Likelihood(0.9, "r", 3, False)),  # it has begun: too late
            observe(endpoint(awake=True, phase=EndpointPhase.WAKING)),
            observe(endpoint(phase=EndpointPhase.REFUSED)),
            observe(
                endpoint(),
                RHYTHM,
                past(endpoint_action(ActionKind.PREWARM_ENDPOINT, endpoint(), "sure"), 1100),
            ),
        ],
    )
    def test_not_what_does_not_pay_or_was_taken_back(self, observation: Observation) -> None:
        assert decide(observation) == []

    def test_a_dearer_market_needs_a_likelier_use(self) -> None:
        even = Likelihood(0.5, "started at 04:00 on the last 3 of 6 days", 3)
        assert kinds(decide(observe(endpoint(), even, rent=2 * MICRO)))  # the list price
        assert decide(observe(endpoint(), even, rent=5 * MICRO)) == []
        usual = least_probability(Fleet(pools=(msgspec.structs.replace(POOL, floor_price="2"),)))
        assert usual == pytest.approx(0.245, abs=0.001)


@pytest.mark.parametrize(
    ("late", "cold", "seconds"),
    [(0.0, 60, 150), (0.5, 60, 420), (1.0, 60, 600), (0.0, 0, 90), (0.0, 900, 600)],
)
def test_a_try_in_vain_is_short_where_use_would_have_come_early(
    late: float, cold: float, seconds: float
) -> None:
    service = endpoint(cold_start_seconds=cold)
    likely = Likelihood(0.5, "r", late=late)
    assert try_seconds(service, likely, DEFAULT_SERVICES) == seconds


def test_a_shorter_try_pays_sooner() -> None:
    for late, pays in ((0.0, 0.062), (1.0, 0.246)):
        for probability in (pays - 0.002, pays + 0.002):
            likely = Likelihood(probability, "r", late=late)
            service = endpoint(cold_start_seconds=60)
            intentions = decide(observe(service, likely, rent=2 * MICRO))  # the list price
            assert bool(intentions) is (probability > pays), (late, probability)


class TestSleep:
    UNLIKELY = Likelihood(0.05, "0 of its 9 pauses of 10 minutes ended soon")

    def test_what_nobody_uses_nor_is_likely_to(self) -> None:
        (intention,) = decide(observe(warm(), self.UNLIKELY))
        assert kinds([intention]) == [(ActionKind.SLEEP_ENDPOINT, "")]
        assert "5% likely" in intention.reason

    @pytest.mark.parametrize(
        "observation",
        [
            observe(warm(), Likelihood(0.5, "r")),
            observe(warm(unused=59), UNLIKELY),
            observe(warm(holds=1), UNLIKELY),
            observe(warm(in_flight=1), UNLIKELY),
            observe(warm(holds=None), UNLIKELY),  # unknown
            observe(warm(phase=EndpointPhase.WAKING), UNLIKELY),
            observe(warm(since=10, unused=600), UNLIKELY),  # a person woke it just now
        ],
    )
    def test_not_what_is_or_may_be_used(self, observation: Observation) -> None:
        assert decide(observation) == []

    @pytest.mark.parametrize(
        ("since", "likely", "sleeps"),
        [
            (189, UNLIKELY, False),  # a cold start of 100 s, 30 s before, and a minute of silence
            (190, UNLIKELY, True),
            (1329, RHYTHM, False),
            (1330, RHYTHM, True),
        ],
    )
    def test_an_unused_prewarming_is_taken_back(
        self, since: float, likely: Likelihood, sleeps: bool
    ) -> None:
        asked = endpoint_action(ActionKind.PREWARM_ENDPOINT, endpoint(), "sure")
        service = warm(reason="Asked", since=since, unused=90_000, cold_start_seconds=100)
        intentions = kinds(decide(observe(service, likely, past(asked, since))))
        assert (intentions == [(ActionKind.SLEEP_ENDPOINT, "")]) is sleeps
        by_a_person = observe(service, likely)
        assert decide(by_a_person) == [], "what a person woke is the person's"

    def test_a_prewarming_that_is_used_stays(self) -> None:
        asked = endpoint_action(ActionKind.PREWARM_ENDPOINT, endpoint(), "sure")
        used = observe(warm(reason="Asked", since=1400, unused=300), RHYTHM, past(asked, 1400))
        assert decide(used) == []

    def test_what_was_prewarmed_in_vain_is_not_at_once_again(self) -> None:
        asked = endpoint_action(ActionKind.PREWARM_ENDPOINT, endpoint(), "sure")
        for last_use, again in ((2000, False), (60, True)):
            service = endpoint(last_request=rfc3339(NOW - last_use))
            intentions = decide(observe(service, RHYTHM, past(asked, 1100)))
            assert bool(intentions) is again


class TestRetrying:
    BROKEN = endpoint(phase=EndpointPhase.WAKING, awake=True, failure="CrashLoopBackOff")
    RETRY = endpoint_action(ActionKind.RETRY_ROLLOUT, BROKEN)

    @pytest.mark.parametrize(
        ("ago", "again"),
        [
            ((), True),
            ((9,), False),
            ((10,), True),
            ((60, 19), False),
            ((60, 20), True),
            ((90, 60, 39), False),
            ((300, 200, 100, 79), False),
            ((300, 200, 100, 80), True),
        ],
    )
    def test_five_tries_each_after_a_longer_rest(self, ago: tuple[float, ...], again: bool) -> None:
        proposals = [past(self.RETRY, seconds) for seconds in ago]
        intentions = decide(observe(self.BROKEN, RHYTHM, *proposals))
        assert (self.RETRY in [x.action for x in intentions]) is again
        if again:
            assert intentions[0].reason == f"its pods fail: try {len(ago) + 1} of 5"

    def test_then_a_person_is_paged_once(self) -> None:
        tries = [past(self.RETRY, 1000 + i) for i in range(5)]
        (page,) = decide(observe(self.BROKEN, RHYTHM, *tries))
        assert page.action.kind is ActionKind.PAGE_PERSON
        assert page.action.value == "a/web: its pods fail after 5 retries"
        assert decide(observe(self.BROKEN, RHYTHM, *tries, past(page.action, 60))) == []

    def test_the_last_try_has_its_time_before_a_person_is_paged(self) -> None:
        tries = [past(self.RETRY, 500 + i) for i in range(4)]
        for ago, paged in ((159, False), (160, True)):
            intentions = decide(observe(self.BROKEN, RHYTHM, *tries, past(self.RETRY, ago)))
            assert bool(intentions) is paged

    @pytest.mark.parametrize(
        ("ago", "due"),
        [((), 0), ((4,), 6), ((60, 5), 15), ((10,), 0), ((9, 8, 7, 6, 5), 155), ((3600,), 0)],
    )
    def test_when_the_next_is_due(self, ago: tuple[float, ...], due: float) -> None:
        proposals = [past(self.RETRY, seconds) for seconds in ago]
        expected = NOW + due if due else 0.0
        assert next_retry(observe(self.BROKEN, RHYTHM, *proposals)) == expected
        whole = observe(endpoint(phase=EndpointPhase.READY, awake=True), RHYTHM, *proposals)
        assert next_retry(whole) == 0.0


def test_a_node_that_is_used_little_is_freed_if_its_leases_may_move() -> None:
    nodes = tuple(FleetNode(name=name, pools=("h100",), devices=8) for name in ("n1", "n2"))

    def held(name: str, node: str, devices: int) -> FleetLease:
        return FleetLease(
            namespace="agent-a", name=name, uid=name, agent="a", pool="h100", node=node,
            devices=devices,
        )  # fmt: skip

    leases = (held("x", "n1", 2), held("y", "n2", 5))
    agent = FleetAgent(name="a", refill="1", priority=1, movable=True)
    fleet = Fleet(nodes=nodes, leases=leases, pools=(POOL,), agents=(agent,))
    (intention,) = decide(Observation(at=NOW, fleet=fleet))
    assert (intention.action.kind, intention.action.name) == (ActionKind.CONSOLIDATE_NODE, "n1")
    assert intention.reason.startswith("25% of it is leased")
    fixed = msgspec.structs.replace(fleet, agents=(msgspec.structs.replace(agent, movable=False),))
    assert decide(Observation(at=NOW, fleet=fixed)) == []


def test_drift_is_proposed() -> None:
    repair = Action(kind=ActionKind.SET_FLOOR_PRICE, name="h100", value="0.50")
    fleet = Fleet(pools=(POOL,))
    (intention,) = decide(Observation(at=NOW, fleet=fleet, drifts=(repair,)))
    assert (intention.action, intention.reason) == (repair, "it differs from what was declared")
