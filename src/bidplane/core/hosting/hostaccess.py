"""
Access to the host that a pod asks for: the machine's network, files, devices, users.

Pods of several agents share a machine. Only trusted agents may ask for any of this.
"""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.kinds import Object

_HARMLESS = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
     "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)  # fmt: skip  # Kubernetes' own baseline
# Kubernetes' own baseline again: sysctls that change nothing outside of the pod.
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
    """Return a sentence for each kind of host access that an untrusted agent's pod asks for."""
    return [f"{field}: {violation}; {_REMEDY}" for field, violation in _host_access(pod["spec"])]


def _host_access(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield the field and a description of each kind of host access."""
    for field, resource in (
        ("hostNetwork", "the machine's network"),
        ("hostPID", "the machine's processes"),
        ("hostIPC", "the machine's shared memory"),
    ):
        if spec.get(field):
            yield f"spec.{field}", f"it asks for {resource}"
    security = spec.get("securityContext") or {}
    yield from _unconfined("spec", security)
    for index, sysctl in enumerate(security.get("sysctls") or ()):
        if sysctl.get("name") not in _SAFE_SYSCTLS:
            yield (
                f"spec.securityContext.sysctls[{index}]",
                f"it sets the kernel's {sysctl.get('name')}",
            )
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("hostPath") is not None:
            path = volume["hostPath"].get("path", "")
            yield f"spec.volumes[{index}].hostPath", f"it asks for the machine's {path}"
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield from _container_access(f"spec.{group}[{index}]", container)


def _container_access(field: str, container: Object) -> Iterator[tuple[str, str]]:
    """Yield the host access that one container asks for."""
    security = container.get("securityContext") or {}
    yield from _unconfined(field, security)
    if security.get("privileged"):
        yield f"{field}.securityContext.privileged", "it asks for all rights on the machine"
    for capability in (security.get("capabilities") or {}).get("add") or ():
        if capability.removeprefix("CAP_") not in _HARMLESS:
            yield f"{field}.securityContext.capabilities", f"it asks for {capability}"
    if (security.get("procMount") or "Default") != "Default":
        yield f"{field}.securityContext.procMount", "it asks for an unmasked /proc"
    for name, host in named_hosts(container):
        yield f"{field}.{name}", f"it has the machine connect to {host}"
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield (
                f"{field}.ports[{index}].hostPort",
                f"it asks for the machine's port {port['hostPort']}",
            )


def named_hosts(container: Object) -> Iterator[tuple[str, str]]:
    """
    Yield each field of probes and hooks that names a host, with that host.

    The node itself connects there, from its own network: a way to ports that the pod cannot reach.
    Kubernetes' own baseline forbids it too.
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
    """Yield the settings that switch off the confinement of a container."""
    for profile, mechanism in (("seccompProfile", "system calls"), ("appArmorProfile", "AppArmor")):
        if (security.get(profile) or {}).get("type") == "Unconfined":
            yield f"{field}.securityContext.{profile}", f"it asks for no limits by {mechanism}"
    if (security.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{field}.securityContext.windowsOptions", "it asks to be a process of the machine"
    selinux = security.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{field}.securityContext.seLinuxOptions", "it asks for another SELinux context"
