"""Protobuf bodies decode to the JSON that the real server, and Go, have for the same object."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.testing.cluster import Cluster
from bidplane.testing.rig import Binaries
from bidplane.wire import data, protobuf

HERE = Path(__file__).parent
PROTOBUF = "application/vnd.kubernetes.protobuf"
SAMPLES: dict[str, dict[str, Any]] = json.loads((HERE / "protobuf_samples.json").read_text())


def without_nulls(value: Any) -> Any:
    """A null in Go's JSON is a field that was not set; the decoder leaves those out."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def key(number: int, form: int) -> bytes:
    return varint(number << 3 | form)


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def part(number: int, content: bytes) -> bytes:
    return key(number, 2) + varint(len(content)) + content


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = part(1, api_version.encode()) + part(2, kind.encode())
    return protobuf.MAGIC + part(1, meta) + part(2, raw)


@pytest.mark.parametrize("path", SAMPLES)
def test_a_recorded_object_is_its_json(path: str) -> None:
    sample = SAMPLES[path]
    decoded = protobuf.decode(base64.b64decode(sample["protobuf"]))
    assert without_nulls(decoded) == without_nulls(sample["json"])


def test_every_special_case_is_in_a_sample() -> None:
    """So that the samples keep covering the encoding when the table grows."""
    seen: set[str] = set()
    messages = data.protobuf()["messages"]

    def walk(name: str, value: Any) -> None:
        message = messages[name]
        seen.add(message.get("special", ""))
        for field in message["fields"].values():
            if field["type"] in messages and isinstance(value, dict):
                inner = value if field.get("inline") else value.get(field["name"])
                if field.get("many") == "map":
                    inner = list((inner or {}).values())
                for one in (inner or []) if field.get("many") else [inner]:
                    if one is not None:
                        walk(field["type"], one)

    for sample in SAMPLES.values():
        told = sample["json"]
        walk(data.protobuf()["kinds"][f"{told['apiVersion']}/{told['kind']}"], told)
    expected = {message.get("special", "") for message in messages.values()}
    # A review's lists are in the test on the real server; dependencies as strings no CRD may have.
    assert expected - seen == {"envelope", "list", "schemaOrStrings"}


def test_zero_is_said_where_go_says_it() -> None:
    pod = protobuf.decode(
        base64.b64decode(SAMPLES["/api/v1/namespaces/default/pods/many-features"]["protobuf"])
    )
    assert pod["spec"]["terminationGracePeriodSeconds"] == 0  # a pointer
    assert "generateName" not in pod["metadata"]  # empty, and omitted when empty
    assert pod["spec"]["containers"][0]["args"] == [""]


def test_what_is_sent_twice_is_merged() -> None:
    metadata = part(1, part(1, b"first") + part(3, b"here")) + part(1, part(1, b"last"))
    decoded = protobuf.decode(body("v1", "ConfigMap", metadata))
    assert decoded["metadata"] == {"name": "last", "namespace": "here"}


def test_packed_and_unpacked_numbers_are_the_same() -> None:
    for groups in (key(4, 0) + varint(5) + key(4, 0) + varint(6), part(4, varint(5) + varint(6))):
        pod = protobuf.decode(body("v1", "Pod", part(2, part(14, groups))))
        assert pod["spec"]["securityContext"]["supplementalGroups"] == [5, 6]


def test_unknown_fields_are_ignored() -> None:
    later = part(4000, b"x") + key(4001, 0) + varint(1) + key(4002, 1) + bytes(8)
    assert protobuf.decode(body("v1", "ConfigMap", later + key(4003, 5) + bytes(4))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
    }


def test_negative_numbers_keep_their_sign() -> None:
    toleration = part(22, part(1, b"k") + key(5, 0) + varint((1 << 64) - 7))
    pod = protobuf.decode(body("v1", "Pod", part(2, toleration)))
    assert pod["spec"]["tolerations"] == [{"key": "k", "tolerationSeconds": -7}]


def crd(schema: bytes) -> bytes:
    """A CustomResourceDefinition with that message as its schema."""
    group = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
    content = schema
    for message, field in (
        ("CustomResourceValidation", "openAPIV3Schema"),
        ("CustomResourceDefinitionVersion", "schema"),
        ("CustomResourceDefinitionSpec", "versions"),
        ("CustomResourceDefinition", "spec"),
    ):
        content = part(number_of(f"{group}.{message}", field), content)
    return body("apiextensions.k8s.io/v1", "CustomResourceDefinition", content)


