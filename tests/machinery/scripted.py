"""
A `Client` for tests: one kind, kept in a dictionary, with trouble on demand.

It is no API server. It has what an informer needs (list, watch from a revision, Gone when
the history is cut) and lets a test decide when what happens, and what fails.
"""

import asyncio

from bidplane.errors import Gone
from bidplane.kube.client import Listing, WatchEvent


class ScriptedServer:
    def __init__(self):
        self.revision = 0
        self.objects = {}
        self.history = []  # (revision, event type, object)
        self.floor = 0  # what came before is forgotten
        self.failures = []  # raised, first to last, by the next calls
        self.lists = self.watches = 0
        self._changed = asyncio.Event()
        self._end = False

    # What the test does.

    def put(self, name, namespace="default", uid="u", **more):
        kind = "MODIFIED" if (namespace, name) in self.objects else "ADDED"
        self.revision += 1
        metadata = {
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "resourceVersion": str(self.revision),
        }
        obj = {"metadata": metadata, **more}
        self.objects[namespace, name] = obj
        self._record(kind, obj)

    def remove(self, name, namespace="default"):
        obj = self.objects.pop((namespace, name), None)
        if obj is not None:
            self.revision += 1
            metadata = {**obj["metadata"], "resourceVersion": str(self.revision)}
            self._record("DELETED", {**obj, "metadata": metadata})

    def forget(self):
        """Cut the history: who has not seen all of it is told `Gone`."""
        self.floor, self.history = self.revision, []
        self._wake()

    def bookmark(self):
        metadata = {"resourceVersion": str(self.revision)}
        self._record("BOOKMARK", {"metadata": metadata})

    def end_watches(self):
        self._end = True
        self._wake()

    def fail(self, *errors):
        """The next calls, and the watch that is open, raise these."""
        self.failures.extend(errors)
        self._wake()

    def _record(self, kind, obj):
        self.history.append((self.revision, kind, obj))
        self._wake()

    def _wake(self):
        self._changed.set()
        self._changed = asyncio.Event()

    def _trouble(self):
        if self.failures:
            raise self.failures.pop(0)

    # What the informer does.

    async def list(self, kind, namespace=None, *, labels="", fields=""):
        self.lists += 1
        await asyncio.sleep(0)
        self._trouble()
        return Listing(list(self.objects.values()), str(self.revision))

    async def watch(self, kind, namespace=None, *, resource_version, labels="", fields=""):
        self.watches += 1
        last_revision, sent = int(resource_version), 0
        self._end = False
        while True:
            await asyncio.sleep(0)
            self._trouble()
            if self._end:
                return
            if last_revision < self.floor:
                raise Gone("the history was cut")
            unsent = [entry for entry in self.history if entry[0] > last_revision][sent:]
            if not unsent:
                await self._changed.wait()
                continue
            revision, event, obj = unsent[0]
            # A bookmark has the revision of what came before it.
            last_revision, sent = revision, 0
            yield WatchEvent(event, obj)
