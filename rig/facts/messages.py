"""
Records protobuf.json: which field of which message has which number, JSON name and type.

Every JSON name is checked against schemas.json, which was recorded from the server: a field in one
and not in the other stops the run. Run: see recorder.py; schemas.py comes first.
"""

from __future__ import annotations

from typing import Any

import recorder
import sources

from bidplane.wire import data

SCALARS = {"string", "bytes", "bool", "int32", "int64", "double"}
META = "io.k8s.apimachinery.pkg.apis.meta.v1"
ENVELOPE = "io.k8s.apimachinery.pkg.runtime.Unknown"
EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
# Messages whose JSON is not an object of their fields; the decoder has a function for each.
SPECIAL = {
    ENVELOPE: "envelope",
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "json",
    f"{META}.FieldsV1": "json",
    f"{META}.Time": "time",
    f"{META}.MicroTime": "microTime",
    f"{EXTENSIONS}.JSON": "json",
    f"{EXTENSIONS}.JSONSchemaPropsOrArray": "schemaOrArray",
    f"{EXTENSIONS}.JSONSchemaPropsOrBool": "schemaOrBool",
    f"{EXTENSIONS}.JSONSchemaPropsOrStringArray": "schemaOrStrings",
}


def reachable(package: sources.Package, roots: set[str]) -> list[str]:
    seen: set[str] = set()
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [f.type for f in package.messages[name] if f.type not in SCALARS]
    return sorted(seen)


def is_list(package: sources.Package, name: str) -> bool:
    """Go slices with a name of their own (ExtraValue, Verbs) are a message around a list."""
    fields = package.messages[name]
    return name not in package.tags and [(f.proto_name, f.many) for f in fields] == [
        ("items", "list")
    ]


def describe(package: sources.Package, name: str) -> dict[str, Any]:
    if name in SPECIAL:
        # Numbers still come from the table; the Go structs of these have no JSON tags.
        numbers = {str(f.number): _plain(f, f.proto_name) for f in package.messages[name]}
        return {"special": SPECIAL[name], "fields": numbers}
    if is_list(package, name):
        return {
            "special": "list",
            "fields": {str(f.number): _plain(f, "items") for f in package.messages[name]},
        }
    tags = package.tags.get(name, {})
    fields = {}
    for f in package.messages[name]:
        if f.number not in tags:
            raise SystemExit(f"{name}.{f.proto_name}: no Go field has number {f.number}")
        fields[str(f.number)] = _tagged(f, tags[f.number])
    return {"fields": fields}


def _plain(f: sources.Field, name: str) -> dict[str, Any]:
    entry = {"name": name, "type": f.type}
    return entry | ({"many": f.many} if f.many else {})


def _tagged(f: sources.Field, tag: sources.Tag) -> dict[str, Any]:
    entry = _plain(f, tag.json_name)
    if tag.inline:
        entry["inline"] = True
        del entry["name"]
        return entry
    # Go writes every field that is not a pointer, also when it is empty; its JSON then leaves out
    # scalars marked omitempty, and anything marked omitzero.
    droppable = tag.omit_zero or (tag.omit_empty and f.type in SCALARS)
    if droppable and f.many is None and not tag.pointer:
        entry["dropZero"] = True
    return entry


def json_names(messages: dict[str, Any], name: str) -> set[str]:
    names: set[str] = set()
    for entry in messages[name]["fields"].values():
        if entry.get("inline"):
            names |= json_names(messages, entry["type"])
        else:
            names.add(entry["name"])
    return names


def check(messages: dict[str, Any], schemas: dict[str, Any]) -> None:
    kinds = set(schemas["kinds"].values())
    for name, message in messages.items():
        definition = schemas["definitions"].get(name)
        if definition is None or "special" in message:
            continue
        told = set(definition.get("fields", {}))
        if name in kinds:
            told -= {"apiVersion", "kind"}  # these travel in the envelope
        if told != (made := json_names(messages, name)):
            raise SystemExit(f"{name}: only one side has {sorted(told ^ made)}")


def main() -> None:
    schemas = data.schemas()
    release, folders = sources.modules()
    if release != schemas["release"]:
        raise SystemExit(f"schemas.json is of {schemas['release']}, the modules of {release}")
    package = sources.read_packages(folders)
    kinds = {kind: name for kind, name in schemas["kinds"].items() if name in package.messages}
    left = sorted(set(schemas["kinds"].values()) - set(kinds.values()))
    names = reachable(package, {*kinds.values(), ENVELOPE})
    messages = {name: describe(package, name) for name in names}
    check(messages, schemas)
    renamed = [
        f"{name}.{f.proto_name} is {messages[name]['fields'][str(f.number)]['name']}"
        for name in names
        for f in package.messages[name]
        if messages[name]["fields"][str(f.number)].get("name", f.proto_name) != f.proto_name
    ]
    print(f"{len(messages)} messages, {len(kinds)} kinds; without a message: {left}")
    print("JSON name is not the proto name:", *renamed, sep="\n  ")
    recorder.write("protobuf.json", {"release": release, "kinds": kinds, "messages": messages})


if __name__ == "__main__":
    main()
