"""The notice of a lease: who is under one, what pods are told, how long a checkpoint may take."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api import labels
from bidplane.api.reading import GPULease
from bidplane.api.times import parse_rfc3339
from bidplane.core.leases import notice
from bidplane.core.leases.notice import ReclaimNotice
from core.structs import as_lease

NOON, SOON = "2026-01-01T12:00:00Z", "2026-01-01T12:00:30Z"
START = parse_rfc3339(NOON)


def lease(phase: str = "Draining", **status: Any) -> GPULease:
    return as_lease({"metadata": {"name": "lease-1"}, "status": {"phase": phase, **status}})


def pod(phase: str = "Running", grace: int = 30, **annotations: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "train", "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": grace},
        "status": {"phase": phase},
    }


SAVES: dict[str, Any] = {labels.CHECKPOINT_COMMAND: "save"}
SAVED = SAVES | {labels.CHECKPOINT: "done"}


@pytest.mark.parametrize(
    "held",
    [lease("Active"), lease("Active", reclaimAt=SOON), lease("Draining"), lease("Released")],
)
def test_a_lease_without_an_end_is_under_no_notice(held: GPULease) -> None:
    assert notice.notice_of(held) is None
    assert notice.explanation(None) == "the lease was released"


def test_a_pod_is_told_the_cause_the_time_and_the_compensation() -> None:
    outbid = lease(reason="Outbid", noticeAt=NOON, reclaimAt=SOON, compensation="0.25")
    given = notice.notice_of(outbid)
    assert given is not None
    told = notice.explanation(given)
    for words in ("another agent outbid this lease", SOON, "0.25 credits", "bids again"):
        assert words in told
    assert msgspec.json.decode(notice.annotation(given)) == {
        "reason": "Outbid",
        "reclaimAt": SOON,
        "compensation": "0.25",
        "lease": "lease-1",
    }
    free = notice.notice_of(lease(reason="Moved", reclaimAt=SOON, compensation="0.000000"))
    assert "compensation" not in notice.explanation(free)


def test_only_an_idle_lease_that_was_outbid_is_told_so() -> None:
    idle = notice.notice_of(lease(reason="Outbid", reclaimAt=SOON, idleSince=NOON))
    unfunded = notice.notice_of(lease(reason="Unfunded", reclaimAt=SOON, idleSince=NOON))
    assert notice.IDLE in notice.explanation(idle)
    assert notice.IDLE not in notice.explanation(unfunded)


def test_a_release_gives_notice_only_to_pods_that_save() -> None:
    held, asked = lease("Active"), {"reason": "Released", "requested_at": START}
    assert notice.notice_of_release(held, pod(), **asked) is None  # type: ignore[arg-type]
    given = notice.notice_of_release(held, pod(**SAVES), **asked)  # type: ignore[arg-type]
    assert given == ReclaimNotice(
        reason="Released", reclaim_at=SOON, lease="lease-1", given_at=NOON
    )
    under_notice = lease(reason="Outbid", reclaimAt=NOON)
    own = notice.notice_of_release(under_notice, pod(), **asked)  # type: ignore[arg-type]
    assert own == notice.notice_of(under_notice)


GIVEN = ReclaimNotice(reason="Outbid", reclaim_at=SOON, lease="lease-1", given_at=NOON)


@pytest.mark.parametrize(
    ("now", "grace", "seconds"),
    [
        (0, 30, 20.0),  # a third of the notice is for the shutdown
        (0, 4, 26.0),  # or less, if the pod needs less
        (15, 30, 5.0),
        (20, 30, 0.0),
        (40, 30, 0.0),
    ],
)
def test_a_checkpoint_may_take_what_the_shutdown_leaves(
    now: float, grace: int, seconds: float
) -> None:
    saving = pod(grace=grace, **SAVES)
    assert notice.checkpoint_wait(GIVEN, saving, pod(), now=START + now) == seconds


@pytest.mark.parametrize(
    ("plane_pod", "host_pod"),
    [
        (pod(), pod()),  # it does not save
        (pod(**SAVES), None),
        (pod(**SAVES), pod("Pending")),
        (pod(**SAVED), pod()),
    ],
)
def test_who_has_nothing_to_save_is_not_waited_for(
    plane_pod: dict[str, Any], host_pod: dict[str, Any] | None
) -> None:
    assert notice.checkpoint_wait(GIVEN, plane_pod, host_pod, now=START) == 0.0
