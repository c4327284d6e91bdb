"""Selectors of devices: upstream's maps, Kubernetes' functions, answers that are remembered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.cel.functions import quantity, semver
from bidplane.core.devices.claims import ClaimError, read_slices
from bidplane.core.devices.claims.model import DeviceRequest
from bidplane.core.devices.claims.selecting import DeviceMatcher
from core.devices.claims.cases import generate

ATTRIBUTES = {"x": {"n": 4, "s": "a", "b": True, "l": [1, 2], "v": semver("1.2.3")}}
CAPACITY = {"x": {"memory": quantity("40Gi")}}


def ask(source: str) -> bool:
    return cel.compile(source).matches("x", False, ATTRIBUTES, CAPACITY)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('device.attributes["x"].n > 3', True),
        ("device.attributes[device.driver].n in [4, 5]", True),
        ('"pcie" in device.attributes', False),
        ('has(device.attributes["pcie"].width)', False),
        ('!("pcie" in device.attributes) || device.attributes["pcie"].width == 16', True),
        ("device.attributes.exists(d, d == 'x') && size(device.attributes) == 1", True),
        ('device.attributes["x"].v.isGreaterThan(semver("1.2.3-rc.1"))', True),
        ('device.attributes["x"].v == semver("1.2.3+build")', True),
        ('device.attributes["x"].v.major() == 1 && semver("v1.2", true).minor() == 2', True),
        ('isSemver("1.2") || isSemver("01.2.3")', False),
        ('device.capacity["x"].memory.compareTo(quantity("40960Mi")) == 0', True),
        ('device.capacity["x"].memory.isLessThan(quantity("40Gi"))', False),
        ('device.attributes["x"].l.includes(1) && !device.attributes["x"].l.includes(3)', True),
        ('sets.contains(device.attributes["x"].l, [2]) && sets.intersects([1], [1, 9])', True),
        ('cel.bind(a, device.attributes["x"], a.n == 4 && a.b)', True),
        ('cidr("10.0.0.0/8").containsIP(ip("10.1.2.3")) && !isIP("10.1.2")', True),
        ('url("https://host:80/path?a=b").getPort() == "80"', True),
        ("device.allowMultipleAllocations", False),
        ('device.attributes["x"].s.matches("^[ab]$") && "ab12".find("[0-9]+") == "12"', True),
    ],
)
def test_what_selectors_say(source: str, said: bool) -> None:
    assert ask(source) is said


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('device.attributes["pcie"].width == 16', "no such key: width"),
        ("device.nope == 1", "undefined field 'device.nope'"),
        ('device.attributes["x"].s', "true or false"),
        ('device.capacity["x"].memory.isGreaterThan(semver("1.0.0"))', "not a quantity"),
        ('semver("1.2") == semver("1.2.0")', "not a semantic version"),
        ("true || " * 1500 + "true", "longer than 10240 bytes"),
    ],
)
def test_a_failure_is_never_true(source: str, words: str) -> None:
    with pytest.raises(CelError, match=words):
        ask(source)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_a_remembered_answer_is_the_answer(seed: int) -> None:
    """Devices that are alike in what an expression mentions are asked once, all the same."""
    case = generate(seed)
    classes = {one["metadata"]["name"]: one for one in case.classes}
    shared = DeviceMatcher(classes)
    sources = {
        selector["cel"]["expression"]
        for claim in case.claims
        for request in claim["spec"]["devices"]["requests"]
        for exact in (request.get("exactly") or {}, *request.get("firstAvailable", ()))
        for selector in exact.get("selectors") or ()
    }
    for source in sorted(sources):
        request = DeviceRequest("r", "", f"c{seed}-any", False, 1, (source,), (), False, {})
        for slice_ in read_slices(case.slices):
            for device in slice_.devices:
                answers = []
                for matcher in (shared, DeviceMatcher(classes)):
                    try:
                        answers.append(str(matcher.selects("c", request, device)))
                    except ClaimError as error:
                        answers.append(str(error))
                assert answers[0] == answers[1]
