"""
Which pods are a gang: won and bound together, or not at all.

Said, first found first counted, by
1. the annotations `bidplane.dev/gang` and `gang-size` of its pods;
2. a PodGroup they name, of coscheduling, Volcano or KAI, where the plane knows such a kind;
3. the annotation `gang-size` alone: so many of the pods their controller makes ("1": none);
4. an Indexed Job that runs all of its indexes at once: they are ranks, and find each other.
   Other Jobs work through a queue, with as many as there happen to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.bid import MOST_BLOCKS
from bidplane.api.kinds import JOB, Kind, Object
from bidplane.core.scheduling.seen import Snapshot, cut, phase_of

_LONGEST_NAME = 50  # with what is put behind it, a bid's name and a label's value

Key = tuple[str, str]  # namespace and name


class Gang(msgspec.Struct, frozen=True):
    name: str
    size: int  # so many must be had together
    of: str  # in words: who says so
    done: int = 0  # of those, so many have ended well, as far as its controller knows
    counts_ends: bool = True  # a name written by hand may be used a second time


class Unclear(msgspec.Struct, frozen=True):
    """It names a gang that cannot be read."""

    reason: str
    message: str


class Source(msgspec.Struct, frozen=True):
    """A kind of PodGroup, and how a pod names one."""

    kind: Kind
    label: str = ""
    annotations: tuple[str, ...] = ()

    def named_by(self, pod: Object) -> str:
        metadata = pod["metadata"]
        if self.label:
            return str((metadata.get("labels") or {}).get(self.label) or "")
        marks = metadata.get("annotations") or {}
        return next((marks[one] for one in self.annotations if marks.get(one)), "")


COSCHEDULING = Source(
    Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    label="scheduling.x-k8s.io/pod-group",
)
VOLCANO = Source(
    Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
    annotations=("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"),
)
KAI = Source(
    Kind("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"), annotations=("pod-group-name",)
)
SOURCES = (COSCHEDULING, VOLCANO, KAI)


def sources_named(pods: Sequence[Object]) -> list[Source]:
    """The kinds of PodGroups that pods name: all that has to be asked for."""
    return [one for one in SOURCES if any(map(one.named_by, pods))]


def group_named(
    pod: Object, groups: Mapping[Kind, Sequence[Object]]
) -> tuple[Source, str, Object | None] | None:
    """The PodGroup a pod names, of the kinds its plane serves; the object, if it is there."""
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
    """Of all pods of a plane, which are whose."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._jobs = {job["metadata"]["uid"]: job for job in snapshot.jobs}
        self._groups = snapshot.groups
        self._of: dict[str, Gang | Unclear] = {}
        self._members: dict[Key, list[Object]] = {}
        for pod in snapshot.pods:
            found = self._find(pod)
            if found is None:
                continue
            metadata = pod["metadata"]
            self._of[metadata["uid"]] = found
            if isinstance(found, Gang):
                self._members.setdefault((metadata["namespace"], found.name), []).append(pod)

    def of(self, pod: Object) -> Gang | Unclear | None:
        return self._of.get(pod["metadata"]["uid"])

    def key(self, pod: Object) -> Key | None:
        found = self.of(pod)
        return (pod["metadata"]["namespace"], found.name) if isinstance(found, Gang) else None

    def members(self, pod: Object) -> list[Object]:
        """The pods of its gang, whatever became of them."""
        key = self.key(pod)
        return self._members[key] if key else []

    def _find(self, pod: Object) -> Gang | Unclear | None:
        metadata = pod["metadata"]
        annotations = metadata.get("annotations") or {}
        said = _size(annotations.get(labels.GANG_SIZE, ""))
        if name := annotations.get(labels.GANG):
            return Gang(name, said, f"gang {name}", counts_ends=False)
        named = group_named(pod, self._groups) if self._groups else None
        if named is not None:
            return _of_group(*named)
        owner = _controller(pod)
        if owner is None or (said == 1 and labels.GANG_SIZE in annotations):
            return None
        job = self._jobs.get(owner["uid"]) if owner["kind"] == JOB.kind else None
        if labels.GANG_SIZE in annotations:
            return _of_owner(owner, said, job)
        ranks = _ranks(job) if job is not None else 0
        return _of_owner(owner, ranks, job) if ranks > 1 else None


def left(gang: Gang, members: Sequence[Object]) -> int:
    """How many it is still of: those that have ended well need not be won again."""
    if not gang.counts_ends:
        return gang.size
    ended = sum(phase_of(pod) == "Succeeded" for pod in members)
    return max(0, gang.size - max(gang.done, ended))


def _of_group(source: Source, name: str, group: Object | None) -> Gang | Unclear | None:
    words = f"PodGroup {name} ({source.kind.group})"
    if group is None:
        return Unclear(
            "NoSuchPodGroup",
            f"there is no {words} in its namespace: create it, or take its name off the pod",
        )
    size = (group.get("spec") or {}).get("minMember") or 0
    if (group.get("spec") or {}).get("minSubGroup") or (group.get("spec") or {}).get("subGroups"):
        return Unclear(
            "BadPodGroup", f"{words}: a gang is of equal pods: use minMember, without subgroups"
        )
    if size > MOST_BLOCKS:
        return Unclear("BadPodGroup", f"{words}: minMember is {size}; the most is {MOST_BLOCKS}")
    return Gang(_named_after(group["metadata"]), size, words) if size > 1 else None


def _of_owner(owner: Object, size: int, job: Object | None) -> Gang | Unclear:
    words = f"{owner['kind']} {owner['name']}"
    if size > MOST_BLOCKS:
        return Unclear(
            "GangTooLarge",
            f"{words} runs {size} pods at once, and the most that is won together is {MOST_BLOCKS}:"
            f' set {labels.GANG_SIZE} on its pods, "1" for none',
        )
    done = ((job or {}).get("status") or {}).get("succeeded") or 0
    return Gang(_named_after(owner), size, words, done=done)


def _ranks(job: Object) -> int:
    """How many pods a Job runs at once that need each other; 0 if they do not."""
    spec = job["spec"]
    at_once = spec.get("parallelism") or 0
    indexed = spec.get("completionMode") == "Indexed"
    return at_once if indexed and at_once == spec.get("completions") else 0


def _named_after(metadata: Object) -> str:
    uid = metadata["uid"][:8]
    return f"{cut(metadata['name'], _LONGEST_NAME - 1 - len(uid)).replace('.', '-')}-{uid}"


def _controller(pod: Object) -> Object | None:
    owners: Sequence[Object] = pod["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), None)


def _size(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 1
