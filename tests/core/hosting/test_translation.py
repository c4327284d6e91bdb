"""A plane's objects on the host: names apart, nothing of the plane left, nothing of it lost."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.api.kinds import CONFIG_MAP, SECRET
from bidplane.core.hosting import translation
from bidplane.core.hosting.hostpods import host_pod
from bidplane.core.hosting.references import Reference, references, token_wishes
from bidplane.core.hosting.translation import host_name, tokens_name
from bidplane.wire.names import label_problems
from core.structs import as_lease

GPU = labels.GPU_RESOURCE

words = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
# Close to each other on purpose: dots and dashes become one, long ones are cut.
near = st.from_regex(r"a([-.]a){0,3}(b{0,70})", fullmatch=True)
names = st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,250}[a-z0-9])?", fullmatch=True) | near

LEASE = as_lease(
    {
        "apiVersion": "bidplane.dev/v1alpha1",
        "kind": "GPULease",
        "metadata": {"name": "lease-1", "namespace": "agent-a", "uid": "l1"},
        "spec": {
            "node": "h100-a",
            "devices": [
                {"node": "h100-a", "driver": "d", "pool": "h100-a", "name": "gpu-0"},
                {"node": "h100-a", "driver": "d", "pool": "h100-a", "name": "gpu-1"},
            ],
        },
    }
)


def pod(spec=None, **metadata):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "default", "uid": "u1", **metadata},
        "spec": spec or {"containers": [{"name": "main"}]},
    }


@given(words, names)
def test_a_host_name_is_a_dns_label(namespace, name):
    assert not label_problems(host_name(namespace, name))


@given(st.lists(st.tuples(words | st.just("a"), names), unique=True, min_size=2, max_size=20))
def test_two_objects_never_share_a_host_name(pairs):
    assert len({host_name(*pair) for pair in pairs}) == len(pairs)


def test_a_host_name_can_be_read():
    assert host_name("default", "train").startswith("train-x-default-")


def test_names_that_only_differ_where_they_are_cut_or_changed():
    pairs = [
        ("a", "b.c"),
        ("a", "b-c"),
        ("x-a", "b"),
        ("a", "b-x"),
        ("a", "n" * 80),
        ("a", "n" * 81),
    ]
    assert len({host_name(*pair) for pair in pairs}) == len(pairs)


def test_the_way_back_is_in_the_annotations():
    copy = {"metadata": translation.host_metadata("a", pod())}
    assert translation.origin(copy) == ("default", "train")
    assert translation.origin(pod()) is None


def test_the_user_cannot_claim_to_be_another():
    forged = pod(
        labels={labels.AGENT: "victim", labels.LEASE: "lease-9", "app": "x"},
        annotations={labels.PLANE_NAME: "other", labels.PLANE_UID: "u9", "note": "y"},
        ownerReferences=[{"uid": "z"}],
        finalizers=["mine"],
    )
    copy = host_pod("a", forged, LEASE)
    assert copy["metadata"]["labels"] == {
        "app": "x",
        labels.AGENT: "a",
        labels.LEASE: "lease-1",
    }
    assert translation.origin(copy) == ("default", "train")
    assert copy["metadata"]["annotations"][labels.PLANE_UID] == "u1"
    assert copy["metadata"].keys() == {"name", "namespace", "labels", "annotations"}
    assert copy["metadata"]["namespace"] == "agent-a"


def test_the_host_pod_is_pinned_to_the_leases_node_and_devices():
    spec = {
        "nodeName": "lease-1",
        "nodeSelector": {"zone": "b"},
        "serviceAccountName": "robot",
        "schedulerName": "mine",
        "priorityClassName": "high",
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "resources": {"limits": {GPU: "2", "cpu": "1"}}},
            {"name": "side", "resources": {"requests": {"memory": "1Gi"}}},
        ],
    }
    assert host_pod("a", pod(spec), LEASE, "lease-1")["spec"] == {
        "nodeName": "h100-a",
        "hostname": "train",
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        # Whom the owner of a node keeps out is not the agent's to say.
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "bidplane.dev/dedicated", "operator": "Exists"},
        ],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": "lease-1"}],
        "containers": [
            {
                "name": "main",
                "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "gpus"}]},
            },
            {"name": "side", "resources": {"requests": {"memory": "1Gi"}}},
        ],
    }


def test_the_claim_pins_every_device_of_the_lease():
    claim, status = translation.host_claim(LEASE, LEASE.spec.devices)
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    allocation = status["allocation"]
    assert [result["device"] for result in allocation["devices"]["results"]] == ["gpu-0", "gpu-1"]
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["h100-a"]
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "l1"


def test_a_bid_keeps_its_terms():
    bid = {"apiVersion": "x", "kind": "Bid", **pod(), "spec": {"gpus": 2, "maxPrice": "1"}}
    copy = translation.host_bid("a", bid)
    assert copy["spec"] == {"gpus": 2, "maxPrice": "1"}
    assert copy["metadata"]["name"] == host_name("default", "train")


def test_a_config_copy_has_its_content_and_is_marked():
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "data": {"key": "dg=="},
        "immutable": True,
        "metadata": {
            "name": "s",
            "namespace": "default",
            "uid": "s1",
            "managedFields": [],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "dg=="},
        },
    }
    copy = translation.host_config("a", secret)
    metadata = copy.pop("metadata")
    assert copy == {key: secret[key] for key in ("apiVersion", "kind", "type", "data", "immutable")}
    assert metadata["labels"] == {labels.AGENT: "a", labels.COPY: "true"}
    assert metadata["name"] == host_name("default", "s")
    assert "dg==" not in str(metadata), "its content is there once"


def test_what_a_pod_names_is_found_once_and_in_order():
    spec = {
        "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "one"}}]}],
        "containers": [
            {
                "name": "main",
                "envFrom": [{"configMapRef": {"name": "one"}}, {"secretRef": {"name": "two"}}],
                "env": [
                    {"name": "PLAIN", "value": "x"},
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "three", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "four", "key": "k"}}},
                    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
            }
        ],
        "volumes": [
            {"name": "v", "configMap": {"name": "five"}},
            {"name": "w", "secret": {"secretName": "six"}},
            {
                "name": "p",
                "projected": {
                    "sources": [
                        {"configMap": {"name": "seven"}},
                        {"secret": {"name": "eight"}},
                        {"downwardAPI": {}},
                    ]
                },
            },
            {"name": "e", "emptyDir": {}},
        ],
        "imagePullSecrets": [{"name": "nine"}],
    }
    assert [(one.kind, one.name) for one in references(pod(spec))] == [
        (CONFIG_MAP, "one"),
        (SECRET, "two"),
        (CONFIG_MAP, "three"),
        (SECRET, "four"),
        (CONFIG_MAP, "five"),
        (SECRET, "six"),
        (CONFIG_MAP, "seven"),
        (SECRET, "eight"),
        (SECRET, "nine"),
    ]


@pytest.mark.parametrize(
    ("spec", "required"),
    [
        ({"volumes": [{"configMap": {"name": "x", "optional": True}}]}, False),
        ({"volumes": [{"configMap": {"name": "x", "optional": False}}]}, True),
        ({"volumes": [{"configMap": {"name": "x"}}]}, True),
        ({"containers": [{"envFrom": [{"configMapRef": {"name": "x", "optional": True}}]}]}, False),
        (
            {
                "containers": [{"envFrom": [{"configMapRef": {"name": "x", "optional": True}}]}],
                "volumes": [{"configMap": {"name": "x"}}],
            },
            True,
        ),
    ],
)
def test_a_pod_may_do_without_what_it_calls_optional(spec, required):
    assert references(pod(spec)) == [Reference(CONFIG_MAP, "x", required)]


def test_a_pod_starts_without_its_pull_secrets_as_on_a_kubelet():
    spec = {"imagePullSecrets": [{"name": "x"}]}
    assert references(pod(spec)) == [Reference(SECRET, "x", required=False)]


simple = st.sampled_from(["one", "two", "three.four", ""])
optional = st.fixed_dictionaries({}, optional={"optional": st.booleans()})


def named(field="name"):
    """Names may be missing: upstream allows it for old times' sake."""
    return st.builds(
        lambda name, more: {**more, **({} if name is None else {field: name})},
        st.none() | simple,
        optional,
    )


