"""
Gangs: pods that are won and bound together, or not at all.

A gang is defined by the first of these that applies:
1. the annotations `bidplane.dev/gang` and `gang-size` of its pods;
2. a PodGroup that its pods name, of coscheduling, Volcano or KAI, where the plane has that kind;
3. the annotation `gang-size` alone: that many of the pods of their controller ("1": no gang);
4. an Indexed Job that runs all of its indexes at once: they are ranks that need each other.
   Other Jobs work through a queue, with however many pods there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import JOB, Kind, Object
from bidplane.api.objects import phase_of
from bidplane.api.shape import MOST_BLOCKS
from bidplane.core.scheduling.observed import PlaneSnapshot, truncate_name

_LONGEST_NAME = 50  # with its suffix it is still a valid name of a bid and value of a label

Key = tuple[str, str]  # namespace and name


class Gang(msgspec.Struct, frozen=True):
    """A gang of pods."""

    name: str
    size: int  # the pods that must run together
    origin: str  # the object that defines it, for messages
    done: int = 0  # the pods of it that succeeded, as its controller counts
    counts_ends: bool = True  # False for a name written by hand, which may be used again


class UnreadableGang(msgspec.Struct, frozen=True):
    """A gang that a pod names and that cannot be read."""

    reason: str
    message: str


class PodGroupKind(msgspec.Struct, frozen=True):
    """A kind of PodGroup, and how a pod names one."""

    kind: Kind
    label: str = ""
    annotations: tuple[str, ...] = ()

    def named_by(self, pod: Object) -> str:
        """Return the PodGroup's name that a pod gives; "" if it names none."""
        metadata = pod["metadata"]
        if self.label:
            return str((metadata.get("labels") or {}).get(self.label) or "")
        annotations = metadata.get("annotations") or {}
        return next((annotations[key] for key in self.annotations if annotations.get(key)), "")


