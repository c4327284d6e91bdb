"""
The activators of an installation: which of them are alive, and which one leads.

Each renews a Lease of its own on the host; one of them holds the leader's Lease, too. An activator
is gone once the others renewed theirs several times without seeing it renew its own: time in which
the host did not answer counts for nobody. One that is started again has the same name, and leads at
once if it led before. Whoever lost the lead without noticing cannot do harm: a demand is written on
condition of the version that it was decided on.
"""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Callable, Sequence

import msgspec
import structlog

from bidplane.api.kinds import LEASE, Draft, Object
from bidplane.api.objects import metadata_of, spec_of
from bidplane.errors import AlreadyExists, ApiError, Conflict, NotFound
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock

NAMESPACE = "kube-system"
LABEL = "bidplane.dev/activators"
LEADER = "bidplane-activators"
BEAT_SECONDS = 2.0
MISSED_COUNT = 4  # beats of ours, without one of its, after which an activator is gone

_SEPARATOR = "_"

log = structlog.get_logger(__name__)


class _Renewals(msgspec.Struct):
    """The Lease of another activator, as it was seen."""

    life: str
    renewed: str
    missed: int = 0  # beats of ours since it was renewed


class Membership:
    """This activator among the others."""

    def __init__(
        self,
        host: KubeClient,
        name: str,
        size: int,
        *,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`size` is the number of activators that there are to be."""
        self.name, self.size = name, size
        self.changed = changed  # called when the leader, or who is alive, changed
        self._host, self._clock = host, clock
        self.life = uuid.uuid4().hex[:8]
        self._leads_until = 0.0
        self._beats = 0  # those that reached the host
        self._leases: dict[str, _Renewals] = {}  # of the others
        self._unseen: dict[tuple[str, str], int] = {}  # lives without a Lease, and our beat then

    def __repr__(self) -> str:
        role = "leads" if self.leads else "follows"
        return f"<Membership {self.name} {role}, others {', '.join(sorted(self.others))}>"

    @property
    def leads(self) -> bool:
        """True while nobody else can have taken the lead."""
        return asyncio.get_running_loop().time() < self._leads_until

    @property
    def others(self) -> set[str]:
        """The names of the others that are alive."""
        return {name for name, lease in self._leases.items() if lease.missed < MISSED_COUNT}

    @property
    def is_joined(self) -> bool:
        return self._beats > 0

    def counts(self, name: str, life: str) -> bool:
        """
        Return False once that life of an activator is known to be over.

        One whose Lease we have not seen may have begun a moment ago: it has a Lease before it
        sends anything, so our next beat shows it.
        """
        lease = self._leases.get(name)
        if lease is not None and lease.life == life and name in self.others:
            self._unseen.pop((name, life), None)
            return True
        return self._beats <= self._unseen.setdefault((name, life), self._beats) + 1

    async def run(self) -> None:
        """Renew until cancelled; then give up the lead."""
        try:
            while True:
                await self.beat()
                await self._clock.sleep(BEAT_SECONDS)
        finally:
            await self._give_up()

    async def beat(self) -> None:
        """Renew our Lease, and see who else is alive."""
        began = asyncio.get_running_loop().time()
        before = self.leads, self.others
        try:
            await self._renew(f"bidplane-{self.name}")
            leases = (await self._host.list(LEASE, NAMESPACE, labels=LABEL)).items
            self._look(leases)
            self._beats += 1
            await self._try_to_lead(leases, began)
        except ApiError as error:
            log.warning("no beat", activator=self.name, error=str(error))
        if before != (self.leads, self.others):
            log.info("activators", leads=self.leads, others=sorted(self.others))
            self.changed()

    def _look(self, leases: Sequence[Object]) -> None:
        names = set()
        for lease in leases:
            name, _, life = _holder(lease).partition(_SEPARATOR)
            if metadata_of(lease)["name"] != f"bidplane-{name}" or name == self.name:
                continue
            names.add(name)
            renewed = str(spec_of(lease).get("renewTime", ""))
            renewals = self._leases.get(name)
            if renewals is None or (renewals.life, renewals.renewed) != (life, renewed):
                self._leases[name] = _Renewals(life, renewed)
            else:
                renewals.missed += 1
        for name in self._leases.keys() - names:  # it took its Lease away
            del self._leases[name]

    async def _try_to_lead(self, leases: Sequence[Object], began: float) -> None:
        current = next((le for le in leases if metadata_of(le)["name"] == LEADER), None)
        holder = _holder(current).partition(_SEPARATOR)[0] if current is not None else ""
        if holder in self.others:
            self._leads_until = 0.0
            return
        try:
            await self._renew(LEADER, current)
        except (Conflict, AlreadyExists):
            self._leads_until = 0.0  # another one was quicker
            return
        # The others wait for longer than this before one of them takes it.
        self._leads_until = began + BEAT_SECONDS * (MISSED_COUNT - 1)

    async def _renew(self, lease: str, current: Object | None = None) -> None:
        """Renew a Lease, or create it; `current` is the version that may be renewed."""
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        spec = {
            "holderIdentity": f"{self.name}{_SEPARATOR}{self.life}",
            "leaseDurationSeconds": round(BEAT_SECONDS * MISSED_COUNT),
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        patch: Draft = {"spec": spec}
        if current is not None:
            patch["metadata"] = {"resourceVersion": metadata_of(current)["resourceVersion"]}
        if current is None and lease == LEADER:
            await self._create(lease, spec)
            return
        try:
            await self._host.patch(LEASE, lease, patch, NAMESPACE)
        except NotFound:
            await self._create(lease, spec)

    async def _create(self, lease: str, spec: Draft) -> None:
        metadata = {"name": lease, "labels": {LABEL: ""}}
        created: Draft = {"metadata": metadata, "spec": spec}
        await self._host.create(LEASE, created, NAMESPACE)

    async def _give_up(self) -> None:
        """Let the others know at once that we end."""
        led, self._leads_until = self.leads, 0.0
        try:
            if led:
                empty: Draft = {"spec": {"holderIdentity": ""}}
                await self._host.patch(LEASE, LEADER, empty, NAMESPACE)
            await self._host.delete(LEASE, f"bidplane-{self.name}", NAMESPACE)
        except ApiError as error:
            log.warning("the lead was not given up", activator=self.name, error=str(error))


def _holder(lease: Object) -> str:
    return str(spec_of(lease).get("holderIdentity", ""))
