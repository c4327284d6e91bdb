"""
Records defaults.json: what a real server adds to a small object of each kind.

The objects are in defaults.yaml beside this. What depends on something else in the object (a
Service's type, whether a Job is indexed) is code, in `bidplane.wire.kinds`, and its samples are not
here. Run: see recorder.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import recorder
import yaml

from bidplane.testing.cluster import Cluster

POD = ".template.spec"  # its defaults depend on what it says
SAMPLES = Path(__file__).with_name("defaults.yaml")


def main() -> None:
    rows: dict[str, dict[str, Any]] = {}
    with recorder.server() as cluster:
        release = recorder.release(cluster)
        for sample in yaml.safe_load_all(SAMPLES.read_text()):
            at, made = create(cluster, sample)
            row = rows.setdefault(at, {"defaults": {}, "generation": False})
            row["generation"] = "generation" in made["metadata"]
            for path, value in added(sample, made, ""):
                if path.startswith(("metadata", "apiVersion", "kind")) or POD in path:
                    continue
                row["defaults"][path] = value
    for row in rows.values():
        row["defaults"] = dict(sorted(row["defaults"].items()))
    recorder.write("defaults.json", {"release": release, "kinds": rows})


def create(cluster: Cluster, sample: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    kept, path = recorder.served_at(sample)
    status, said = cluster.request("POST", path, body=json.dumps(sample).encode())
    if status != 201:
        raise SystemExit(f"{sample['kind']}: {status} {said.decode()}")
    made: dict[str, Any] = json.loads(said)
    return kept, made


def added(sent: Any, made: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What is in `made` and was not sent: the path, with `[]` for any entry of a list."""
    if isinstance(sent, dict) and isinstance(made, dict):
        for key, value in made.items():
            place = f"{path}.{key}" if path else key
            if key not in sent:
                if value is not None:
                    yield place, value
            else:
                yield from added(sent[key], value, place)
    elif isinstance(sent, list) and isinstance(made, list) and len(sent) == len(made):
        for one, other in zip(sent, made, strict=True):
            yield from added(one, other, f"{path}[]")


if __name__ == "__main__":
    main()
