"""
A container's environment variables, command and arguments, as the kubelet makes them.

References are resolved in the objects that the caller has fetched. A missing key that is not
optional is a named reason why the container cannot be started.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.kinds import Object
from bidplane.wire.quantity import parse as parse_quantity

# Valid names of variables (Kubernetes 1.34 relaxed them to any printable ASCII but "=").
_NAME = re.compile(r"[ -<>-~]+")


class ConfigError(Exception):
    """The container cannot be created; the reason in its status is CreateContainerConfigError."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The objects fetched for a pod. A name that maps to None does not exist."""

    config_maps: Mapping[str, Object | None] = {}
    secrets: Mapping[str, Object | None] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a pod that only its node knows."""

    pod_ip: str = ""
    host_ip: str = ""
    node_cpus: int = 1
    node_memory: int = 0


def content(obj: Object) -> dict[str, bytes]:
    """Return the data of a ConfigMap or a Secret, as bytes by key."""
    data = obj.get("data") or {}
    if obj.get("kind") == "Secret":
        return {key: b64decode(value or "") for key, value in data.items()}
    decoded = {key: str(value).encode() for key, value in data.items()}
    decoded.update({key: b64decode(value) for key, value in (obj.get("binaryData") or {}).items()})
    return decoded


def variables(pod: Object, container: Object, sources: Sources, facts: Facts) -> dict[str, str]:
    """Return the container's environment, without the variables of the image and the node."""
    environment: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        for key, data in _source_data(pod, source, sources).items():
            if _NAME.fullmatch(prefix + key):
                environment[prefix + key] = data.decode(errors="replace")
    for variable in container.get("env") or ():
        name = variable["name"]
        reference = variable.get("valueFrom")
        if reference:
            value = _resolve(pod, container, reference, sources, facts)
            if value is not None:
                environment[name] = value
        else:
            environment[name] = expand(variable.get("value") or "", environment)
    return environment


def _source_data(pod: Object, source: Object, sources: Sources) -> dict[str, bytes]:
    """
    Return all data of the object that an `envFrom` source names; {} if it is optional and missing.
    """
    for ref, kind, objects in (
        ("configMapRef", "configmap", sources.config_maps),
        ("secretRef", "secret", sources.secrets),
    ):
        if source.get(ref):
            obj = objects.get(source[ref]["name"])
            if obj is not None:
                return content(obj)
            if not source[ref].get("optional"):
                raise ConfigError(f'{kind} "{source[ref]["name"]}" not found')
    return {}


def _resolve(
    pod: Object, container: Object, reference: Object, sources: Sources, facts: Facts
) -> str | None:
    """
    Return the value that a variable's `valueFrom` refers to; None if it is optional and missing.
    """
    for ref, kind, objects in (
        ("configMapKeyRef", "configmap", sources.config_maps),
        ("secretKeyRef", "secret", sources.secrets),
    ):
        if reference.get(ref):
            return _object_key(pod, reference[ref], kind, objects)
    if reference.get("fieldRef"):
        return field(pod, reference["fieldRef"]["fieldPath"], facts)
    if reference.get("resourceFieldRef"):
        return resource_field(pod, container, reference["resourceFieldRef"], facts)
    raise ConfigError(f"a variable refers to {', '.join(reference)}, which this node cannot read")


def _object_key(
    pod: Object, ref: Object, kind: str, objects: Mapping[str, Object | None]
) -> str | None:
    """Return one key of a ConfigMap or Secret; None if it is optional and missing."""
    obj = objects.get(ref["name"])
    if obj is None:
        if ref.get("optional"):
            return None
        raise ConfigError(f'{kind} "{ref["name"]}" not found')
    value = content(obj).get(ref["key"])
    if value is None:
        if ref.get("optional"):
            return None
        space = pod["metadata"]["namespace"]
        raise ConfigError(f"couldn't find key {ref['key']} in {kind.title()} {space}/{ref['name']}")
    return value.decode(errors="replace")


def field(pod: Object, path: str, facts: Facts) -> str:
    """Return the value of a `fieldRef`, from the pod or from its node's facts."""
    metadata, spec = pod["metadata"], pod["spec"]
    plain_fields = {
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
    if path in plain_fields:
        return str(plain_fields[path])
    for map_name in ("labels", "annotations"):
        entries = metadata.get(map_name) or {}
        if path == f"metadata.{map_name}":
            return "\n".join(f"{key}={_quoted(entries[key])}" for key in sorted(entries))
        one_key = re.fullmatch(rf"metadata\.{map_name}\['(.+)'\]", path)
        if one_key:
            return str(entries.get(one_key[1], ""))
    raise ConfigError(f"unsupported fieldPath: {path}")


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def resource_field(pod: Object, container: Object, ref: Object, facts: Facts) -> str:
    """Return the value of a `resourceFieldRef`; a limit that is not set is the node's capacity."""
    name = ref.get("containerName")
    if name:
        containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        container = next((c for c in containers if c["name"] == name), {})
        if not container:
            raise ConfigError(f"container {name} not found")
    bound, _, resource = ref["resource"].partition(".")
    amount = ((container.get("resources") or {}).get(bound) or {}).get(resource)
    if amount is None:
        amount = {"cpu": facts.node_cpus, "memory": facts.node_memory}.get(resource, 0)
        amount = amount if bound == "limits" else 0
    divisor = parse_quantity(str(ref.get("divisor") or "1")) or 1
    return str(math.ceil(parse_quantity(str(amount)) / divisor))


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace each `$(NAME)` of a known variable; `$$(NAME)` is an escaped `$(NAME)`."""
    expanded: list[str] = []
    position = 0
    while position < len(text):
        if text[position] != "$" or position + 1 == len(text):
            expanded.append(text[position])
            position += 1
        elif text[position + 1] == "$":
            expanded.append("$")
            position += 2
        elif text[position + 1] == "(" and (end := text.find(")", position)) >= 0:
            name = text[position + 2 : end]
            expanded.append(environment[name] if name in environment else text[position : end + 1])
            position = end + 1
        else:
            expanded.append("$")
            position += 1
    return "".join(expanded)


def command_line(
    container: Object,
    environment: Mapping[str, str],
    *,
    entrypoint: Sequence[str],
    arguments: Sequence[str],
) -> list[str]:
    """
    Return the command line: the container's command and args, else the image's, as Kubernetes does.
    """
    command = container.get("command")
    args = container.get("args")
    # The image's own command is not expanded.
    line = [expand(word, environment) for word in command] if command else [*entrypoint]
    if args:
        line += [expand(word, environment) for word in args]
    elif not command:
        line += arguments
    if not line:
        raise ConfigError(
            "no command specified: neither the container nor its image's mapping has one"
        )
    return line
