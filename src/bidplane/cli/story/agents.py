"""
The agents of `bidplane demo` and `bidplane up --example`, and their work.

In an installation they use the public API as any agent would: a kubeconfig's token, pods created in
their own planes. All have the default refill, and offer the default price as far as their wallet
allows: priority is all that is said of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from bidplane.api import labels
from bidplane.api.agent import AgentSpec, Strategy
from bidplane.api.kinds import AGENT, POD, Object
from bidplane.api.manifests import manifest
from bidplane.cli.common import agent_ready
from bidplane.errors import AlreadyExists, NotFound
from bidplane.http.client.caller import HttpCaller, trust
from bidplane.kube.client import KubeClient
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

NAMESPACE = "default"


class DemoAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of the demo."""

    name: str
    priority: int
    saves: bool = False  # its pods take a checkpoint on notice, and continue from it


class AgentWork(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of an agent, and when it is submitted."""

    agent: str
    name: str
    at: float  # seconds from the start
    gpus: int
    seconds: int
    due: float = math.inf  # seconds from the start; done later, it is worth nothing
    pool: str = ""


class Environment(Protocol):
    """The installation in which the demo runs, real or simulated."""

    @property
    def host(self) -> KubeClient: ...

    async def connect(self, agent: str) -> KubeClient:
        """A client of the agent's own plane."""
        ...

    async def close(self) -> None: ...


class DemoAgents:
    """The demo's agents, each with a client for its own plane."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._clients: dict[str, KubeClient] = {}
        self._agents: dict[str, DemoAgent] = {}

    @property
    def host(self) -> KubeClient:
        return self._environment.host

    def client(self, name: str) -> KubeClient:
        return self._clients[name]

    @property
    def names(self) -> list[str]:
        return list(self._agents)

    async def create(self, demo_agent: DemoAgent) -> None:
        """Create the agent, unless it exists, and wait for its plane."""
        spec = AgentSpec(
            owner=f"{demo_agent.name}-team",
            priority=demo_agent.priority,
            strategy=Strategy.STEADY,
        )
        with contextlib.suppress(AlreadyExists):
            await self.host.create(AGENT, manifest(AGENT, demo_agent.name, spec))
        await agent_ready(self.host, demo_agent.name)
        self._agents[demo_agent.name] = demo_agent
        self._clients[demo_agent.name] = await self._environment.connect(demo_agent.name)

    async def submit(self, work: AgentWork) -> None:
        await self._clients[work.agent].create(POD, pod(work, self._agents[work.agent]), NAMESPACE)

    async def delete_pod(self, agent: str, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._clients[agent].delete(POD, name, NAMESPACE)

    async def watch(self, agent: str, on_change: Callable[[str, str, Object], None]) -> None:
        """Call `on_change` with every change of the agent's pods, until cancelled."""
        client = self._clients[agent]
        revision = (await client.list(POD, NAMESPACE)).resource_version
        while True:
            async for event in client.watch(POD, NAMESPACE, resource_version=revision):
                revision = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    on_change(agent, event.type, event.object)

    async def close(self) -> None:
        await self._environment.close()


class InstallationEnvironment:
    """A running installation, over HTTPS."""

    def __init__(self, target: Installation) -> None:
        self._installation = target
        self._host = host_client(target, user="owner", clock=SystemClock())
        self._clients: list[HttpClient] = []

    @property
    def host(self) -> KubeClient:
        return self._host

    async def close(self) -> None:
        for client in [*self._clients, self._host]:
            await client.close()

    async def connect(self, agent: str) -> KubeClient:
        address = self._installation.address()
        token = self._installation.owner_token(user="owner", now=SystemClock().now())
        trusted = trust(ca_file=self._installation.ca_file)
        async with HttpCaller(address.url, trust=trusted, token=token) as http:
            answer = await http.call("POST", f"/bidplane/v1/agents/{agent}/kubeconfig")
        config = msgspec.yaml.decode(answer.accepted().body)
        client = HttpClient(
            config["clusters"][0]["cluster"]["server"],
            token=config["users"][0]["user"]["token"],
            ca_file=self._installation.ca_file,
        )
        self._clients.append(client)
        return client


def pod(work: AgentWork, demo_agent: DemoAgent) -> Object:
    """The manifest of a work's pod."""
    annotations_of_pod = {
        labels.SIMULATED_SECONDS: str(work.seconds),
        **({labels.POOL: work.pool} if work.pool else {}),
        **({labels.CHECKPOINT_COMMAND: "save"} if demo_agent.saves else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": work.name, "annotations": annotations_of_pod},
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
