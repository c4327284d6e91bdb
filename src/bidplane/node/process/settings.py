"""What the owner of a machine decides about running pods on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.kube.client import Object
from bidplane.node.process.addresses import Network
from bidplane.node.process.confine import Engine
from bidplane.node.process.images import Images
from bidplane.node.process.limits import Cgroups
from bidplane.node.process.mounts import Declared


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    state: Path
    engine: Engine
    network: Network
    cgroups: Cgroups
    host_ip: str = "127.0.0.1"
    images: Images = Images()
    volumes: Declared = Declared()
    trusted: Sequence[str] = ()  # agents or namespaces; `*` fits all
    api: tuple[str, str] | None = None  # its host and port, if these are all there is to it
    server: tuple[str, int] | None = None  # where the API is, whatever its path
    log_bytes: int = 10 * 1024 * 1024
    log_files: int = 5
    pids: int = 4096

    @property
    def pods(self) -> Path:
        return self.state / "pods"

    def agent_of(self, pod: Object) -> str:
        """Whose pod it is; on the host every pod of an agent carries its name."""
        metadata = pod["metadata"]
        name = (metadata.get("labels") or {}).get(labels.AGENT, "")
        # The label is the syncer's only where the namespace is the agent's.
        return name if metadata["namespace"] == host_namespace(name) else ""

    def trusts(self, pod: Object) -> bool:
        known = [name for name in (pod["metadata"]["namespace"], self.agent_of(pod)) if name]
        return any(fnmatchcase(name, pattern) for name in known for pattern in self.trusted)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
