"""Client certificates: whose they are, which plane they open, and how they are asked for."""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bidplane.errors import ApiError
from bidplane.http.asgi import CLIENT_CERTIFICATE
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.http.auth import authenticate
from bidplane.plane.http.message import PlaneRequest
from bidplane.runtime.identity.clientcerts import Pair, Signer
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.testing.certificates import Authority

from .conftest import Embedded, Endpoint

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SIGNER = "kubernetes.io/kube-apiserver-client"
DAY = 24 * 3600


class Clock(SystemClock):
    """The system's, moved on."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


def browser(endpoint: Endpoint, folder: Path, pair: Pair) -> httpx2.Client:
    """A client that shows a certificate and sends no token."""
    (folder / "client.crt").write_bytes(pair.certificate)
    (folder / "client.key").write_bytes(pair.key)
    context = ssl.create_default_context(cafile=str(endpoint.ca_file))
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return httpx2.Client(verify=context, base_url=endpoint.url, trust_env=False, timeout=30)


def signer(embedded: Embedded) -> Signer:
    return Signer(embedded.ca_file, embedded.ca_file.with_name("ca.key"))


def pair(embedded: Embedded, plane: str, **changed: Any) -> Pair:
    now = SystemClock().now()
    identity = Identity(
        plane=plane,
        uid=changed["uid"] if "uid" in changed else embedded.planes.uid(plane) or "",
        user=changed.get("user", plane),
        groups=changed.get("groups", ("system:masters",)),
        expires=int(now) + DAY,
    )
    return signer(embedded).pair(identity, now=now)


@pytest.fixture
def name(embedded: Embedded) -> Iterator[str]:
    made = f"c-{secrets.token_hex(4)}"
    embedded.make(made)
    yield made
    embedded.wait(embedded.planes.delete(made))


def at(embedded: Embedded, plane: str) -> Endpoint:
    return Endpoint(f"{embedded.url}/planes/{plane}", "", embedded.ca_file)


def test_a_certificate_opens_its_plane(embedded: Embedded, name: str, tmp_path: Path) -> None:
    with browser(at(embedded, name), tmp_path, pair(embedded, name)) as client:
        assert client.get("/api/v1/namespaces").status_code == 200
        who = client.post(WHOAMI, json={}).json()["status"]["userInfo"]
    assert who["username"] == name
    assert who["groups"] == ["system:masters", "system:authenticated"]
    (credential,) = who["extra"]["authentication.kubernetes.io/credential-id"]
    assert credential.startswith("X509SHA256=")


def test_and_no_other(embedded: Embedded, name: str, tmp_path: Path) -> None:
    shown = pair(embedded, name)
    other = embedded.make(f"{name}-other")
    with browser(other, tmp_path, shown) as client:
        refused = client.get("/api/v1/namespaces")
    assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    assert other.token not in refused.text
    # With a token for that plane it is the token that counts.
    with browser(other, tmp_path, shown) as client:
        headers = {"Authorization": f"Bearer {other.token}"}
        assert client.get("/api/v1/namespaces", headers=headers).status_code == 200
    embedded.wait(embedded.planes.delete(f"{name}-other"))


def test_the_host_s_opens_only_the_host(embedded: Embedded, name: str, tmp_path: Path) -> None:
    """A token of the host opens every plane; a certificate may have been signed for anybody."""
    embedded.make("host")
    with browser(at(embedded, name), tmp_path, pair(embedded, "host")) as client:
        assert client.get("/api/v1/namespaces").status_code == 403
    embedded.wait(embedded.planes.delete("host"))


def test_it_dies_with_its_plane(embedded: Embedded, name: str, tmp_path: Path) -> None:
    with browser(at(embedded, name), tmp_path, pair(embedded, name)) as client:
        assert client.get("/api/v1/namespaces").status_code == 200
        embedded.wait(embedded.planes.delete(name))
        # On the connection that was open, too; and when another plane has the name.
        assert client.get("/api/v1/namespaces").status_code == 401
        embedded.make(name)
        assert client.get("/api/v1/namespaces").status_code == 401


def test_it_ends(tmp_path: Path) -> None:
    """Also on a connection that was made before."""
    Authority(tmp_path)
    clock, keys = Clock(), Signer(tmp_path / "ca.crt", tmp_path / "ca.key")
    planes = Planes(tmp_path / "planes", clock=clock, tokens=Tokens(b"t" * 32), inline=True)
    try:
        uid = asyncio.run(planes.create("p"))
        ends = int(clock.now()) + 600
        made = keys.pair(Identity(plane="p", uid=uid, user="p", expires=ends), now=clock.now())
        der = x509.load_pem_x509_certificate(made.certificate).public_bytes(
            serialization.Encoding.DER
        )
        scope = {"method": "GET", "path": "/", "headers": [], "query_string": b""}
        request = PlaneRequest({**scope, "state": {CLIENT_CERTIFICATE: der}}, None)  # type: ignore[arg-type]
        assert authenticate(planes, "p", request).name == "p"
        clock.ahead = 601
        with pytest.raises(ApiError, match="the certificate has expired"):
            authenticate(planes, "p", request)
    finally:
        planes.abandon()


def test_a_certificate_for_no_plane(embedded: Embedded, name: str, tmp_path: Path) -> None:
    """The server's own is signed by the same authority: it is nobody's."""
    folder = embedded.ca_file.parent
    shown = Pair((folder / "plane.crt").read_bytes(), (folder / "plane.key").read_bytes())
    client = browser(at(embedded, name), tmp_path, shown)
    with client, pytest.raises(httpx2.TransportError):
        client.get("/api/v1/namespaces")


def test_of_another_authority(embedded: Embedded, name: str, tmp_path: Path) -> None:
    Authority(tmp_path)
    keys = Signer(tmp_path / "ca.crt", tmp_path / "ca.key")
    now = SystemClock().now()
    uid = embedded.planes.uid(name) or ""
    who = Identity(plane=name, uid=uid, user=name, expires=int(now) + DAY)
    client = browser(at(embedded, name), tmp_path, keys.pair(who, now=now))
    with client, pytest.raises(httpx2.TransportError):
        client.get("/api/v1/namespaces")


# Asking for one. These run on a real cluster too.


def asked(user: str, *groups: str, extra: x509.ExtensionType | None = None) -> tuple[str, bytes]:
    """A request for a certificate, as the field takes it, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    if extra is not None:
        builder = builder.add_extension(extra, critical=False)
    request = builder.sign(key, hashes.SHA256())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(), pem


