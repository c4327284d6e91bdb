"""The audit in either database: append-only, chained, and the memory of limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.api.gate.policy import ActorRole
from bidplane.core.gate.judgement import GateActor
from bidplane.core.gate.lifecycle import ProposalEvent, WrongPhase
from bidplane.errors import UserError
from bidplane.gate.service import entry_of
from bidplane.ledger import Ledger
from bidplane.ledger.audit.check import verify_audit
from bidplane.ledger.audit.trail import AuditEntry, AuditTrail
from bidplane.ledger.store import ConstraintViolated
from bidplane.ledger.stores import open_store
from bidplane.storage.postgres import PostgresDatabase, is_dsn
from bidplane.storage.sqlite import Database

from .conftest import Place

ANN = GateActor(name="ann", role=ActorRole.OWNER)
PILOT = GateActor(name="pilot", role=ActorRole.PILOT)
CORDON = Action(kind=ActionKind.CORDON_NODE, name="n1")


def entry(
    event: ProposalEvent,
    subject: str = "s",
    actor: GateActor = ANN,
    devices: int = 0,
) -> AuditEntry:
    return entry_of(event, subject, actor, CORDON, effect=Effect(devices=devices))


@pytest.fixture
def trail(place: Place) -> Iterator[AuditTrail]:
    Ledger.open(place, durable=False).close()
    opened = AuditTrail.open(place)
    yield opened
    opened.close()


LIFE = (ProposalEvent.ALLOWED, ProposalEvent.BEGUN, ProposalEvent.APPLIED)


def test_entries_are_chained_and_read_back(trail: AuditTrail, place: Place) -> None:
    written = trail.append(*map(entry, LIFE), at=5.0)
    assert [e.sequence for e in written] == [1, 2, 3]
    assert trail.entries() == list(trail.subject("s").entries) == written
    (late,) = trail.append(entry(ProposalEvent.DENIED, "t"), at=2.0)
    assert late.at == 5000, "time never goes back"
    store = open_store(place, read_only=True)
    report = verify_audit(store)
    store.close()
    assert (report.entries, report.verdicts, report.outcomes, report.unfinished) == (4, 2, 1, 0)
    assert (report.problem, report.head) == ("", late.hash.hex())


def test_a_second_decision_writes_nothing(trail: AuditTrail, place: Place) -> None:
    other = AuditTrail.open(place)
    trail.append(entry(ProposalEvent.ALLOWED), entry(ProposalEvent.BEGUN), at=1.0)
    for again in (ProposalEvent.ALLOWED, ProposalEvent.BEGUN, ProposalEvent.DENIED):
        with pytest.raises(WrongPhase):
            other.append(entry(ProposalEvent.DENIED, "x"), entry(again), at=1.0)
    assert len(trail.entries()) == 2, "all or none"
    assert [subject.id for subject in other.unfinished()] == ["s"]
    other.append(entry(ProposalEvent.APPLIED), at=1.0)
    assert trail.unfinished() == []
    other.close()


def test_limits_are_counted_across_restarts(trail: AuditTrail, place: Place) -> None:
    def allow(subject: str, actor: GateActor, devices: int, at: float) -> None:
        trail.append(entry(ProposalEvent.ALLOWED, subject, actor, devices), at=at)

    allow("a", ANN, 1, at=100.0)
    allow("b", PILOT, 2, at=200.0)
    allow("c", PILOT, 4, at=200.0)
    trail.append(entry(ProposalEvent.BEGUN, "c"), entry(ProposalEvent.FAILED, "c"), at=201.0)
    trail.append(entry(ProposalEvent.DENIED, "d", PILOT, 8), at=202.0)
    again = AuditTrail.open(place)
    assert again.usage(3600, (), now=300.0).devices == 3, "what failed or was denied counts not"
    assert again.usage(3600, (ActorRole.PILOT,), now=300.0).devices == 2
    assert again.usage(100, (), now=250.0).devices == 2
    assert again.usage(100, (), now=300.0).devices == 0, "the window is half open"
    assert again.usage(3600, (), now=300.0, but="b").devices == 1
    again.close()


def _execute(place: Place, *statements: str) -> None:
    database = (
        PostgresDatabase(place)
        if isinstance(place, str) and is_dsn(place)
        else Database(Path(place))
    )
    try:
        for statement in statements:
            database.execute(statement)
    finally:
        database.close()


def _without_triggers(place: Place) -> None:
    if isinstance(place, str):
        _execute(place, "DROP TRIGGER audit_is_append_only ON audit")
    else:
        _execute(
            place, "DROP TRIGGER audit_is_never_changed", "DROP TRIGGER audit_is_never_deleted"
        )


def test_the_database_refuses_to_change_an_entry(trail: AuditTrail, place: Place) -> None:
    trail.append(*map(entry, LIFE), at=1.0)
    for statement in ("UPDATE audit SET actor = 'x'", "DELETE FROM audit"):
        with pytest.raises(Exception, match=r"never (changed|deleted)") as refused:
            _execute(place, statement)
        assert not isinstance(refused.value, ConstraintViolated)
    assert len(trail.entries()) == 3


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit SET devices = 7 WHERE sequence = 2", "entry 2 was changed"),
        ("UPDATE audit SET at = 900 WHERE sequence = 3", "entry 3 is older"),
        ("UPDATE audit SET detail = '{}' WHERE sequence = 1", "entry 1 was changed"),
        ("UPDATE audit SET event = 'odd' WHERE sequence = 2", "entry 2 cannot be read"),
        ("DELETE FROM audit WHERE sequence = 2", "entry 3 follows entry 1"),
        ("DELETE FROM audit WHERE sequence = 1", "entry 2 follows entry 0"),
    ],
)
def test_what_was_tampered_with_is_named(
    trail: AuditTrail, place: Place, statement: str, problem: str
) -> None:
    trail.append(*map(entry, LIFE), at=1.0)
    _without_triggers(place)
    _execute(place, statement)
    store = open_store(place, read_only=True)
    report = verify_audit(store)
    store.close()
    assert problem in report.problem


def test_it_creates_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(UserError, match="is not there"):
        AuditTrail.open(path)
    path.touch()
    with pytest.raises(UserError, match="is not there"):
        AuditTrail.open(path)
    assert path.stat().st_size == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    events=st.lists(
        st.tuples(st.sampled_from(list(ProposalEvent)), st.sampled_from("ab")), max_size=12
    )
)
def test_whatever_is_tried_the_chain_is_sound(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[ProposalEvent, str]]
) -> None:
    path = tmp_path_factory.mktemp("audit") / "ledger.db"
    store = open_store(path, durable=False)
    trail = AuditTrail(store)
    accepted = 0
    for event, subject in events:
        try:
            trail.append(entry(event, subject), at=1.0)
            accepted += 1
        except WrongPhase:
            continue
    report = verify_audit(store)
    store.close()
    assert (report.entries, report.problem) == (accepted, "")
