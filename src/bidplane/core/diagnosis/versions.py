"""Checks of a cluster's version, of the APIs it serves, and of its feature gates."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bidplane.core.diagnosis.model import ClusterFacts, DryRun, Finding, Level

_LEAST = (1, 34)
# kube-scheduler allocated one device twice before these (kubernetes/kubernetes#136269).
_ALLOCATES_ONCE = {(1, 33): 8, (1, 34): 4, (1, 35): 1}
_NEEDED = (
    "resource.k8s.io/v1/resourceslices",
    "resource.k8s.io/v1/resourceclaims",
    "resource.k8s.io/v1/deviceclasses",
)
_TAINT_RULES = re.compile(r"resource\.k8s\.io/(v1|v1beta\d)/devicetaintrules")


def check_version(facts: ClusterFacts) -> Iterator[Finding]:
    """Kubernetes is new enough, and has the patches that matter."""
    parsed = re.match(r"v?(\d+)\.(\d+)\.(\d+)", facts.version)
    if parsed is None:
        yield Finding(
            check="version",
            level=Level.PROBLEM,
            fact=f"the API server's version is {facts.version!r}",
            cost="it cannot be told which of its faults are mended",
            command="kubectl version",
        )
        return
    minor, patch = (int(parsed[1]), int(parsed[2])), int(parsed[3])
    if minor < _LEAST:
        yield Finding(
            check="version",
            level=Level.PROBLEM,
            fact=f"Kubernetes {facts.version}",
            cost="it does not serve resource.k8s.io/v1: devices cannot be leased",
            command="upgrade the cluster to 1.34.4 or later, at best to 1.37",
        )
    elif patch < _ALLOCATES_ONCE.get(minor, 0):
        mended = f"{minor[0]}.{minor[1]}.{_ALLOCATES_ONCE[minor]}"
        yield Finding(
            check="version",
            level=Level.PROBLEM,
            fact=f"Kubernetes {facts.version}",
            cost="its scheduler may give one device to two claims (kubernetes/kubernetes#136269)",
            command=f"upgrade the control plane to {mended} or later",
        )
    else:
        yield Finding(check="version", level=Level.OK, fact=f"Kubernetes {facts.version}")


def check_apis(facts: ClusterFacts) -> Iterator[Finding]:
    """Dynamic Resource Allocation is served, and devices can be reserved."""
    missing = [resource for resource in _NEEDED if resource not in facts.served]
    if missing:
        yield Finding(
            check="devices-api",
            level=Level.PROBLEM,
            fact=f"not served: {', '.join(missing)}",
            cost="devices cannot be leased",
            command="start kube-apiserver with --runtime-config=resource.k8s.io/v1=true",
        )
    else:
        yield Finding(check="devices-api", level=Level.OK, fact="resource.k8s.io/v1 is served")
    if any(map(_TAINT_RULES.fullmatch, facts.served)):
        yield Finding(check="reservation", level=Level.OK, fact="DeviceTaintRule is served")
    else:
        yield Finding(
            check="reservation",
            level=Level.NOTE,
            fact="DeviceTaintRule is not served",
            cost="devices for sale cannot be kept from others: a stranger's pod may take one"
            " between a round and its binding, and that win is void",
            command="upgrade to 1.37; in 1.36 start kube-apiserver with"
            " --feature-gates=DRADeviceTaints=true,DRADeviceTaintRules=true"
            " --runtime-config=resource.k8s.io/v1beta2/devicetaintrules=true",
        )


def check_gates(facts: ClusterFacts) -> Iterator[Finding]:
    """Fields that need a feature gate survive a dry-run."""
    if facts.claim is None:
        return
    if facts.claim.stored is None:
        yield Finding(
            check="gates",
            level=Level.PROBLEM,
            fact=f"a ResourceClaim as ours is refused: {facts.claim.refusal}",
            cost="no device can be leased",
            command="kubectl get validatingadmissionpolicies,validatingwebhookconfigurations",
        )
        return
    dropped = list(_dropped(facts.claim))
    for gate, cost in dropped:
        yield Finding(
            check="gates",
            level=Level.NOTE,
            fact=f"{gate} is off: its field is dropped from a claim",
            cost=cost,
            command="start kube-apiserver, kube-controller-manager, kube-scheduler and kubelets"
            f" with --feature-gates={gate}=true",
        )
    if not dropped:
        yield Finding(check="gates", level=Level.OK, fact="every feature gate that we use is on")


def _dropped(claim: DryRun) -> Iterator[tuple[str, str]]:
    """Yield each gate whose field the API server dropped, and what that costs."""
    assert claim.stored is not None
    requests = claim.stored["spec"]["devices"].get("requests") or ()
    by_name = {request.get("name"): request for request in requests}
    exactly = (by_name.get("exact") or {}).get("exactly") or {}
    if not exactly.get("tolerations"):
        yield "DRADeviceTaints", "claims cannot tolerate the taint of reserved devices"
    if not exactly.get("capacity"):
        yield "DRAConsumableCapacity", "parts of a GPU cannot be leased, only whole ones"
    if not (by_name.get("choice") or {}).get("firstAvailable"):
        yield "DRAPrioritizedList", "claims with firstAvailable are refused"