COSCHEDULING = PodGroupKind(
    Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    label="scheduling.x-k8s.io/pod-group",
)
VOLCANO = PodGroupKind(
    Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
    annotations=("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
)
KAI = PodGroupKind(
    Kind("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"), annotations=("pod-group-name",)
)
SOURCES = (COSCHEDULING, VOLCANO, KAI)


def sources_named(pods: Sequence[Object]) -> list[PodGroupKind]:
    """Return the kinds of PodGroups that pods name, which are all that must be fetched."""
    return [source for source in SOURCES if any(map(source.named_by, pods))]


def group_named(
    pod: Object, groups: Mapping[Kind, Sequence[Object]]
) -> tuple[PodGroupKind, str, Object | None] | None:
    """
    Return the PodGroup that a pod names, of the kinds its plane serves, and the object if it
    exists.
    """
    for source in SOURCES:
        if source.kind in groups and (name := source.named_by(pod)):
            namespace = pod["metadata"]["namespace"]
            for group in groups[source.kind]:
                metadata = group["metadata"]
                if (metadata["namespace"], metadata["name"]) == (namespace, name):
                    return source, name, group
            return source, name, None
    return None


class Gangs:
    """The gangs of all pods of a plane."""

    def __init__(self, snapshot: PlaneSnapshot) -> None:
        self._jobs = {job["metadata"]["uid"]: job for job in snapshot.jobs}
        self._groups = snapshot.groups
        self._gangs: dict[str, Gang | UnreadableGang] = {}
        self._members: dict[Key, list[Object]] = {}
        for pod in snapshot.pods:
            gang = self._find(pod)
            if gang is None:
                continue
            metadata = pod["metadata"]
            self._gangs[metadata["uid"]] = gang
            if isinstance(gang, Gang):
                self._members.setdefault((metadata["namespace"], gang.name), []).append(pod)

    def gang_of(self, pod: Object) -> Gang | UnreadableGang | None:
        """Return a pod's gang; None if it has none."""
        return self._gangs.get(pod["metadata"]["uid"])

    def key(self, pod: Object) -> Key | None:
        """Return the namespace and name of a pod's gang; None if it has none."""
        gang = self.gang_of(pod)
        return (pod["metadata"]["namespace"], gang.name) if isinstance(gang, Gang) else None

    def members(self, pod: Object) -> list[Object]:
        """Return all pods of a pod's gang, in any phase."""
        key = self.key(pod)
        return self._members[key] if key else []

    def _find(self, pod: Object) -> Gang | UnreadableGang | None:
        """Return the gang of a pod, from the first of the four definitions above that applies."""
        metadata = pod["metadata"]
        annotations = metadata.get("annotations") or {}
        size = _size(annotations.get(labels.GANG_SIZE, ""))
        if name := annotations.get(labels.GANG):
            return Gang(name, size, f"gang {name}", counts_ends=False)
        group = group_named(pod, self._groups) if self._groups else None
        if group is not None:
            return _gang_of_group(*group)
        owner = _controller(pod)
        if owner is None or (size == 1 and labels.GANG_SIZE in annotations):
            return None
        job = self._jobs.get(owner["uid"]) if owner["kind"] == JOB.kind else None
        if labels.GANG_SIZE in annotations:
            return _gang_of_owner(owner, size, job)
        ranks = _ranks(job) if job is not None else 0
        return _gang_of_owner(owner, ranks, job) if ranks > 1 else None


def pods_needed(gang: Gang, members: Sequence[Object]) -> int:
    """Return how many pods a gang still needs: those that succeeded need not run again."""
    if not gang.counts_ends:
        return gang.size
    succeeded = sum(phase_of(pod) == "Succeeded" for pod in members)
    return max(0, gang.size - max(gang.done, succeeded))


def _gang_of_group(
    source: PodGroupKind, name: str, group: Object | None
) -> Gang | UnreadableGang | None:
    """Return the gang that a PodGroup defines; None if one pod may run alone."""
    description = f"PodGroup {name} ({source.kind.group})"
    if group is None:
        return UnreadableGang(
            "NoSuchPodGroup",
            f"there is no {description} in its namespace: create it, or unset its name on the pod",
        )
    size = (group.get("spec") or {}).get("minMember") or 0
    if (group.get("spec") or {}).get("minSubGroup") or (group.get("spec") or {}).get("subGroups"):
        return UnreadableGang(
            "BadPodGroup",
            f"{description}: a gang is of equal pods: use minMember, without subgroups",
        )
    if size > MOST_BLOCKS:
        return UnreadableGang(
            "BadPodGroup", f"{description}: minMember is {size}; the most is {MOST_BLOCKS}"
        )
    return Gang(_gang_name(group["metadata"]), size, description) if size > 1 else None


def _gang_of_owner(owner: Object, size: int, job: Object | None) -> Gang | UnreadableGang:
    """Return the gang of a controller's pods."""
    description = f"{owner['kind']} {owner['name']}"
    if size > MOST_BLOCKS:
        return UnreadableGang(
            "GangTooLarge",
            f"{description} runs {size} pods at once, and the most that is won together is"
            f' {MOST_BLOCKS}: set {labels.GANG_SIZE} on its pods, "1" for none',
        )
    done = ((job or {}).get("status") or {}).get("succeeded") or 0
    return Gang(_gang_name(owner), size, description, done=done)


def _ranks(job: Object) -> int:
    """Return how many pods an Indexed Job runs that need each other; 0 if they do not."""
    spec = job["spec"]
    at_once = spec.get("parallelism") or 0
    indexed = spec.get("completionMode") == "Indexed"
    return at_once if indexed and at_once == spec.get("completions") else 0


def _gang_name(metadata: Object) -> str:
    """Return a gang's name, made of its object's name and uid."""
    uid = metadata["uid"][:8]
    return (
        f"{truncate_name(metadata['name'], _LONGEST_NAME - 1 - len(uid)).replace('.', '-')}-{uid}"
    )


def _controller(pod: Object) -> Object | None:
    owners: Sequence[Object] = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _size(text: str) -> int:
    """Return the gang size that an annotation gives; 1 if it cannot be read."""
    return int(text) if text.isdecimal() and len(text) < 10 else 1