def csr(name: str, request: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "request": request,
            "signerName": SIGNER,
            "usages": ["client auth"],
            "expirationSeconds": 3600,
            **spec,
        },
    }


@pytest.fixture
def wanted(endpoint: Endpoint) -> Iterator[str]:
    made = f"csr-{secrets.token_hex(4)}"
    yield made
    endpoint.call("DELETE", f"{CSRS}/{made}")


def approve(endpoint: Endpoint, name: str) -> Any:
    found = endpoint.ok("GET", f"{CSRS}/{name}")
    condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "yes"}
    found["status"] = {"conditions": [condition]}
    return endpoint.ok("PUT", f"{CSRS}/{name}/approval", found)


def test_asked_for_approved_and_used(endpoint: Endpoint, wanted: str, tmp_path: Path) -> None:
    user, group = f"jane-{secrets.token_hex(3)}", f"dev-{secrets.token_hex(3)}"
    request, key = asked(user, group)
    made = endpoint.ok("POST", CSRS, {**csr(wanted, request, username="somebody-else")})
    assert made["spec"]["username"] != "somebody-else"
    assert "system:masters" in made["spec"]["groups"]
    approved = approve(endpoint, wanted)
    (condition,) = approved["status"]["conditions"]
    assert condition["lastUpdateTime"]
    assert condition["lastTransitionTime"]

    def issued() -> Any:
        return endpoint.ok("GET", f"{CSRS}/{wanted}")["status"].get("certificate")

    certificate = base64.b64decode(endpoint.eventually(issued))
    read = x509.load_pem_x509_certificate(certificate)
    lasts = read.not_valid_after_utc - read.not_valid_before_utc
    assert lasts.total_seconds() <= 3600 + 600
    with browser(endpoint, tmp_path, Pair(certificate, key)) as client:
        who = client.post(WHOAMI, json={}).json()["status"]["userInfo"]
        assert (who["username"], who["groups"]) == (user, [group, "system:authenticated"])
        path = f"/api/v1/namespaces/{endpoint.namespace}/pods"
        assert client.get(path).status_code == 403
        binding = {
            "metadata": {"name": "devs"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "view",
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        }
        bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings"
        endpoint.ok("POST", bindings, binding)
        assert endpoint.eventually(lambda: client.get(path).status_code == 200)


def test_what_is_asked_never_changes(endpoint: Endpoint, wanted: str) -> None:
    made = endpoint.ok("POST", CSRS, csr(wanted, asked("a")[0]))
    made["spec"]["request"] = asked("b")[0]
    made["status"] = {"certificate": base64.b64encode(b"x").decode()}
    updated = endpoint.ok("PUT", f"{CSRS}/{wanted}", made)
    assert updated["spec"]["request"] != made["spec"]["request"]
    assert not updated.get("status")


def test_an_answer_stays(endpoint: Endpoint, wanted: str) -> None:
    endpoint.ok("POST", CSRS, csr(wanted, asked("a")[0]))
    approved = approve(endpoint, wanted)
    approved["status"]["conditions"] = []
    approved["metadata"].pop("resourceVersion")
    removed = endpoint.call("PUT", f"{CSRS}/{wanted}/approval", approved)
    assert removed.code == 422, removed.body
    assert 'updates may not remove a condition of type "Approved"' in removed.body["message"]


def test_nobody_asks_for_every_right(endpoint: Endpoint, wanted: str) -> None:
    refused = endpoint.call("POST", CSRS, csr(wanted, asked("a", "system:masters")[0]))
    assert refused.code == 403
    assert refused.body["message"].endswith(
        f"use of {SIGNER} signer with system:masters group is not allowed"
    )


def test_approving_is_a_right(endpoint: Endpoint, wanted: str) -> None:
    made = endpoint.ok("POST", CSRS, csr(wanted, asked("a")[0]))
    role, rbac = f"approver-{wanted}", "/apis/rbac.authorization.k8s.io/v1"
    rule = {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests", "certificatesigningrequests/approval"],
        "verbs": ["get", "update"],
    }
    endpoint.ok("POST", f"{rbac}/clusterroles", {"metadata": {"name": role}, "rules": [rule]})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    }
    endpoint.ok("POST", f"{rbac}/clusterrolebindings", binding)
    condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "yes"}
    made["status"] = {"conditions": [condition]}

    def tried() -> Any:
        return endpoint.raw("PUT", f"{CSRS}/{wanted}/approval", made, [("Impersonate-User", "bob")])

    endpoint.eventually(lambda: "user not permitted" in str(tried().body))
    refused = tried()
    assert refused.code == 403
    assert refused.body["message"].endswith(
        f'user not permitted to approve requests with signerName "{SIGNER}"'
    )
    endpoint.call("DELETE", f"{rbac}/clusterroles/{role}")
    endpoint.call("DELETE", f"{rbac}/clusterrolebindings/{role}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"usages": None}, "spec.usages: Required value"),
        ({"signerName": None}, "spec.signerName: Required value"),
        ({"expirationSeconds": 60}, "may not specify a duration less than 600 seconds"),
        ({"request": base64.b64encode(b"nonsense").decode()}, "PEM block type must be CERTIFICATE"),
    ],
)
def test_what_is_refused(
    endpoint: Endpoint, wanted: str, change: dict[str, Any], words: str
) -> None:
    sent = csr(wanted, asked("a")[0])
    for key, value in change.items():
        if value is None:
            del sent["spec"][key]
        else:
            sent["spec"][key] = value
    refused = endpoint.call("POST", CSRS, sent)
    assert refused.code == 422, refused.body
    assert words in refused.body["message"]
    assert endpoint.call("GET", f"{CSRS}/{wanted}").code == 404


