"""
A host with its gate, controllers and public address, in virtual time.

Requests go through the real application, with real tokens; only the socket is left out. The audit
is a real ledger's, in SQLite or PostgreSQL.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.gate.policy import ActorRole
from bidplane.api.kinds import (
    AGENT,
    ENDPOINT,
    GPU_LEASE,
    NAMESPACE,
    NODE,
    POD,
    POOL,
    RESOURCE_SLICE,
)
from bidplane.api.money import GPU_WEIGHT
from bidplane.bench.support import postgres
from bidplane.core.bidding.admission import admission, advise
from bidplane.core.gate.admission import with_policies
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.gate.actors import group_of
from bidplane.gate.service import Gate
from bidplane.ledger import Ledger
from bidplane.ledger.audit.trail import AuditEntry, AuditTrail
from bidplane.machinery.clock import Clock
from bidplane.plane import Planes
from bidplane.plane.hostpolicy import prepare_gate
from bidplane.runtime.identity.credentials import HOST_PLANE, Identity, Tokens
from bidplane.sim.loop import VirtualClock, run
from bidplane.web.app import WebApp
from bidplane.web.credentials import CredentialsApp
from bidplane.web.decisions import DecisionsApp
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

CORE = "/planes/host/api/v1"
OURS = "/planes/host/apis/bidplane.dev/v1alpha1"
MERGE = "application/merge-patch+json"


class Answer(NamedTuple):
    code: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class GateSite:
    def __init__(self, planes: Planes, gate: Gate, tokens: Tokens, clock: Clock) -> None:
        self.planes, self.gate, self.tokens, self.clock = planes, gate, tokens, clock
        self.client = planes.client(HOST_PLANE)
        self.app: Any = None

    def token(self, name: str, role: ActorRole) -> str:
        uid = self.planes.uid(HOST_PLANE)
        assert uid is not None
        return self.tokens.issue(
            Identity(
                plane=HOST_PLANE,
                uid=uid,
                user=name,
                groups=(group_of(role),),
                expires=int(self.clock.now()) + 10**7,
            )
        )

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        by: str = "owner:ann",
        token: str = "",
        media: str = "application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        **params: Any,
    ) -> Answer:
        """One request by ROLE:NAME, over everything but the socket."""
        role, _, name = by.partition(":")
        bearer = token or self.token(name, ActorRole(role))
        sent: list[dict[str, Any]] = []
        raw = b"" if body is None else json.dumps(body).encode()
        messages = iter(({"type": "http.request", "body": raw, "more_body": False},))

        async def receive() -> dict[str, Any]:
            for message in messages:
                return message
            await asyncio.sleep(10**6)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(params).encode(),
            "headers": [
                (b"authorization", f"Bearer {bearer}".encode()),
                (b"content-type", media.encode()),
                (b"content-length", str(len(raw)).encode()),
                *headers,
            ],
        }
        await self.app(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in sent[1:])
        try:
            decoded = json.loads(text) if text else {}
        except ValueError:
            decoded = {"message": text.decode()}
        return Answer(sent[0]["status"], decoded)

    async def patch(
        self, path: str, change: Any, *, by: str = "owner:ann", **params: Any
    ) -> Answer:
        return await self.call("PATCH", path, change, by=by, media=MERGE, **params)

    async def decide(self, name: str, verb: str, *, by: str, **params: Any) -> Answer:
        return await self.call("POST", f"/bidplane/v1/proposals/{name}/{verb}", by=by, **params)

    async def proposal(self, name: str) -> Any:
        return (await self.call("GET", f"{OURS}/proposals/{name}")).body

    async def propose(
        self, action: Action, *, by: str = "pilot:pilot", name: str = "p", **spec: Any
    ) -> Answer:
        role, _, person = by.partition(":")
        fields = {
            "kind": action.kind,
            "name": action.name,
            "namespace": action.namespace,
            "uid": action.uid,
            "value": action.value,
        }
        body = {
            "apiVersion": "bidplane.dev/v1alpha1",
            "kind": "Proposal",
            "metadata": {"name": name},
            "spec": {
                "action": {key: value for key, value in fields.items() if value},
                "proposer": {"name": person, "role": role},
                **spec,
            },
        }
        return await self.call("POST", f"{OURS}/proposals", body, by=by)

    async def set_policy(self, spec: Any, *, name: str = "default") -> Answer:
        """Replace the spec of a Policy, or create it."""
        body = {
            "apiVersion": "bidplane.dev/v1alpha1",
            "kind": "Policy",
            "metadata": {"name": name},
            "spec": spec,
        }
        created = await self.call("POST", f"{OURS}/policies", body)
        if created.code != 409:
            return created
        old = (await self.call("GET", f"{OURS}/policies/{name}")).body
        body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return await self.call("PUT", f"{OURS}/policies/{name}", body)

    async def audit(self) -> list[AuditEntry]:
        return await self.gate.record(lambda trail: trail.entries())


async def add_node(site: GateSite, name: str) -> None:
    """A node of two GPUs, which is ready."""
    node: dict[str, Any] = {"metadata": {"name": name}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    await site.client.create(NODE, {**node, "status": ready}, with_status=True)
    devices = [
        {"name": f"gpu-{i}", "attributes": {"productName": {"string": "H100"}}} for i in (0, 1)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": "gpu.bidplane.dev", "nodeName": name, "pool": pool}
    await site.client.create(
        RESOURCE_SLICE,
        {"metadata": {"name": name}, "spec": {**slice_spec, "devices": devices}},
    )


async def add_endpoint(site: GateSite, name: str, **status: Any) -> Any:
    """The host's copy of an Endpoint whose plane is not looked at, with the traffic's demand."""
    marks = {"labels": {"bidplane.dev/agent": "a"}}
    spec = {"target": {"deployment": name, "service": name}}
    demand = {"awake": status["phase"] != "Asleep", "number": 1, "reason": "Request"}
    shown = {"gpus": 1, "answers": 1, "demand": demand, **status}
    return await site.client.create(
        ENDPOINT,
        {"metadata": {"name": name, **marks}, "spec": spec, "status": shown},
        "agent-a",
        with_status=True,
    )


async def furnish(site: GateSite) -> None:
    """Two nodes of two GPUs, a pool, an agent's lease, its pods and services."""
    client = site.client
    for name in ("n1", "n2"):
        await add_node(site, name)
    terms = {"product": "H100", "floorPrice": "0.20"}
    await client.create(POOL, {"metadata": {"name": "h100"}, "spec": terms})
    agent = {"owner": "o", "refill": "10", "priority": 2, "suspended": True, "movable": True}
    await client.create(AGENT, {"metadata": {"name": "a"}, "spec": agent})
    await asyncio.sleep(1)
    namespaces = [obj["metadata"]["name"] for obj in (await client.list(NAMESPACE)).items]
    if "agent-a" not in namespaces:
        await client.create(NAMESPACE, {"metadata": {"name": "agent-a"}})
    lease = {
        "agent": "a",
        "bid": {"namespace": "agent-a", "name": "b", "uid": "u"},
        "pool": "h100",
        "node": "n1",
        "devices": [{"node": "n1", "driver": "gpu.bidplane.dev", "pool": "n1", "name": "gpu-0"}],
        "maxPrice": "2.00",
        "weight": GPU_WEIGHT,
        "gpuWeight": GPU_WEIGHT,
    }
    held = {"phase": "Active", "price": "1.50"}
    await client.create(
        GPU_LEASE,
        {
            "metadata": {"name": "l", "finalizers": ["bidplane.dev/exchange"]},
            "spec": lease,
            "status": held,
        },
        "agent-a",
        with_status=True,
    )
    await add_endpoint(site, "asleep", phase="Asleep")
    await add_endpoint(site, "awake", phase="Ready")
    await add_endpoint(site, "broken", phase="Waking", failed=True, message="CrashLoopBackOff")
    for name in ("pod-1", "pod-2"):
        marks = {"bidplane.dev/agent": "a", "bidplane.dev/lease": "l"}
        spec = {"containers": [{"name": "main", "image": "x"}], "nodeName": "n2"}
        await client.create(
            POD, {"metadata": {"name": name, "labels": marks}, "spec": spec}, "default"
        )


