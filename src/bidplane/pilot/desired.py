"""
A declared fleet: a folder, or a git checkout, of Pools and Agents in YAML or JSON.

Only fields that a file names are compared: what it leaves out is nobody's drift. Whatever else the
files declare is left alone, so that a checkout may hold workloads, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import POOL
from bidplane.api.reading import Invalid, read_agent, read_pool
from bidplane.core.gate.actions import action_problem, normal_value
from bidplane.core.gate.drift import DRIFTING, as_json
from bidplane.core.gate.fleet import FleetState
from bidplane.errors import UserError

_MOST_FILES, _MOST_BYTES = 1000, 4 << 20
_BETWEEN = re.compile(r"(?m)^---(?:[ \t].*)?$")
_SUFFIXES = (".yaml", ".yml", ".json")
_LISTED = {
    ("Pool", "floorPrice"): ActionKind.SET_FLOOR_PRICE,
    ("Pool", "idleSeconds"): ActionKind.SET_IDLE_WINDOW,
    ("Agent", "refill"): ActionKind.SET_REFILL,
    ("Agent", "priority"): ActionKind.SET_PRIORITY,
}


class DeclaredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A Pool or Agent as a file declares it."""

    file: str
    kind: str
    name: str
    spec: dict[str, Any]


def read_desired(folder: Path) -> list[DeclaredObject]:
    """Read all that a folder declares; raises `UserError` with the file that cannot be read."""
    if not folder.is_dir():
        raise UserError(f"--desired {folder}: this is no folder")
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix in _SUFFIXES and ".git" not in path.parts and path.is_file()
    ]
    if len(files) > _MOST_FILES:
        raise UserError(f"--desired {folder}: {len(files)} files; at most {_MOST_FILES} are read")
    objects: dict[tuple[str, str], DeclaredObject] = {}
    for path in files:
        for declared in _read_file(path):
            first = objects.setdefault((declared.kind, declared.name), declared)
            if first is not declared:
                raise UserError(
                    f"--desired: {declared.kind} {declared.name} is declared twice, in"
                    f" {first.file} and {path}"
                )
    return list(objects.values())


def _read_file(path: Path) -> Iterator[DeclaredObject]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"--desired: {path} has more than {_MOST_BYTES} bytes")
        documents = [text for text in _BETWEEN.split(path.read_text()) if text.strip()]
        decoded = [msgspec.yaml.decode(text) for text in documents]
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise UserError(f"--desired: {path} cannot be read: {error}") from error
    for obj in decoded:
        if not isinstance(obj, dict) or not isinstance(obj.get("kind"), str):
            if obj is None:
                continue  # comments alone
            raise UserError(f"--desired: {path} declares something that has no kind")
        if obj["kind"] in DRIFTING:
            yield _declared(path, obj)


def _declared(path: Path, obj: dict[str, Any]) -> DeclaredObject:
    kind = DRIFTING[obj["kind"]]
    if obj.get("apiVersion") != kind.api_version:
        raise UserError(
            f"--desired: {path}: apiVersion of a {kind.kind} is {kind.api_version},"
            f" not {obj.get('apiVersion')!r}"
        )
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not isinstance(obj.get("spec"), dict):
        raise UserError(f"--desired: {path}: a {kind.kind} needs metadata.name and spec")
    read = read_pool if kind == POOL else read_agent
    problem = read(obj)
    if isinstance(problem, Invalid):
        raise UserError(f"--desired: {path}: {kind.kind} {problem}")
    return DeclaredObject(file=str(path), kind=kind.kind, name=name, spec=obj["spec"])


def drift_of(declared: list[DeclaredObject], fleet: FleetState) -> list[Action]:
    """Return the actions that would bring the fleet to what was declared, in a fixed order."""
    live = {("Pool", pool.name): pool.fields for pool in fleet.pools}
    live |= {("Agent", agent.name): agent.fields for agent in fleet.agents}
    actions: list[Action] = []
    for entry in sorted(declared, key=lambda entry: (entry.kind, entry.name)):
        fields = live.get((entry.kind, entry.name))
        if fields is None:
            continue  # an owner creates it
        for field, value in sorted(entry.spec.items()):
            if fields.get(field) == as_json(value):
                continue
            action = _repair(entry, field, value)
            if not action_problem(action):
                actions.append(action)
    return actions


def missing_of(declared: list[DeclaredObject], fleet: FleetState) -> list[str]:
    """Return what was declared and is not there: only an owner creates it."""
    live = {("Pool", pool.name) for pool in fleet.pools}
    live |= {("Agent", agent.name) for agent in fleet.agents}
    return [
        f"{entry.kind} {entry.name} ({entry.file})"
        for entry in declared
        if (entry.kind, entry.name) not in live
    ]


def _repair(entry: DeclaredObject, field: str, value: object) -> Action:
    kind = _LISTED.get((entry.kind, field))
    if kind is None:
        text = f"{entry.kind} {field} {as_json(value)}"
        return Action(kind=ActionKind.REPAIR_DRIFT, name=entry.name, value=text)
    try:
        return Action(kind=kind, name=entry.name, value=normal_value(kind, str(value)))
    except ValueError:
        return Action(kind=kind, name=entry.name, value=str(value))  # which is refused by name
