"""The rights of people and of the pilot in the host's API, as ClusterRoles; owners need none."""

from __future__ import annotations

from bidplane.api.gate.policy import ActorRole
from bidplane.api.kinds import Draft, Kind, Object
from bidplane.errors import AlreadyExists
from bidplane.gate.actors import group_of
from bidplane.kube.client import KubeClient

_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLE = Kind(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(
    _RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)

_READ = ["get", "list", "watch"]
_OURS = "bidplane.dev"


def _rule(group: str, resources: list[str], verbs: list[str]) -> Draft:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


_VIEW = [
    _rule("", ["nodes", "pods", "namespaces", "events"], _READ),
    _rule("resource.k8s.io", ["resourceslices", "resourceclaims", "deviceclasses"], _READ),
    _rule(
        _OURS, ["agents", "pools", "bids", "gpuleases", "endpoints", "policies", "proposals"], _READ
    ),
]
_PROPOSE = _rule(_OURS, ["proposals"], ["create"])

# No secrets, no exec, no other namespaced writes: what is not here, a role cannot do.
RIGHTS: dict[ActorRole, list[Draft]] = {
    ActorRole.OPERATOR: [
        *_VIEW,
        _PROPOSE,
        _rule("", ["nodes"], ["patch", "update"]),
        _rule("", ["pods"], ["delete"]),
        _rule("", ["pods/eviction"], ["create"]),
        _rule(_OURS, ["gpuleases"], ["delete"]),
        _rule(_OURS, ["pools", "agents", "endpoints"], ["patch", "update"]),
    ],
    ActorRole.FINANCE: [
        *_VIEW,
        _PROPOSE,
        _rule(_OURS, ["pools", "agents"], ["patch", "update"]),
    ],
    ActorRole.APPROVER: [*_VIEW, _PROPOSE],
    ActorRole.PILOT: [*_VIEW, _PROPOSE],
}


def role_objects() -> list[tuple[Kind, Draft]]:
    """Return the roles and their bindings."""
    objects: list[tuple[Kind, Draft]] = []
    for role, rules in RIGHTS.items():
        name = f"bidplane:{role}"
        head = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name}}
        objects.append((CLUSTER_ROLE, {**head, "kind": "ClusterRole", "rules": rules}))
        binding = {
            **head,
            "kind": "ClusterRoleBinding",
            "subjects": [{"kind": "Group", "apiGroup": _RBAC, "name": group_of(role)}],
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
        }
        objects.append((CLUSTER_ROLE_BINDING, binding))
    return objects


async def ensure_roles(host: KubeClient) -> None:
    """Create the roles, or bring them to what this release gives; an owner's own are untouched."""
    for kind, obj in role_objects():
        try:
            await host.create(kind, obj)
        except AlreadyExists:
            current: Object = await host.get(kind, obj["metadata"]["name"])
            if any(current.get(field) != obj.get(field) for field in ("rules", "subjects")):
                metadata = {**current["metadata"]}
                await host.replace(kind, {**obj, "metadata": metadata})
