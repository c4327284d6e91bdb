"""
Who may do what in one plane: its roles and bindings, resolved once per user and namespace.

Members of `system:masters` may do everything; they are never looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bidplane.plane.call import User
from bidplane.plane.feed import Change, Item, Key
from bidplane.plane.store import Store
from bidplane.runtime.credentials import OWNERS
from bidplane.wire import rbac, status
from bidplane.wire.rbac import Attributes, Rule
from bidplane.wire.status import About

_KINDS = (rbac.CLUSTER_ROLES, rbac.ROLES, rbac.CLUSTER_BINDINGS, rbac.BINDINGS)
_HELD_LIMIT = 1024


class Grant(NamedTuple):
    """One rule, and the binding that gives it."""

    rule: Rule
    binding: Item
    subject: dict[str, Any]

    def __str__(self) -> str:
        role = self.binding.obj["roleRef"]
        binding, obj = self.binding.key, self.binding.obj
        name = f"{binding.name}/{binding.namespace}" if binding.namespace else binding.name
        who = self.subject.get("name", "")
        if self.subject.get("kind") == "ServiceAccount":
            who = f"{who}/{self.subject.get('namespace') or binding.namespace}"
        return (
            f'RBAC: allowed by {obj["kind"]} "{name}" of {role["kind"]} "{role["name"]}" to'
            f' {self.subject.get("kind")} "{who}"'
        )


class Access:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[User, str], list[Grant]] = {}
        store.observers.append(self._observe)

    def _observe(self, change: Change) -> None:
        if change.item.key.resource in _KINDS:
            self._held.clear()

    def grants(self, user: User, namespace: str) -> list[Grant]:
        """What the user may do in `namespace` ("" for what belongs to no namespace)."""
        at = (user, namespace)
        found = self._held.get(at)
        if found is None:
            if len(self._held) >= _HELD_LIMIT:
                self._held.clear()
            found = self._held[at] = list(self._resolve(user, namespace))
        return found

    def _resolve(self, user: User, namespace: str) -> Iterator[Grant]:
        bindings = self._store.items(rbac.CLUSTER_BINDINGS)
        if namespace:
            bindings += self._store.items(rbac.BINDINGS, namespace)
        for binding in bindings:
            for subject in binding.obj.get("subjects") or ():
                if rbac.is_subject(subject, user.name, user.groups, binding.key.namespace):
                    for rule in self.rules(binding.obj["roleRef"], binding.key.namespace) or ():
                        yield Grant(rule, binding, subject)
                    break

    def rules(self, role: dict[str, Any], namespace: str) -> list[Rule] | None:
        """The rules of a role that a binding refers to; None when there is no such role."""
        if role.get("kind") == "ClusterRole":
            key = Key(rbac.CLUSTER_ROLES, "", role.get("name", ""))
        else:
            key = Key(rbac.ROLES, namespace, role.get("name", ""))
        found = self._store.latest(key)
        return None if found is None else list(found.obj.get("rules") or ())

    def decide(self, user: User, asked: Attributes) -> tuple[bool, str]:
        """Whether, and by which binding."""
        if OWNERS in user.groups:
            return True, ""
        for grant in self.grants(user, asked.namespace):
            if rbac.allows(grant.rule, asked):
                return True, str(grant)
        return False, ""

    def require(self, user: User, asked: Attributes) -> None:
        """403 unless the user may."""
        if OWNERS in user.groups or self.decide(user, asked)[0]:
            return
        if asked.path:
            words = f'forbidden: User "{user.name}" cannot {asked.verb} path "{asked.path}"'
            raise status.refuse(403, "Forbidden", words)
        about = About(asked.resource, asked.group, asked.name)
        where = (
            f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        )
        head = f'{about.qualified} "{asked.name}"' if asked.name else about.qualified
        words = (
            f'{head} is forbidden: User "{user.name}" cannot {asked.verb} resource'
            f' "{asked.full_resource}" in API group "{asked.group}" {where}'
        )
        raise status.refuse(403, "Forbidden", words, about=about)

    # Nobody gives away what they do not have.

    def check_escalation(
        self, user: User, storage: str, new: dict[str, Any], old: dict[str, Any] | None
    ) -> None:
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
            wanted: list[Rule] | None = new.get("rules") or []
        else:
            role = new.get("roleRef") or {}
            same = old is not None and old.get("subjects") == new.get("subjects")
            if same and old is not None and old.get("roleRef") == role:
                return
            verb, name = "bind", role.get("name", "")
            target = "clusterroles" if role.get("kind") == "ClusterRole" else "roles"
            wanted = self.rules(role, namespace)
        asked = Attributes(
            verb=verb, group=rbac.GROUP, resource=target, namespace=namespace, name=name
        )
        if self.decide(user, asked)[0]:
            return
        if wanted is None:
            raise status.not_found(About(plural, rbac.GROUP, name))
        held = [grant.rule for grant in self.grants(user, namespace)]
        lacking = rbac.missing(wanted, held)
        if not lacking:
            return
        groups = " ".join(f'"{group}"' for group in user.groups)
        lines = "\n".join(map(rbac.shown, lacking))
        raise status.forbidden(
            about,
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not'
            f" currently held:\n{lines}",
        )
