"""
Pods on the nodes of a plane: which planned bindings fit, and where pods without GPUs go.

The CPU and memory of a lease's node are its GPUs' share of their machine. Pods without GPUs run on
what the host's owner offers, or else beside a lease while it is paid for; they keep no lease alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.nodes.fitting import Placing, unsupported
from bidplane.core.scheduling.observed import PlaneSnapshot
from bidplane.core.scheduling.operations import BindPod, Explain, Operation

NO_NODE = (
    "the pod asks for no GPU, and there is no node for it: such pods run beside a lease of this"
    " agent, and on CPU that the host's owner offers. Run a pod with"
    f" resources.limits[{labels.GPU_RESOURCE}], or ask the owner to offer CPU (of a node in the"
    " fleet file: `offers: {cpu: 4, memory: 8Gi}`)"
)


def check_fit(
    snapshot: PlaneSnapshot, planned: Iterable[Operation], without_gpus: Sequence[Object]
) -> list[Operation]:
    """
    Return the operations with bindings that do not fit explained, and pods without GPUs bound.
    """
    placing = Placing(snapshot.nodes, snapshot.pods)
    operations: list[Operation] = []
    for operation in planned:
        if isinstance(operation, BindPod):
            if reason := placing.why_not(operation.pod, operation.node):
                message = f"its GPUs are on node {operation.node}, which it does not fit: {reason}"
                operations.append(Explain(operation.pod, "DoesNotFit", message))
                continue
            placing.take(operation.pod, operation.node)
        operations.append(operation)
    nodes = _nodes_for_pods_without_gpus(snapshot) if without_gpus else []
    return [*operations, *(_place_without_gpus(pod, nodes, placing) for pod in without_gpus)]


def _nodes_for_pods_without_gpus(snapshot: PlaneSnapshot) -> list[str]:
    """
    Return the nodes that pods without GPUs may use, offers first: a lease may end at any time.
    """
    offered = [
        node["metadata"]["name"]
        for node in snapshot.nodes
        if labels.OFFERED in (node["metadata"].get("labels") or {})
    ]
    return [*sorted(offered), *sorted(snapshot.active_nodes & snapshot.nodes_by_name.keys())]


def _place_without_gpus(pod: Object, nodes: Sequence[str], placing: Placing) -> Operation:
    """Return the binding of a pod without GPUs to the first node it fits, or why there is none."""
    if problem := unsupported(pod):
        return Explain(pod, "NotSupported", problem)
    if not nodes:
        return Explain(pod, "NoNodeWithoutGpu", NO_NODE)
    reasons: Counter[str] = Counter()
    for node in nodes:
        reason = placing.why_not(pod, node)
        if not reason:
            placing.take(pod, node)
            return BindPod(pod, node)
        reasons[reason] += 1
    summary = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return Explain(pod, "Unschedulable", f"0/{len(nodes)} nodes are available: {summary}.")
