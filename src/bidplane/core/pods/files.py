"""
The content of volumes that are made from objects: ConfigMap, Secret, downward API, projected.

A volume is a map from relative paths to contents. The writer swaps the whole map on disk at once,
so that a reader never sees half an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from bidplane.api.kinds import Object
from bidplane.core.hosting.references import TokenWish, read_token_wish
from bidplane.core.pods.environment import (
    ConfigError,
    Facts,
    Sources,
    content,
    field,
    resource_field,
)

_MODE = 0o644
MADE_FROM_OBJECTS = ("configMap", "secret", "downwardAPI", "projected")


class File(msgspec.Struct, frozen=True):
    """A file of a volume."""

    content: bytes
    mode: int = _MODE


def files(
    pod: Object,
    volume: Object,
    sources: Sources,
    facts: Facts,
    tokens: Mapping[TokenWish, str],
) -> dict[str, File]:
    """Return all files of a volume made from objects; raises `ConfigError` for a missing object."""
    by_path: dict[str, File] = {}
    if volume.get("projected"):
        spec = volume["projected"]
        mode = _default_mode(spec)
        for source in spec.get("sources") or ():
            by_path.update(_source_files(pod, source, mode, sources, facts, tokens))
    else:
        for kind in ("configMap", "secret", "downwardAPI"):
            if volume.get(kind):
                spec = volume[kind]
                by_path.update(
                    _source_files(pod, {kind: spec}, _default_mode(spec), sources, facts, tokens)
                )
    for path in by_path:
        if path.startswith("/") or ".." in path.split("/"):
            raise ConfigError(f"volume {volume['name']}: {path!r} is not a path inside it")
    return by_path


def _default_mode(spec: Object) -> int:
    mode = spec.get("defaultMode")
    return _MODE if mode is None else int(mode) & 0o777


def _source_files(
    pod: Object,
    source: Object,
    mode: int,
    sources: Sources,
    facts: Facts,
    tokens: Mapping[TokenWish, str],
) -> Iterator[tuple[str, File]]:
    """Yield the files of one source of a volume."""
    if source.get("configMap") is not None:
        yield from _object_files(pod, source["configMap"], "configmap", sources.config_maps, mode)
    elif source.get("secret") is not None:
        yield from _object_files(pod, source["secret"], "secret", sources.secrets, mode)
    elif source.get("downwardAPI") is not None:
        for item in source["downwardAPI"].get("items") or ():
            yield item["path"], File(_downward_content(pod, item, facts), _item_mode(item, mode))
    elif source.get("serviceAccountToken") is not None:
        token = source["serviceAccountToken"]
        # Only the owner may read a token, whatever mode the volume sets for its other files.
        yield token["path"], File(tokens[read_token_wish(token)].encode(), 0o600)
    else:
        raise ConfigError(f"a projected volume has {', '.join(source)}, unknown to this node")


def _downward_content(pod: Object, item: Object, facts: Facts) -> bytes:
    """Return the content of a downward API file."""
    if item.get("fieldRef"):
        return field(pod, item["fieldRef"]["fieldPath"], facts).encode()
    return resource_field(pod, {}, item["resourceFieldRef"], facts).encode()


def _object_files(
    pod: Object, spec: Object, kind: str, objects: Mapping[str, Object | None], mode: int
) -> Iterator[tuple[str, File]]:
    """Yield the files of a ConfigMap or Secret: the selected keys, or all."""
    name = spec.get("secretName") or spec.get("name") or ""
    obj = objects.get(name)
    if obj is None:
        if spec.get("optional"):
            return
        raise ConfigError(f'{kind} "{name}" not found')
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
            raise ConfigError(f"{kind} {space}/{name} references non-existent key: {item['key']}")


def _item_mode(item: Object, mode: int) -> int:
    item_mode = item.get("mode")
    return mode if item_mode is None else int(item_mode) & 0o777
