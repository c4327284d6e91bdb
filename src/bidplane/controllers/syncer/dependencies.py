"""
Copies on the host of what a plane's pods refer to: made before a pod starts, kept up to date while
it lives, removed after.

Config maps and secrets follow their originals; a service account's tokens are issued by its own
plane and renewed in time; a volume claim stays for as long as its original does. An unchanged copy
costs no request to the host. The record of copies is lost with the process, and read from the host
again at the first look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import CONFIG_MAP, SECRET, VOLUME_CLAIM, Kind
from bidplane.api.objects import Fields, name_of
from bidplane.api.times import parse_rfc3339
from bidplane.api.views import KubeObject, Pod
from bidplane.core.hosting import references, translation
from bidplane.core.hosting.references import Reference, TokenWish
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.planes import PlaneCache

LOOK_SECONDS = 10.0  # between two refreshes of an agent's copies; a kubelet takes up to a minute
_RENEW_AT = 0.8  # of a token's life, as the kubelet does

Name = tuple[Kind, str]  # on the host


class MissingDependency(NotFound):
    """Raised for a config map or secret without which a pod cannot start."""


class _Token(msgspec.Struct, frozen=True):
    """A token, and when to renew it."""

    text: str
    renew_at: float


class _AgentCopies(msgspec.Struct):
    """The copies and tokens of one agent on the host."""

    versions: dict[Name, tuple[str, str]] = {}  # the original's uid and version
    tokens: dict[tuple[str, str], dict[TokenWish, _Token]] = {}  # by namespace and account
    is_complete: bool = False  # the copies that an earlier process left are recorded, too
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class PodDependencies:
    """Makes, refreshes and removes the host's copies of what an agent's pods refer to."""

    def __init__(self, host: KubeClient, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._agents: dict[str, _AgentCopies] = {}

    async def ensure(self, plane: PlaneCache, pod: Pod) -> None:
        """
        Copy everything that a pod refers to onto the host; raise `MissingDependency` if a required
        original does not exist.
        """
        copies = self._agents.setdefault(plane.name, _AgentCopies())
        # One at a time for an agent, so that no copy is removed while another pod needs it.
        async with copies.lock:
            namespace = pod.namespace
            named_references = references.references(pod)
            # Together, so that they are one commit: an agent's first pod waits for all of them.
            copied, *_ = await asyncio.gather(
                asyncio.gather(
                    *(
                        self._copy(plane, copies, namespace, reference)
                        for reference in named_references
                    )
                ),
                self._copy_tokens(plane, copies, [pod]),
            )
            for reference, is_copied in zip(named_references, copied, strict=True):
                if reference.required and not is_copied:
                    raise MissingDependency(
                        f'{reference.kind.kind.lower()} "{reference.name}" not found'
                    )
            for claim in _claims(plane, pod):
                await self._copy_claim(plane, copies, claim)

    async def refresh(self, plane: PlaneCache) -> float | None:
        """
        Refresh the agent's copies and remove those that no pod needs; return the seconds until the
        next refresh.
        """
        copies = self._agents.setdefault(plane.name, _AgentCopies())
        async with copies.lock:
            if not copies.is_complete:
                await self._find_copies(plane, copies)
                copies.is_complete = True
            live = [pod for pod in plane.pods.items() if _is_live(pod)]
            needed = {_host_key(VOLUME_CLAIM, claim) for claim in _all_claims(plane)}
            for namespace, reference in _distinct_references(live):
                # A copy without an original is removed; running containers keep their files.
                if await self._copy(plane, copies, namespace, reference):
                    needed.add((reference.kind, translation.host_name(namespace, reference.name)))
            for pod in live:
                if references.token_wishes(pod):
                    account = _tokens_name(pod.namespace, references.account(pod))
                    needed.add((SECRET, account))
            await self._copy_tokens(plane, copies, live)
            await self._report_claims(plane, copies)
            await self._remove_unneeded(plane, copies, needed)
        return LOOK_SECONDS if live else None

    def forget(self, agent: str) -> None:
        """Drop the record of an agent's copies."""
        self._agents.pop(agent, None)

    async def _find_copies(self, plane: PlaneCache, copies: _AgentCopies) -> None:
        """
        Record the copies that an earlier process made, as outdated, so that each is checked once.
        """
        for kind in (CONFIG_MAP, SECRET, VOLUME_CLAIM):
            selector = f"{labels.COPY}=true"
            listing = await self._host.list(kind, host_namespace(plane.name), labels=selector)
            for copy in listing.items:
                copies.versions.setdefault((kind, name_of(copy)), ("", ""))

    # Config maps and secrets.

    async def _copy(
        self, plane: PlaneCache, copies: _AgentCopies, namespace: str, reference: Reference
    ) -> bool:
        """
        Copy a config map or secret if it changed; return False if the plane has none of that name.
        """
        key = (reference.kind, translation.host_name(namespace, reference.name))
        try:
            original = KubeObject(await plane.client.get(reference.kind, reference.name, namespace))
        except NotFound:
            return False
        version = (original.uid, original.resource_version)
        if copies.versions.get(key) != version:
            await self._write(reference.kind, translation.host_config(plane.name, original))
            copies.versions[key] = version
        return True

    async def _write(self, kind: Kind, copy: Fields) -> None:
        """Create or update a config map or secret on the host."""
        name, namespace = copy["metadata"]["name"], copy["metadata"]["namespace"]
        try:
            await self._host.create(kind, copy, namespace)
            return
        except AlreadyExists:
            existing = KubeObject(await self._host.get(kind, name, namespace))
        if existing.get("immutable") or existing.get("type") != copy.get(
            "type", existing.get("type")
        ):
            # An immutable object was recreated by its author, so recreate the copy.
            with suppress(NotFound):
                await self._host.delete(kind, name, namespace, uid=existing.uid)
            await self._host.create(kind, copy, namespace)
        elif any(existing.get(key) != copy.get(key) for key in ("data", "binaryData", "immutable")):
            # Replace the whole object: keys that the author removed must go here too.
            metadata = {**copy["metadata"], "resourceVersion": existing.resource_version}
            await self._host.replace(kind, {**copy, "metadata": metadata})

    # Tokens.

    async def _copy_tokens(
        self, plane: PlaneCache, copies: _AgentCopies, pods: Iterable[Pod]
    ) -> None:
        """Write the tokens that these pods ask for, renewed before they expire."""
        wishes_by_account: dict[tuple[str, str], set[TokenWish]] = {}
        for pod in pods:
            if wishes := references.token_wishes(pod):
                owner = (pod.namespace, references.account(pod))
                wishes_by_account.setdefault(owner, set()).update(wishes)
        now = self._clock.now()
        for (namespace, account), wishes_of_account in wishes_by_account.items():
            tokens_by_wish = copies.tokens.setdefault((namespace, account), {})
            due = [
                w
                for w in wishes_of_account
                if w not in tokens_by_wish or tokens_by_wish[w].renew_at <= now
            ]
            if not due:
                continue
            for wish in sorted(due, key=lambda wish: wish.key):
                try:
                    tokens_by_wish[wish] = await self._token(plane, namespace, account, wish)
                except NotFound:
                    continue  # the account is gone, so its pods get no new token
            tokens = {wish.key: token.text for wish, token in tokens_by_wish.items()}
            copy = translation.host_tokens(plane.name, namespace, account, tokens)
            await self._write(SECRET, copy)
            copies.versions[SECRET, copy["metadata"]["name"]] = ("", "")

    async def _token(
        self, plane: PlaneCache, namespace: str, account: str, wish: TokenWish
    ) -> _Token:
        """Request a token from the agent's plane."""
        audiences = [wish.audience] if wish.audience else []
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": wish.seconds},
        }
        answer = await plane.client.request_token(namespace, account, request)
        now = self._clock.now()
        expires_at = parse_rfc3339(answer["status"]["expirationTimestamp"])
        return _Token(answer["status"]["token"], now + _RENEW_AT * (expires_at - now))

    # Volume claims.

    async def _copy_claim(self, plane: PlaneCache, copies: _AgentCopies, claim: KubeObject) -> None:
        """Create the host's copy of a volume claim, unless it exists."""
        copy = translation.host_volume_claim(plane.name, claim)
        name, namespace = copy["metadata"]["name"], copy["metadata"]["namespace"]
        key = (VOLUME_CLAIM, name)
        if copies.versions.get(key) == (claim.uid, ""):
            return
        try:
            await self._host.create(VOLUME_CLAIM, copy, namespace)
        except AlreadyExists:
            existing = KubeObject(await self._host.get(VOLUME_CLAIM, name, namespace))
            if not translation.is_copy_of(existing, claim):
                # The copy of an earlier claim of this name: its data are not the new claim's.
                await self._host.delete(VOLUME_CLAIM, name, namespace, uid=existing.uid)
                raise  # the controller tries again once it is gone
        copies.versions[key] = (claim.uid, "")

    async def _report_claims(self, plane: PlaneCache, copies: _AgentCopies) -> None:
        """Copy the status of the host's volume claims to their originals in the plane."""
        for claim in _all_claims(plane):
            if _host_key(VOLUME_CLAIM, claim) in copies.versions:
                await self._report_claim(plane, claim)

    async def _report_claim(self, plane: PlaneCache, claim: KubeObject) -> None:
        """Copy one host volume claim's status to its original."""
        name_on_host = translation.host_name(claim.namespace, claim.name)
        with suppress(NotFound):
            copy = KubeObject(
                await self._host.get(VOLUME_CLAIM, name_on_host, host_namespace(plane.name))
            )
            fields = ("phase", "capacity", "accessModes")
            status = {key: value for key, value in copy.status.items() if key in fields}
            if any(claim.status.get(key) != value for key, value in status.items()):
                change = {"status": status}
                await plane.client.patch(
                    VOLUME_CLAIM, claim.name, change, claim.namespace, subresource="status"
                )

    # Copies that no pod needs.

    async def _remove_unneeded(
        self, plane: PlaneCache, copies: _AgentCopies, needed: set[Name]
    ) -> None:
        """Delete the copies that no pod needs."""
        namespace = host_namespace(plane.name)
        for kind, name in [key for key in copies.versions if key not in needed]:
            with suppress(NotFound):
                await self._host.delete(kind, name, namespace)
            del copies.versions[kind, name]
        copies.tokens = {
            key: tokens
            for key, tokens in copies.tokens.items()
            if (SECRET, _tokens_name(*key)) in needed
        }