def number_of(message: str, name: str) -> int:
    fields = data.protobuf()["messages"][message]["fields"]
    return next(int(number) for number, field in fields.items() if field.get("name") == name)


SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


def nested_schema(depth: int) -> bytes:
    schema = b""
    for _ in range(depth):
        schema = part(number_of(SCHEMA, "not"), schema)
    return crd(schema)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"", "does not begin"),
        (b"{}", "does not begin"),
        (protobuf.MAGIC, "no kind '' in ''"),
        (body("v1", "Nonsense", b""), "no kind 'Nonsense' in 'v1'"),
        (body("v1", "Pod", b"\x0a\xff"), "cut short"),
        (body("v1", "Pod", b"\x0a\x05abc"), "field 1 is cut short"),
        (body("v1", "Pod", b"\x80" * 11), "longer than 64 bits"),
        (body("v1", "Pod", b"\x03"), "field number 0"),
        (body("v1", "Pod", b"\x0b"), "wire type 3"),
        (body("v1", "Pod", key(1, 0) + b"\x01"), "is a number"),
        (body("v1", "Pod", part(1, part(1, b"\xff"))), "not UTF-8"),
        (body("v1", "ConfigMap", key(4, 2) + b"\x01x"), "bytes where a number"),
        (body("v1", "Pod", part(1, part(8, key(1, 0) + varint(1 << 62)))), "years 1 and 9999"),
        (body("apps/v1", "ControllerRevision", part(2, part(1, b"{"))), "embedded JSON"),
        (body("v1", "ConfigMap", b"") + part(3, b"gzip"), "content encoding 'gzip'"),
    ],
)
def test_a_bad_body_is_refused_with_its_reason(sent: bytes, complaint: str) -> None:
    with pytest.raises(protobuf.ProtobufError, match=complaint):
        protobuf.decode(sent)


def test_nesting_is_bounded() -> None:
    protobuf.decode(nested_schema(100))
    with pytest.raises(protobuf.ProtobufError, match="deeper"):
        protobuf.decode(nested_schema(2000))


def test_numbers_without_a_form_in_json_are_refused() -> None:
    maximum = key(number_of(SCHEMA, "maximum"), 1)
    decoded = protobuf.decode(crd(maximum + struct.pack("<d", 1.5)))
    assert decoded["spec"]["versions"][0]["schema"] == {"openAPIV3Schema": {"maximum": 1.5}}
    with pytest.raises(protobuf.ProtobufError, match="nan has no form in JSON"):
        protobuf.decode(crd(maximum + struct.pack("<d", float("nan"))))


def test_embedded_json_that_is_not_utf_8_is_refused() -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/rules"
    sent = base64.b64decode(SAMPLES[path]["protobuf"])
    assert b'"f:matchConstraints"' in sent
    with pytest.raises(protobuf.ProtobufError, match="embedded JSON"):
        protobuf.decode(sent.replace(b'"f:matchConstraints"', b'"\x80:matchConstraints"'))


@given(st.sampled_from(sorted(data.protobuf()["kinds"])), st.binary(max_size=200))
def test_random_bytes_decode_or_are_refused(kind: str, raw: bytes) -> None:
    api_version, _, name = kind.rpartition("/")
    with contextlib.suppress(protobuf.ProtobufError):
        json.dumps(protobuf.decode(body(api_version, name, raw)), allow_nan=False)


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_damaged_objects_decode_or_are_refused(path: str, choose: st.DataObject) -> None:
    sent = bytearray(base64.b64decode(SAMPLES[path]["protobuf"]))
    for _ in range(choose.draw(st.integers(1, 4))):
        sent[choose.draw(st.integers(0, len(sent) - 1))] = choose.draw(st.integers(0, 255))
    cut = choose.draw(st.integers(0, len(sent)))
    with contextlib.suppress(protobuf.ProtobufError):
        json.dumps(protobuf.decode(bytes(sent[:cut])), allow_nan=False)


# Against the real parts.


@pytest.fixture(scope="module")
def alone(kube_binaries: Binaries) -> Iterator[Cluster]:
    """A server without controllers: nobody else writes to the samples."""
    with Cluster(kube_binaries, controllers=False) as running:
        running.kubectl("apply", "-f", str(HERE / "protobuf_samples.yaml"))
        yield running


