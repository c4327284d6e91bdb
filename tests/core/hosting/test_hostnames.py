"""The names pods have for each other."""

from bidplane.api import labels
from bidplane.core.hosting import hostnames


def service(name="ranks", **spec):
    spec = {"clusterIP": "None", **spec}
    return {"metadata": {"name": name, "namespace": "lab"}, "spec": spec}


def slice_of(service, *endpoints, ports=()):
    metadata = {"name": "x", "labels": {"kubernetes.io/service-name": service["metadata"]["name"]}}
    return {"metadata": metadata, "endpoints": list(endpoints), "ports": list(ports)}


def endpoint(address, hostname=None, ready=True):
    found = {"addresses": [address], "conditions": {"ready": ready}}
    return found if hostname is None else {**found, "hostname": hostname}


def lookup(text, name):
    return [line.split()[0] for line in text.splitlines() if name in line.split()[1:]]


def test_ranks_are_found_by_their_names_and_all_by_the_services():
    ranks = service()
    here = slice_of(ranks, endpoint("10.0.0.2", "train-0"), endpoint("10.0.0.3", "train-1"))
    text = hostnames.hosts("lab", [ranks], [here])
    for name in ("train-0.ranks", "train-0.ranks.lab", "train-0.ranks.lab.svc.cluster.local"):
        assert lookup(text, name) == ["10.0.0.2"]
    assert lookup(text, "ranks") == ["10.0.0.2", "10.0.0.3"]
    assert lookup(text, "train-0") == [], "as with a name server: not without its service"


def test_who_is_not_ready_is_not_named():
    ranks = service()
    here = slice_of(ranks, endpoint("10.0.0.2", "train-0", ready=False))
    assert hostnames.hosts("lab", [ranks], [here]) == ""


def test_a_service_with_an_address_leads_to_its_pods_where_ports_are_the_same():
    same = service("same", clusterIP="10.96.0.9", ports=[{"port": 8080}])
    other = service("other", clusterIP="10.96.0.8", ports=[{"port": 80}])
    slices = [slice_of(s, endpoint("10.0.0.4"), ports=[{"port": 8080}]) for s in (same, other)]
    text = hostnames.hosts("lab", [same, other], slices)
    assert lookup(text, "same") == ["10.0.0.4"]
    assert lookup(text, "other") == []


def test_many_names_stay_within_what_an_object_may_have():
    ranks = service()
    many = [endpoint(f"10.0.{n // 250}.{n % 250}", f"train-{n}") for n in range(2000)]
    text = hostnames.hosts("lab", [ranks], [slice_of(ranks, *many)])
    assert 0 < len(text) <= 64 << 10
    assert text.endswith("\n")


def test_a_pods_file():
    pod = {
        "metadata": {
            "namespace": "agent-a",
            "annotations": {
                labels.PLANE_NAMESPACE: "lab",
                labels.HOSTS: "10.0.0.3 train-1.ranks\n",
            },
        },
        "spec": {"subdomain": "ranks", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]},
    }
    text = hostnames.hosts_file(pod, "10.0.0.2", "train-0")
    assert lookup(text, "localhost") == ["127.0.0.1", "::1"]
    assert lookup(text, "train-0") == ["10.0.0.2"]
    assert lookup(text, "train-0.ranks.lab.svc.cluster.local") == ["10.0.0.2"]
    assert lookup(text, "b") == ["1.2.3.4"]
    assert lookup(text, "train-1.ranks") == ["10.0.0.3"]
