"""Checks of what else runs on the cluster: schedulers, webhooks, exporters, another Bidplane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bidplane.api import labels
from bidplane.api.kinds import GROUP, Object
from bidplane.api.objects import is_deleted
from bidplane.core.diagnosis.model import ClusterFacts, Finding, Level

_DEFAULT_SCHEDULER = "default-scheduler"
_CLOCK_SECONDS = 2.0
_METRICS_SECONDS = 120.0
_OF_PODS = frozenset({"pods", "*", "*/*"})


def check_schedulers(facts: ClusterFacts) -> Iterator[Finding]:
    """No other scheduler places pods on the nodes whose GPUs are sold."""
    names = Counter(
        pod["spec"].get("schedulerName") or _DEFAULT_SCHEDULER
        for pod in facts.pods
        if pod["spec"].get("nodeName")
    )
    foreign = {name: count for name, count in names.items() if name != _DEFAULT_SCHEDULER}
    for name, count in sorted(foreign.items()):
        yield Finding(
            check="schedulers",
            level=Level.NOTE,
            fact=f"{count} running pods were placed by {name}",
            cost="two schedulers on one node may both take the same CPU and memory; a pod of a"
            " lease then waits, and its win is void",
            command=f"keep {name} and the pools that are sold on different nodes",
        )
    if not foreign:
        yield Finding(check="schedulers", level=Level.OK, fact="every pod is kube-scheduler's")


def check_admission(facts: ClusterFacts) -> Iterator[Finding]:
    """Webhooks and policies let our pods in."""
    if facts.pod is not None and facts.pod.stored is None:
        yield Finding(
            check="admission",
            level=Level.PROBLEM,
            fact=f"a pod as a lease's is refused: {facts.pod.refusal}",
            cost="no pod of an agent starts",
            command="exempt the namespaces with the label bidplane.dev/agent from that policy",
        )
    strict = [
        f"{webhook['metadata']['name']} ({entry.get('name')})"
        for webhook in facts.webhooks
        for entry in webhook.get("webhooks") or ()
        if entry.get("failurePolicy") != "Ignore" and _is_for_pods(entry)
    ]
    for name in strict:
        yield Finding(
            check="admission",
            level=Level.NOTE,
            fact=f"the webhook {name} must answer before any pod starts",
            cost="while it is down, no pod of a lease starts, and wins become void",
            command=f"kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations"
            f" | grep {name.partition(' ')[0]}",
        )
    if not strict and (facts.pod is None or facts.pod.stored is not None):
        yield Finding(check="admission", level=Level.OK, fact="a pod as a lease's is let in")


def check_admin_access(facts: ClusterFacts) -> Iterator[Finding]:
    """Claims with admin access, such as exporters', go on when devices are reserved."""
    blocked = [
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        for claim in facts.claims
        if any(map(_is_blocked, claim["spec"].get("devices", {}).get("requests") or ()))
    ]
    if blocked:
        yield Finding(
            check="exporters",
            level=Level.NOTE,
            fact=f"{len(blocked)} claims with admin access tolerate no taint, as {blocked[0]}",
            cost="made again, such a claim does not see the devices that are for sale",
            command="add the toleration {key: bidplane.dev/for-sale, operator: Exists} to them",
        )
    else:
        yield Finding(check="exporters", level=Level.OK, fact="no claim with admin access waits")


def check_clock(facts: ClusterFacts) -> Iterator[Finding]:
    """The API server's clock is ours."""
    if facts.clock_behind is None:
        return
    seconds = facts.clock_behind
    if abs(seconds) <= _CLOCK_SECONDS:
        yield Finding(check="clock", level=Level.OK, fact="the API server's clock is ours")
        return
    direction = "behind" if seconds > 0 else "ahead of"
    yield Finding(
        check="clock",
        level=Level.PROBLEM,
        fact=f"the API server's clock is {abs(seconds):.0f} s {direction} this machine's",
        cost="notices and deadlines end too early or too late",
        command="synchronise both clocks, as with chrony",
    )


