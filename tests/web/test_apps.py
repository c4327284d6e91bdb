"""The public address: who is routed where, who gets a credential, and what is refused."""

import asyncio
import base64

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from bidplane.http.request import BodyLimit, Disconnected, Request
from bidplane.runtime.identity.clientcerts import Signer, identity
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.sim.loop import EPOCH, VirtualClock, run
from bidplane.testing.certificates import Authority
from bidplane.web.app import WebApp
from bidplane.web.credentials import CredentialsApp
from bidplane.wire.status import StatusError

TOKENS = Tokens(b"t" * 32)


def token(plane="host", tokens=TOKENS, expires=10**6):
    identity = Identity(plane=plane, uid="u", user="me", expires=int(EPOCH) + expires)
    return f"Bearer {tokens.issue(identity)}".encode()


def ask(app, path, *, method="POST", query=b"", header=None, type="http"):
    """The code and the body of one answer; exactly one, and whole."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {
        "type": type,
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(b"authorization", token() if header is None else header)],
    }
    run(app(scope, receive, send))
    if not sent:
        return None, b""
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], sent[1]["body"]


def named(name):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name.encode()})

    return app


WEB = WebApp(planes=named("planes"), exchange=named("exchange"), credentials=named("credentials"))
UIDS = {"trainer": "p1"}
CREDENTIALS = CredentialsApp(
    TOKENS, plane_uid=UIDS.get, url="https://h:6443", ca=b"PEM", clock=VirtualClock()
)
GOOD = "/bidplane/v1/agents/trainer/kubeconfig"


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/planes/trainer/api/v1/pods", b"planes"),
        ("/planes", b"planes"),
        ("/exchange/v1/prices", b"exchange"),
        (GOOD, b"credentials"),
    ],
)
def test_routes(path, served):
    assert ask(WEB, path) == (200, served)


@pytest.mark.parametrize("path", ["/", "", "*", "/other", "/planesx", "//"])
def test_nothing_else_is_served(path):
    code, body = ask(WEB, path)
    assert code == 404
    assert msgspec.json.decode(body)["reason"] == "NotFound"


@given(st.text())
def test_any_path_is_answered(path):
    code, _ = ask(WEB, path)
    assert code in (200, 404)


def test_other_protocols_are_not_answered():
    assert ask(WEB, "/healthz", type="websocket") == (None, b"")


def test_an_owner_gets_a_kubeconfig_that_works_for_a_while():
    code, body = ask(CREDENTIALS, GOOD, query=b"seconds=120")
    assert code == 200
    config = msgspec.yaml.decode(body)
    (cluster,) = config["clusters"]
    assert cluster["cluster"]["server"] == "https://h:6443/planes/trainer"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == b"PEM"
    (user,) = config["users"]
    identity = TOKENS.verify(user["user"]["token"], now=EPOCH)
    assert (identity.plane, identity.uid, identity.expires) == ("trainer", "p1", int(EPOCH) + 120)
    assert not identity.is_owner


def test_an_agent_renews_its_own_for_a_day_at_most():
    own = Identity(plane="trainer", uid="p1", user="trainer", expires=int(EPOCH) + 60)
    header = f"Bearer {TOKENS.issue(own)}".encode()
    code, body = ask(CREDENTIALS, GOOD, query=b"seconds=86400", header=header)
    assert code == 200
    assert body.startswith(b"# good until ")
    (user,) = msgspec.yaml.decode(body)["users"]
    fresh = TOKENS.verify(user["user"]["token"], now=EPOCH + 1000)
    assert (fresh.plane, fresh.uid, fresh.expires) == ("trainer", "p1", int(EPOCH) + 86400)
    assert ask(CREDENTIALS, GOOD, query=b"seconds=86401", header=header)[0] == 400
    other = Identity(plane="other", uid="p1", user="other", expires=int(EPOCH) + 60)
    header = f"Bearer {TOKENS.issue(other)}".encode()
    assert ask(CREDENTIALS, GOOD, header=header)[0] == 403


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"header": b""}, 401),
        ({"header": b"Bearer \xff\xfe"}, 401),
        ({"header": b"Basic x"}, 401),
        ({"header": token(tokens=Tokens(b"o" * 32))}, 401),
        ({"header": token(expires=0)}, 401),
        ({"header": token(plane="trainer")}, 403),
        ({"path": "/bidplane/v1/agents/none/kubeconfig"}, 404),
        ({"path": "/bidplane/v1/agents/a/b/kubeconfig"}, 404),
        ({"path": "/bidplane/v1/agents/trainer"}, 404),
        ({"method": "GET"}, 404),
        ({"query": b"seconds=59"}, 400),
        ({"query": b"seconds=2592001"}, 400),
        ({"query": b"seconds=-1"}, 400),
        ({"query": b"seconds=1e9"}, 400),
        ({"query": b"seconds=" + b"9" * 5000}, 400),
        ({"query": "seconds=٦٠٠".encode()}, 400),
        ({"query": b"seconds=\xff"}, 400),
    ],
)
def test_who_and_what_is_refused(options, code):
    """An agent's own credential makes no other: one that leaked must end."""
    got, body = ask(CREDENTIALS, options.pop("path", GOOD), **options)
    assert got == code
    assert msgspec.json.decode(body)["code"] == code


@pytest.mark.parametrize("query", [b"", b"seconds=60", b"seconds=2592000", b"other=\xff"])
def test_what_is_given(query):
    assert ask(CREDENTIALS, GOOD, query=query)[0] == 200


def body_of(*messages, most=100):
    left = list(messages)

    async def receive():
        return left.pop(0)

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
    return asyncio.run(Request(scope, receive).body(BodyLimit(most)))


def part(body, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_in_parts():
    assert body_of(part(b"a", more=True), part(b"b", more=True), part(b"c")) == b"abc"


def test_a_body_that_was_cut_short_is_no_body():
    with pytest.raises(Disconnected):
        body_of(part(b'{"amount": 1', more=True), {"type": "http.disconnect"})


def test_a_body_has_an_end():
    assert body_of(part(b"x" * 100)) == b"x" * 100
    with pytest.raises(StatusError, match="limit is 100"):
        body_of(*[part(b"x" * 60, more=True)] * 1000)


def test_a_kubeconfig_with_a_certificate(tmp_path):
    Authority(tmp_path)
    app = CredentialsApp(
        TOKENS,
        plane_uid=UIDS.get,
        url="https://h:6443",
        ca=b"PEM",
        clock=VirtualClock(),
        signer=Signer(tmp_path / "ca.crt", tmp_path / "ca.key"),
    )
    code, body = ask(app, GOOD, query=b"seconds=3600&certificate=true")
    assert code == 200
    (user,) = msgspec.yaml.decode(body)["users"]
    assert set(user["user"]) == {"client-certificate-data", "client-key-data"}
    pem = base64.b64decode(user["user"]["client-certificate-data"])
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    who = identity(der)
    assert (who.plane, who.uid, who.groups) == ("trainer", UIDS["trainer"], ("system:masters",))
    assert who.expires == int(EPOCH) + 3600


def test_no_certificate_without_a_signer():
    code, body = ask(CREDENTIALS, GOOD, query=b"certificate=true")
    assert code == 501
    assert "ask for a token" in msgspec.json.decode(body)["message"]
