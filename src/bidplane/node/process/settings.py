"""The owner's settings for running pods on a machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.kube.client import Object
from bidplane.node.process.container.images import Images
from bidplane.node.process.network.addresses import Network
from bidplane.node.process.sandbox.confinement import ContainerEngine
from bidplane.node.process.sandbox.limits import Cgroups
from bidplane.node.process.volumes.mounts import Declared


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    state: Path
    engine: ContainerEngine
    network: Network
    cgroups: Cgroups
    host_ip: str = "127.0.0.1"
    images: Images = Images()
    volumes: Declared = Declared()
    trusted: Sequence[str] = ()  # agents or namespaces; `*` fits all
    api: tuple[str, str] | None = None  # its host and port, if its URL has no path
    server: tuple[str, int] | None = None  # host and port of the API, with any path
    log_bytes: int = 10 * 1024 * 1024
    log_files: int = 5
    pids: int = 4096

    @property
    def pods(self) -> Path:
        return self.state / "pods"

    def agent_of(self, pod: Object) -> str:
        """Return the agent of a pod, from its label on the host; empty for a foreign pod."""
        metadata = pod["metadata"]
        name = (metadata.get("labels") or {}).get(labels.AGENT, "")
        # Only in the agent's own namespace is the label known to be the syncer's.
        return name if metadata["namespace"] == host_namespace(name) else ""

    def trusts(self, pod: Object) -> bool:
        names = [name for name in (pod["metadata"]["namespace"], self.agent_of(pod)) if name]
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.trusted)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