@pytest.mark.kube
@pytest.mark.parametrize("path", SAMPLES)
def test_a_live_object_is_its_json(alone: Cluster, path: str) -> None:
    _, sent = alone.get(path, accept=PROTOBUF)
    _, told = alone.get(path)
    assert without_nulls(protobuf.decode(sent)) == without_nulls(json.loads(told))


@pytest.mark.kube
@pytest.mark.parametrize("path", sorted({path.rpartition("/")[0] for path in SAMPLES}))
def test_a_live_list_is_its_json(alone: Cluster, path: str) -> None:
    _, sent = alone.get(path, accept=PROTOBUF)
    decoded, told = protobuf.decode(sent), json.loads(alone.get(path)[1])
    assert without_nulls(decoded) == without_nulls(told)


@pytest.mark.kube
def test_reviews_and_tokens(alone: Cluster) -> None:
    def post(path: str, wanted: dict[str, Any]) -> dict[str, Any]:
        _, sent = alone.request("POST", path, body=json.dumps(wanted).encode(), accept=PROTOBUF)
        return protobuf.decode(sent)

    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": alone.token},
    }
    status = post("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert status["authenticated"] is True
    assert status["user"]["groups"] == ["system:masters", "system:authenticated"]
    rules = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    granted = post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", rules)["status"]
    assert {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]} in granted["resourceRules"]
    alone.kubectl("create", "serviceaccount", "robot")
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["a"]},
    }
    token = post("/api/v1/namespaces/default/serviceaccounts/robot/token", request)
    assert token["spec"] == {"audiences": ["a"], "expirationSeconds": 3600}
    assert token["status"]["token"].count(".") == 2
    refusal = post("/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "x"}})
    assert (refusal["kind"], refusal["reason"], refusal["code"]) == ("Status", "NotFound", 404)


@pytest.mark.kube
def test_what_go_itself_encodes(kube_binaries: Binaries) -> None:
    """The Go module ships every kind with every field set, in both encodings."""
    rig = Path(__file__).parents[2] / "rig"
    modules = ["k8s.io/api", "k8s.io/apiextensions-apiserver"]
    try:
        told = subprocess.run(
            ["go", "list", "-m", "-f", "{{.Dir}}", *modules],
            cwd=rig, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the Go modules of the rig are not on this machine")
    if len(told) != len(modules):
        pytest.skip("the Go modules of the rig are not on this machine")
    checked = 0
    for folder in told:
        for file in sorted(Path(folder).glob("**/testdata/HEAD/*.pb")):
            expected = json.loads(file.with_suffix(".json").read_text())
            kind = f"{expected.get('apiVersion')}/{expected.get('kind')}"
            if kind in data.protobuf()["kinds"]:
                decoded = protobuf.decode(file.read_bytes())
                assert without_nulls(decoded) == without_nulls(expected), file.name
                checked += 1
    assert checked > 80


class Catcher(http.server.BaseHTTPRequestHandler):
    """Takes one POST and keeps it."""

    caught: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        self.caught.append((self.headers["Content-Type"], sent))
        answer = json.dumps({"apiVersion": "v1", "kind": "Status", "status": "Success"}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.kubectl
def test_what_kubectl_sends(kubectl: Path, tmp_path: Path) -> None:
    Catcher.caught.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Catcher) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [str(kubectl), f"--server=http://127.0.0.1:{server.server_port}", "create"]
        command += ["deployment", "web", "--image=nginx", "--replicas=2", "--port=80"]
        subprocess.run(command, env={"HOME": str(tmp_path)}, capture_output=True, timeout=60)
        server.shutdown()
    ((content_type, sent),) = Catcher.caught
    if content_type != PROTOBUF:
        pytest.skip(f"this kubectl sends {content_type}")
    decoded = protobuf.decode(sent)
    assert decoded["metadata"]["name"] == "web"
    assert decoded["spec"]["replicas"] == 2
    (container,) = decoded["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nginx"
    assert container["ports"] == [{"containerPort": 80}]


def test_the_limit_of_fields_is_of_one_body() -> None:
    """Splitting messages for other readers, as CEL's parser does, uses up nobody's limit."""
    many = b"\x08\x01" * 60_000
    for _ in range(5):
        assert len(protobuf.split(many)[1]) == 60_000
    body = protobuf.MAGIC + many
    for _ in range(5):
        with pytest.raises(protobuf.ProtobufError, match=r"should not be|no kind"):
            protobuf.decode(body)
