"""
Records schemas.json: the definitions in the real server's OpenAPI v3 documents, without prose.

Only keywords listed here are read, and any other stops the run: a keyword that a later release
adds must be looked at, not lost. Run: see recorder.py.
"""

from __future__ import annotations

from typing import Any

import recorder

from bidplane.testing.cluster import Cluster

PROSE = {"description", "example", "externalDocs", "title"}
# Keyword in the document → in the table. Those that hold schemas are read one by one below.
KEPT = {
    "type": "type",
    "format": "format",
    "enum": "enum",
    "default": "default",
    "required": "required",
    "nullable": "nullable",
    "pattern": "pattern",
    "minimum": "minimum",
    "maximum": "maximum",
    "minLength": "minLength",
    "maxLength": "maxLength",
    "minItems": "minItems",
    "maxItems": "maxItems",
    "uniqueItems": "uniqueItems",
    "x-kubernetes-patch-merge-key": "mergeKey",
    "x-kubernetes-patch-strategy": "patchStrategy",
    "x-kubernetes-list-type": "listType",
    "x-kubernetes-list-map-keys": "listMapKeys",
    "x-kubernetes-map-type": "mapType",
    "x-kubernetes-unions": "unions",
    "x-kubernetes-int-or-string": "intOrString",
    "x-kubernetes-preserve-unknown-fields": "preserveUnknown",
    "x-kubernetes-embedded-resource": "embeddedResource",
}
REFERENCE = "#/components/schemas/"


def read(schema: dict[str, Any], where: str) -> dict[str, Any]:
    node: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in KEPT:
            node[KEPT[keyword]] = value
        elif keyword == "$ref":
            node["ref"] = value.removeprefix(REFERENCE)
        elif keyword == "allOf" and len(value) == 1:
            # The only way 3.0 has to put a default beside a reference.
            node |= read(value[0], where)
        elif keyword == "oneOf":
            node["oneOf"] = [read(choice, where) for choice in value]
        elif keyword == "items":
            node["items"] = read(value, f"{where}[]")
        elif keyword == "additionalProperties" and isinstance(value, dict):
            node["values"] = read(value, f"{where}{{}}")
        elif keyword == "properties":
            node["fields"] = {name: read(value[name], f"{where}.{name}") for name in sorted(value)}
        elif keyword == "x-kubernetes-group-version-kind":
            pass  # see `kinds`
        elif keyword not in PROSE:
            raise SystemExit(f"{where}: unknown keyword {keyword}: {value}")
    return dict(sorted(node.items()))


def documents(cluster: Cluster) -> dict[str, dict[str, Any]]:
    index = recorder.ask(cluster, "/openapi/v3")["paths"]
    return {
        path: recorder.ask(cluster, told["serverRelativeURL"])
        for path, told in sorted(index.items())
    }


def kinds(schema: dict[str, Any]) -> list[str]:
    told = schema.get("x-kubernetes-group-version-kind", [])
    return [
        f"{one['group']}/{one['version']}/{one['kind']}".removeprefix("/")
        for one in (told if isinstance(told, list) else [told])
    ]


def main() -> None:
    with recorder.server(*recorder.ALSO_SERVED) as cluster:
        version = recorder.release(cluster)
        found = documents(cluster)
    definitions: dict[str, dict[str, Any]] = {}
    by_kind: dict[str, str] = {}
    for path, document in found.items():
        for name, schema in document.get("components", {}).get("schemas", {}).items():
            node = read(schema, name)
            if definitions.setdefault(name, node) != node:
                raise SystemExit(f"{name} differs in {path}")
            for kind in kinds(schema):
                if by_kind.setdefault(kind, name) != name:
                    raise SystemExit(f"{kind} is both {by_kind[kind]} and {name}")
    recorder.write(
        "schemas.json", {"release": version, "kinds": by_kind, "definitions": definitions}
    )


if __name__ == "__main__":
    main()
