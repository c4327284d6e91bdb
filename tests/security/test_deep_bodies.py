"""A small request that is nested deep is refused; it does not end the process that reads it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import pytest

from bidplane.errors import ApiError
from bidplane.plane.http.message import decode
from bidplane.wire import depth, yaml
from bidplane.wire.patches.jsonpatch import json_patch

DEEP = {
    "yaml sequences": b"[" * 40_000,
    "yaml mappings": b"{a: " * 40_000,
    "yaml blocks": b"".join(b" " * n + b"a:\n" for n in range(1_300)),
    "yaml dashes": b"- " * 40_000 + b"a",
    "json lists": b'{"a":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "json objects": b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
    "a chain of aliases": b"a0: &a0 x\n"
    + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 5_000)),
    "a billion laughs": b"a0: &a0 x\n"
    + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
    ),
}
# In a process of its own: what is tried is whether it survives.
READS = """
import sys
from bidplane.wire import yaml
from bidplane.errors import ApiError
try:
    yaml.load(sys.stdin.buffer.read())
except ApiError as error:
    print(error.code)
"""


@pytest.mark.parametrize("name", DEEP)
def test_deep_yaml_is_refused_and_ends_nothing(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS], input=DEEP[name], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"400\n"), done.stderr.decode()[-500:]


# What the plane's HTTP layer does with a body, by its media type.
DECODES = """
import sys
from bidplane.plane.http.message import decode
from bidplane.errors import ApiError
try:
    decode(sys.stdin.buffer.read(), sys.argv[1])
except ApiError as error:
    print(error.code)
"""


def _wrapped(number: int, inner: bytes) -> bytes:
    """One protobuf field of bytes."""
    size, length = len(inner), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + inner


def _unknown(kind: bytes, raw: bytes) -> bytes:
    return b"k8s\x00" + _wrapped(1, _wrapped(1, b"v1") + _wrapped(2, kind)) + _wrapped(2, raw)


def _deep_list() -> bytes:
    """A List whose item is a List, whose item is a List, …"""
    body = _unknown(b"ConfigMap", b"")
    for _ in range(2_000):
        body = _unknown(b"List", _wrapped(2, _wrapped(1, body)))
    return body


BODIES = {
    "json lists": (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "application/json"),
    "json objects": (b'{"a":' * 129 + b"1" + b"}" * 129, "application/json"),
    "far too deep json": (b"[" * 1_000_000 + b"]" * 1_000_000, "application/json"),
    "yaml": (b"[" * 40_000, "application/yaml"),
    "json in yaml": (b'{"a":' * 900 + b"1" + b"}" * 900, "application/yaml"),
    "protobuf": (_deep_list(), "application/vnd.kubernetes.protobuf"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_deep_body_is_refused_and_ends_nothing(name: str) -> None:
    body, media = BODIES[name]
    done = subprocess.run(
        [sys.executable, "-c", DECODES, media], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"400\n"), done.stderr.decode()[-500:]


COSTLY = {
    "a number in base 60": b"a: 1" + b":59" * 1_000_000,
    "the same, by its tag": b'a: !!int "1' + b":59" * 1_000_000 + b'"',
    "a fraction in base 60": b"a: 1" + b":59" * 1_000_000 + b".5",
    "digits": b"a: " + b"9" * 3_000_000,
    "hexadecimal digits": b"a: 0x" + b"f" * 3_000_000,
    "digits after a point": b"a: 1." + b"9" * 3_000_000,
    "many keys": b"".join(b"k%d: b\n" % n for n in range(240_000)),
    "many items": b"[" + b"a," * 1_500_000 + b"]",
    "many merges": b"w: &w {"
    + b",".join(b"k%d: 1" % n for n in range(900))
    + b"}\n".join(b"m%d: {<<: *w}\n" % n for n in range(900)),
}


@pytest.mark.parametrize("name", COSTLY)
def test_yaml_of_three_megabytes_holds_the_server_for_less_than_a_second(name: str) -> None:
    before = time.thread_time()
    with contextlib.suppress(ApiError):
        decode(COSTLY[name], "application/yaml")
    assert time.thread_time() - before < 1


def test_yaml_numbers_are_those_of_kubernetes() -> None:
    text = b"{a: 10, b: -0x1f, c: 0o17, d: 017, e: 1.5, f: 1_000, g: 1:30, h: 2026-11-18, i: 0b11}"
    numbers = {"a": 10, "b": -31, "d": 15, "e": 1.5, "f": 1000, "i": 3}
    assert yaml.load(b" " + text) == numbers | {"c": "0o17", "g": "1:30", "h": "2026-11-18"}


def test_what_objects_have_is_not_too_deep() -> None:
    assert decode(b'{"a":' * 128 + b"1" + b"}" * 128, "application/json")
    assert decode(b"[" * 128 + b"]" * 128, "application/yaml")


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "add", "path": "/a" * n, "value": {}} for n in range(1, 300)],
        [{"op": "copy", "from": "/b", "path": "/b" + "/a" * 40 + str(n)} for n in range(9)],
        [{"op": "add", "path": f"/{n}", "value": {}} for n in range(200)]
        + [{"op": "move", "from": f"/{n}", "path": f"/{n + 1}/x"} for n in range(199)],
    ],
    ids=["add", "copy", "move"],
)
def test_a_patch_makes_nothing_deep(operations: list[dict[str, Any]]) -> None:
    inner: Any = {}
    for _ in range(40):
        inner = {"a": inner}
    with pytest.raises(ApiError):
        depth.check(json_patch({"b": inner}, operations))


def test_many_moves_in_a_deep_document_are_refused_soon() -> None:
    """Each could make the server walk through the whole document."""
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    target = {"deep": deep, "wide": list(range(100_000)), "b": 1}
    there = "/deep" + "/a" * 100 + "/b"
    moves = [
        {"op": "move", "from": "/b", "path": there},
        {"op": "move", "from": there, "path": "/b"},
    ]
    before = time.thread_time()
    with pytest.raises(ApiError):
        json_patch(target, moves * 5_000)
    assert time.thread_time() - before < 2
