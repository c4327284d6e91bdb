"""The objects that a pod names: ConfigMaps, Secrets, volume claims, and tokens of its account."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from bidplane.api.kinds import CONFIG_MAP, SECRET, Kind, Object
from bidplane.wire.names import subdomain_problems

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
        """The token's key in the Secret with an account's tokens."""
        if not self.audience:
            return f"token-{self.seconds}"
        return f"token-{self.seconds}-{hashlib.sha256(self.audience.encode()).hexdigest()[:12]}"


def references(pod: Object) -> list[Reference]:
    """Return the ConfigMaps and Secrets that a pod names, each once, in order of appearance."""
    required_by_name: dict[tuple[Kind, str], bool] = {}
    for reference in _references(pod["spec"]):
        if reference.name:
            required_by_name[reference.kind, reference.name] = (
                required_by_name.get((reference.kind, reference.name), False) or reference.required
            )
    return [Reference(kind, name, required) for (kind, name), required in required_by_name.items()]


def volume_claims(pod: Object) -> list[str]:
    """Return the names of the PersistentVolumeClaims that a pod uses."""
    claims = (volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ())
    return list(dict.fromkeys(claim["claimName"] for claim in claims if claim))


def name_problems(pod: Object) -> Iterator[str]:
    """
    Yield a sentence for each name in a pod's volumes that no object can have.

    Kubernetes would find no object of that name. A node makes folders of some of these names, so
    they are refused when the pod is written.
    """
    for index, volume in enumerate(pod["spec"].get("volumes") or ()):
        for field, name in _named_in(volume):
            if name and subdomain_problems(name):
                yield (
                    f"spec.volumes[{index}].{field}: {name!r} is not a name: write lower-case"
                    " letters, digits, '-' and '.', as in 'data-1'"
                )


def _named_in(volume: Object) -> Iterator[tuple[str, str]]:
    """Yield the field and the name of each object that a volume names."""
    fields = (
        ("persistentVolumeClaim", "claimName"),
        ("configMap", "name"),
        ("secret", "secretName"),
    )
    for kind, field in fields:
        yield f"{kind}.{field}", str((volume.get(kind) or {}).get(field) or "")
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
        for kind in ("configMap", "secret"):
            name = str((source.get(kind) or {}).get("name") or "")
            yield f"projected.sources[{index}].{kind}.name", name


def account(pod: Object) -> str:
    """Return the name of a pod's ServiceAccount."""
    return str(pod["spec"].get("serviceAccountName") or "default")


def token_wishes(pod: Object) -> list[TokenWish]:
    """Return the tokens that a pod's volumes ask for, each once."""
    volumes = pod["spec"].get("volumes") or ()
    return list(dict.fromkeys(wish for volume in volumes for wish in wishes_of(volume)))


def wishes_of(volume: Object) -> list[TokenWish]:
    """Return the tokens that a volume asks for."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    return [
        read_token_wish(s["serviceAccountToken"]) for s in sources if s.get("serviceAccountToken")
    ]


def read_token_wish(source: Object) -> TokenWish:
    """Read the source of a projected ServiceAccount token."""
    return TokenWish(
        source.get("audience") or "", int(source.get("expirationSeconds") or TOKEN_SECONDS)
    )


def _references(spec: Object) -> Iterator[Reference]:
    """Yield each ConfigMap and Secret that a pod's spec names, with repetitions."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            for source in container.get("envFrom") or ():
                yield from _references_in(source, "configMapRef", "secretRef")
            for variable in container.get("env") or ():
                yield from _references_in(
                    variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef"
                )
    for volume in spec.get("volumes") or ():
        yield from _references_in(volume, "configMap", "secret")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from _references_in(source, "configMap", "secret")
    for secret in spec.get("imagePullSecrets") or ():
        # A kubelet goes on without a pull secret, since the image may be public.
        yield Reference(SECRET, secret.get("name") or "", required=False)


def _references_in(source: Object, config_map: str, secret: str) -> Iterator[Reference]:
    """Yield the ConfigMap and the Secret that a source refers to."""
    for kind, key in ((CONFIG_MAP, config_map), (SECRET, secret)):
        reference = source.get(key)
        if reference:
            yield Reference(
                kind, reference.get(field_of(reference)) or "", not reference.get("optional")
            )


def field_of(reference: Object) -> str:
    """Return the field with an object's name: `secretName` in a volume of a Secret, else `name`."""
    return "secretName" if "secretName" in reference else "name"