def test_no_request_reaches_another_plane(plane: Endpoint, embedded: Embedded) -> None:
    """What a request asks to be said besides its subject is not said."""
    embedded.make("elsewhere")
    uid = embedded.planes.uid("elsewhere")
    uri = x509.UniformResourceIdentifier(f"bidplane:plane/elsewhere/{uid}")
    request, _ = asked("a", extra=x509.SubjectAlternativeName([uri]))
    plane.ok("POST", CSRS, csr("crafty", request))
    approve(plane, "crafty")
    certificate = plane.eventually(
        lambda: plane.ok("GET", f"{CSRS}/crafty")["status"].get("certificate")
    )
    read = x509.load_pem_x509_certificate(base64.b64decode(certificate))
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (home,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert "elsewhere" not in home
    embedded.wait(embedded.planes.delete("elsewhere"))


def test_what_the_signer_does_not_sign(plane: Endpoint) -> None:
    plane.ok("POST", CSRS, csr("serving", asked("a")[0], usages=["server auth"]))
    approve(plane, "serving")
    found = plane.eventually(
        lambda: (
            len(plane.ok("GET", f"{CSRS}/serving")["status"]["conditions"]) == 2
            and plane.ok("GET", f"{CSRS}/serving")
        )
    )
    assert found["status"]["conditions"][1]["type"] == "Failed"
    assert "certificate" not in found["status"]


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
@pytest.mark.filterwarnings("ignore:.*TLSv1_1:DeprecationWarning")
def test_from_tls_1_2_on(plane: Endpoint, version: ssl.TLSVersion, taken: bool) -> None:
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    context.set_ciphers("ALL:@SECLEVEL=0")  # else this side refuses first
    context.minimum_version = context.maximum_version = version
    place = urlsplit(plane.url)
    with socket.create_connection((place.hostname or "", place.port or 0)) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=place.hostname) as tls:
                assert tls.version() is not None
                said = True
        except (ssl.SSLError, ConnectionError):
            said = False
    assert said is taken
