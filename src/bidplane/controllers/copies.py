"""
What a plane's pods name, on the host: there before a pod, true while it lives, gone after.

Config maps and secrets follow their originals; an account's tokens are made by its own plane
and renewed in time; a volume claim stays for as long as its original does. Nothing is asked of
the host for what was carried and has not changed. What is known is forgotten with the process,
and found again on the host at the first look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import CONFIG_MAP, POD, SECRET, VOLUME_CLAIM, Kind
from bidplane.core import references, translation
from bidplane.core.references import Reference, TokenWish
from bidplane.core.scheduling import phase_of
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.machinery.planes import PlaneCache

LOOK_SECONDS = 10.0  # between two looks at what pods name; a kubelet takes up to a minute
_RENEW_AT = 0.8  # of a token's life, as the kubelet does
_FINISHED = ("Succeeded", "Failed")

Name = tuple[Kind, str]  # on the host


class Missing(NotFound):
    """A pod cannot start without this."""


class _Token(msgspec.Struct, frozen=True):
    text: str
    renew_at: float


class _Known(msgspec.Struct):
    """Of one agent, what is on the host."""

    carried: dict[Name, tuple[str, str]] = {}  # the original's uid and version
    tokens: dict[tuple[str, str], dict[TokenWish, _Token]] = {}  # by namespace and account
    looked: bool = False  # at what was left there before
    turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class Copies:
    def __init__(self, host: Client, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._agents: dict[str, _Known] = {}

    async def ensure(self, plane: PlaneCache, pod: Object) -> None:
        """All that a pod names is on the host; raises `Missing`."""
        known = self._agents.setdefault(plane.name, _Known())
        # One at a time for an agent: what is removed must not be what another counts on.
        async with known.turn:
            namespace = pod["metadata"]["namespace"]
            named = references.references(pod)
            # At once, so that they are one commit: an agent's first pod waits for all of them.
            found, *_ = await asyncio.gather(
                asyncio.gather(*(self._carry(plane, known, namespace, one) for one in named)),
                self._carry_tokens(plane, known, [pod]),
            )
            for one, there in zip(named, found, strict=True):
                if one.required and not there:
                    raise Missing(f'{one.kind.kind.lower()} "{one.name}" not found')
            for claim in _claims(plane, pod):
                await self._carry_claim(plane, known, claim)

    async def look(self, plane: PlaneCache) -> float | None:
        """Make copies true, and remove those nobody needs; seconds until the next look."""
        known = self._agents.setdefault(plane.name, _Known())
        async with known.turn:
            if not known.looked:
                await self._find(plane, known)
                known.looked = True
            live = [pod for pod in plane[POD].items() if _is_live(pod)]
            needed = {_on_host(VOLUME_CLAIM, claim) for claim in plane[VOLUME_CLAIM].items()}
            for namespace, one in _distinct(live):
                # One that is gone is gone here too: what runs keeps what it was given.
                if await self._carry(plane, known, namespace, one):
                    needed.add((one.kind, translation.host_name(namespace, one.name)))
            for pod in live:
                if references.token_wishes(pod):
                    account = _tokens(pod["metadata"]["namespace"], references.account(pod))
                    needed.add((SECRET, account))
            await self._carry_tokens(plane, known, live)
            await self._tell_claims(plane, known)
            await self._remove(plane, known, needed)
        return LOOK_SECONDS if live else None

    def forget(self, agent: str) -> None:
        self._agents.pop(agent, None)

    async def _find(self, plane: PlaneCache, known: _Known) -> None:
        """What an earlier process carried, in whatever state: it is looked at once more."""
        for kind in (CONFIG_MAP, SECRET, VOLUME_CLAIM):
            marked = f"{labels.COPY}=true"
            there = await self._host.list(kind, host_namespace(plane.name), labels=marked)
            for copy in there.items:
                known.carried.setdefault((kind, copy["metadata"]["name"]), ("", ""))

    # Config maps and secrets.

    async def _carry(
        self, plane: PlaneCache, known: _Known, namespace: str, one: Reference
    ) -> bool:
        """Whether there is an original."""
        key = (one.kind, translation.host_name(namespace, one.name))
        try:
            original = await plane.client.get(one.kind, one.name, namespace)
        except NotFound:
            return False
        metadata = original["metadata"]
        version = (metadata["uid"], metadata["resourceVersion"])
        if known.carried.get(key) != version:
            await self._write(one.kind, translation.host_config(plane.name, original))
            known.carried[key] = version
        return True

    async def _write(self, kind: Kind, wanted: dict[str, Any]) -> None:
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        try:
            await self._host.create(kind, wanted, namespace)
            return
        except AlreadyExists:
            there = await self._host.get(kind, name, namespace)
        if there.get("immutable") or there.get("type") != wanted.get("type", there.get("type")):
            # What may not be changed was made anew by its author, and is so here.
            with suppress(NotFound):
                await self._host.delete(kind, name, namespace, uid=there["metadata"]["uid"])
            await self._host.create(kind, wanted, namespace)
        elif any(there.get(key) != wanted.get(key) for key in ("data", "binaryData", "immutable")):
            # The whole object: a key that its author took out must go here too.
            version = there["metadata"]["resourceVersion"]
            fresh = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
            await self._host.replace(kind, fresh)

    # Tokens.

    async def _carry_tokens(self, plane: PlaneCache, known: _Known, pods: Iterable[Object]) -> None:
        wanted: dict[tuple[str, str], set[TokenWish]] = {}
        for pod in pods:
            if wishes := references.token_wishes(pod):
                whose = (pod["metadata"]["namespace"], references.account(pod))
                wanted.setdefault(whose, set()).update(wishes)
        now = self._clock.now()
        for (namespace, account), asked in wanted.items():
            held = known.tokens.setdefault((namespace, account), {})
            due = [w for w in asked if w not in held or held[w].renew_at <= now]
            if not due:
                continue
            for one in sorted(due, key=lambda one: one.key):
                try:
                    held[one] = await self._token(plane, namespace, account, one)
                except NotFound:
                    continue  # the account is gone: what it could do, it can no longer
            tokens = {one.key: token.text for one, token in held.items()}
            copy = translation.host_tokens(plane.name, namespace, account, tokens)
            await self._write(SECRET, copy)
            known.carried[SECRET, copy["metadata"]["name"]] = ("", "")

    async def _token(
        self, plane: PlaneCache, namespace: str, account: str, asked: TokenWish
    ) -> _Token:
        audiences = [asked.audience] if asked.audience else []
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": asked.seconds},
        }
        answer = await plane.client.request_token(namespace, account, request)
        now = self._clock.now()
        until = parse_rfc3339(answer["status"]["expirationTimestamp"])
        return _Token(answer["status"]["token"], now + _RENEW_AT * (until - now))

    # Volume claims.

    async def _carry_claim(self, plane: PlaneCache, known: _Known, claim: Object) -> None:
        wanted = translation.host_volume_claim(plane.name, claim)
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        key = (VOLUME_CLAIM, name)
        uid = claim["metadata"]["uid"]
        if known.carried.get(key) == (uid, ""):
            return
        try:
            await self._host.create(VOLUME_CLAIM, wanted, namespace)
        except AlreadyExists:
            there = await self._host.get(VOLUME_CLAIM, name, namespace)
            if there["metadata"]["annotations"].get(labels.PLANE_UID) != uid:
                # Another one of the same name: its data are not the new one's.
                await self._host.delete(VOLUME_CLAIM, name, namespace, uid=there["metadata"]["uid"])
                raise  # and so look again
        known.carried[key] = (uid, "")

    async def _tell_claims(self, plane: PlaneCache, known: _Known) -> None:
        """What became of claims goes back."""
        for claim in plane[VOLUME_CLAIM].items():
            if _on_host(VOLUME_CLAIM, claim) in known.carried:
                await self._tell_claim(plane, claim)

    async def _tell_claim(self, plane: PlaneCache, claim: Object) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        with suppress(NotFound):
            copy = await self._host.get(
                VOLUME_CLAIM, translation.host_name(namespace, name), host_namespace(plane.name)
            )
            shown = ("phase", "capacity", "accessModes")
            said = {k: v for k, v in (copy.get("status") or {}).items() if k in shown}
            before = claim.get("status") or {}
            if any(before.get(key) != value for key, value in said.items()):
                await plane.client.patch(
                    VOLUME_CLAIM, name, {"status": said}, namespace, subresource="status"
                )

    # What nobody names.

    async def _remove(self, plane: PlaneCache, known: _Known, needed: set[Name]) -> None:
        namespace = host_namespace(plane.name)
        for kind, name in [key for key in known.carried if key not in needed]:
            with suppress(NotFound):
                await self._host.delete(kind, name, namespace)
            del known.carried[kind, name]
        known.tokens = {
            key: held for key, held in known.tokens.items() if (SECRET, _tokens(*key)) in needed
        }


def _distinct(pods: Iterable[Object]) -> list[tuple[str, Reference]]:
    """What pods name, each once: an agent's pods name much the same."""
    found = {
        (pod["metadata"]["namespace"], one.kind, one.name): one
        for pod in pods
        for one in references.references(pod)
    }
    return [(namespace, one) for (namespace, _, _), one in found.items()]


def _on_host(kind: Kind, obj: Object) -> Name:
    metadata = obj["metadata"]
    return kind, translation.host_name(metadata["namespace"], metadata["name"])


def _tokens(namespace: str, account: str) -> str:
    return translation.tokens_name(namespace, account)


def _claims(plane: PlaneCache, pod: Object) -> list[Object]:
    """The volume claims of a pod that its plane has."""
    namespace = pod["metadata"]["namespace"]
    found = (plane[VOLUME_CLAIM].get(namespace, one) for one in references.volume_claims(pod))
    return [claim for claim in found if claim is not None]


def claims_here(plane: PlaneCache, pod: Object) -> list[str]:
    return [claim["metadata"]["name"] for claim in _claims(plane, pod)]


def _is_live(pod: Object) -> bool:
    """Whether the host has it, or is about to."""
    return bool(pod["spec"].get("nodeName")) and phase_of(pod) not in _FINISHED
