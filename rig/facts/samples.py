"""
Records tests/wire/protobuf_samples.json: real objects as protobuf and as JSON, side by side.

The objects are those in protobuf_samples.yaml beside it. Run: see recorder.py.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import recorder
import yaml

TESTS = Path(__file__).resolve().parents[2] / "tests" / "wire"


def path_of(sample: dict[str, Any]) -> str:
    """Where the object is served, in the version it is written in."""
    return f"{recorder.served_at(sample)[1]}/{sample['metadata']['name']}"


def main() -> None:
    source = TESTS / "protobuf_samples.yaml"
    samples = {}
    with recorder.server() as cluster:
        cluster.kubectl("apply", "-f", str(source))
        for sample in yaml.safe_load_all(source.read_text()):
            path = path_of(sample)
            _, body = cluster.get(path, accept="application/vnd.kubernetes.protobuf")
            samples[path] = {
                "protobuf": base64.b64encode(body).decode(),
                "json": recorder.ask(cluster, path),
            }
    lines = [f"{json.dumps(path)}: {json.dumps(both)}" for path, both in samples.items()]
    (TESTS / "protobuf_samples.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(samples)} samples")


if __name__ == "__main__":
    main()