def _distinct_references(pods: Iterable[Pod]) -> list[tuple[str, Reference]]:
    """Return the references of all pods, each once: an agent's pods often name the same objects."""
    distinct = {
        (pod.namespace, reference.kind, reference.name): reference
        for pod in pods
        for reference in references.references(pod)
    }
    return [(namespace, reference) for (namespace, _, _), reference in distinct.items()]


def _host_key(kind: Kind, obj: KubeObject) -> Name:
    """Return the kind and host name of an object's copy."""
    return kind, translation.host_name(obj.namespace, obj.name)


def _tokens_name(namespace: str, account: str) -> str:
    return translation.tokens_name(namespace, account)


def _all_claims(plane: PlaneCache) -> list[KubeObject]:
    """Return the volume claims of a plane."""
    return [KubeObject(claim) for claim in plane[VOLUME_CLAIM].items()]


def _claims(plane: PlaneCache, pod: Pod) -> list[KubeObject]:
    """Return the volume claims of a pod that its plane has."""
    names = references.volume_claims(pod)
    claims = (plane[VOLUME_CLAIM].get(pod.namespace, name) for name in names)
    return [KubeObject(claim) for claim in claims if claim is not None]


def volume_claim_names(plane: PlaneCache, pod: Pod) -> list[str]:
    """Return the names of the pod's volume claims that exist in its plane."""
    return [claim.name for claim in _claims(plane, pod)]


def _is_live(pod: Pod) -> bool:
    """Return True for a pod that runs on the host, or is about to."""
    return bool(pod.node_name) and not pod.has_ended
