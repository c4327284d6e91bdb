"""ConfigMaps and Secrets: keys, sizes, and the promise of `immutable`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.names import config_key_problems
from bidplane.wire.status import Cause

SIZE_LIMIT = 1 << 20  # bytes of data


def _keys(obj: Object, *fields: str) -> list[Cause]:
    return [
        Cause(f'Invalid value: "{key}": {problem}', f"{field}[{key}]")
        for field in fields
        for key in obj.get(field) or {}
        for problem in config_key_problems(key)
    ]


def _size(obj: Object, *fields: str) -> list[Cause]:
    size = sum(len(value) for field in fields for value in (obj.get(field) or {}).values())
    if size <= SIZE_LIMIT:
        return []
    message = f"Too long: may not be more than {SIZE_LIMIT} bytes"
    return [Cause(message, "data" if "stringData" in fields else "", "FieldValueTooLong")]


def _frozen(*fields: str) -> Any:
    def change(new: Object, old: Object) -> list[Cause]:
        if not old.get("immutable"):
            return []
        message = "Forbidden: field is immutable when `immutable` is set"
        return [
            Cause(message, field, "FieldValueForbidden")
            for field in ("immutable", *fields)
            if new.get(field) != old.get(field)
        ]

    return change


def _config_map(obj: Object) -> list[Cause]:
    both = (obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys()
    doubled = [
        Cause(f'Invalid value: "{key}": duplicate of key present in binaryData', f"data[{key}]")
        for key in sorted(both)
    ]
    fields = ("data", "binaryData")
    return _keys(obj, *fields) + doubled + _size(obj, *fields)


def _default_secret(obj: dict[str, Any]) -> None:
    obj.setdefault("type", "Opaque")
    plain: Mapping[str, str] = obj.pop("stringData", None) or {}
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()


def _secret(obj: Object) -> list[Cause]:
    causes = _keys(obj, "data") + _size(obj, "data")
    for key, value in (obj.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            causes.append(Cause(f'Invalid value: "{key}": must be base64', f"data[{key}]"))
    return causes + _promised(obj)


# The keys that each type of Secret requires; of several in one entry, one is enough.
_PROMISED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "kubernetes.io/tls": (("tls.crt",), ("tls.key",)),
    "kubernetes.io/dockerconfigjson": ((".dockerconfigjson",),),
    "kubernetes.io/dockercfg": ((".dockercfg",),),
    "kubernetes.io/ssh-auth": (("ssh-privatekey",),),
    "kubernetes.io/basic-auth": (("username", "password"),),
}


def _promised(obj: Object) -> list[Cause]:
    data = obj.get("data") or {}
    return [
        Cause("Required value", f"data[{key}]", "FieldValueRequired")
        for keys in _PROMISED.get(obj.get("type", ""), ())
        if not any(key in data for key in keys)
        for key in keys
    ]


def _change_secret(new: Object, old: Object) -> list[Cause]:
    causes: list[Cause] = _frozen("data")(new, old)
    if new.get("type") != old.get("type"):
        causes.append(Cause(f'Invalid value: "{new.get("type")}": field is immutable', "type"))
    return causes


CONFIG_MAP = Rules(validate=_config_map, change=_frozen("data", "binaryData"))
SECRET = Rules(default=_default_secret, validate=_secret, change=_change_secret)
