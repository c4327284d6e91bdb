"""Pods: their defaults, their required fields, and the few fields that may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bidplane.wire import quantity
from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.names import label_problems, qualified_problems
from bidplane.wire.status import Cause

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FILE_MODE = 0o644
_MUTABLE = (
    "Forbidden: pod updates may not change fields other than"
    " `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every container with its path, such as `containers[0]`."""
    for field in _CONTAINERS:
        for index, container in enumerate(spec.get(field) or ()):
            yield f"{field}[{index}]", container


# Defaults.


def default_spec(spec: dict[str, Any]) -> None:
    """Set the defaults of a pod's spec; also used for templates."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account  # the older name of it
    for _, container in containers(spec):
        _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def _default_container(container: dict[str, Any]) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for probe in (container[name] for name in _PROBES if name in container):
        for field, value in (
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ):
            probe.setdefault(field, value)
        if "httpGet" in probe:
            probe["httpGet"].setdefault("scheme", "HTTP")
            probe["httpGet"].setdefault("path", "/")
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    tag = name.partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_volume(volume: dict[str, Any]) -> None:
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", _FILE_MODE)
            _default_files(volume[source])
            for part in volume[source].get("sources") or ():
                _default_files(part.get("downwardAPI") or {})
                if "serviceAccountToken" in part:
                    part["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    if "ephemeral" in volume and "volumeClaimTemplate" in volume["ephemeral"]:
        claim = volume["ephemeral"]["volumeClaimTemplate"]
        claim.setdefault("metadata", {})
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    if volume.keys() == {"name"}:
        volume["emptyDir"] = {}


def _default_files(source: Mapping[str, Any]) -> None:
    for item in source.get("items") or ():
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")


def _default(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    default_spec(spec)
    for _, container in containers(spec):  # only for pods: a template stays as written
        resources = container["resources"]
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    if "serviceAccountName" not in spec:
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"


def _create(obj: dict[str, Any]) -> None:
    obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(obj["spec"])}


def quality_of_service(spec: Mapping[str, Any]) -> str:
    """Return Guaranteed, Burstable or BestEffort, by which the kubelet ranks pods to evict."""
    has_resources, guaranteed = False, True
    for path, container in containers(spec):
        if path.startswith("ephemeral"):
            continue
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            request = quantity.parse(requests.get(name, 0))
            limit = quantity.parse(limits.get(name, 0))
            has_resources = has_resources or bool(request) or bool(limit)
            guaranteed = guaranteed and limit > 0 and request == limit
    if not has_resources:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


# Validation.


def spec_problems(spec: Mapping[str, Any], path: str = "spec") -> list[Cause]:
    """Return the problems of a pod's spec."""
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(Cause("Required value", f"{path}.containers", "FieldValueRequired"))
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    container_names: set[str] = set()
    for place, container in containers(spec):
        causes += _container_problems(container, f"{path}.{place}", container_names, volumes)
    for index, volume in enumerate(spec.get("volumes") or ()):
        causes += _name_problems(volume.get("name", ""), f"{path}.volumes[{index}].name")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        message = f"Invalid value: {deadline}: must be between 1 and 2147483647, inclusive"
        causes.append(Cause(message, f"{path}.activeDeadlineSeconds"))
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        message = (
            f"Invalid value: {spec['terminationGracePeriodSeconds']}:"
            " must be greater than or equal to 0"
        )
        causes.append(Cause(message, f"{path}.terminationGracePeriodSeconds"))
    return causes


def _name_problems(name: str, path: str) -> list[Cause]:
    if not name:
        return [Cause("Required value", path, "FieldValueRequired")]
    return [Cause(f'Invalid value: "{name}": {problem}', path) for problem in label_problems(name)]


def _container_problems(
    container: Mapping[str, Any], path: str, container_names: set[str], volumes: set[Any]
) -> list[Cause]:
    name = container.get("name", "")
    causes = _name_problems(name, f"{path}.name")
    if name and name in container_names:
        message = f'Duplicate value: "{name}"'
        causes.append(Cause(message, f"{path}.name", "FieldValueDuplicate"))
    container_names.add(name)
    if not container.get("image"):
        causes.append(Cause("Required value", f"{path}.image", "FieldValueRequired"))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            message = f'Not found: "{mount.get("name", "")}"'
            place = f"{path}.volumeMounts[{index}].name"
            causes.append(Cause(message, place, "FieldValueNotFound"))
    for index, port in enumerate(container.get("ports") or ()):
        number = port.get("containerPort", 0)
        if not number:
            place = f"{path}.ports[{index}].containerPort"
            causes.append(Cause("Required value", place, "FieldValueRequired"))
        elif not 0 < number < 65536:
            message = f"Invalid value: {number}: must be between 1 and 65535, inclusive"
            causes.append(Cause(message, f"{path}.ports[{index}].containerPort"))
    return causes + _resource_problems(container.get("resources") or {}, f"{path}.resources")


def _resource_problems(resources: Mapping[str, Any], path: str) -> list[Cause]:
    causes = []
    limits = resources.get("limits") or {}
    for field in ("limits", "requests"):
        for name, amount in (resources.get(field) or {}).items():
            place = f"{path}.{field}[{name}]"
            causes += [
                Cause(f'Invalid value: "{name}": {problem}', place)
                for problem in qualified_problems(name)
            ]
            number = quantity.parse(amount)
            if number < 0:
                message = f'Invalid value: "{amount}": must be greater than or equal to 0'
                causes.append(Cause(message, place))
            # An extended resource (nvidia.com/gpu) is counted: whole, and not overcommitted.
            extended = "/" in name and not name.startswith("kubernetes.io/")
            if extended and number.denominator != 1:
                causes.append(Cause(f'Invalid value: "{amount}": must be an integer', place))
    for name, amount in (resources.get("requests") or {}).items():
        if name not in limits:
            extended = "/" in name and not name.startswith("kubernetes.io/")
            if extended:
                message = "Required value: Limit must be set for non overcommitable resources"
                place = f"{path}.limits"
                causes.append(Cause(message, place, "FieldValueRequired"))
        elif quantity.parse(amount) > quantity.parse(limits[name]):
            message = f'Invalid value: "{amount}": must be less than or equal to {name} limit'
            suffix = f" of {limits[name]}"
            causes.append(Cause(message + suffix, f"{path}.requests"))
    return causes


def _validate(obj: Object) -> list[Cause]:
    return spec_problems(obj.get("spec") or {})


def _change(new: Object, old: Object) -> list[Cause]:
    if _fixed(new["spec"]) == _fixed(old["spec"]):
        return _tolerations(new["spec"], old["spec"])
    return [Cause(_MUTABLE, "spec", "FieldValueForbidden")]


def _fixed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pod's spec that never change."""
    mutable = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    fixed = {key: value for key, value in spec.items() if key not in mutable}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{**container, "image": ""} for container in fixed[field]]
    return fixed


def _tolerations(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    def essence(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in toleration.items() if key != "tolerationSeconds"}
            for toleration in spec.get("tolerations") or ()
        ]

    current = essence(new)
    if all(existing in current for existing in essence(old)):
        return []
    message = "Forbidden: existing toleration can not be modified except its tolerationSeconds"
    return [Cause(message, "spec.tolerations", "FieldValueForbidden")]


RULES = Rules(default=_default, create=_create, validate=_validate, change=_change, generation=True)
