"""
How a container is run: its command, environment, mounts, user, limits, from all that is known.

Nothing is started here. What cannot be is a `ConfigError` in words for the pod's status.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.core.hostpods import hostname
from bidplane.core.pods.environment import ConfigError, Facts, Sources, command_line, variables
from bidplane.kube.client import Object
from bidplane.node.process import mounts
from bidplane.node.process.addresses import Place
from bidplane.node.process.confine import Confined
from bidplane.node.process.images import Image
from bidplane.node.process.limits import limits_of, rlimits
from bidplane.node.process.records import Attempt
from bidplane.node.process.runs import Order
from bidplane.node.process.settings import Settings
from bidplane.node.process.supplies import Device, device_variables, is_ours, of_container
from bidplane.node.process.view import Mount

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MESSAGE_PATH = "/dev/termination-log"


class NotMapped(ConfigError):
    """Nobody said what this image is."""


class Supplied(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod was given when it was prepared."""

    place: Place
    facts: Facts
    user: int | None = None  # the system's
    sources: Sources = Sources()
    devices: Sequence[Device] = ()
    volumes: Mapping[str, mounts.Source] = {}
    hosts: str = ""  # a file


class Outfit(msgspec.Struct, frozen=True, kw_only=True):
    order: Order
    confined: Confined
    env: Mapping[str, str]


def container_name(pod: Object, container: str, attempt: int) -> str:
    """A name no other container of this machine has."""
    return f"bidplane-{pod['metadata']['uid']}-{container}-{attempt}"


def dress(
    pod: Object,
    spec: Object,
    attempt: Attempt,
    supplied: Supplied,
    settings: Settings,
    present: Mapping[tuple[str, str, str], str],
) -> Outfit:
    """Everything about how a container of the pod is run."""
    image = _image(spec, settings)
    devices = [one for one in of_container(spec, supplied.devices) if is_ours(one, present)]
    ids = [device.uuid or present.get(device.key, device.device) for device in devices]
    env = _environment(pod, spec, image, supplied, settings)
    # Last: they are all that keeps it from other pods' GPUs.
    env.update(device_variables(ids, gpus=bool(devices)))
    security = {**(pod["spec"].get("securityContext") or {})}
    security.update(spec.get("securityContext") or {})
    container_mounts = mounts.container_mounts(spec, supplied.volumes, env)
    if settings.engine.sandboxed:
        if supplied.hosts and not pod["spec"].get("hostNetwork"):
            names = Mount(supplied.hosts, "/etc/hosts", read_only=True)
            container_mounts = [names, *container_mounts]  # a volume of its own comes after
        path = spec.get("terminationMessagePath") or _MESSAGE_PATH
        container_mounts.append(Mount(str(attempt.message_file), path))
    else:
        env["BIDPLANE_TERMINATION_LOG"] = str(attempt.message_file)
    limits = limits_of(spec, pids=settings.pids)
    group = settings.cgroups.make(f"{pod['metadata']['uid']}-{spec['name']}", limits)
    counted = "pids" in group.enforced or supplied.user is not None
    confined = Confined(
        argv=_argv(spec, image, env, settings),
        cwd=spec.get("workingDir") or image.working_dir,
        hostname=hostname(pod),
        mounts=container_mounts,
        enter=supplied.place.enter,
        uid=_user(security, supplied, settings),
        inner_uid=int(security.get("runAsUser") or 0),
        inner_gid=int(security.get("runAsGroup") or security.get("runAsUser") or 0),
        root=image.root,
        paths=image.paths,
        devices=ids,
        read_only_root=bool(security.get("readOnlyRootFilesystem")),
        processes=None if counted else limits.pids,
        name=container_name(pod, spec["name"], attempt.number),
        image=spec.get("image") or "",
        env=sorted(env),
        stdin=bool(spec.get("stdin")),
        tty=bool(spec.get("tty")),
        replaces_entrypoint=bool(spec.get("command")),
    )
    engine = settings.engine
    order = Order(
        argv=engine.command(confined),
        env=env if engine.maps_images else {**os.environ, **env},
        cgroups=group.procs,
        oom_file=group.oom_file,
        rlimits=rlimits(limits, group.enforced, own_user=supplied.user is not None),
        tty=confined.tty,
        stdin=confined.stdin,
        tells_inside=engine.tells_inside,
        adopts=not engine.tells_inside,
        log_bytes=settings.log_bytes,
        log_files=settings.log_files,
    )
    return Outfit(order=order, confined=confined, env=env)


def _image(spec: Object, settings: Settings) -> Image:
    if not settings.engine.maps_images:
        return Image()
    name = spec.get("image") or ""
    image = settings.images.find(name)
    if image is None:
        raise NotMapped(
            f'Container image "{name}" is not mapped on node {settings.node}: its owner'
            " adds it to the file given with --images"
        )
    return image


def _user(security: Mapping[str, Any], supplied: Supplied, settings: Settings) -> int | None:
    if security.get("runAsNonRoot") and not security.get("runAsUser"):
        raise ConfigError("container has runAsNonRoot and image will run as root: set runAsUser")
    if not settings.engine.sandboxed:
        wished = security.get("runAsUser")
        return int(wished) if wished is not None and os.geteuid() == 0 else None
    return supplied.user


def _argv(spec: Object, image: Image, env: Mapping[str, str], settings: Settings) -> list[str]:
    try:
        return command_line(spec, env, entrypoint=image.command, arguments=image.args)
    except ConfigError:
        if settings.engine.maps_images:
            raise
        return []  # the image knows


def _environment(
    pod: Object, spec: Object, image: Image, supplied: Supplied, settings: Settings
) -> dict[str, str]:
    own = {"HOSTNAME": hostname(pod), "POD_IP": supplied.place.address}
    if settings.engine.maps_images:
        own |= {"PATH": _PATH, "HOME": "/tmp"}
    if not supplied.place.namespace:
        own["HOST"] = supplied.place.address
    if settings.api is not None:
        own["KUBERNETES_SERVICE_HOST"], own["KUBERNETES_SERVICE_PORT"] = settings.api
    given = variables(pod, spec, supplied.sources, supplied.facts)
    return {**own, **image.env, **given}


def missing_command(outfit: Outfit, settings: Settings) -> str:
    """What a container engine says of a command that is not there; else nothing."""
    what = outfit.confined
    if not settings.engine.maps_images or not what.argv:
        return ""
    word = what.argv[0]
    folders = outfit.env.get("PATH", _PATH).split(":")
    for path in [word] if "/" in word else [f"{folder}/{word}" for folder in folders]:
        if shutil.which(_on_host(os.path.join(what.cwd or "/", path), what)):
            return ""
    kind = "no such file or directory" if "/" in word else "executable file not found in $PATH"
    return f'exec: "{word}": {kind}'


def _on_host(path: str, what: Confined) -> str:
    """Where something the container calls `path` is on this machine."""
    for mount in sorted(what.mounts, key=lambda mount: -len(mount.target)):
        if path == mount.target or path.startswith(mount.target.rstrip("/") + "/"):
            return mount.source + path[len(mount.target.rstrip("/")) :]
    return what.root + path if what.root else path
