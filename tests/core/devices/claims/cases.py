"""
Claims and devices by seed: what the allocators are held against each other with.

A case is small and full of corners: selectors that fail, pools half replaced, counters that run
out, shares that do not fit. Names carry the case's number, so that thousands share one cluster.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from bidplane.core.devices.claims import (
    Allocated,
    ClaimError,
    NotAllocated,
    allocate,
    read_claim,
    read_slices,
)
from bidplane.core.devices.claims.model import AllocatedDevices, Claim
from bidplane.core.devices.claims.pools import Slices
from bidplane.core.devices.claims.result import allocation
from bidplane.core.devices.claims.selecting import DeviceMatcher

Json = dict[str, Any]
OURS = "bidplane.dev"
ADMIN_NAMESPACE = "watchers"  # the label that allows it is on it


class Case(msgspec.Struct):
    number: int
    namespace: str
    nodes: list[Json]
    classes: list[Json]
    slices: list[Json]
    earlier: list[Json]  # allocated before, with their status
    claims: list[Json]  # of the pod in question

    @property
    def node_names(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.nodes]


Answer = list[Json] | NotAllocated | ClaimError  # what each claim's allocation says


class Ours:
    """Our answers for a case."""

    def __init__(self, case: Case) -> None:
        self.classes = {c["metadata"]["name"]: c for c in case.classes}
        self.matcher = DeviceMatcher(self.classes)
        self.slices = Slices(read_slices(case.slices))
        self.labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in case.nodes}
        self.allocated = AllocatedDevices()
        for one in case.earlier:
            if "status" in one:
                self.allocated.add(one["status"]["allocation"])

    def answer(self, node: str, objects: Sequence[Json]) -> Answer:
        try:
            claims = [read_claim(one) for one in objects]
            found = self.search(node, claims)
        except ClaimError as error:
            return error
        if isinstance(found, NotAllocated):
            return found
        return [
            allocation(claim, given, node=node, classes=self.classes)
            for claim, given in zip(claims, found.claims, strict=True)
        ]

    def search(self, node: str, claims: Sequence[Claim]) -> Allocated | NotAllocated:
        return allocate(
            claims,
            node=node,
            labels=self.labels[node],
            pools=self.slices.pools(node, self.labels[node]),
            matcher=self.matcher,
            allocated=self.allocated,
        )


def generate(number: int) -> Case:
    return _Maker(number).case()


class _Maker:
    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.number = number
        self.prefix = f"c{number}"
        self.driver = f"{self.prefix}.example.com"
        self.other_driver = f"{self.prefix}-nic.example.com"
        self.kind = self.random.choice(
            ["plain"] * 5 + ["counters", "counters", "shared", "shared", "mixed", "everywhere"]
        )

    def chance(self, of_one: float) -> bool:
        return self.random.random() < of_one

    def case(self) -> Case:
        nodes = self._nodes()
        case = Case(
            number=self.number,
            namespace=ADMIN_NAMESPACE if self.chance(0.12) else "default",
            nodes=nodes,
            classes=self._classes(),
            slices=[],
            earlier=[],
            claims=[],
        )
        for node in nodes:
            case.slices += self._slices(node["metadata"]["name"])
        if self.chance(0.2):
            case.slices += self._shared_slices()
        ours = Ours(case)
        for at in range(self.random.choice([0, 0, 1, 2, 3])):
            claim = self._claim(f"{self.prefix}-earlier-{at}", case.namespace, small=True)
            answer = ours.answer(self.random.choice(case.node_names), [claim])
            if isinstance(answer, list):
                claim["status"] = {"allocation": answer[0]}
                ours.allocated.add(answer[0])
                case.earlier.append(claim)
        for at in range(self.random.choice([1, 1, 1, 1, 1, 2, 2, 3])):
            case.claims.append(self._claim(f"{self.prefix}-{at}", case.namespace))
        return case

    def _nodes(self) -> list[Json]:
        return [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"{self.prefix}-n{at}",
                    "labels": {"case": self.prefix, "rack": str(at), "rank": str(at * 5)},
                },
            }
            for at in range(self.random.choice([1, 1, 1, 2]))
        ]

    # Devices.

    def _slices(self, node: str) -> list[Json]:
        driver = self.driver
        count = self.random.choice([1, 2, 3, 4, 6, 8, 8, 8])
        devices = [self._device(at, driver) for at in range(count)]
        counted: list[Json] = []
        if self.kind in ("counters", "mixed"):
            counted = self._counters(devices)
        return self._pool(node, driver, devices, counted) + (
            self._pool(node, self.other_driver, [self._device(0, self.other_driver)], [])
            if self.chance(0.2)
            else []
        )

    def _pool(self, node: str, driver: str, devices: list[Json], counted: list[Json]) -> list[Json]:
        parts = [devices]
        if len(devices) > 1 and self.chance(0.35):
            cut = self.random.randrange(1, len(devices))
            parts = [devices[:cut], devices[cut:]]
        if len(parts) == 2 and self.chance(0.08):
            parts[1][0] = {**parts[1][0], "name": parts[0][0]["name"]}  # invalid: one name twice
        generation = self.random.choice([1, 1, 7])
        slices = [
            self._slice(f"{node}-{driver.split('.')[0]}-{at}", node, driver, generation, part)
            for at, part in enumerate(parts)
        ]
        if counted:
            extra = self._slice(f"{node}-{driver.split('.')[0]}-z", node, driver, generation, [])
            del extra["spec"]["devices"]
            extra["spec"]["sharedCounters"] = counted
            slices.append(extra)
        for one in slices:
            one["spec"]["pool"]["resourceSliceCount"] = len(slices)
        corner = self.random.random()
        if corner < 0.05:  # half of it is missing
            for one in slices:
                one["spec"]["pool"]["resourceSliceCount"] += 1
        elif corner < 0.11:  # an older generation is still there
            old = self._slice(
                f"{node}-{driver.split('.')[0]}-old",
                node,
                driver,
                generation - 1,
                [self._device(20, driver)],
            )
            old["spec"]["pool"]["resourceSliceCount"] = 1
            slices.append(old)
        return slices

    def _slice(
        self, name: str, node: str, driver: str, generation: int, devices: list[Json]
    ) -> Json:
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
                "devices": devices,
            },
        }

    def _shared_slices(self) -> list[Json]:
        """A pool that several nodes reach, or whose devices say so each for itself."""
        driver, name = f"{self.prefix}-fabric.example.com", f"{self.prefix}-fabric"
        devices = [self._device(at, driver) for at in range(self.random.choice([1, 2, 3]))]
        one = self._slice(name, "", driver, 1, devices)
        spec = one["spec"]
        del spec["nodeName"]
        spec["pool"]["name"] = name
        rack = {"key": "rack", "operator": self.random.choice(["In", "NotIn"]), "values": ["0"]}
        mine = {"key": "case", "operator": "In", "values": [self.prefix]}
        rank = {"key": "rank", "operator": self.random.choice(["Gt", "Lt"]), "values": ["3"]}
        expressions = [mine, self.random.choice([rack, rank])]
        selector = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        match self.random.choice(["selector", "each", "everywhere"]):
            case "selector":
                spec["nodeSelector"] = selector
            case "everywhere":
                spec["allNodes"] = True
            case "each":
                spec["perDeviceNodeSelection"] = True
                for device in devices:
                    if self.chance(0.4):
                        device["nodeName"] = f"{self.prefix}-n{self.random.randrange(2)}"
                    elif self.chance(0.5):
                        device["nodeSelector"] = selector
                    else:
                        device["allNodes"] = True
        return [one]

    def _device(self, at: int, driver: str) -> Json:
        pick = self.random.choice
        attributes: Json = {"index": {"int": at}}
        if self.chance(0.92):
            attributes["numa"] = {"int": pick([0, 0, 1])}
        if self.chance(0.85):
            attributes[f"{OURS}/link"] = {"string": pick(["a", "a", "b"])}
        if self.chance(0.85):
            attributes[f"{OURS}/width"] = {"int": pick([16, 16, 4])}
        if self.chance(0.7):
            attributes["version"] = {"version": pick(["1.2.3", "1.2.3-rc.1", "2.0.0+b7"])}
        if self.chance(0.5):
            attributes["fast"] = {"bool": self.chance(0.6)}
        if self.chance(0.04):
            attributes["numa"] = {"string": "0"}  # another type under the same name
        device: Json = {
            "name": f"dev-{at}",
            "attributes": attributes,
            "capacity": {"memory": {"value": pick(["80Gi", "40Gi", "40Gi"])}},
        }
        if self.kind in ("shared", "mixed") and self.chance(0.75):
            device["allowMultipleAllocations"] = True
            self._policies(device["capacity"])
        if self.chance(0.1):
            device["taints"] = [
                {
                    "key": pick(["sick.example.com", "hot.example.com"]),
                    "value": pick(["yes", "no"]),
                    "effect": pick(["NoSchedule", "NoExecute", "None"]),
                }
            ]
        return device

    def _policies(self, capacity: Json) -> None:
        match self.random.choice(["range", "step", "values", "fraction", "none"]):
            case "range":
                policy: Json = {"default": "10Gi", "validRange": {"min": "5Gi", "max": "30Gi"}}
            case "step":
                bounds = {"min": "5Gi", "max": "35Gi", "step": "5Gi"}
                policy = {"default": "5Gi", "validRange": bounds}
            case "values":
                policy = {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}
            case "fraction":
                capacity["share"] = {
                    "value": "1",
                    "requestPolicy": {
                        "default": "500m",
                        "validRange": {"min": "100m", "max": "1", "step": "100m"},
                    },
                }
                policy = {"default": "10Gi"}
            case _:
                return
        capacity["memory"]["requestPolicy"] = policy

    def _counters(self, devices: list[Json]) -> list[Json]:
        """Whole cards and parts of them, as a card that can be cut is published."""
        counts = {"slices": {"value": "4"}, "memory": {"value": "40Gi"}}
        cards = self.random.choice([1, 2])
        sets = [{"name": f"card-{card}", "counters": counts} for card in range(cards)]
        for device in devices:
            if self.chance(0.1):
                continue
            part = self.random.choice([1, 1, 2, 4])
            device["consumesCounters"] = [
                {
                    "counterSet": self.random.choice(sets)["name"],
                    "counters": {
                        "slices": {"value": str(part)},
                        "memory": {"value": f"{10 * part}Gi"},
                    },
                }
            ]
        return sets

    # Claims.

    def _classes(self) -> list[Json]:
        mine = f'device.driver.startsWith("{self.prefix}.") || device.driver.startsWith("{self.prefix}-")'  # noqa: E501
        expressions = {
            "any": [mine],
            "gpu": [mine, f'device.driver == "{self.driver}"'],
            "wide": [
                mine,
                f'"width" in device.attributes["{OURS}"] && '
                f'device.attributes["{OURS}"].width == 16',
            ],
        }
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": f"{self.prefix}-{name}"},
                "spec": {
                    "selectors": [{"cel": {"expression": one}} for one in found],
                    **(
                        {"config": [{"opaque": {"driver": self.driver, "parameters": {"a": name}}}]}
                        if self.chance(0.2)
                        else {}
                    ),
                },
            }
            for name, found in expressions.items()
        ]

    def _claim(self, name: str, namespace: str, *, small: bool = False) -> Json:
        requests = [
            self._request(f"r{at}", namespace, small=small)
            for at in range(1 if small else self.random.choice([1, 1, 1, 2, 2, 3]))
        ]
        devices: Json = {"requests": requests}
        constraints = [] if small else self._constraints(requests)
        if constraints:
            devices["constraints"] = constraints
        if self.chance(0.15):
            chosen = self.random.choice([[], ["r0"]])
            devices["config"] = [
                {
                    **({"requests": chosen} if chosen else {}),
                    "opaque": {"driver": self.driver, "parameters": {"b": 1}},
                }
            ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": devices},
        }

    def _request(self, name: str, namespace: str, *, small: bool) -> Json:
        if not small and self.chance(0.22):
            choices = [
                {"name": f"s{at}", **self._exact(small=False)}
                for at in range(self.random.choice([1, 2, 3]))
            ]
            return {"name": name, "firstAvailable": choices}
        exactly = self._exact(small=small)
        if namespace == ADMIN_NAMESPACE and self.chance(0.5):
            exactly["adminAccess"] = True
        return {"name": name, "exactly": exactly}

    def _exact(self, *, small: bool) -> Json:
        pick = self.random.choice
        made: Json = {"deviceClassName": f"{self.prefix}-{pick(['any', 'gpu', 'gpu', 'wide'])}"}
        if not small and self.chance(0.12):
            made["allocationMode"] = "All"
        else:
            made["allocationMode"] = "ExactCount"
            made["count"] = pick([1, 1, 1, 2]) if small else self._count()
        if self.chance(0.42):
            made["selectors"] = [
                {"cel": {"expression": self._selector()}} for _ in range(pick([1, 1, 2]))
            ]
        if self.chance(0.3):
            toleration: Json = {"operator": pick(["Exists", "Equal"])}
            if toleration["operator"] == "Equal" or self.chance(0.6):
                toleration["key"] = pick(["sick.example.com", "hot.example.com"])
            if toleration["operator"] == "Equal":
                toleration["value"] = "yes"
            if self.chance(0.3):
                toleration["effect"] = pick(["NoSchedule", "NoExecute"])
            made["tolerations"] = [toleration]
        if self.kind in ("shared", "mixed") and self.chance(0.55):
            asked = {"memory": pick(["1Gi", "7Gi", "10Gi", "12Gi", "20Gi", "33Gi", "90Gi"])}
            if self.chance(0.2):
                asked = {"share": pick(["100m", "250m", "1", "2"])}
            made["capacity"] = {"requests": asked}
        return made

    def _count(self) -> int:
        if self.chance(0.02):
            return 33  # more than a claim may have
        return self.random.choice([1, 1, 1, 1, 2, 2, 2, 3, 4])

    def _selector(self) -> str:
        mine, ours = f'device.attributes["{self.driver}"]', f'device.attributes["{OURS}"]'
        return self.random.choice(
            [
                f"has({mine}.numa) && {mine}.numa == 0",
                f"{mine}.index < 4",
                f"{mine}.numa == 0",  # fails where it is not said
                f'"width" in {ours} && {ours}.width == 16',
                f"{ours}.width >= 8",
                f'{ours}.?link.orValue("") == "a"',
                f'has({mine}.version) && {mine}.version.isGreaterThan(semver("1.2.3-rc.0"))',
                f'has({mine}.version) && {mine}.version == semver("2.0.0")',
                f'device.capacity["{self.driver}"].memory.compareTo(quantity("50Gi")) < 0',
                f'device.capacity["{self.driver}"].memory.isGreaterThan(quantity("40Gi"))',
                "device.allowMultipleAllocations == false",
                f'"{OURS}" in device.attributes',
                f'"{self.prefix}.nowhere" in device.attributes',
                f"cel.bind(a, {mine}, a.index % 2 == 0)",
                f'device.driver.endsWith("example.com") && {mine}.index in [0, 1, 2, 5]',
                f"{mine}.fast",  # of the type it happens to have
                self.random.choice(
                    ['device.attributes["pcie"].linkWidth == 16', f"{mine}.index >= 0"]  # fails
                ),
                f'{ours}.exists(name, name == "link")',
                f'!("link" in {ours}) || {ours}.link.matches("^[ab]$")',
            ]
        )

    def _constraints(self, requests: list[Json]) -> list[Json]:
        found = []
        while self.chance(0.3):
            names = [request["name"] for request in requests]
            for request in requests:
                if "firstAvailable" in request and self.chance(0.5):
                    names[names.index(request["name"])] = f"{request['name']}/s0"
            chosen = self.random.choice([[], names[:1], names])
            attribute = self.random.choice(
                [f"{OURS}/link", f"{OURS}/width", f"{self.driver}/numa", f"{self.driver}/version"]
            )
            kind = "matchAttribute"
            if self.chance(0.3):
                kind = "distinctAttribute"
                attribute = self.random.choice([attribute, f"{self.driver}/index"])
            found.append({**({"requests": chosen} if chosen else {}), kind: attribute})
        return found
