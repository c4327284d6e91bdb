"""The checks of a cluster, in the order in which their findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bidplane.core.diagnosis.devices import check_drivers, check_nodes
from bidplane.core.diagnosis.model import ClusterFacts, Finding
from bidplane.core.diagnosis.neighbours import (
    check_admin_access,
    check_admission,
    check_bidplanes,
    check_clock,
    check_metrics,
    check_schedulers,
)
from bidplane.core.diagnosis.rights import check_rights
from bidplane.core.diagnosis.versions import check_apis, check_gates, check_version

CHECKS: tuple[Callable[[ClusterFacts], Iterator[Finding]], ...] = (
    check_version,
    check_apis,
    check_gates,
    check_rights,
    check_drivers,
    check_nodes,
    check_schedulers,
    check_admission,
    check_admin_access,
    check_metrics,
    check_clock,
    check_bidplanes,
)


def diagnose(facts: ClusterFacts) -> list[Finding]:
    """Return the findings of every check, in order."""
    return [finding for check in CHECKS for finding in check(facts)]
