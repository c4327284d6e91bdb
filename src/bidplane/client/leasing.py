"""
A lease that a program holds.

Entering waits until the devices are won and claimed. Inside, a heartbeat keeps the lease;
`held.notice` (and `on_notice`) say when it will end and why. Leaving gives it back, also by an
exception, Ctrl-C or cancellation. A program that dies without leaving stops its heartbeat, and the
lease ends by itself `hold_seconds` later.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TypedDict

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import BID, GPU_LEASE, RESOURCE_SLICE, Kind
from bidplane.api.lease import Phase
from bidplane.api.objects import Fields, annotations_of, name_of, spec_of, uid_of
from bidplane.api.reading import Bid, GPULease, Invalid, read_bid, read_lease
from bidplane.core.hosting.translation import host_name
from bidplane.errors import ApiError, Gone, NotFound, Unavailable, UserError
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock

HOLD_SECONDS = 60
_RETRY_SECONDS = 0.5


class Refused(UserError):
    """Raised when the bid cannot win as it is; the message says what to change."""


class LeaseTimeout(UserError):
    """Raised when the lease was not won in time; the message says why. The bid is withdrawn."""


class LeaseLost(UserError):
    """
    Raised when the lease ended before the program left it: its notice is over, or its agent is
    gone.
    """


class LeaseProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a wait, reported when it changes."""

    reason: str  # a BidReason, or Bidding, Won
    message: str
    price_to_win: str
    waited: float  # seconds


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The announced end of a lease: save your work, and leave."""

    reason: str  # Outbid | Unfunded
    reclaim_at: str  # RFC 3339
    compensation: str = ""


class Waiting(TypedDict, total=False):
    """The options for waiting for a lease and holding it."""

    timeout: float | None
    hold_seconds: int
    on_progress: Callable[[LeaseProgress], None] | None
    on_notice: Callable[[Notice], None] | None
    annotations: Mapping[str, str] | None


class LeasedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a lease."""

    name: str
    node: str
    uuid: str  # "" where the driver gives none
    product: str = ""
    share: str = ""  # of the device, if not all of it


class HeldLease:
    """A held lease: its devices, price and notice."""

    def __init__(self, bid: str, leases: Sequence[GPULease], devices: list[LeasedDevice]) -> None:
        status = leases[0].status
        self.bid = bid
        self.names = [lease.name for lease in leases]
        self.devices = devices
        self.price = status.price if status is not None else ""  # credits per GPU-hour
        self.notice: Notice | None = None
        self.lost = False

    def __repr__(self) -> str:
        return f"<Held {self.name}: {', '.join(d.name for d in self.devices)} on {self.node}>"

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def node(self) -> str:
        return self.devices[0].node

    @property
    def env(self) -> dict[str, str]:
        """The environment with which a command on that node uses these GPUs only."""
        visible = ",".join(device.uuid or device.name for device in self.devices)
        return {
            "CUDA_VISIBLE_DEVICES": visible,
            "NVIDIA_VISIBLE_DEVICES": visible,
            "BIDPLANE_LEASE": self.name,
            "BIDPLANE_NODE": self.node,
        }


