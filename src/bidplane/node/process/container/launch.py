"""
The launch of a container: its command, environment, mounts, user and limits.

Nothing is started here. A `ConfigError` has a message for the pod's status.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.objects import Fields
from bidplane.core.hosting.hostpods import hostname
from bidplane.core.pods.environment import ConfigError, Facts, Sources, command_line, variables
from bidplane.kube.client import Object
from bidplane.node.process.container.images import Image
from bidplane.node.process.container.shims import LaunchOrder
from bidplane.node.process.network.addresses import PodNetwork
from bidplane.node.process.records import Attempt
from bidplane.node.process.sandbox.confinement import Confined
from bidplane.node.process.sandbox.filesystem import Mount
from bidplane.node.process.sandbox.limits import limits_of, rlimits
from bidplane.node.process.settings import ProcessSettings
from bidplane.node.process.supplies import (
    ClaimedDevice,
    container_devices,
    device_variables,
    is_ours,
)
from bidplane.node.process.volumes import mounts

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MESSAGE_PATH = "/dev/termination-log"


class NotMapped(ConfigError):
    """An image that the node does not map."""


class Supplied(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a prepared pod: network, user, devices, volumes."""

    place: PodNetwork
    facts: Facts
    user: int | None = None  # of the system
    sources: Sources = Sources()
    devices: Sequence[ClaimedDevice] = ()
    volumes: Mapping[str, mounts.VolumeSource] = {}
    hosts: str = ""  # a file


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    order: LaunchOrder
    confined: Confined
    env: Mapping[str, str]


def container_name(pod: Object, container: str, attempt: int) -> str:
    """Return a name that is unique among the containers of this machine."""
    return f"bidplane-{pod['metadata']['uid']}-{container}-{attempt}"


def plan_launch(
    pod: Object,
    spec: Object,
    attempt: Attempt,
    supplied: Supplied,
    settings: ProcessSettings,
    present: Mapping[tuple[str, str, str], str],
) -> LaunchPlan:
    """Return the launch order of a container of the pod."""
    image = _image(spec, settings)
    devices = [
        device for device in container_devices(spec, supplied.devices) if is_ours(device, present)
    ]
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
    mounts.check_mount_points(container_mounts, root=image.root)
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
        env=env,
        stdin=bool(spec.get("stdin")),
        tty=bool(spec.get("tty")),
        replaces_entrypoint=bool(spec.get("command")),
    )
    engine = settings.engine
    line = engine.command(confined)
    order = LaunchOrder(
        argv=line.argv,
        env=line.env,
        descriptors=line.descriptors,
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
    return LaunchPlan(order=order, confined=confined, env=env)


def _image(spec: Object, settings: ProcessSettings) -> Image:
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


def _user(security: Fields, supplied: Supplied, settings: ProcessSettings) -> int | None:
    if security.get("runAsNonRoot") and not security.get("runAsUser"):
        raise ConfigError("container has runAsNonRoot and image will run as root: set runAsUser")
    if not settings.engine.sandboxed:
        wished = security.get("runAsUser")
        return int(wished) if wished is not None and os.geteuid() == 0 else None
    return supplied.user


def _argv(
    spec: Object, image: Image, env: Mapping[str, str], settings: ProcessSettings
) -> list[str]:
    try:
        return command_line(spec, env, entrypoint=image.command, arguments=image.args)
    except ConfigError:
        if settings.engine.maps_images:
            raise
        return []  # the image has a command of its own


def _environment(
    pod: Object, spec: Object, image: Image, supplied: Supplied, settings: ProcessSettings
) -> dict[str, str]:
    own = {"HOSTNAME": hostname(pod), "POD_IP": supplied.place.address}
    if settings.engine.maps_images:
        own |= {"PATH": _PATH, "HOME": "/tmp"}
    if not supplied.place.namespace:
        own["HOST"] = supplied.place.address
    if settings.api is not None:
        own["KUBERNETES_SERVICE_HOST"], own["KUBERNETES_SERVICE_PORT"] = settings.api
    declared = variables(pod, spec, supplied.sources, supplied.facts)
    return {**own, **image.env, **declared}


def missing_command(plan: LaunchPlan, settings: ProcessSettings) -> str:
    """Return a container engine's error if the command does not exist; else an empty text."""
    confined = plan.confined
    if not settings.engine.maps_images or not confined.argv:
        return ""
    word = confined.argv[0]
    folders = plan.env.get("PATH", _PATH).split(":")
    for path in [word] if "/" in word else [f"{folder}/{word}" for folder in folders]:
        inside = os.path.join(confined.cwd or "/", path)
        # Pods may change the files of a volume, so only running the command tells.
        if _is_in_volume(inside, confined) or shutil.which(confined.root + inside):
            return ""
    kind = "no such file or directory" if "/" in word else "executable file not found in $PATH"
    return f'exec: "{word}": {kind}'


def _is_in_volume(path: str, confined: Confined) -> bool:
    targets = (mount.target.rstrip("/") for mount in confined.mounts)
    return any(path == target or path.startswith(target + "/") for target in targets)
