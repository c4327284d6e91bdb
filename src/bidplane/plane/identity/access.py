"""
Authorization in one plane: its roles and bindings, resolved once per user and namespace.

Members of `system:masters` may do everything; they are never looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bidplane.plane.call import User
from bidplane.plane.storage.feed import Change, Item, Key
from bidplane.plane.storage.store import ObjectStore
from bidplane.runtime.identity.credentials import OWNERS
from bidplane.wire import rbac, status
from bidplane.wire.rbac import Attributes, Rule
from bidplane.wire.status import About

_KINDS = (rbac.CLUSTER_ROLES, rbac.ROLES, rbac.CLUSTER_BINDINGS, rbac.BINDINGS)
_CACHE_LIMIT = 1024


class AccessGrant(NamedTuple):
    """One rule, and the binding that gives it."""

    rule: Rule
    binding: Item
    subject: dict[str, Any]

    def __str__(self) -> str:
        role = self.binding.obj["roleRef"]
        binding, obj = self.binding.key, self.binding.obj
        name = f"{binding.name}/{binding.namespace}" if binding.namespace else binding.name
        subject_name = self.subject.get("name", "")
        if self.subject.get("kind") == "ServiceAccount":
            subject_name = f"{subject_name}/{self.subject.get('namespace') or binding.namespace}"
        return (
            f'RBAC: allowed by {obj["kind"]} "{name}" of {role["kind"]} "{role["name"]}" to'
            f' {self.subject.get("kind")} "{subject_name}"'
        )


class Access:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._cache: dict[tuple[User, str], list[AccessGrant]] = {}
        store.observers.append(self._observe)

    def _observe(self, change: Change) -> None:
        if change.item.key.resource in _KINDS:
            self._cache.clear()

    def grants(self, user: User, namespace: str) -> list[AccessGrant]:
        """
        Return the rules that apply to the user in `namespace` ("" for cluster-scoped resources).
        """
        cache_key = (user, namespace)
        grants = self._cache.get(cache_key)
        if grants is None:
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            grants = self._cache[cache_key] = list(self._resolve(user, namespace))
        return grants

    def _resolve(self, user: User, namespace: str) -> Iterator[AccessGrant]:
        bindings = self._store.items(rbac.CLUSTER_BINDINGS)
        if namespace:
            bindings += self._store.items(rbac.BINDINGS, namespace)
        for binding in bindings:
            for subject in binding.obj.get("subjects") or ():
                if rbac.is_subject(subject, user.name, user.groups, binding.key.namespace):
                    for rule in self.rules(binding.obj["roleRef"], binding.key.namespace) or ():
                        yield AccessGrant(rule, binding, subject)
                    break

    def rules(self, role: dict[str, Any], namespace: str) -> list[Rule] | None:
        """Return the rules of a role that a binding refers to; None when there is no such role."""
        if role.get("kind") == "ClusterRole":
            key = Key(rbac.CLUSTER_ROLES, "", role.get("name", ""))
        else:
            key = Key(rbac.ROLES, namespace, role.get("name", ""))
        item = self._store.latest(key)
        return None if item is None else list(item.obj.get("rules") or ())

    def decide(self, user: User, attributes: Attributes) -> tuple[bool, str]:
        """Return whether the user may do this, and the binding that allows it."""
        if OWNERS in user.groups:
            return True, ""
        for grant in self.grants(user, attributes.namespace):
            if rbac.allows(grant.rule, attributes):
                return True, str(grant)
        return False, ""

    def require(self, user: User, attributes: Attributes) -> None:
        """Raise 403 unless the user may do this."""
        if OWNERS in user.groups or self.decide(user, attributes)[0]:
            return
        if attributes.path:
            message = (
                f'forbidden: User "{user.name}" cannot {attributes.verb} path "{attributes.path}"'
            )
            raise status.refuse(403, "Forbidden", message)
        about = About(attributes.resource, attributes.group, attributes.name)
        scope = (
            f'in the namespace "{attributes.namespace}"'
            if attributes.namespace
            else "at the cluster scope"
        )
        head = f'{about.qualified} "{attributes.name}"' if attributes.name else about.qualified
        message = (
            f'{head} is forbidden: User "{user.name}" cannot {attributes.verb} resource'
            f' "{attributes.full_resource}" in API group "{attributes.group}" {scope}'
        )
        raise status.refuse(403, "Forbidden", message, about=about)

    def check_escalation(
        self, user: User, storage: str, new: dict[str, Any], old: dict[str, Any] | None
    ) -> None:
        """Raise 403 for a role or binding that grants rules which its author does not have."""
        if OWNERS in user.groups or storage not in _KINDS:
            return
        meta = new["metadata"]
        namespace, name = meta.get("namespace", ""), meta.get("name", "")
        plural = storage.partition(".")[0]
        about = About(plural, rbac.GROUP, name)
        if storage in (rbac.ROLES, rbac.CLUSTER_ROLES):
            if old is not None and old.get("rules") == new.get("rules"):
                return
            verb, target = "escalate", plural
            granted_rules: list[Rule] | None = new.get("rules") or []
        else:
            role = new.get("roleRef") or {}
            same_subjects = old is not None and old.get("subjects") == new.get("subjects")
            if same_subjects and old is not None and old.get("roleRef") == role:
                return
            verb, name = "bind", role.get("name", "")
            target = "clusterroles" if role.get("kind") == "ClusterRole" else "roles"
            granted_rules = self.rules(role, namespace)
        attributes = Attributes(
            verb=verb, group=rbac.GROUP, resource=target, namespace=namespace, name=name
        )
        if self.decide(user, attributes)[0]:
            return
        if granted_rules is None:
            raise status.not_found(About(plural, rbac.GROUP, name))
        own_rules = [grant.rule for grant in self.grants(user, namespace)]
        lacking = rbac.missing(granted_rules, own_rules)
        if not lacking:
            return
        groups = " ".join(f'"{group}"' for group in user.groups)
        lines = "\n".join(map(rbac.shown, lacking))
        raise status.forbidden(
            about,
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not'
            f" currently held:\n{lines}",
        )
