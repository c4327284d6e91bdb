"""
What is in a volume that is made from objects: ConfigMap, Secret, downward API, projected.

A volume is a map from relative paths to contents. Whoever writes it to disk swaps the
whole of it at once, so that a reader never sees half an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from bidplane.api.kinds import Object
from bidplane.core.pods.environment import (
    ConfigError,
    Facts,
    Sources,
    content,
    field,
    resource_field,
)
from bidplane.core.references import TokenWish, wish

_MODE = 0o644
MADE_FROM_OBJECTS = ("configMap", "secret", "downwardAPI", "projected")


class File(msgspec.Struct, frozen=True):
    content: bytes
    mode: int = _MODE


def files(
    pod: Object,
    volume: Object,
    sources: Sources,
    facts: Facts,
    tokens: Mapping[TokenWish, str],
) -> dict[str, File]:
    """Everything in a volume made from objects; raises `ConfigError` for what is missing."""
    found: dict[str, File] = {}
    if volume.get("projected"):
        spec = volume["projected"]
        mode = _mode(spec)
        for source in spec.get("sources") or ():
            found.update(_source(pod, source, mode, sources, facts, tokens))
    else:
        for kind in ("configMap", "secret", "downwardAPI"):
            if volume.get(kind):
                spec = volume[kind]
                found.update(_source(pod, {kind: spec}, _mode(spec), sources, facts, tokens))
    for path in found:
        if path.startswith("/") or ".." in path.split("/"):
            raise ConfigError(f"volume {volume['name']}: {path!r} is not a path inside it")
    return found


def _mode(spec: Object) -> int:
    mode = spec.get("defaultMode")
    return _MODE if mode is None else int(mode)


def _source(
    pod: Object,
    source: Object,
    mode: int,
    sources: Sources,
    facts: Facts,
    tokens: Mapping[TokenWish, str],
) -> Iterator[tuple[str, File]]:
    if source.get("configMap") is not None:
        yield from _keys(pod, source["configMap"], "configmap", sources.config_maps, mode)
    elif source.get("secret") is not None:
        yield from _keys(pod, source["secret"], "secret", sources.secrets, mode)
    elif source.get("downwardAPI") is not None:
        for item in source["downwardAPI"].get("items") or ():
            yield item["path"], File(_downward(pod, item, facts), _item_mode(item, mode))
    elif source.get("serviceAccountToken") is not None:
        token = source["serviceAccountToken"]
        # Only its owner may read it, whatever the volume says of its other files.
        yield token["path"], File(tokens[wish(token)].encode(), 0o600)
    else:
        raise ConfigError(f"a projected volume has {', '.join(source)}, unknown to this node")


def _downward(pod: Object, item: Object, facts: Facts) -> bytes:
    if item.get("fieldRef"):
        return field(pod, item["fieldRef"]["fieldPath"], facts).encode()
    return resource_field(pod, {}, item["resourceFieldRef"], facts).encode()


def _keys(
    pod: Object, spec: Object, what: str, known: Mapping[str, Object | None], mode: int
) -> Iterator[tuple[str, File]]:
    name = spec.get("secretName") or spec.get("name") or ""
    obj = known.get(name)
    if obj is None:
        if spec.get("optional"):
            return
        raise ConfigError(f'{what} "{name}" not found')
    data = content(obj)
    items = spec.get("items")
    if not items:
        for key, value in data.items():
            yield key, File(value, mode)
        return
    for item in items:
        if item["key"] in data:
            yield item["path"], File(data[item["key"]], _item_mode(item, mode))
        elif not spec.get("optional"):
            space = pod["metadata"]["namespace"]
            raise ConfigError(f"{what} {space}/{name} references non-existent key: {item['key']}")


def _item_mode(item: Object, mode: int) -> int:
    own = item.get("mode")
    return mode if own is None else int(own)
