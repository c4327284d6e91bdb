"""
Agents at work: what `bidplane demo` tells, and what keeps `bidplane up --example` busy.

Everything goes over the public API, as an agent would do it: a kubeconfig's token, pods
applied to its own plane.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Any

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


class Work(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    name: str
    at: float  # seconds from the start
    gpus: int
    seconds: int


class Cast:
    """The agents of a story, each with a client for its own plane."""

    def __init__(self, where: Installation) -> None:
        self._where = where
        self._host = host_client(where, user="owner", clock=SystemClock())
        self._clients: dict[str, HttpClient] = {}
        self._characters: dict[str, Character] = {}

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
            await self._host.create(AGENT, agent)
        await agent_ready(self._host, character.name)
        self._characters[character.name] = character
        self._clients[character.name] = await self._connect(character.name)

    async def submit(self, work: Work) -> None:
        await self._clients[work.agent].create(
            POD, pod(work, self._characters[work.agent].price), NAMESPACE
        )

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
        for client in [*self._clients.values(), self._host]:
            await client.close()

    async def _connect(self, name: str) -> HttpClient:
        address = self._where.address()
        token = self._where.owner_token(user="owner", now=SystemClock().now())
        async with httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=self._where.ca_file), trust_env=False
        ) as http:
            response = await http.post(
                f"{address.url}/bidplane/v1/agents/{name}/kubeconfig",
                headers={"Authorization": f"Bearer {token}"},
            )
        if response.status_code >= 400:
            raise refusal(response)
        config = msgspec.yaml.decode(response.content)
        return HttpClient(
            config["clusters"][0]["cluster"]["server"],
            token=config["users"][0]["user"]["token"],
            ca_file=self._where.ca_file,
        )


def pod(work: Work, price: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": work.name,
            "annotations": {
                labels.MAX_PRICE: price,
                labels.SIMULATED_SECONDS: str(work.seconds),
            },
        },
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
