"""Discovery: the groups, versions and resources of a plane, in the old and the aggregated form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from bidplane.wire.resources import Resource, group_order

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


def version_order(version: str) -> tuple[Any, ...]:
    """Return a sort key in Kubernetes' order: v2, v1, v1beta1, v1alpha1, then others."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (0, stage, -int(match[1]), -int(match[3] or 0))


Groups = dict[str, dict[str, list[Resource]]]


def groups(resources: Iterable[Resource]) -> Groups:
    """Return resources by group and version, both in order of preference."""
    resources_by_group: Groups = {}
    for resource in resources:
        resources_by_group.setdefault(resource.group, {}).setdefault(resource.version, []).append(
            resource
        )
    builtin = {name: at for at, name in enumerate(group_order())}
    names = sorted(resources_by_group, key=lambda name: (builtin.get(name, len(builtin)), name))
    return {
        name: {
            version: resources_by_group[name][version]
            for version in sorted(resources_by_group[name], key=version_order)
        }
        for name in names
    }


def api_versions(address: str) -> dict[str, Any]:
    cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": cidrs}


def group_list(served: Groups) -> dict[str, Any]:
    listed = [_group(name, versions) for name, versions in served.items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(name: str, served: Groups) -> dict[str, Any]:
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, served[name])}


def _group(name: str, versions: Iterable[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(resources: list[Resource]) -> dict[str, Any]:
    listed = []
    for resource in resources:
        entry: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        listed.append(entry)
        listed.extend(_subresources(resource))
    version = resources[0].api_version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": listed,
    }


def _subresources(resource: Resource) -> Iterator[dict[str, Any]]:
    for sub in resource.subresources.values():
        foreign = sub.group != resource.group
        yield {
            "name": f"{resource.plural}/{sub.name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            **({"group": sub.group, "version": sub.version} if foreign else {}),
            "kind": sub.kind,
            "verbs": list(sub.verbs),
        }


def aggregated(served: Groups, *, core: bool) -> dict[str, Any]:
    """Return the aggregated discovery of `/api` (core) or `/apis` (the other groups)."""
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None} if name else {},
            "versions": [
                {
                    "version": version,
                    "freshness": "Current",
                    "resources": [_aggregated(resource) for resource in resources],
                }
                for version, resources in versions.items()
            ],
        }
        for name, versions in served.items()
        if bool(name) != core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated(resource: Resource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": _kind(resource, resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": _kind(resource, sub.group, sub.version, sub.kind),
                "verbs": list(sub.verbs),
            }
            for sub in resource.subresources.values()
        ]
    return entry


def _kind(resource: Resource, group: str, version: str, kind: str) -> dict[str, str]:
    """Return the kind; upstream leaves out what the path of a built-in kind implies."""
    if not resource.custom and (group, version) == (resource.group, resource.version):
        group = version = ""
    return {"group": group, "version": version, "kind": kind}
