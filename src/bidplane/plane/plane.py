"""One plane: its store, the resources it serves, and its indexes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.agent import PlaneLimits
from bidplane.api.times import rfc3339
from bidplane.gate.service import Gate
from bidplane.machinery.clock import Clock
from bidplane.plane.call import Admit, Advise
from bidplane.plane.identity.access import Access
from bidplane.plane.registry import CRDS, Registry
from bidplane.plane.storage import baseline
from bidplane.plane.storage.feed import Change, Key
from bidplane.plane.storage.store import ObjectStore
from bidplane.plane.turns import Turns
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.wire.metadata import GENERATED_ALPHABET, GENERATED_LENGTH


class Plane:
    def __init__(
        self,
        name: str,
        uid: str,
        store: ObjectStore,
        *,
        clock: Clock,
        dice: random.Random,
        admit: Admit | None = None,
        advise: Advise | None = None,
        crds: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.name, self.uid, self.store = name, uid, store
        self.clock, self.admit, self.advise = clock, admit, advise
        self.registry = Registry()
        self.turns = Turns()  # shared with other planes, if it has neighbours
        self.ca = ""  # the certificate its clients trust, as text
        self.signer: Signer | None = None  # of client certificates
        self.limits: PlaneLimits | None = None  # none of the host
        self.gate: Gate | None = None  # of the host: judges changes of the fleet
        self.uids: dict[str, Key] = {}
        self.dependents: dict[str, set[Key]] = {}  # by the uid of an owner
        self._dice = dice
        self.unsettled: list[Key] = []  # may need housekeeping after a restart
        for item in store.everything():
            metadata = item.metadata
            self.uids[metadata.uid] = item.key
            for owner in metadata.owner_references or ():
                self.dependents.setdefault(owner.uid, set()).add(item.key)
            if metadata.owner_references or metadata.deletion_timestamp:
                self.unsettled.append(item.key)
        # After the index: nobody owns them, and they own nobody.
        store.add_baseline((*baseline.roles(), *baseline.services(), *baseline.definitions(crds)))
        self.access = Access(store)
        for item in store.items(CRDS):
            self.registry.install(item.obj)
        store.observers.append(self._observe)

    def __repr__(self) -> str:
        return f"<Plane {self.name} at {self.store.revision}>"

    def now(self) -> str:
        return rfc3339(self.clock.now())

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self._dice.getrandbits(128), version=4))

    def pick(self, choices: Sequence[int]) -> int:
        return self._dice.choice(choices)

    def new_suffix(self) -> str:
        return "".join(self._dice.choices(GENERATED_ALPHABET, k=GENERATED_LENGTH))

    def _observe(self, change: Change) -> None:
        key, deleted = change.item.key, change.type == "DELETED"
        before = change.previous.obj if change.previous else None
        self._index(key, None if deleted else change.item.obj, before)
        if key.resource == CRDS:
            if deleted:
                self.registry.uninstall(key.name)
                self.store.drop_feed(change.item.obj)
            else:
                self.registry.install(change.item.obj)

    def _index(self, key: Key, obj: dict[str, Any] | None, before: dict[str, Any] | None) -> None:
        if before is not None:
            self.uids.pop(before["metadata"].get("uid", ""), None)
            for owner in before["metadata"].get("ownerReferences") or ():
                keys = self.dependents.get(owner["uid"])
                if keys is not None:
                    keys.discard(key)
                    if not keys:
                        del self.dependents[owner["uid"]]
        if obj is not None:
            self.uids[obj["metadata"].get("uid", "")] = key
            for owner in obj["metadata"].get("ownerReferences") or ():
                self.dependents.setdefault(owner["uid"], set()).add(key)