def cordon(name: str = "n1") -> Action:
    return Action(kind=ActionKind.CORDON_NODE, name=name)


STORES = ("sqlite", "postgres")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(postgres.Server(durable=False))
        except postgres.NoPostgres as error:
            pytest.skip(str(error))
        yield running


@pytest.fixture
def location(tmp_path: Path) -> Path | str:
    return tmp_path / "ledger.db"


@pytest.fixture(params=STORES)
def new_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Path | str]:
    """Names a place for a ledger, each time, in either database."""
    if request.param == "sqlite":
        return lambda: tmp_path / f"ledger-{next(_numbers)}.db"
    server: postgres.Server = request.getfixturevalue("postgres_server")
    return lambda: server.dsn(f"gate_{next(_numbers)}")


Story = Callable[[GateSite], Coroutine[Any, Any, None]]


async def play(
    folder: Path,
    location: Path | str,
    story: Story,
    *,
    furnished: bool = True,
    clock: Clock | None = None,
) -> None:
    """Run a story on a new site, or on the one that an earlier call left in `folder`."""
    clock, tokens = clock or VirtualClock(), Tokens(b"t" * 32)
    Ledger.open(location, durable=False).close()
    planes = Planes(
        folder / "planes",
        clock=clock,
        tokens=tokens,
        crds=crds_for,
        admit=with_policies(admission(lambda plane: None)),
        advise=advise,
        durable=False,
        inline=True,
        dice=random.Random(1),
    )
    numbers = itertools.count(random.getrandbits(40))

    async def snapshot(agent: str, id: str) -> str:
        path = folder / f"{agent}-{id}.snapshot"
        await planes.snapshot(agent, path)
        return str(path)

    gate = planes.gate = Gate(
        planes.client(HOST_PLANE),
        lambda: AuditTrail.open(location),
        clock=clock,
        new_id=lambda: str(next(numbers)),
        snapshot=snapshot,
        inline=True,
    )
    await prepare_host(planes, None)
    await prepare_gate(planes.plane(HOST_PLANE), planes.client(HOST_PLANE))
    driver = EmbeddedDriver(planes, "https://test")
    controllers = Controllers(
        planes.client(HOST_PLANE), driver, clock=clock, own_host=False, gate=gate
    )
    assert controllers.proposals is not None
    site = GateSite(planes, gate, tokens, clock)

    async def no_exchange(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 599, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    site.app = WebApp(
        planes=planes,
        exchange=no_exchange,
        credentials=CredentialsApp(
            tokens, plane_uid=planes.uid, url="https://test", ca=b"ca", clock=clock
        ),
        decisions=DecisionsApp(
            gate,
            tokens,
            host_uid=lambda: planes.uid(HOST_PLANE),
            clock=clock,
            decided=controllers.proposals.add,
        ),
    )
    work = asyncio.create_task(controllers.run())
    try:
        await asyncio.sleep(1)
        if furnished:
            await furnish(site)
        await asyncio.sleep(1)
        await story(site)
        assert not work.done(), work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await planes.close()
        gate.close()


@pytest.fixture
def host(tmp_path: Path, location: Path | str) -> Callable[[Story], None]:
    return lambda story: run(play(tmp_path, location, story))
