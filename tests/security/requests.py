"""
Requests drawn by schema: objects of every kind that a plane serves, right in most fields and
wrong in a few, and the same for the exchange's own routes.

Everything follows from the random generator that is passed in, so that a seed repeats a run.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import yaml

from bidplane.wire import resources
from bidplane.wire.resources import Resource
from bidplane.wire.schema import shapes
from bidplane.wire.schema.shapes import SchemaNode

TESTS = Path(__file__).parents[1]
SAMPLES: list[dict[str, Any]] = [
    document
    for file in ("plane/kinds.yaml", "wire/protobuf_samples.yaml", "security/samples.yaml")
    for document in yaml.safe_load_all((TESTS / file).read_text())
    if document
]
NAMES = ("a", "b", "c", "default", "x.y", "A_", "", "a" * 260, "..", "%2e%2e", "é", "²", "\x00")
TEXTS = (
    *("", "a", "A", "²", "é", "\x00", "\ud800", "a" * 300, "..", "../..", "/", "%", "{}", "$(A)"),
    *("1", "-1", "0", "1e99999", "1e-99999", "1Ei", "100m", "1.5Gi", ".", "-", "+1", "1_000", "٣"),
    *("true", "null", "NaN", "Infinity", "0x10", "9" * 400, "1.2.3.4", "::1", "10.0.0.0/33"),
    *(
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999999Z",
        "2024-02-30T00:00:00Z",
        "5m",
        "-5s",
    ),
    *("2024-01-01T00:00:00+99:99", "* * * * *", "*/0 * * * *", "0 0 31 2 *", "CRON_TZ=x * * * * *"),
    *("metadata.name", "self.x", "self.all(x, x > 1)", "(a+)+$", "[", "(?P<a>", "a in (b)", "!"),
    *(
        "1" * 5000,
        "@every " + "9" * 300 + "h",
        "@every 1h",
        "0." + "0" * 900 + "1",
        "1e1000",
        "a=b",
        "a!=",
        "a in ()",
        "metadata.name=a",
        "=",
        ",",
        "kubernetes.io/x",
        "/x",
        "x/",
        "Exists",
    ),
)
NUMBERS = (0, 1, -1, 2, 10, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63))
ODD: tuple[Any, ...] = (
    *(None, True, False, [], {}, [None], [[]], {"": None}, {"a": None}, [{}], ["a"], {"a": {}}),
    *(1.5, -0.0, 1e308, 2**64, 2**70, -(2**70), *NUMBERS),
    *TEXTS,
)
# Tokens of a list that goes on: of this revision, of none, of no list at all.
POSITIONS: tuple[Any, ...] = (
    *([1, "default", "a"], [9, "", ""], [-1, "", ""], [2**63, "", "\x00"], [2**70, "", ""]),
    *([1], {}, "a", [1, 2, 3], [[[]]], [1.5, "", ""]),
)
TOKENS = tuple(
    base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")
    for position in POSITIONS
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get")
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
ACCEPTS = (
    "application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "*/*;q=x",
    "é",
)
PARAMETERS = (
    *("limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "force"),
    *("fieldSelector", "dryRun", "fieldManager", "fieldValidation", "gracePeriodSeconds"),
    *("propagationPolicy", "timeoutSeconds", "sendInitialEvents", "allowWatchBookmarks"),
    *("includeObject", "pretty", "container", "tailLines", "sinceSeconds", "sinceTime", "follow"),
    *(
        "limitBytes",
        "previous",
        "timestamps",
        "command",
        "stdin",
        "ports",
        "path",
        "orphanDependents",
    ),
)
PLAUSIBLE = {
    "dryRun": ("All",),
    "fieldValidation": ("Strict", "Warn", "Ignore"),
    "propagationPolicy": ("Orphan", "Foreground", "Background"),
    "resourceVersionMatch": ("Exact", "NotOlderThan"),
    "includeObject": ("None", "Object", "Metadata"),
    "fieldManager": ("fuzz",),
    "force": ("true", "false"),
    "limit": ("1", "2"),
    "continue": TOKENS,
}


class Request(NamedTuple):
    method: str
    path: str  # below the plane, or below the exchange's prefix
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.path}?{self.query} {dict(self.headers)} {self.body[:2000]!r}"


class Fuzzer:
    """Draws requests to a plane; `custom` are the plane's custom resources."""

    def __init__(self, dice: random.Random, custom: Sequence[Resource] = ()) -> None:
        self.dice = dice
        self.resources = [*resources.builtin().values(), *custom]
        self._samples: dict[str, list[dict[str, Any]]] = {}
        for sample in SAMPLES:
            self._samples.setdefault(f"{sample['apiVersion']}/{sample['kind']}", []).append(sample)
        # Most requests are about a few kinds, so that objects are there to be read and changed.
        sampled = [one for one in self.resources if self._kind(one) in self._samples]
        self._favourites = [*dice.sample(sampled, 8), *custom]

    @staticmethod
    def _kind(resource: Resource) -> str:
        return f"{resource.api_version}/{resource.kind}"

    def first(self) -> Iterator[Request]:
        """Requests that make an object or two of each favourite kind."""
        for resource in self._favourites:
            for sample in self._samples.get(self._kind(resource), []):
                for name in NAMES[:2]:
                    made = copy.deepcopy(sample)
                    made["metadata"]["name"] = name
                    made["metadata"].pop("namespace", None)
                    path = self.path(resource, named=True, subresource="").rpartition("/")[0]
                    headers = ((b"content-type", b"application/json"),)
                    yield Request("POST", path, "", headers, json.dumps(made).encode())

    # Values.

    def value(self, shape: SchemaNode, depth: int = 0) -> Any:
        """A value of `shape`, in one of twelve cases something else."""
        dice = self.dice
        if dice.random() < 0.08:
            return copy.deepcopy(dice.choice(ODD))
        if shape.enum:
            return dice.choice(shape.enum)
        match shape.kind:
            case shapes.OBJECT if shape.values is not None:
                return {
                    dice.choice(TEXTS): self.value(shape.values, depth + 1)
                    for _ in range(dice.randrange(3))
                }
            case shapes.OBJECT:
                return self.fields(shape, depth)
            case shapes.ARRAY:
                items = shape.items or SchemaNode()
                return [self.value(items, depth + 1) for _ in range(dice.choice((0, 1, 1, 2)))]
            case shapes.INTEGER:
                return dice.choice(NUMBERS)
            case shapes.BOOLEAN:
                return dice.random() < 0.5
            case shapes.ANY:
                return copy.deepcopy(dice.choice(ODD))
            case _:
                return dice.choice(TEXTS)

    def fields(self, shape: SchemaNode, depth: int) -> dict[str, Any]:
        names = list(shape.fields)
        if depth > 6:
            names = [name for name in names if name in shape.required]
        chosen = {name for name in shape.required if name in shape.fields}
        if names:
            chosen |= set(self.dice.sample(names, min(len(names), self.dice.randrange(4))))
        return {name: self.value(shape.fields[name], depth + 1) for name in sorted(chosen)}

    def object(self, resource: Resource) -> Any:
        """An object of a kind: a sample with some changes, or one made up by its schema."""
        samples = self._samples.get(self._kind(resource), [])
        shape = resources.shape(resource)
        if samples and self.dice.random() < 0.7:
            made = copy.deepcopy(self.dice.choice(samples))
        else:
            made = self.fields(shape, 0)
            made["metadata"] = {"name": self.name()}
        if self.dice.random() < 0.7 and isinstance(made.get("metadata"), dict):
            made["metadata"]["name"] = self.name()
            made["metadata"].pop("namespace", None)
        for _ in range(self.dice.choice((0, 1, 1, 2, 4))):
            self.change(made, shape)
        return made

    def change(self, value: Any, shape: SchemaNode) -> None:
        """Change something somewhere in `value`: a field goes, comes, or is something else."""
        dice = self.dice
        while True:
            if isinstance(value, dict):
                known = list(shape.fields)
                if not value or (known and dice.random() < 0.15):
                    if known:
                        name = dice.choice(known)
                        value[name] = self.value(shape.fields[name], 3)
                    return
                at: Any = dice.choice(sorted(value, key=str))
                below = shape.fields.get(at) or shape.values or SchemaNode()
            elif isinstance(value, list) and value:
                at = dice.randrange(len(value))
                below = shape.items or SchemaNode()
            else:
                return
            if isinstance(value[at], dict | list) and dice.random() < 0.75:
                value, shape = value[at], below
                continue
            if dice.random() < 0.2:
                del value[at]
            elif dice.random() < 0.5:
                value[at] = self.value(below, 3)
            else:
                value[at] = copy.deepcopy(dice.choice(ODD))
            return

    # Requests.

    def name(self) -> str:
        return self.dice.choice(NAMES[:3]) if self.dice.random() < 0.9 else self.dice.choice(NAMES)

    def draw(self) -> Request:
        dice = self.dice
        resource = dice.choice(self._favourites if dice.random() < 0.85 else self.resources)
        method = dice.choice(METHODS[:5]) if dice.random() < 0.97 else dice.choice(METHODS)
        named = method in ("PUT", "PATCH", "DELETE") or (method != "POST" and dice.random() < 0.5)
        if dice.random() < 0.03:
            named = not named
        subresource = ""
        if resource.subresources and dice.random() < 0.2:
            subresource, named = dice.choice(sorted(resource.subresources)), True
        path = self.path(resource, named=named, subresource=subresource)
        media, body = self.body(method, resource, subresource)
        accept = dice.choice(ACCEPTS[:4] if dice.random() < 0.97 else ACCEPTS)
        headers = [(b"accept", accept.encode())]
        if body or dice.random() < 0.1:
            headers.append((b"content-type", media.encode()))
        return Request(method, path, self.query(method, media), tuple(headers), body)

    def path(self, resource: Resource, *, named: bool, subresource: str) -> str:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        parts = [f"{root}/{resource.version}"]
        if resource.namespaced and (named or self.dice.random() < 0.8):
            space = "default" if self.dice.random() < 0.95 else quote(self.name(), safe="")
            parts.append(f"namespaces/{space}")
        parts.append(resource.plural)
        if named:
            parts.append(quote(self.name(), safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def query(self, method: str, media: str) -> str:
        dice = self.dice
        pairs = []
        if media == PATCHES[3]:
            pairs.append(("fieldManager", "fuzz"))
        if method in ("GET", "HEAD") and dice.random() < 0.1:
            # A watch that is not told to end goes on: the driver of the requests hangs up.
            pairs += [("watch", "true")]
        for _ in range(dice.choice((0, 0, 0, 1, 2))):
            name = dice.choice(PARAMETERS)
            values = PLAUSIBLE.get(name, TEXTS) if dice.random() < 0.6 else TEXTS
            pairs.append((name, dice.choice(values)))
        return "&".join(
            f"{name}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}"
            for name, value in pairs
        )

    def body(self, method: str, resource: Resource, subresource: str) -> tuple[str, bytes]:
        dice = self.dice
        if method == "DELETE":
            if dice.random() < 0.5:
                return "application/json", b""
            shape = shapes.builtin("v1", "DeleteOptions")
            assert shape is not None
            return "application/json", self.written(self.value(shape))
        if method not in ("POST", "PUT", "PATCH"):
            return "application/json", b""
        if method == "PATCH":
            return self.patch(resource)
        sub = resource.subresources.get(subresource)
        shape = None
        if sub is not None and sub.kind != resource.kind:
            version = f"{sub.group}/{sub.version}" if sub.group else sub.version
            shape = shapes.builtin(version, sub.kind)
        made = self.object(resource) if shape is None else self.value(shape)
        media = "application/json"
        if dice.random() < 0.05:
            media = dice.choice(("application/yaml", "application/vnd.kubernetes.protobuf", "é/x"))
        return media, self.written(made)

    def patch(self, resource: Resource) -> tuple[str, bytes]:
        dice = self.dice
        media = dice.choice(PATCHES)
        if media == PATCHES[0]:
            return media, self.written([self.operation() for _ in range(dice.choice((0, 1, 1, 3)))])
        made = self.object(resource)
        if media == PATCHES[2] and isinstance(made, dict) and dice.random() < 0.4:
            self.directive(made)
        return media, self.written(made)

    def operation(self) -> Any:
        dice = self.dice
        places = ("", "/", "/metadata", "/metadata/labels", "/metadata/labels/a", "/spec", "/-")
        more = ("/spec/containers/0", "/spec/containers/-", "/data/a", "/status", "/metadata/name")
        made: dict[str, Any] = {
            "op": dice.choice(("add", "remove", "replace", "move", "copy", "test")),
            "path": dice.choice(places + more + TEXTS),
            "from": dice.choice(places + more),
            "value": copy.deepcopy(dice.choice(ODD)),
        }
        if dice.random() < 0.3:
            made[dice.choice(sorted(made))] = copy.deepcopy(dice.choice(ODD))
        if dice.random() < 0.2:
            del made[dice.choice(sorted(made))]
        return made if dice.random() < 0.97 else dice.choice(ODD)

    def directive(self, value: Any) -> None:
        """Put a directive of strategic merge somewhere."""
        dice = self.dice
        while isinstance(value, dict | list):
            parts = value.values() if isinstance(value, dict) else value
            below = [item for item in parts if isinstance(item, dict | list)]
            if below and dice.random() < 0.7:
                value = dice.choice(below)
                continue
            known = (
                "$patch",
                "$retainKeys",
                "$setElementOrder/containers",
                "$deleteFromPrimitiveList/a",
            )
            entry = {dice.choice(known): dice.choice(("delete", "replace", "merge", *ODD))}
            if isinstance(value, dict):
                value.update(copy.deepcopy(entry))
            else:
                value.append(copy.deepcopy(entry))
            return

    def written(self, value: Any) -> bytes:
        """JSON of `value`, once in a while not quite."""
        dice = self.dice
        text = json.dumps(value).encode()
        roll = dice.random()
        if roll < 0.01:
            return b'{"metadata":{"name":"a"},"x":' + b"[" * 900 + b"]" * 900 + b"}"
        if roll < 0.015:
            return b'{"spec":' * 900 + text + b"}" * 900
        if roll < 0.03:
            at = dice.randrange(len(text))
            return text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :]
        if roll < 0.035:
            return text[: dice.randrange(len(text))]
        return text


class ExchangeFuzzer(Fuzzer):
    """Draws requests to the exchange: its routes with numbers, names and bodies that may be odd."""

    ROUTES = (
        *("prices", "prices/{}/history", "orders", "rounds", "rounds", "rounds/{}"),
        *("bids/{}/explain", "rounds", "orders"),
        *("leases", "wallets/{}", "wallets/{}/statement", "wallets/{}/fund", "wallets/{}/transfer"),
        *("healthz", "{}", "wallets", "{}/{}/{}"),
    )
    WORDS = ("trainer", "chat", "b1", "h100", "1", "2", "0", "-1", *TEXTS)
    BODY = ("amount", "key", "memo", "to", "pool", "max_price", "maxPrice", "share")

    def draw(self) -> Request:
        dice = self.dice
        path = dice.choice(self.ROUTES)
        while "{}" in path:
            word = dice.choice(self.WORDS).encode("utf-8", "surrogatepass")
            path = path.replace("{}", quote(word, safe=""), 1)
        method = dice.choice(("GET", "GET", "POST", "POST", *METHODS))
        query = ""
        if dice.random() < 0.4:
            name = dice.choice(("after", "after", "after", "follow", "limit", "seconds"))
            value = dice.choice(self.WORDS).encode("utf-8", "surrogatepass")
            query = f"{name}={quote(value, safe='')}"
        if dice.random() < 0.02:
            query = "after=%ff\xff"
        body = b""
        if method != "GET":
            body = self.written(
                {
                    name: dice.choice((*self.WORDS, *ODD))
                    for name in self.BODY
                    if dice.random() < 0.8
                }
                if dice.random() < 0.95
                else dice.choice(ODD)
            )
        return Request(method, path, query, ((b"content-type", b"application/json"),), body)


def decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
