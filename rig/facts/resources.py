"""
Records resources.json: every resource the real server has, as discovery and Table tell it.

Of the printer columns only the headers can be seen from outside; how a cell is computed cannot.
Run: see recorder.py.
"""

from __future__ import annotations

from typing import Any

import recorder

from bidplane.testing.cluster import Cluster

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def discover(cluster: Cluster) -> list[dict[str, Any]]:
    found = [recorder.ask(cluster, path, DISCOVERY) for path in ("/api", "/apis")]
    return [group for answer in found for group in answer["items"]]


def resources(cluster: Cluster, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for group in groups:
        name = group["metadata"].get("name", "")
        for version in group["versions"]:
            for resource in version["resources"]:
                row = describe(name, version["version"], resource)
                if "list" in row["verbs"]:
                    row["columns"] = columns(cluster, row)
                rows.append(row)
    return rows


def describe(group: str, version: str, resource: dict[str, Any]) -> dict[str, Any]:
    served = resource["responseKind"]
    if (served["group"] or group, served["version"] or version) != (group, version):
        raise SystemExit(f"{group}/{version} {resource['resource']} answers with {served}")
    subresources = resource.get("subresources", [])
    return {
        "group": group,
        "version": version,
        "kind": served["kind"],
        "plural": resource["resource"],
        "singular": resource["singularResource"],
        "namespaced": resource["scope"] == "Namespaced",
        "shortNames": resource.get("shortNames", []),
        "categories": resource.get("categories", []),
        "verbs": sorted(resource["verbs"]),
        "subresources": [subresource(one, group, version) for one in subresources],
    }


def subresource(told: dict[str, Any], group: str, version: str) -> dict[str, Any]:
    kind = told["responseKind"]
    if not kind["version"]:  # discovery's way to say: the same as the resource
        kind = {"group": group, "version": version, "kind": kind["kind"]}
    return {
        "name": told["subresource"],
        "group": kind["group"],
        "version": kind["version"],
        "kind": kind["kind"],
        "verbs": sorted(told["verbs"]),
    }


def columns(cluster: Cluster, row: dict[str, Any]) -> list[dict[str, Any]]:
    base = f"/apis/{row['group']}" if row["group"] else "/api"
    answer = recorder.ask(cluster, f"{base}/{row['version']}/{row['plural']}?limit=1", TABLE)
    if answer["kind"] != "Table":
        raise SystemExit(f"{row['plural']}: no Table")
    wanted = ("name", "type", "format", "priority")
    return [{key: told[key] for key in wanted} for told in answer["columnDefinitions"]]


def main() -> None:
    with recorder.server() as cluster:
        default = {
            (group["metadata"].get("name", ""), version["version"])
            for group in discover(cluster)
            for version in group["versions"]
        }
    with recorder.server(*recorder.ALSO_SERVED) as cluster:
        groups = discover(cluster)
        rows = resources(cluster, groups)
        version = recorder.release(cluster)
    for row in rows:
        row["default"] = (row["group"], row["version"]) in default
    table = {
        "release": version,
        # The order is the server's, and it means something: the first version is preferred.
        "groups": [
            {
                "name": group["metadata"].get("name", ""),
                "preferred": group["versions"][0]["version"],
                "versions": [version["version"] for version in group["versions"]],
            }
            for group in groups
        ],
        "resources": rows,
    }
    recorder.write("resources.json", table)


if __name__ == "__main__":
    main()
