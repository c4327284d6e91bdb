"""POST pods/NAME/eviction: a delete that asks the disruption budgets first."""

from __future__ import annotations

from typing import Any

from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.delete import delete, options
from bidplane.wire import status
from bidplane.wire.selectors import label_selector


async def evict(plane: Plane, call: Call, eviction: dict[str, Any]) -> None:
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    for budget in plane.store.items("poddisruptionbudgets.policy", call.namespace):
        chosen = label_selector((budget.obj.get("spec") or {}).get("selector"))
        if not chosen.matches(latest.obj):
            continue
        if (budget.obj.get("status") or {}).get("disruptionsAllowed", 0) < 1:
            raise status.refuse(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                about=call.about,
                causes=[
                    status.Cause(
                        f"The disruption budget {budget.key.name} does not allow evicting pods"
                        " currently",
                        reason="DisruptionBudget",
                    )
                ],
            )
    await delete(plane, call, options(eviction.get("deleteOptions") or {}, {}))
