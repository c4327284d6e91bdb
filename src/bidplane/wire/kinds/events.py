"""Events: kept as v1, whichever group wrote them."""

from __future__ import annotations

from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.status import Cause


def _validate(obj: Object) -> list[Cause]:
    about = (obj.get("involvedObject") or {}).get("namespace", "")
    namespace = obj["metadata"].get("namespace", "")
    # Events about cluster-wide objects live in `default`.
    if about == namespace or (not about and namespace in ("default", "kube-system")):
        return []
    message = f'Invalid value: "{about}": does not match event.namespace'
    return [Cause(message, "involvedObject.namespace")]


RULES = Rules(validate=_validate)
