"""
Reads what the encodings of Kubernetes' types are from the Go modules that define them.

Two files of a package tell it together: `generated.proto` has messages, numbers and types; the
tags of the Go structs have each field's JSON name, and what Go leaves out when it is empty. Both
are machine-formatted, one field per line, so lines are matched and one that is not understood
stops the run.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

MODULES = (
    "k8s.io/api",
    "k8s.io/apimachinery",
    "k8s.io/apiextensions-apiserver",
    "k8s.io/kube-aggregator",
)
RIG = Path(__file__).resolve().parents[1]

_FIELD = re.compile(r"(optional|repeated) (\S+) (\w+) = (\d+);$")
_MAP = re.compile(r"map<string, (\S+)> (\w+) = (\d+);$")
_STRUCT = re.compile(r"type (\w+) struct \{$")
_TAGGED = re.compile(r"(?:(\w+)\s+)?(\S+)\s+`([^`]*)`")
_PROTO_TAG = re.compile(r'protobuf:"\w+,(\d+),')
_JSON_TAG = re.compile(r'json:"([^"]*)"')


@dataclass(frozen=True)
class Field:
    number: int
    proto_name: str
    type: str
    many: str | None  # "list", "map" (the keys are always strings), or one


@dataclass(frozen=True)
class Tag:
    """What the tag of a Go field says; `pointer` is from its type."""

    json_name: str
    inline: bool
    pointer: bool
    omit_empty: bool
    omit_zero: bool


@dataclass
class Package:
    messages: dict[str, list[Field]] = field(default_factory=dict)
    tags: dict[str, dict[int, Tag]] = field(default_factory=dict)


def modules() -> tuple[str, list[Path]]:
    """The release, and the folders of the modules at the rig's versions."""
    command = ["go", "list", "-m", "-json", "k8s.io/kubernetes", *MODULES]
    told = subprocess.run(command, cwd=RIG, capture_output=True, text=True, check=True).stdout
    kubernetes, *rest = json.loads("[" + told.replace("}\n{", "},\n{") + "]")
    return kubernetes["Version"], [Path(module["Dir"]) for module in rest]


def definition_name(proto: str) -> str:
    """The OpenAPI name of a message: `k8s.io.api.core.v1.Pod` is `io.k8s.api.core.v1.Pod`."""
    return re.sub(r"^k8s\.io\.", "io.k8s.", proto).replace("_", "-")


def read_packages(folders: list[Path]) -> Package:
    """All packages as one; the names are full, so they do not meet."""
    everything = Package()
    for folder in folders:
        for proto in sorted(folder.rglob("generated.proto")):
            package = _read_proto(proto, everything)
            for source in sorted(proto.parent.glob("*.go")):
                if not source.name.endswith(("_test.go", ".pb.go")):
                    _read_structs(source, package, everything)
    return everything


def _read_proto(path: Path, into: Package) -> str:
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    package, message = "", ""
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith(("//", "syntax ", "import ", "option ")):
            continue
        if line.startswith("package "):
            package = line.removeprefix("package ").removesuffix(";")
        elif line.startswith("message "):
            message = definition_name(f"{package}.{line.split()[1]}")
            into.messages[message] = []
        elif line != "}":
            into.messages[message].append(_read_field(line, package, path))
    return package


def _read_field(line: str, package: str, path: Path) -> Field:
    if match := _FIELD.match(line):
        rule, kind, name, number = match.groups()
        many = "list" if rule == "repeated" else None
    elif match := _MAP.match(line):
        kind, name, number = match.groups()
        many = "map"
    else:
        raise SystemExit(f"{path}: not understood: {line}")
    return Field(int(number), name, _full_type(kind, package), many)


def _full_type(kind: str, package: str) -> str:
    if kind.startswith("."):
        return definition_name(kind[1:])
    return kind if kind[0].islower() else definition_name(f"{package}.{kind}")


def _read_structs(path: Path, package: str, into: Package) -> None:
    struct = ""
    for line in path.read_text().splitlines():
        if match := _STRUCT.match(line):
            struct = definition_name(f"{package}.{match[1]}")
        elif line == "}":
            struct = ""
        elif struct and (match := _TAGGED.match(line.strip())):
            go_name, go_type, tag = match.groups()
            number, named = _PROTO_TAG.search(tag), _JSON_TAG.search(tag)
            if number is None or named is None or line.strip().startswith("//"):
                continue
            name, *options = named[1].split(",")
            into.tags.setdefault(struct, {})[int(number[1])] = Tag(
                json_name=name or go_name or "",
                inline=not name and go_name is None,  # Go's rule for an embedded struct
                pointer=go_type.startswith("*"),
                omit_empty="omitempty" in options,
                omit_zero="omitzero" in options,
            )