def check_metrics(facts: ClusterFacts) -> Iterator[Finding]:
    """DCGM's series are there, fresh, and name pods."""
    if not facts.prometheus:
        yield Finding(
            check="metrics",
            level=Level.NOTE,
            fact="no Prometheus was asked",
            cost="whether idle GPUs can be seen is unknown",
            command="bidplane doctor --kubeconfig FILE --prometheus URL",
        )
    elif facts.metrics_age is None:
        yield Finding(
            check="metrics",
            level=Level.PROBLEM,
            fact=f"{facts.prometheus} has no DCGM series",
            cost="GPUs that are held and do nothing are not seen",
            command="install dcgm-exporter, and let that Prometheus scrape it",
        )
    elif facts.metrics_age > _METRICS_SECONDS:
        yield Finding(
            check="metrics",
            level=Level.PROBLEM,
            fact=f"the newest DCGM series is {facts.metrics_age:.0f} s old",
            cost="a GPU counts as unknown, never as idle",
            command="kubectl get pods -A -l app.kubernetes.io/name=dcgm-exporter",
        )
    elif not facts.metrics_by_pod:
        yield Finding(
            check="metrics",
            level=Level.NOTE,
            fact="no DCGM series names a pod",
            cost="use cannot be told apart by pod on GPUs of a driver",
            command="start dcgm-exporter with DCGM_EXPORTER_KUBERNETES=true and"
            " KUBERNETES_ENABLE_DRA=true",
        )
    else:
        yield Finding(check="metrics", level=Level.OK, fact="DCGM's series are fresh and name pods")


def check_bidplanes(facts: ClusterFacts) -> Iterator[Finding]:
    """No other Bidplane, and nothing left of one, is on the cluster."""
    ours = [d["metadata"]["name"] for d in facts.definitions if d["spec"].get("group") == GROUP]
    agents = [n["metadata"]["name"] for n in facts.namespaces if labels.AGENT in _labels(n)]
    stuck = [
        f"namespace {n['metadata']['name']}"
        for n in facts.namespaces
        if labels.AGENT in _labels(n) and is_deleted(n)
    ]
    stuck += [
        f"definition {d['metadata']['name']}"
        for d in facts.definitions
        if d["spec"].get("group") == GROUP and is_deleted(d)
    ]
    for name in stuck:
        yield Finding(
            check="leftovers",
            level=Level.PROBLEM,
            fact=f"{name} is being deleted, and its objects still have finalizers",
            cost="a new installation cannot make an object of that name",
            command="kubectl get gpuleases,agents -A -o name",
        )
    if ours or agents:
        yield Finding(
            check="bidplanes",
            level=Level.NOTE,
            fact=f"objects of a Bidplane: {len(ours)} definitions, {len(agents)} agents",
            cost="two Bidplanes on one cluster would sell the same devices twice",
            command="kubectl get agents,gpuleases -A",
        )
    elif not stuck:
        yield Finding(check="bidplanes", level=Level.OK, fact="nothing of another Bidplane")


def _is_for_pods(webhook: Object) -> bool:
    """Return True for a webhook that is asked about new pods in namespaces such as ours."""
    selector = webhook.get("namespaceSelector") or {}
    if selector.get("matchLabels"):
        return False  # namespaces that someone labelled for it
    if any(
        term.get("operator") in ("In", "Exists") for term in selector.get("matchExpressions") or ()
    ):
        return False
    return any(
        _OF_PODS & set(rule.get("resources") or ()) and {"", "*"} & set(rule.get("apiGroups") or ())
        for rule in webhook.get("rules") or ()
    )


def _is_blocked(request: Object) -> bool:
    exactly = request.get("exactly") or {}
    return bool(exactly.get("adminAccess")) and not exactly.get("tolerations")


def _labels(obj: Object) -> Object:
    return obj["metadata"].get("labels") or {}
