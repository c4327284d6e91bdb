"""
What of a pod reaches out of its container: the machine's network, files, devices, users.

An agent's pods run beside other agents'. Who is not trusted may not ask for any of this.
"""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.kinds import Object

_HARMLESS = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
     "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)  # fmt: skip  # Kubernetes' own baseline
_REMEDY = "only pods of trusted agents may (the owner sets spec.trusted of the Agent)"


def problems(pod: Object) -> list[str]:
    """What an untrusted agent's pod may not ask for, one sentence each."""
    return [f"{field}: {what}; {_REMEDY}" for field, what in _found(pod["spec"])]


def _found(spec: Object) -> Iterator[tuple[str, str]]:
    for field, what in (
        ("hostNetwork", "the machine's network"),
        ("hostPID", "the machine's processes"),
        ("hostIPC", "the machine's shared memory"),
    ):
        if spec.get(field):
            yield f"spec.{field}", f"it asks for {what}"
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("hostPath") is not None:
            path = volume["hostPath"].get("path", "")
            yield f"spec.volumes[{index}].hostPath", f"it asks for the machine's {path}"
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield from _container(f"spec.{group}[{index}]", container)


def _container(field: str, container: Object) -> Iterator[tuple[str, str]]:
    security = container.get("securityContext") or {}
    if security.get("privileged"):
        yield f"{field}.securityContext.privileged", "it asks for all rights on the machine"
    for added in (security.get("capabilities") or {}).get("add") or ():
        if added.removeprefix("CAP_") not in _HARMLESS:
            yield f"{field}.securityContext.capabilities", f"it asks for {added}"
    if (security.get("procMount") or "Default") != "Default":
        yield f"{field}.securityContext.procMount", "it asks for an unmasked /proc"
    for at, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield (
                f"{field}.ports[{at}].hostPort",
                f"it asks for the machine's port {port['hostPort']}",
            )
