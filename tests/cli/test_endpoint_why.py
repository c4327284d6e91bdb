"""`bidplane endpoint why` says what a service without pods still holds, and until when."""

import pytest

from bidplane.api.endpoint import (
    Demand,
    EndpointPhase,
    EndpointSpec,
    EndpointStatus,
    EndpointTarget,
)
from bidplane.api.idling.ladder import HoldingStatus, LadderStatus, LadderWindows, Rung
from bidplane.api.reading import Endpoint, ObjectMeta
from bidplane.cli.account.endpoint import _explanation


def asleep(holding):
    return Endpoint(
        metadata=ObjectMeta(name="web", namespace="agent-mine", uid="1"),
        spec=EndpointSpec(target=EndpointTarget(deployment="web", service="web")),
        status=EndpointStatus(
            phase=EndpointPhase.ASLEEP,
            demand=Demand(number=3, awake=False, reason="Idle"),
            ladder=LadderStatus(rung=Rung.RELEASED, windows=LadderWindows(ready=300)),
            holding=holding,
        ),
    )


@pytest.mark.parametrize(
    ("holding", "first", "rung"),
    [
        (HoldingStatus(), "It holds no GPU and costs nothing.", "nothing; now Released"),
        (
            HoldingStatus(leases=("lease-1",), devices=2, paid_per_hour="0.40"),
            "lease-1 (0.40 an hour) ends once its pods have ended and the memory of their GPUs is"
            " seen free.",
            "nothing; now Released, giving back 2 GPUs of lease-1 for 0.40 credits an hour",
        ),
    ],
)
def test_a_lease_that_has_not_ended_yet_is_said(holding, first, rung):
    lines = list(_explanation(asleep(holding)))
    assert lines[0] == f"It is asleep: nobody used it for 300 s. {first}"
    assert lines[-1].split(maxsplit=1)[1] == rung
