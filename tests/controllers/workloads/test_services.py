"""The EndpointSlices of a Service are its pods."""

from bidplane.api.kinds import ENDPOINT_SLICE, ENDPOINTS, NODE, POD, SERVICE

POD_SPEC = {
    "containers": [
        {"name": "main", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}
    ]
}
SPEC = {"selector": {"app": "web"}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}]}


async def endpoints(site):
    return [e for s in await site.all(ENDPOINT_SLICE) for e in s.get("endpoints") or ()]


def test_a_pod_answers_once_it_is_ready(stories):
    async def story(site):
        await site.create(SERVICE, "web", SPEC)
        node = f"node-{site.namespace}"
        await site.client.create(NODE, {"metadata": {"name": node}})
        bound = {**POD_SPEC, "nodeName": node}
        pod = await site.create(POD, "a", bound, labels={"app": "web"})
        await site.create(POD, "other", POD_SPEC, labels={"app": "api"})
        await site.say(pod, phase="Running", podIP="10.0.0.7", podIPs=[{"ip": "10.0.0.7"}])

        async def one():
            return await endpoints(site)

        (endpoint,) = await site.until(one)
        assert endpoint["addresses"] == ["10.0.0.7"]
        expected = {"ready": False, "serving": False, "terminating": False}
        assert endpoint["conditions"] == expected
        assert endpoint["targetRef"]["name"] == "a"
        assert endpoint["nodeName"] == node
        await site.ready(pod, ip="10.0.0.7")

        async def ready():
            return [e for e in await endpoints(site) if e["conditions"]["ready"]]

        await site.until(ready)
        (slice_,) = await site.all(ENDPOINT_SLICE)
        assert slice_["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]
        assert slice_["metadata"]["labels"] == {
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        }
        await site.delete(POD, "a", grace_seconds=0)

        async def none():
            return not await endpoints(site)

        await site.until(none)
        await site.client.delete(NODE, node)

    stories(story)


def test_the_slices_go_with_the_service(stories):
    async def story(site):
        await site.create(SERVICE, "web", SPEC)

        async def there():
            return await site.all(ENDPOINT_SLICE)

        await site.until(there)
        await site.delete(SERVICE, "web")

        async def gone():
            return not await site.all(ENDPOINT_SLICE)

        await site.until(gone)

    stories(story)


def test_the_old_kind_says_the_same(stories):
    async def story(site):
        node = f"node-{site.namespace}"
        await site.client.create(NODE, {"metadata": {"name": node}})
        await site.create(SERVICE, "web", SPEC, labels={"tier": "front"})
        for name, ip in (("a", "10.0.0.7"), ("b", "10.0.0.8")):
            pod = await site.create(
                POD, name, {**POD_SPEC, "nodeName": node}, labels={"app": "web"}
            )
            await site.say(pod, phase="Running", podIP=ip, podIPs=[{"ip": ip}])
            if name == "a":
                await site.ready(pod, ip=ip)

        async def both():
            endpoints_object = await site.get(ENDPOINTS, "web")
            subsets = (endpoints_object or {}).get("subsets") or ()
            full = [s for s in subsets if s.get("addresses") and s.get("notReadyAddresses")]
            return endpoints_object if full else None

        endpoints_object = await site.until(both)
        labels = {"tier": "front", "endpoints.kubernetes.io/managed-by": "endpoint-controller"}
        assert endpoints_object["metadata"]["labels"] == labels
        (subset,) = endpoints_object["subsets"]
        assert subset["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]
        (ready,) = subset["addresses"]
        assert (ready["ip"], ready["nodeName"], ready["targetRef"]["name"]) == (
            "10.0.0.7",
            node,
            "a",
        )
        assert [address["ip"] for address in subset["notReadyAddresses"]] == ["10.0.0.8"]
        await site.delete(SERVICE, "web")

        async def gone():
            return await site.get(ENDPOINTS, "web") is None

        await site.until(gone)
        await site.client.delete(NODE, node)

    stories(story)