class AsyncLeasing:
    """The context manager of `async with client.lease(…) as held:`."""

    def __init__(
        self,
        kube: KubeClient,
        bid: Object,
        *,
        namespace: str,
        clock: Clock,
        timeout: float | None = None,
        on_progress: Callable[[LeaseProgress], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self._kube = kube
        self._bid = bid
        self._name = name_of(bid)
        self._namespace = namespace
        self._clock = clock
        self._timeout = timeout
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._seconds = int(annotations_of(bid)[labels.HOLD_SECONDS])
        self._uid: str | None = None
        self._last_progress: tuple[str, str, str] | None = None
        self._last_message = "the bid waits for its first round"
        self._state: dict[Kind, dict[str, Object]] = {BID: {}, GPU_LEASE: {}}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._holding: HeldLease | None = None
        self._seen_bid = False

    async def __aenter__(self) -> HeldLease:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._win()
        except TimeoutError:
            await self._leave()
            raise LeaseTimeout(
                f"not won within {self._timeout:g} s: {self._last_message}"
            ) from None
        except BaseException:
            await asyncio.shield(self._leave())
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(self._leave())

    async def _win(self) -> HeldLease:
        """Place the bid and wait until its leases run."""
        started_at = self._clock.now()
        await self._create_bid()
        for kind in (BID, GPU_LEASE):
            self._tasks.append(asyncio.create_task(self._follow(kind)))
        self._tasks.append(asyncio.create_task(self._send_heartbeats()))
        while True:
            await self._changed.wait()
            self._changed.clear()
            bid, leases = self._state[BID].get(self._name), self._leases()
            if bid is None:
                if self._seen_bid:
                    raise LeaseLost(f"the bid {self._name} was deleted")
                continue
            self._seen_bid = True
            self._report_progress(read_bid(bid), leases, started_at)
            if leases and all(_is_running(lease) for lease in leases):
                self._holding = HeldLease(self._name, leases, await self._devices(leases))
                self._update_held(leases)
                return self._holding

    async def _create_bid(self) -> None:
        """Create the bid, trying again while the server is unavailable."""
        while True:
            try:
                created = await self._kube.create(BID, self._bid, self._namespace)
                self._uid = uid_of(created)
                return
            except Unavailable as error:
                self._last_message = str(error)
                await self._clock.sleep(_RETRY_SECONDS)

    def _leases(self) -> list[GPULease]:
        """The leases that the bid won; none until all parts of a gang are shown."""
        on_host = host_name(self._namespace, self._name)
        structs = map(read_lease, self._state[GPU_LEASE].values())
        leases = [
            lease
            for lease in structs
            if isinstance(lease, GPULease) and lease.spec.bid.name == on_host
        ]
        leases.sort(key=lambda lease: lease.spec.part)
        # A gang's parts appear one after the other: wait for all of them.
        parts = leases[0].spec.parts if leases else 0
        return leases if len(leases) >= parts else []

    def _report_progress(
        self, bid: Bid | Invalid, leases: list[GPULease], started_at: float
    ) -> None:
        """Report a changed state of the wait; raises if the bid was refused or has ended."""
        if isinstance(bid, Invalid):
            raise Refused(bid.problem)
        status = bid.status
        progress = ("Bidding", "the bid waits for its first round", "")
        if status is not None:
            if status.phase is BidPhase.REFUSED:
                raise Refused(status.message or status.reason)
            if status.phase is BidPhase.ENDED:
                raise LeaseLost(status.message or "the lease is over")
            progress = (status.reason.value, status.message or progress[1], status.price_to_win)
        if any(lease.status is not None and not lease.status.ready for lease in leases):
            progress = ("Won", "won; waiting for the GPUs' last holder to leave", "")
        self._last_message = progress[1]
        if self._on_progress is not None and progress != self._last_progress:
            self._on_progress(
                LeaseProgress(
                    reason=progress[0],
                    message=progress[1],
                    price_to_win=progress[2],
                    waited=self._clock.now() - started_at,
                )
            )
        self._last_progress = progress

    async def _devices(self, leases: Sequence[GPULease]) -> list[LeasedDevice]:
        """The devices of the leases, with the attributes of their slices."""
        devices = []
        for lease in leases:
            attributes = await self._attributes(lease.name)
            devices += [
                LeasedDevice(
                    name=device.name,
                    node=device.node,
                    uuid=_string(attributes.get(device.name, {}), "uuid"),
                    product=_string(attributes.get(device.name, {}), labels.PRODUCT_ATTRIBUTE),
                    share=device.share,
                )
                for device in lease.spec.devices
            ]
        return devices

    async def _attributes(self, lease: str) -> dict[str, Fields]:
        """The attributes of a lease's devices, by name."""
        # The slice is written about when the lease is, a moment before or after.
        for _ in range(40):
            try:
                slice_ = await self._kube.get(RESOURCE_SLICE, lease)
            except NotFound:
                await self._clock.sleep(0.05)
                continue
            devices = spec_of(slice_).get("devices") or ()
            return {device["name"]: device.get("attributes") or {} for device in devices}
        return {}

    async def _follow(self, kind: Kind) -> None:
        """Track the bid, or its leases, until cancelled."""
        while True:
            with contextlib.suppress(Unavailable, Gone):
                async for objects in self._snapshots(kind):
                    self._state[kind] = objects
                    if self._holding is not None and kind == GPU_LEASE:
                        self._update_held(self._leases())
                    self._changed.set()
            await self._clock.sleep(_RETRY_SECONDS)

    async def _snapshots(self, kind: Kind) -> AsyncIterator[dict[str, Object]]:
        """Yield the objects of a kind by name, after each change."""
        fields = f"metadata.name={self._name}" if kind == BID else ""
        listing = await self._kube.list(kind, self._namespace, fields=fields)
        objects = {name_of(obj): obj for obj in listing.items}
        yield objects
        async for event in self._kube.watch(
            kind, self._namespace, resource_version=listing.resource_version, fields=fields
        ):
            if event.type == "BOOKMARK":
                continue
            objects = dict(objects)
            if event.type == "DELETED":
                objects.pop(name_of(event.object), None)
            else:
                objects[name_of(event.object)] = event.object
            yield objects

    def _update_held(self, leases: Sequence[GPULease]) -> None:
        """Copy price, notice and loss from the leases to the held lease."""
        holding = self._holding
        assert holding is not None
        if not leases or any(lease.is_deleted for lease in leases):
            holding.lost = True
            return
        for status in (lease.status for lease in leases if lease.status is not None):
            if status.phase is Phase.DRAINING and holding.notice is None:
                holding.notice = Notice(
                    reason=status.reason,
                    reclaim_at=status.reclaim_at,
                    compensation=status.compensation,
                )
                if self._on_notice is not None:
                    self._on_notice(holding.notice)
            holding.price = status.price or holding.price

    async def _send_heartbeats(self) -> None:
        """Send a heartbeat three times per hold, so that the lease continues."""
        count = 0
        while True:
            await self._clock.sleep(self._seconds / 3)
            count += 1
            beat = {"metadata": {"annotations": {labels.HOLD_BEAT: str(count)}}}
            try:
                await self._kube.patch(BID, self._name, beat, self._namespace)
            except NotFound:
                return  # `_follow` notices that the bid is gone
            except ApiError:
                continue

    async def _leave(self) -> None:
        """Stop all tasks and delete the bid."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        # If its creation was never answered, it ends for want of a heartbeat.
        with contextlib.suppress(ApiError):
            await self._kube.delete(BID, self._name, self._namespace, uid=self._uid)


def unique_name(prefix: str = "lease") -> str:
    """A new name with that prefix."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def _is_running(lease: GPULease) -> bool:
    return lease.status is not None and lease.status.phase in (Phase.ACTIVE, Phase.DRAINING)


def _string(attributes: Fields, name: str) -> str:
    return str((attributes.get(name) or {}).get("string", ""))