quantities = st.dictionaries(st.sampled_from([GPU, "cpu", "memory"]), st.just("1"))
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("c")},
        optional={
            "resources": st.fixed_dictionaries(
                {}, optional={"limits": quantities, "requests": quantities}
            ),
            "envFrom": st.lists(
                st.fixed_dictionaries({"configMapRef": named()})
                | st.fixed_dictionaries({"secretRef": named()}),
                max_size=2,
            ),
            "env": st.lists(
                st.fixed_dictionaries(
                    {"name": st.just("E")},
                    optional={
                        "valueFrom": st.fixed_dictionaries({"configMapKeyRef": named()})
                        | st.fixed_dictionaries({"secretKeyRef": named()})
                        | st.just({"fieldRef": {"fieldPath": "metadata.name"}})
                    },
                ),
                max_size=2,
            ),
        },
    ),
    max_size=2,
)
volumes: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries({"configMap": named()})
    | st.fixed_dictionaries({"secret": named("secretName")})
    | st.fixed_dictionaries(
        {
            "projected": st.fixed_dictionaries(
                {
                    "sources": st.lists(
                        st.fixed_dictionaries({"configMap": named()})
                        | st.fixed_dictionaries({"secret": named()}),
                        max_size=2,
                    )
                }
            )
        }
    )
    | st.just({"emptyDir": {}}),
    max_size=3,
)
specs = st.fixed_dictionaries(
    {"containers": containers},
    optional={
        "initContainers": containers,
        "volumes": volumes,
        "imagePullSecrets": st.lists(named(), max_size=2),
        "nodeName": st.just("lease-1"),
        "nodeSelector": st.just({f"{GPU}.present": "true"}),
        "tolerations": st.just([{"key": GPU, "operator": "Exists"}]),
    },
)


