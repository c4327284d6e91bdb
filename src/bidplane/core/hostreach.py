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
# Kubernetes' own baseline again: what changes nothing outside of the pod.
_SAFE_SYSCTLS = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range",
     "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies",
     "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
     "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
     "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
     "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}
)  # fmt: skip
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
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
    security = spec.get("securityContext") or {}
    yield from _unconfined("spec", security)
    for index, one in enumerate(security.get("sysctls") or ()):
        if one.get("name") not in _SAFE_SYSCTLS:
            yield (
                f"spec.securityContext.sysctls[{index}]",
                f"it sets the kernel's {one.get('name')}",
            )
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("hostPath") is not None:
            path = volume["hostPath"].get("path", "")
            yield f"spec.volumes[{index}].hostPath", f"it asks for the machine's {path}"
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield from _container(f"spec.{group}[{index}]", container)


def _container(field: str, container: Object) -> Iterator[tuple[str, str]]:
    security = container.get("securityContext") or {}
    yield from _unconfined(field, security)
    if security.get("privileged"):
        yield f"{field}.securityContext.privileged", "it asks for all rights on the machine"
    for added in (security.get("capabilities") or {}).get("add") or ():
        if added.removeprefix("CAP_") not in _HARMLESS:
            yield f"{field}.securityContext.capabilities", f"it asks for {added}"
    if (security.get("procMount") or "Default") != "Default":
        yield f"{field}.securityContext.procMount", "it asks for an unmasked /proc"
    for name, host in named_hosts(container):
        yield f"{field}.{name}", f"it has the machine connect to {host}"
    for at, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield (
                f"{field}.ports[{at}].hostPort",
                f"it asks for the machine's port {port['hostPort']}",
            )


def named_hosts(container: Object) -> Iterator[tuple[str, str]]:
    """
    The fields of probes and hooks that name a host, and whom they name.

    Whoever runs the pod connects there in its own name, from where it stands: a way to ports
    the pod itself cannot reach. Kubernetes' own baseline forbids it too.
    """
    lifecycle = container.get("lifecycle") or {}
    for owner, prefix, names in (
        (container, "", ("startupProbe", "readinessProbe", "livenessProbe")),
        (lifecycle, "lifecycle.", ("postStart", "preStop")),
    ):
        for name in names:
            for action in ("httpGet", "tcpSocket"):
                host = ((owner.get(name) or {}).get(action) or {}).get("host")
                if host:
                    yield f"{prefix}{name}.{action}.host", host


def _unconfined(field: str, security: Object) -> Iterator[tuple[str, str]]:
    """What takes away what a container engine puts around every container."""
    for profile, what in (("seccompProfile", "system calls"), ("appArmorProfile", "AppArmor")):
        if (security.get(profile) or {}).get("type") == "Unconfined":
            yield f"{field}.securityContext.{profile}", f"it asks for no limits by {what}"
    if (security.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{field}.securityContext.windowsOptions", "it asks to be a process of the machine"
    linux = security.get("seLinuxOptions") or {}
    if linux.get("type", "") not in _SELINUX_TYPES or linux.get("user") or linux.get("role"):
        yield f"{field}.securityContext.seLinuxOptions", "it asks for another SELinux context"
