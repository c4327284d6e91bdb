"""What a pod names: config maps, secrets, volume claims, and tokens of its account."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from bidplane.api.kinds import CONFIG_MAP, SECRET, Kind, Object

TOKEN_SECONDS = 3600  # unless the pod asks for another time


class Reference(msgspec.Struct, frozen=True):
    """A ConfigMap or Secret that a pod names."""

    kind: Kind
    name: str
    required: bool = True  # the pod cannot start without it


class TokenWish(msgspec.Struct, frozen=True):
    """A ServiceAccount token that a projected volume asks for."""

    audience: str
    seconds: int

    @property
    def key(self) -> str:
        """Where it is in a Secret of an account's tokens."""
        if not self.audience:
            return f"token-{self.seconds}"
        return f"token-{self.seconds}-{hashlib.sha256(self.audience.encode()).hexdigest()[:12]}"


def references(pod: Object) -> list[Reference]:
    """What a pod names, each once, in the order they appear."""
    found: dict[tuple[Kind, str], bool] = {}
    for one in _references(pod["spec"]):
        if one.name:
            found[one.kind, one.name] = found.get((one.kind, one.name), False) or one.required
    return [Reference(kind, name, required) for (kind, name), required in found.items()]


def volume_claims(pod: Object) -> list[str]:
    """The PersistentVolumeClaims a pod names."""
    claims = (one.get("persistentVolumeClaim") for one in pod["spec"].get("volumes") or ())
    return list(dict.fromkeys(claim["claimName"] for claim in claims if claim))


def account(pod: Object) -> str:
    return str(pod["spec"].get("serviceAccountName") or "default")


def token_wishes(pod: Object) -> list[TokenWish]:
    """The tokens a pod's volumes ask for, each once."""
    volumes = pod["spec"].get("volumes") or ()
    return list(dict.fromkeys(wish for volume in volumes for wish in wishes_of(volume)))


def wishes_of(volume: Object) -> list[TokenWish]:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return [wish(s["serviceAccountToken"]) for s in sources if s.get("serviceAccountToken")]


def wish(source: Object) -> TokenWish:
    return TokenWish(
        source.get("audience") or "", int(source.get("expirationSeconds") or TOKEN_SECONDS)
    )


def _references(spec: Object) -> Iterator[Reference]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            for source in container.get("envFrom") or ():
                yield from _named(source, "configMapRef", "secretRef")
            for variable in container.get("env") or ():
                yield from _named(
                    variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef"
                )
    for volume in spec.get("volumes") or ():
        yield from _named(volume, "configMap", "secret")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from _named(source, "configMap", "secret")
    for secret in spec.get("imagePullSecrets") or ():
        # An image may be public after all: a kubelet goes on without.
        yield Reference(SECRET, secret.get("name") or "", required=False)


def _named(source: Object, config_map: str, secret: str) -> Iterator[Reference]:
    for kind, key in ((CONFIG_MAP, config_map), (SECRET, secret)):
        named = source.get(key)
        if named:
            yield Reference(kind, named.get(field_of(named)) or "", not named.get("optional"))


def field_of(named: Object) -> str:
    """A volume calls a Secret's name `secretName`; everything else says `name`."""
    return "secretName" if "secretName" in named else "name"
