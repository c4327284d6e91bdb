"""
Records roles.json: the roles and bindings a real server makes for itself at its first start.

Names, rules and subjects; the rules of aggregated roles are left out, they follow from the
others. Run: see recorder.py.
"""

from __future__ import annotations

from typing import Any

import recorder

from bidplane.testing.cluster import Cluster

GROUP = "/apis/rbac.authorization.k8s.io/v1"
KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
KEPT = ("rules", "aggregationRule", "roleRef", "subjects")


def record(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    rows = []
    for item in recorder.ask(cluster, f"{GROUP}/{kind}")["items"]:
        meta = item["metadata"]
        row = {
            key: meta[key] for key in ("name", "namespace", "labels", "annotations") if key in meta
        }
        row |= {key: item[key] for key in KEPT if item.get(key) is not None}
        if "aggregationRule" in row:
            row.pop("rules", None)
        rows.append(row)
    return sorted(rows, key=lambda row: (row.get("namespace", ""), row["name"]))


def main() -> None:
    with recorder.server() as cluster:
        table = {"release": recorder.release(cluster)}
        table |= {kind: record(cluster, kind) for kind in KINDS}
    recorder.write("roles.json", table)


if __name__ == "__main__":
    main()
