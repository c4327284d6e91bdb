"""
What the generators of facts share: a real server to ask, and one way to write an answer down.

    make kube
    .venv/bin/python rig/facts/resources.py     what is served     (starts a server)
    .venv/bin/python rig/facts/schemas.py       of which fields    (starts a server)
    .venv/bin/python rig/facts/messages.py      in which encoding  (reads Go modules)
    .venv/bin/python rig/facts/roles.py         default roles      (starts a server)
    .venv/bin/python rig/facts/defaults.py      what is added      (starts a server)

Each writes one table under src/bidplane/wire/data, the same bytes on every run of one release.
Only names, numbers and flags are kept, never a sentence of the original's documentation.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bidplane.testing import rig
from bidplane.testing.cluster import Cluster
from bidplane.wire import data

DATA = Path(__file__).resolve().parents[2] / "src" / "bidplane" / "wire" / "data"
# Off by default, but a plane serves it: drivers and workloads of earlier releases still ask for it.
ALSO_SERVED = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2")
LARGE = 300_000  # bytes; past this a table is stored compressed


@contextlib.contextmanager
def server(*also: str) -> Iterator[Cluster]:
    """An apiserver alone, with the group-versions it serves by default and those in `also`."""
    flags = [f"--runtime-config={','.join(f'{name}=true' for name in also)}"] if also else []
    commands = ("etcd", "kube-apiserver", "kubectl")
    with Cluster(rig.find(commands), controllers=False, apiserver_flags=flags) as running:
        yield running


def ask(cluster: Cluster, path: str, accept: str = "application/json") -> dict[str, Any]:
    status, body = cluster.get(path, accept=accept)
    if status != 200:
        raise SystemExit(f"GET {path}: {status} {body[:300].decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(body)
    return answer


def served_at(sample: Mapping[str, Any]) -> tuple[str, str]:
    """What a sample is kept as (`pods`, `jobs.batch`), and where such objects are served."""
    group, _, version = sample["apiVersion"].rpartition("/")
    wanted = (group, version, sample["kind"])
    (row,) = [
        row
        for row in data.resources()["resources"]
        if (row["group"], row["version"], row["kind"]) == wanted
    ]
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = "/namespaces/default" if row["namespaced"] else ""
    kept = f"{row['plural']}.{group}" if group else row["plural"]
    return kept, f"{base}{scope}/{row['plural']}"


def release(cluster: Cluster) -> str:
    return str(ask(cluster, "/version")["gitVersion"])


def write(name: str, table: Mapping[str, Any]) -> None:
    """
    Write `table` so that a change of one entry is a change of one line.

    The first level is the table's parts, the second its entries: each gets a line.
    """
    parts = [f"{json.dumps(key)}: {_entries(value)}" for key, value in table.items()]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    plain, packed = DATA / name, DATA / f"{name}.gz"
    plain.unlink(missing_ok=True)
    packed.unlink(missing_ok=True)
    if len(text) <= LARGE:
        plain.write_text(text)
        written = plain
    else:
        # No name and no time in the header: the same table is the same bytes.
        packed.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
        written = packed
    print(f"{written.name}: {written.stat().st_size} bytes, {len(text)} as text")


def _entries(value: Any) -> str:
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(key)}: {_compact(entry)}" for key, entry in sorted(value.items())]
        return "{\n" + ",\n".join(lines) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
