"""Checks of what device drivers publish, and of nodes whose GPUs are offered twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.diagnosis.model import ClusterFacts, Finding, Level

_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def check_drivers(facts: ClusterFacts) -> Iterator[Finding]:
    """Each driver publishes what is needed to pin, join and divide its devices."""
    drivers = sorted({slice_["spec"]["driver"] for slice_ in facts.slices})
    if not drivers:
        yield Finding(
            check="drivers",
            level=Level.PROBLEM,
            fact="no driver publishes devices",
            cost="there is nothing to lease",
            command="install a DRA driver, such as NVIDIA's; then kubectl get resourceslices",
        )
    for driver in drivers:
        slices = [s for s in facts.slices if s["spec"]["driver"] == driver]
        devices = [device for s in slices for device in s["spec"].get("devices") or ()]
        nodes = {s["spec"].get("nodeName") for s in slices} - {None}
        if not any(is_gpu(driver, device) for device in devices):
            yield Finding(
                check="drivers",
                level=Level.OK,
                fact=f"{driver}: {len(devices)} devices that are no GPUs, on {_nodes(len(nodes))}",
            )
            continue
        gaps = list(_gaps(driver, devices))
        yield from gaps
        if not gaps:
            fact = f"{driver}: {len(devices)} devices on {_nodes(len(nodes))}, with uuid and links"
            yield Finding(check="drivers", level=Level.OK, fact=fact)


def _gaps(driver: str, devices: Sequence[Object]) -> Iterator[Finding]:
    """Yield a finding for each attribute that devices of a driver lack."""
    gpus = [device for device in devices if is_gpu(driver, device)]
    whole = [gpu for gpu in gpus if _attribute(driver, gpu, labels.TYPE_ATTRIBUTE) != "mig"]
    lacking = [gpu["name"] for gpu in whole if not _attribute(driver, gpu, "uuid")]
    inspect = "kubectl get resourceslices -o yaml"
    if lacking:
        yield Finding(
            check="drivers",
            level=Level.PROBLEM,
            fact=f"{driver}: {len(lacking)} of {len(whole)} GPUs lack a uuid, as {lacking[0]}",
            cost="a claim cannot name such a GPU: it is not sold",
            command=f"upgrade the driver {driver}; see what it publishes with: {inspect}",
        )
    links = (labels.LINK_DOMAIN_ATTRIBUTE, _PCIE_ROOT)
    unlinked = [gpu for gpu in whole if not any(_attribute(driver, gpu, a) for a in links)]
    if unlinked:
        yield Finding(
            check="drivers",
            level=Level.NOTE,
            fact=f"{driver}: {len(unlinked)} of {len(whole)} GPUs tell nothing of their links",
            cost="sets of GPUs on one link cannot be promised: only single GPUs, or `spread`",
            command=f"upgrade the driver {driver}; see what it publishes with: {inspect}",
        )
    if whole and not any("memory" in (gpu.get("capacity") or {}) for gpu in whole):
        yield Finding(
            check="drivers",
            level=Level.NOTE,
            fact=f"{driver}: its GPUs publish no memory",
            cost="a pod cannot ask for a GPU by its memory",
            command=f"upgrade the driver {driver}; see what it publishes with: {inspect}",
        )
    if not any(gpu.get("allowMultipleAllocations") for gpu in gpus) and len(whole) == len(gpus):
        yield Finding(
            check="drivers",
            level=Level.NOTE,
            fact=f"{driver}: it divides no GPU",
            cost="parts of a GPU are not sold there, nor MIG instances",
            command="enable MIG or sharing in the driver, if it has them",
        )


def check_nodes(facts: ClusterFacts) -> Iterator[Finding]:
    """No node offers its GPUs by a device plugin and by a driver at once."""
    with_slices = {
        slice_["spec"].get("nodeName")
        for slice_ in facts.slices
        if any(is_gpu(slice_["spec"]["driver"], d) for d in slice_["spec"].get("devices") or ())
    }
    twice: list[str] = []
    plugin_only: list[str] = []
    for node in facts.nodes:
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        count = str(allocatable.get(labels.GPU_RESOURCE, "0"))
        if count != "0":
            name = node["metadata"]["name"]
            (twice if name in with_slices else plugin_only).append(name)
    for name in twice:
        yield Finding(
            check="nodes",
            level=Level.PROBLEM,
            fact=f"node {name}: a device plugin offers {labels.GPU_RESOURCE}, and a driver the"
            " same GPUs",
            cost="one GPU may be given out twice",
            command="remove the device plugin from that node, or the driver",
        )
    if plugin_only:
        yield Finding(
            check="nodes",
            level=Level.NOTE,
            fact=f"{_nodes(len(plugin_only))} with a device plugin only, as {plugin_only[0]}",
            cost="the kubelet chooses the card there: no links, MIG placement or parts are sold",
            command="replace the device plugin by the vendor's DRA driver",
        )
    if not twice and not plugin_only:
        yield Finding(check="nodes", level=Level.OK, fact=f"{_nodes(len(facts.nodes))} looked at")


def is_gpu(driver: str, device: Object) -> bool:
    """Return True for a GPU or a part of one: it says so, or has a product and memory."""
    kind = _attribute(driver, device, labels.TYPE_ATTRIBUTE)
    if kind:
        return kind in ("gpu", "mig")
    has_product = bool(_attribute(driver, device, labels.PRODUCT_ATTRIBUTE))
    return has_product and "memory" in (device.get("capacity") or {})


def is_whole_gpu(driver: str, device: Object) -> bool:
    """Return True for a GPU that is no part of another."""
    is_part = _attribute(driver, device, labels.TYPE_ATTRIBUTE) == "mig"
    return is_gpu(driver, device) and not is_part


def _attribute(driver: str, device: Object, name: str) -> str:
    """Return an attribute's value as text; a driver may leave its own domain out of names."""
    attributes = device.get("attributes") or {}
    entry = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
    return next((str(value) for value in entry.values()), "")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
