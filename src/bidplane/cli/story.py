"""
Agents at work: what `bidplane demo` tells, and what keeps `bidplane up --example` busy.

Everything goes over the public API, as an agent would do it: a kubeconfig's token, pods
applied to its own plane.
"""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import httpx2
import msgspec

from bidplane.api import labels
from bidplane.api.kinds import AGENT, POD
from bidplane.cli.common import agent_ready, refusal
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Client, Object
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

NAMESPACE = "default"


class Character(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and its temper."""

    name: str
    priority: int
    refill: str
    price: str  # credits per GPU-hour
    saves: bool = False  # its pods take a checkpoint on notice, and go on from it


class Work(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    name: str
    at: float  # seconds from the start
    gpus: int
    seconds: int
    due: float = math.inf  # seconds from the start; done later, it is worth nothing
    pool: str = ""


class Stage(Protocol):
    """Where a story plays: an installation, or a simulated world."""

    @property
    def host(self) -> Client: ...

    async def connect(self, agent: str) -> Client:
        """A client of the agent's own plane."""
        ...

    async def close(self) -> None: ...


class Cast:
    """The agents of a story, each with a client for its own plane."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clients: dict[str, Client] = {}
        self._characters: dict[str, Character] = {}

    @property
    def host(self) -> Client:
        return self._stage.host

    def client(self, name: str) -> Client:
        return self._clients[name]

    @property
    def names(self) -> list[str]:
        return list(self._characters)

    async def enter(self, character: Character) -> None:
        """Make the agent, unless it is there from last time, and wait for its plane."""
        agent = {
            "apiVersion": AGENT.api_version,
            "kind": AGENT.kind,
            "metadata": {"name": character.name},
            "spec": {
                "owner": f"{character.name}-team",
                "priority": character.priority,
                "refill": character.refill,
                "maxPrice": character.price,
            },
        }
        with contextlib.suppress(AlreadyExists):
            await self.host.create(AGENT, agent)
        await agent_ready(self.host, character.name)
        self._characters[character.name] = character
        self._clients[character.name] = await self._stage.connect(character.name)

    async def submit(self, work: Work) -> None:
        wanted = pod(work, self._characters[work.agent])
        await self._clients[work.agent].create(POD, wanted, NAMESPACE)

    async def forget(self, agent: str, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._clients[agent].delete(POD, name, NAMESPACE)

    async def watch(self, agent: str, tell: Callable[[str, str, Object], None]) -> None:
        """Call `tell` with every change of the agent's pods, until cancelled."""
        client = self._clients[agent]
        revision = (await client.list(POD, NAMESPACE)).resource_version
        while True:
            async for event in client.watch(POD, NAMESPACE, resource_version=revision):
                revision = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    tell(agent, event.type, event.object)

    async def leave(self) -> None:
        await self._stage.close()


class InstallationStage:
    """A running installation, over HTTPS."""

    def __init__(self, where: Installation) -> None:
        self._where = where
        self._host = host_client(where, user="owner", clock=SystemClock())
        self._clients: list[HttpClient] = []

    @property
    def host(self) -> Client:
        return self._host

    async def close(self) -> None:
        for client in [*self._clients, self._host]:
            await client.close()

    async def connect(self, agent: str) -> Client:
        address = self._where.address()
        token = self._where.owner_token(user="owner", now=SystemClock().now())
        async with httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=self._where.ca_file), trust_env=False
        ) as http:
            response = await http.post(
                f"{address.url}/bidplane/v1/agents/{agent}/kubeconfig",
                headers={"Authorization": f"Bearer {token}"},
            )
        if response.status_code >= 400:
            raise refusal(response)
        config = msgspec.yaml.decode(response.content)
        client = HttpClient(
            config["clusters"][0]["cluster"]["server"],
            token=config["users"][0]["user"]["token"],
            ca_file=self._where.ca_file,
        )
        self._clients.append(client)
        return client


def pod(work: Work, character: Character) -> dict[str, Any]:
    notes = {
        labels.MAX_PRICE: character.price,
        labels.SIMULATED_SECONDS: str(work.seconds),
        **({labels.POOL: work.pool} if work.pool else {}),
        **({labels.CHECKPOINT_COMMAND: "save"} if character.saves else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": work.name, "annotations": notes},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": f"example/{work.agent}",
                    "resources": {"limits": {labels.GPU_RESOURCE: str(work.gpus)}},
                }
            ],
        },
    }
