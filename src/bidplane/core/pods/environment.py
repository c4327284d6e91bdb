"""
A container's variables, command and arguments, as the kubelet makes them.

What a variable refers to is looked up in what the caller has fetched. A missing key that
is not optional is a named reason why the container cannot be started.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.kinds import Object
from bidplane.wire.quantity import parse as parse_quantity

# What a variable may be called (Kubernetes 1.34 relaxed it to any printable ASCII but "=").
_NAME = re.compile(r"[ -<>-~]+")


class ConfigError(Exception):
    """The container cannot be made; said as the reason CreateContainerConfigError."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What was fetched for a pod. A name that maps to None is not there."""

    config_maps: Mapping[str, Object | None] = {}
    secrets: Mapping[str, Object | None] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the node knows of a pod."""

    pod_ip: str = ""
    host_ip: str = ""
    node_cpus: int = 1
    node_memory: int = 0


def content(obj: Object) -> dict[str, bytes]:
    """All that a ConfigMap or a Secret holds, as bytes."""
    data = obj.get("data") or {}
    if obj.get("kind") == "Secret":
        return {key: b64decode(value or "") for key, value in data.items()}
    found = {key: str(value).encode() for key, value in data.items()}
    found.update({key: b64decode(value) for key, value in (obj.get("binaryData") or {}).items()})
    return found


def variables(pod: Object, container: Object, sources: Sources, facts: Facts) -> dict[str, str]:
    """The container's environment, without what the image or the node add."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        for key, data in _whole(pod, source, sources).items():
            if _NAME.fullmatch(prefix + key):
                found[prefix + key] = data.decode(errors="replace")
    for variable in container.get("env") or ():
        name = variable["name"]
        refers = variable.get("valueFrom")
        if refers:
            value = _referred(pod, container, refers, sources, facts)
            if value is not None:
                found[name] = value
        else:
            found[name] = expand(variable.get("value") or "", found)
    return found


def _whole(pod: Object, source: Object, sources: Sources) -> dict[str, bytes]:
    for ref, what, known in (
        ("configMapRef", "configmap", sources.config_maps),
        ("secretRef", "secret", sources.secrets),
    ):
        if source.get(ref):
            obj = known.get(source[ref]["name"])
            if obj is not None:
                return content(obj)
            if not source[ref].get("optional"):
                raise ConfigError(f'{what} "{source[ref]["name"]}" not found')
    return {}


def _referred(
    pod: Object, container: Object, refers: Object, sources: Sources, facts: Facts
) -> str | None:
    for ref, what, known in (
        ("configMapKeyRef", "configmap", sources.config_maps),
        ("secretKeyRef", "secret", sources.secrets),
    ):
        if refers.get(ref):
            return _key(pod, refers[ref], what, known)
    if refers.get("fieldRef"):
        return field(pod, refers["fieldRef"]["fieldPath"], facts)
    if refers.get("resourceFieldRef"):
        return resource_field(pod, container, refers["resourceFieldRef"], facts)
    raise ConfigError(f"a variable refers to {', '.join(refers)}, which this node cannot read")


def _key(pod: Object, ref: Object, what: str, known: Mapping[str, Object | None]) -> str | None:
    obj = known.get(ref["name"])
    if obj is None:
        if ref.get("optional"):
            return None
        raise ConfigError(f'{what} "{ref["name"]}" not found')
    value = content(obj).get(ref["key"])
    if value is None:
        if ref.get("optional"):
            return None
        space = pod["metadata"]["namespace"]
        raise ConfigError(f"couldn't find key {ref['key']} in {what.title()} {space}/{ref['name']}")
    return value.decode(errors="replace")


def field(pod: Object, path: str, facts: Facts) -> str:
    """A `fieldRef`, of the pod or of what the node knows about it."""
    metadata, spec = pod["metadata"], pod["spec"]
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    if path in simple:
        return str(simple[path])
    for what in ("labels", "annotations"):
        known = metadata.get(what) or {}
        if path == f"metadata.{what}":
            return "\n".join(f"{key}={_quoted(known[key])}" for key in sorted(known))
        named = re.fullmatch(rf"metadata\.{what}\['(.+)'\]", path)
        if named:
            return str(known.get(named[1], ""))
    raise ConfigError(f"unsupported fieldPath: {path}")


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def resource_field(pod: Object, container: Object, ref: Object, facts: Facts) -> str:
    """A `resourceFieldRef`; a limit that is not set is what the node has."""
    name = ref.get("containerName")
    if name:
        every = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        container = next((c for c in every if c["name"] == name), {})
        if not container:
            raise ConfigError(f"container {name} not found")
    which, _, resource = ref["resource"].partition(".")
    given = ((container.get("resources") or {}).get(which) or {}).get(resource)
    if given is None:
        given = {"cpu": facts.node_cpus, "memory": facts.node_memory}.get(resource, 0)
        given = given if which == "limits" else 0
    divisor = parse_quantity(str(ref.get("divisor") or "1")) or 1
    return str(math.ceil(parse_quantity(str(given)) / divisor))


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where it is known; `$$(NAME)` is how one writes `$(NAME)`."""
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out.append(text[at])
            at += 1
        elif text[at + 1] == "$":
            out.append("$")
            at += 2
        elif text[at + 1] == "(" and (end := text.find(")", at)) >= 0:
            name = text[at + 2 : end]
            out.append(known[name] if name in known else text[at : end + 1])
            at = end + 1
        else:
            out.append("$")
            at += 1
    return "".join(out)


def command_line(
    container: Object,
    known: Mapping[str, str],
    *,
    entrypoint: Sequence[str],
    arguments: Sequence[str],
) -> list[str]:
    """What is run: the container's command and args, else the image's, as Kubernetes mixes them."""
    command = container.get("command")
    args = container.get("args")
    # The image's own words are taken as they are.
    words = [expand(word, known) for word in command] if command else [*entrypoint]
    if args:
        words += [expand(word, known) for word in args]
    elif not command:
        words += arguments
    if not words:
        raise ConfigError(
            "no command specified: neither the container nor its image's mapping has one"
        )
    return words