def named_anywhere(part, key=""):
    """Every name of a config in a spec, wherever it is: knows no more than the fields' names."""
    found = set()
    if isinstance(part, list):
        for item in part:
            found |= named_anywhere(item, key)
    elif isinstance(part, dict):
        if key in ("imagePullSecrets", "configMap", "secret") or key.endswith("Ref"):
            found |= {part.get("name"), part.get("secretName")} - {None, ""}
        for inner, value in part.items():
            found |= named_anywhere(value, inner)
    return found


@given(specs, words)
def test_references_and_the_host_pod_agree(spec, namespace):
    """Every config the host pod names is the copy of one that `references` found, and all are."""
    plane_pod = pod(spec, namespace=namespace)
    before = msgspec.json.encode(plane_pod)
    found = references(plane_pod)
    copy = host_pod("a", plane_pod, LEASE)
    assert {host_name(namespace, one.name) for one in found} == named_anywhere(copy["spec"])
    assert msgspec.json.encode(plane_pod) == before, "a cached object was changed"


@given(specs)
def test_nothing_of_the_gpu_resource_is_left(spec):
    copy = host_pod("a", pod(spec), LEASE)
    copy["spec"].pop("tolerations")  # of a taint that is called like it
    assert GPU not in msgspec.json.encode(copy["spec"]).decode()
    asked = [
        GPU in (c.get("resources", {}).get(field) or {})
        for part in ("containers", "initContainers")
        for c in spec.get(part) or ()
        for field in ("limits", "requests")
    ]
    claims = [
        c["resources"].get("claims")
        for part in ("containers", "initContainers")
        for c in copy["spec"].get(part) or ()
    ]
    assert any(asked) == ([{"name": "gpus"}] in claims)


