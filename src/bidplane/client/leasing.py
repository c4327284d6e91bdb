"""
A lease that a program holds.

Entering waits until the devices are won and claimed. Inside, a heartbeat keeps the lease;
`held.notice` (and `on_notice`) say when it is to end, and by when. Leaving gives it back,
also by an exception, Ctrl-C or cancellation. A program that dies without leaving stops its
heartbeat, and the lease ends by itself `hold_seconds` later.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypedDict

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import BID, GPU_LEASE, RESOURCE_SLICE, Kind
from bidplane.api.lease import Phase
from bidplane.core.translation import host_name
from bidplane.errors import ApiError, Gone, NotFound, Unavailable, UserError
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock

HOLD_SECONDS = 60
_RETRY_SECONDS = 0.5


class Refused(UserError):
    """The bid cannot win as it is; the message says what to change."""


class LeaseTimeout(UserError):
    """It was not won in time; the message says why. The bid was taken back."""


class LeaseLost(UserError):
    """The lease ended though nobody left it: its notice is over, or its agent is gone."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a wait is; told when it changes."""

    reason: str  # a BidReason, or Bidding, Won
    message: str
    price_to_win: str
    waited: float  # seconds


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The lease ends: save what must be saved, and leave."""

    reason: str  # Outbid | Unfunded
    reclaim_at: str  # RFC 3339
    compensation: str = ""


class Waiting(TypedDict, total=False):
    """How a lease is waited for, and kept."""

    timeout: float | None
    hold_seconds: int
    on_progress: Callable[[Progress], None] | None
    on_notice: Callable[[Notice], None] | None
    annotations: Mapping[str, str] | None


class LeasedDevice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    node: str
    uuid: str  # "" where the driver gives none
    product: str = ""
    share: str = ""  # of the device, if not all of it


class Held:
    """What was won."""

    def __init__(self, bid: str, leases: Sequence[Object], devices: list[LeasedDevice]) -> None:
        self.bid = bid
        self.names: list[str] = [lease["metadata"]["name"] for lease in leases]
        self.devices = devices
        self.price: str = leases[0]["status"].get("price", "")  # credits per GPU-hour
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
        """What a command on that node needs in its environment to use these GPUs only."""
        visible = ",".join(device.uuid or device.name for device in self.devices)
        return {
            "CUDA_VISIBLE_DEVICES": visible,
            "NVIDIA_VISIBLE_DEVICES": visible,
            "BIDPLANE_LEASE": self.name,
            "BIDPLANE_NODE": self.node,
        }


class AsyncLeasing:
    """`async with client.lease(…) as held:`"""

    def __init__(
        self,
        kube: Client,
        bid: dict[str, Any],
        *,
        namespace: str,
        clock: Clock,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self._kube = kube
        self._bid = bid
        self._name: str = bid["metadata"]["name"]
        self._namespace = namespace
        self._clock = clock
        self._timeout = timeout
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._seconds = int(bid["metadata"]["annotations"][labels.HOLD_SECONDS])
        self._uid: str | None = None
        self._told: tuple[str, str, str] | None = None
        self._last = "the bid waits for its first round"
        self._state: dict[Kind, dict[str, Object]] = {BID: {}, GPU_LEASE: {}}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._held: Held | None = None
        self._seen_bid = False

    async def __aenter__(self) -> Held:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._win()
        except TimeoutError:
            await self._leave()
            raise LeaseTimeout(f"not won within {self._timeout:g} s: {self._last}") from None
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

    async def _win(self) -> Held:
        began = self._clock.now()
        await self._insist_on_bid()
        for kind in (BID, GPU_LEASE):
            self._tasks.append(asyncio.create_task(self._follow(kind)))
        self._tasks.append(asyncio.create_task(self._beat()))
        while True:
            await self._changed.wait()
            self._changed.clear()
            bid, leases = self._state[BID].get(self._name), self._leases()
            if bid is None:
                if self._seen_bid:
                    raise LeaseLost(f"the bid {self._name} was deleted")
                continue
            self._seen_bid = True
            self._tell(bid, leases, began)
            if leases and all(_is_running(lease) for lease in leases):
                self._held = Held(self._name, leases, await self._devices(leases))
                self._note(leases)
                return self._held

    async def _insist_on_bid(self) -> None:
        """As a person does: try again while the server is away."""
        while True:
            try:
                made = await self._kube.create(BID, self._bid, self._namespace)
                self._uid = made["metadata"]["uid"]
                return
            except Unavailable as error:
                self._last = str(error)
                await self._clock.sleep(_RETRY_SECONDS)

    def _leases(self) -> list[Object]:
        on_host = host_name(self._namespace, self._name)
        found = [
            lease
            for lease in self._state[GPU_LEASE].values()
            if lease["spec"]["bid"]["name"] == on_host
        ]
        found.sort(key=lambda lease: lease["spec"].get("part", 0))
        # Of a gang, all or nothing: its parts are shown one after the other.
        whole = found[0]["spec"].get("parts", 1) if found else 0
        return found if len(found) >= whole else []

    def _tell(self, bid: Object, leases: list[Object], began: float) -> None:
        status = bid.get("status") or {}
        phase = status.get("phase")
        if phase == BidPhase.REFUSED:
            raise Refused(status.get("message") or status.get("reason") or "the bid was refused")
        if phase == BidPhase.ENDED:
            raise LeaseLost(status.get("message") or "the lease is over")
        said = (
            status.get("reason") or "Bidding",
            status.get("message") or "the bid waits for its first round",
            status.get("priceToWin") or "",
        )
        if leases and not all((lease.get("status") or {}).get("ready", True) for lease in leases):
            said = ("Won", "won; waiting for the GPUs' last holder to leave", "")
        self._last = said[1]
        if self._on_progress is not None and said != self._told:
            self._on_progress(
                Progress(
                    reason=said[0],
                    message=said[1],
                    price_to_win=said[2],
                    waited=self._clock.now() - began,
                )
            )
        self._told = said

    async def _devices(self, leases: list[Object]) -> list[LeasedDevice]:
        found = []
        for lease in leases:
            name = lease["metadata"]["name"]
            attributes: dict[str, Any] = {}
            # The slice is written beside the lease, a moment before or after it.
            for _ in range(40):
                try:
                    slices = await self._kube.get(RESOURCE_SLICE, name)
                except NotFound:
                    await self._clock.sleep(0.05)
                    continue
                attributes = {
                    device["name"]: device.get("attributes") or {}
                    for device in slices["spec"].get("devices") or ()
                }
                break
            for device in lease["spec"]["devices"]:
                known = attributes.get(device["name"]) or {}
                found.append(
                    LeasedDevice(
                        name=device["name"],
                        node=device["node"],
                        uuid=_string(known, "uuid"),
                        product=_string(known, labels.PRODUCT_ATTRIBUTE),
                        share=device.get("share", ""),
                    )
                )
        return found

    async def _follow(self, kind: Kind) -> None:
        """Keep what is known of the bid, or of its leases, until cancelled."""
        while True:
            with contextlib.suppress(Unavailable, Gone):
                async for known in self._versions(kind):
                    self._state[kind] = known
                    if self._held is not None and kind == GPU_LEASE:
                        self._note(self._leases())
                    self._changed.set()
            await self._clock.sleep(_RETRY_SECONDS)

    async def _versions(self, kind: Kind) -> AsyncIterator[dict[str, Object]]:
        fields = f"metadata.name={self._name}" if kind == BID else ""
        listing = await self._kube.list(kind, self._namespace, fields=fields)
        known = {obj["metadata"]["name"]: obj for obj in listing.items}
        yield known
        async for event in self._kube.watch(
            kind, self._namespace, resource_version=listing.resource_version, fields=fields
        ):
            if event.type == "BOOKMARK":
                continue
            known = dict(known)
            if event.type == "DELETED":
                known.pop(event.object["metadata"]["name"], None)
            else:
                known[event.object["metadata"]["name"]] = event.object
            yield known

    def _note(self, leases: list[Object]) -> None:
        held = self._held
        assert held is not None
        if not leases or any(lease["metadata"].get("deletionTimestamp") for lease in leases):
            held.lost = True
            return
        for lease in leases:
            status = lease["status"]
            if status["phase"] == Phase.DRAINING and held.notice is None:
                held.notice = Notice(
                    reason=status.get("reason", ""),
                    reclaim_at=status.get("reclaimAt", ""),
                    compensation=status.get("compensation", ""),
                )
                if self._on_notice is not None:
                    self._on_notice(held.notice)
            held.price = status.get("price") or held.price

    async def _beat(self) -> None:
        """Say that we are here, three times in a hold."""
        count = 0
        while True:
            await self._clock.sleep(self._seconds / 3)
            count += 1
            beat = {"metadata": {"annotations": {labels.HOLD_BEAT: str(count)}}}
            try:
                await self._kube.patch(BID, self._name, beat, self._namespace)
            except NotFound:
                return  # seen by whoever follows the bid
            except ApiError:
                continue

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        # Not made, or never answered: if it was made after all, no beat keeps it.
        with contextlib.suppress(ApiError):
            await self._kube.delete(BID, self._name, self._namespace, uid=self._uid)


def fresh_name(prefix: str = "lease") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def _is_running(lease: Object) -> bool:
    return (lease.get("status") or {}).get("phase") in (Phase.ACTIVE, Phase.DRAINING)


def _string(attributes: dict[str, Any], name: str) -> str:
    return str((attributes.get(name) or {}).get("string", ""))
