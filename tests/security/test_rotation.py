"""Credentials can be revoked, and none lives longer than it should."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.errors import UserError
from bidplane.http.asgi import CLIENT_CERTIFICATE
from bidplane.http.replies import encode
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity import clientcerts
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.runtime.identity.credentials import HOST_PLANE, OWNERS, Identity, InvalidToken, Tokens
from bidplane.runtime.identity.generations import Generations
from bidplane.testing.certificates import Authority
from bidplane.web.credentials import CredentialsApp

KEY = b"k" * 32
TOKEN = "/api/v1/namespaces/default/serviceaccounts/default/token"


class Site:
    """Planes and the address that hands out credentials, on one folder, as processes share it."""

    def __init__(self, folder: Path) -> None:
        Authority(folder)
        self.folder = folder
        self.generations = Generations(folder / "credentials.json")
        self.tokens = Tokens(KEY, self.generations)
        self.signer = Signer(folder / "ca.crt", folder / "ca.key", self.generations)
        self.planes = Planes(
            folder / "planes",
            clock=SystemClock(),
            tokens=self.tokens,
            signer=self.signer,
            durable=False,
        )
        self.credentials = CredentialsApp(
            self.tokens,
            plane_uid=self.planes.uid,
            url="https://h",
            ca=b"PEM",
            clock=SystemClock(),
            signer=self.signer,
            hang_up=self.planes.sleep,
        )

    async def ask(
        self, app: Any, method: str, path: str, token: str = "", **more: Any
    ) -> tuple[int, Any]:
        sent: list[Any] = []
        state = {CLIENT_CERTIFICATE: more["certificate"]} if "certificate" in more else {}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": more.get("query", b""),
            "headers": [(b"authorization", f"Bearer {token}".encode())] if token else [],
            "state": state,
        }

        async def receive() -> Any:
            body = encode(more["body"]) if "body" in more else b""
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        body = sent[1]["body"]
        if body.startswith(b"{"):
            return sent[0]["status"], msgspec.json.decode(body)
        return sent[0]["status"], msgspec.yaml.decode(body)

    def owner(self) -> str:
        uid = self.planes.uid(HOST_PLANE) or ""
        end = int(time.time()) + 600
        return self.tokens.issue(Identity(plane=HOST_PLANE, uid=uid, user="o", expires=end))

    async def pods(self, plane: str, token: str = "", **more: Any) -> int:
        path = f"/planes/{plane}/api/v1/pods"
        return (await self.ask(self.planes, "GET", path, token, **more))[0]


def _token(config: Any) -> str:
    return str(config["users"][0]["user"]["token"])


def test_rotating_ends_every_earlier_credential(tmp_path: Path) -> None:
    asyncio.run(_rotating(Site(tmp_path)))


async def _rotating(site: Site) -> None:
    for name in (HOST_PLANE, "trainer", "chat"):
        await site.planes.create(name)
    address = "/bidplane/v1/agents/{}/kubeconfig"
    owner = site.owner()
    trainer = _token(
        (await site.ask(site.credentials, "POST", address.format("trainer"), owner))[1]
    )
    chat = _token((await site.ask(site.credentials, "POST", address.format("chat"), owner))[1])
    uid = site.planes.uid("trainer")
    assert uid is not None
    end = int(time.time()) + 600
    who = Identity(plane="trainer", uid=uid, user="trainer", groups=(OWNERS,), expires=end)
    pem = site.signer.pair(who, now=time.time()).certificate
    certificate = _der(pem)
    made = await site.ask(
        site.planes, "POST", f"/planes/trainer{TOKEN}", trainer, body={"spec": {}}
    )
    account = made[1]["status"]["token"]
    assert await site.pods("trainer", trainer) == 200
    assert await site.pods("trainer", certificate=certificate) == 200
    assert await site.pods("trainer", account) == 403, "known, and without a role"

    rotate = "/bidplane/v1/agents/trainer/rotate"
    assert (await site.ask(site.credentials, "POST", rotate, trainer))[0] == 403
    code, config = await site.ask(site.credentials, "POST", rotate, owner)
    assert code == 200

    for old in (trainer, account):
        assert await site.pods("trainer", old) == 401
    assert await site.pods("trainer", certificate=certificate) == 401
    renew = await site.ask(site.credentials, "POST", address.format("trainer"), trainer)
    assert renew[0] == 401, "what leaked makes no new one"
    assert await site.pods("trainer", _token(config)) == 200
    assert await site.pods("chat", chat) == 200, "nobody else's"
    fresh = _der(site.signer.pair(who, now=time.time()).certificate)
    assert await site.pods("trainer", certificate=fresh) == 200
    # Another process, and one that starts later.
    others = Tokens(KEY, Generations(site.folder / "credentials.json"))
    with pytest.raises(InvalidToken, match="revoked"):
        others.verify(trainer, now=time.time())
    assert others.verify(_token(config), now=time.time()).plane == "trainer"
    await site.planes.close()


def _der(pem: bytes) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    return x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)


def test_certificates_from_before_generations_are_of_the_first(tmp_path: Path) -> None:
    Authority(tmp_path)
    signer = Signer(tmp_path / "ca.crt", tmp_path / "ca.key")
    who = Identity(plane="a", uid="u", user="a", expires=int(time.time()) + 600)
    read = clientcerts.identity(_der(signer.pair(who, now=time.time()).certificate))
    assert read.generation == 0
    assert clientcerts._URI.fullmatch("bidplane:plane/a/u") is not None


def test_a_process_sees_what_another_revoked(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    one, other = Generations(path), Generations(path)
    assert (one.of("u"), other.of("u")) == (0, 0)
    assert one.advance("u") == 1
    assert other.of("u") == 1
    assert other.advance("u") == 2
    assert one.of("u") == 2
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"{")
    with pytest.raises(UserError, match="is damaged"):
        one.of("u")
    path.unlink()
    with pytest.raises(UserError, match="is gone"):
        other.of("u")


def test_a_service_accounts_token_lives_a_day_at_most(tmp_path: Path) -> None:
    asyncio.run(_account(Site(tmp_path)))


async def _account(site: Site) -> None:
    uid = await site.planes.create("trainer")
    end = int(time.time()) + 600
    token = site.tokens.issue(Identity(plane="trainer", uid=uid, user="t", expires=end))
    body = {"spec": {"expirationSeconds": 1 << 31}}
    code, made = await site.ask(site.planes, "POST", f"/planes/trainer{TOKEN}", token, body=body)
    assert (code, made["spec"]["expirationSeconds"]) == (201, 24 * 3600)
    account = made["status"]["token"]
    verified = site.tokens.verify(account, now=time.time(), accounts=True)
    assert verified.expires <= time.time() + 24 * 3600
    await site.planes.close()