def test_a_pods_way_to_its_own_api_is_carried():
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
    other = {"serviceAccountToken": {"path": "vault", "audience": "vault"}}
    where = {"fieldRef": {"fieldPath": "metadata.namespace"}, "path": "namespace"}
    sources = [
        token,
        other,
        {"configMap": {"name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [where]}},
    ]
    volume = {"name": "kube-api-access-x7k2p", "projected": {"sources": sources}}
    mount = {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets"}
    main = {"name": "main", "volumeMounts": [mount]}
    spec = {"containers": [main], "volumes": [volume], "serviceAccountName": "robot"}
    found = pod(spec)
    first, second = token_wishes(found)
    copy = host_pod("a", found, LEASE, api="https://10.0.0.1:6443/planes/a")["spec"]
    tokens = tokens_name("default", "robot")
    assert copy["volumes"][0]["projected"]["sources"] == [
        {"secret": {"name": tokens, "items": [{"key": first.key, "path": "token"}]}},
        {"secret": {"name": tokens, "items": [{"key": second.key, "path": "vault"}]}},
        {"configMap": {"name": host_name("default", "kube-root-ca.crt")}},
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "namespace",
                        "fieldRef": {
                            "fieldPath": "metadata.annotations['bidplane.dev/plane-namespace']"
                        },
                    }
                ]
            }
        },
    ]
    (container,) = copy["containers"]
    assert container["volumeMounts"] == [mount]
    assert {e["name"]: e["value"] for e in container["env"]} == {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "KUBERNETES_SERVICE_PORT": "6443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "6443",
    }
    assert first.key != second.key
    held = translation.host_tokens("a", "default", "robot", {first.key: "t"})
    assert held["data"] == {first.key: "dA=="}
    assert held["metadata"]["name"] == tokens


def test_a_pod_reads_of_itself_what_its_plane_knows():
    paths = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.podIP")
    env = [{"name": p, "valueFrom": {"fieldRef": {"fieldPath": p}}} for p in paths]
    said = {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"}
    spec = {"nodeName": "lease-1", "containers": [{"name": "main", "env": [*env, said]}]}
    copy = host_pod("a", pod(spec), LEASE, api="https://h:1/planes/a")["spec"]
    found = {one["name"]: one for one in copy["containers"][0]["env"]}
    assert [found[path].get("value") for path in paths] == [
        "train", "default", "u1", "lease-1", None,
    ]  # fmt: skip
    assert found["status.podIP"]["valueFrom"], "the node knows"
    assert found["KUBERNETES_SERVICE_HOST"]["value"] == "mine", "what its author says stays"


def test_claims_of_the_plane_are_called_as_on_the_host_and_others_by_their_name():
    volumes = [
        {"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}}
        for name in ("mine", "models")
    ]
    spec = {"containers": [{"name": "main"}], "volumes": volumes}
    copy = host_pod("a", pod(spec), LEASE, volume_claims=["mine"])["spec"]
    mine, models = (volume["persistentVolumeClaim"] for volume in copy["volumes"])
    assert mine == {"claimName": host_name("default", "mine"), "readOnly": True}
    assert models["claimName"] == "models"


def test_a_claim_may_not_choose_its_volume():
    wish = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
    reach = {"volumeName": "of-another", "dataSource": {"kind": "x", "name": "y"}, "selector": {}}
    claim = {**pod(), "spec": {**wish, **reach, "storageClassName": "fast"}}
    assert translation.host_volume_claim("a", claim)["spec"] == {
        **wish,
        "storageClassName": "fast",
    }


@given(words, words, names)
def test_an_accounts_tokens_have_a_name_of_their_own(namespace, account, name):
    assert not label_problems(tokens_name(namespace, account))
    assert tokens_name(namespace, account) != host_name(namespace, name)
