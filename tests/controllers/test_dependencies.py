"""What pods name, on the host: there before them, true while they live, gone after."""

import asyncio

import msgspec
import pytest

from bidplane.api import labels
from bidplane.api.kinds import (
    BID,
    CONFIG_MAP,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    VOLUME_CLAIM,
)
from bidplane.controllers.syncer.dependencies import LOOK_SECONDS
from bidplane.core.hosting.translation import host_name, tokens_name
from bidplane.plane.identity import accounts
from bidplane.runtime.identity.credentials import Tokens

from .conftest import SPACE

A_LOOK = LOOK_SECONDS + 1
SETTINGS = {"metadata": {"name": "settings"}, "data": {"a": "1", "b": "2"}}
VOLUME = {"name": "v", "configMap": {"name": "settings"}}


async def copies(site, kind=CONFIG_MAP, name="settings"):
    listing = await site.host.list(kind, SPACE, labels=f"{labels.COPY}=true")
    return [
        copy for copy in listing.items if copy["metadata"]["name"] == host_name("default", name)
    ]


async def second_pod(site, name, **spec):
    await site.create_pod(name, **spec)
    bids = await site.all(site.host, BID)
    (bid,) = [bid for bid in bids if bid["metadata"]["name"].startswith(name)]
    await site.win(bid, name=f"lease-of-{name}")
    await site.settle()


def test_a_config_map_follows_its_original_while_a_pod_names_it(stories):
    async def story(site):
        await site.plane.create(CONFIG_MAP, SETTINGS, "default")
        await site.running(volumes=[VOLUME])
        (copy,) = await copies(site)
        assert copy["data"] == {"a": "1", "b": "2"}
        await site.plane.patch(CONFIG_MAP, "settings", {"data": {"a": "9", "b": None}}, "default")
        await site.settle(A_LOOK)
        (copy,) = await copies(site)
        assert copy["data"] == {"a": "9"}, "changed, and what was taken out is gone"
        version = copy["metadata"]["resourceVersion"]
        await site.settle(5 * A_LOOK)
        (copy,) = await copies(site)
        assert copy["metadata"]["resourceVersion"] == version, "written when it changed only"
        await site.run_host_pod("Succeeded")
        await site.settle(A_LOOK)
        assert await copies(site) == [], "nobody names it, though its lease is there still"
        assert [config_map["data"] for config_map in await site.all(site.plane, CONFIG_MAP)].count(
            {"a": "9"}
        ) == 1, "the original stays"

    stories(story)


def test_a_copy_is_shared_and_goes_with_the_last_pod_that_names_it(stories):
    async def story(site):
        await site.plane.create(CONFIG_MAP, SETTINGS, "default")
        await site.running(volumes=[VOLUME])
        await second_pod(site, "second", volumes=[VOLUME])
        assert len(await copies(site)) == 1
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.settle(A_LOOK)
        assert len(await copies(site)) == 1
        await site.plane.delete(POD, "second", "default", grace_seconds=0)
        await site.settle(A_LOOK)
        assert await copies(site) == []

    stories(story)


def test_a_secret_that_is_made_later_or_anew_is_carried(stories):
    async def story(site):
        volume = {"name": "v", "secret": {"secretName": "key", "optional": True}}
        await site.running(volumes=[volume])
        assert await copies(site, SECRET, "key") == []
        key = {"metadata": {"name": "key"}, "stringData": {"k": "1"}, "immutable": True}
        await site.plane.create(SECRET, key, "default")
        await site.settle(A_LOOK)
        (first,) = await copies(site, SECRET, "key")
        await site.plane.delete(SECRET, "key", "default")
        await site.settle(A_LOOK)
        assert await copies(site, SECRET, "key") == [], "as on any node: what runs keeps it"
        await site.plane.create(SECRET, {**key, "stringData": {"k": "2"}}, "default")
        await site.settle(A_LOOK)
        (recreated,) = await copies(site, SECRET, "key")
        assert recreated["data"] != first["data"]

    stories(story)


def test_an_immutable_config_that_was_made_anew_between_two_looks(stories):
    async def story(site):
        fixed = {**SETTINGS, "immutable": True}
        await site.plane.create(CONFIG_MAP, fixed, "default")
        await site.running(volumes=[VOLUME])
        await site.plane.delete(CONFIG_MAP, "settings", "default")
        await site.plane.create(CONFIG_MAP, {**fixed, "data": {"a": "new"}}, "default")
        await site.settle(A_LOOK)
        (copy,) = await copies(site)
        assert copy["data"] == {"a": "new"}

    stories(story)


def test_what_changed_or_ended_while_the_controllers_were_away_is_seen_to(stories):
    async def story(site):
        await site.plane.create(CONFIG_MAP, SETTINGS, "default")
        other = {"metadata": {"name": "other"}, "data": {"x": "1"}}
        await site.plane.create(CONFIG_MAP, other, "default")
        await site.running(volumes=[VOLUME])
        await second_pod(site, "second", volumes=[{"name": "o", "configMap": {"name": "other"}}])
        assert len(await copies(site, name="other")) == 1
        await site.pause()
        await site.plane.patch(CONFIG_MAP, "settings", {"data": {"a": "9"}}, "default")
        await site.plane.delete(POD, "second", "default", grace_seconds=0)
        await site.resume()
        await site.settle(A_LOOK)
        assert (await copies(site))[0]["data"]["a"] == "9"
        assert await copies(site, name="other") == []

    stories(story)


def test_a_pod_has_a_token_its_own_plane_takes_and_it_is_renewed(stories):
    async def story(site):
        tokens = Tokens(b"t" * 32)

        async def shown():
            secret = await site.host.get(SECRET, tokens_name("default", "default"), SPACE)
            ((key, text),) = secret["data"].items()
            return key, msgspec.json.decode(f'"{text}"', type=bytes).decode()

        await site.running()
        key, token = await shown()
        (pod,) = await site.all(site.host, POD)
        (volume,) = pod["spec"]["volumes"]
        first = volume["projected"]["sources"][0]["secret"]
        assert first["items"] == [{"key": key, "path": "token"}]

        def speaks_for(token):
            plane = site.planes.plane("trainer")
            now = site.clock.now()
            assert tokens.verify(token, now=now, accounts=True).plane == "trainer"
            user = accounts.user(plane, tokens.claims(token), [accounts.AUDIENCE])
            return user.name

        assert speaks_for(token) == "system:serviceaccount:default:default"
        await second_pod(site, "second")
        assert (await shown())[1] == token, "one for all pods of an account"
        await site.settle(3000)
        _, renewed = await shown()
        assert renewed != token
        assert speaks_for(renewed)
        await site.plane.delete(POD, "second", "default", grace_seconds=0)
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.settle(A_LOOK)
        listing = await site.host.list(SECRET, SPACE, labels=f"{labels.COPY}=true")
        assert not listing.items

    stories(story)


def test_a_pod_of_another_account_has_that_accounts_token(stories):
    async def story(site):
        await site.plane.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}}, "default")
        await site.running(serviceAccountName="robot")
        secret = await site.host.get(SECRET, tokens_name("default", "robot"), SPACE)
        (text,) = secret["data"].values()
        token = msgspec.json.decode(f'"{text}"', type=bytes).decode()
        assert Tokens(b"").claims(token)["sub"] == "system:serviceaccount:default:robot"

    stories(story)


CLAIM = {
    "metadata": {"name": "data"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
    },
}
DATA = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}


def test_a_volume_claim_outlives_its_pods_and_ends_with_its_original(stories):
    async def story(site):
        await site.plane.create(VOLUME_CLAIM, CLAIM, "default")
        await site.running(volumes=[DATA])
        name = host_name("default", "data")
        (copy,) = await site.all(site.host, VOLUME_CLAIM)
        assert copy["metadata"]["name"] == name
        assert copy["spec"]["storageClassName"] == "fast"
        (pod,) = await site.all(site.host, POD)
        used = [v["persistentVolumeClaim"] for v in pod["spec"]["volumes"] if v["name"] == "d"]
        assert used == [{"claimName": name}]
        bound = {"phase": "Bound", "capacity": {"storage": "2Gi"}}
        await site.host.patch(VOLUME_CLAIM, name, {"status": bound}, SPACE, subresource="status")
        await site.settle(A_LOOK)
        original = await site.plane.get(VOLUME_CLAIM, "data", "default")
        assert (original["status"]["phase"], original["status"]["capacity"]) == (
            "Bound",
            {"storage": "2Gi"},
        )
        await site.plane.delete(VOLUME_CLAIM, "data", "default")
        await site.settle(2 * A_LOOK)
        assert len(await site.all(site.host, VOLUME_CLAIM)) == 1, "a pod has it"
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.settle(2 * A_LOOK)
        assert await site.all(site.plane, VOLUME_CLAIM) == []
        remaining = await site.all(site.host, VOLUME_CLAIM)
        assert [
            volume_claim
            for volume_claim in remaining
            if not volume_claim["metadata"].get("deletionTimestamp")
        ] == []

    stories(story)


def test_a_claim_without_pods_keeps_its_volume(stories):
    async def story(site):
        await site.plane.create(VOLUME_CLAIM, CLAIM, "default")
        await site.running(volumes=[DATA])
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.settle(3 * A_LOOK)
        assert len(await site.all(site.host, VOLUME_CLAIM)) == 1

    stories(story)


@pytest.mark.parametrize("again", range(3))
def test_nothing_is_removed_under_a_pod_that_is_about_to_start(stories, again):
    """The last pod of a config ends while another that names it begins."""

    async def story(site):
        await site.plane.create(CONFIG_MAP, SETTINGS, "default")
        await site.running(volumes=[VOLUME])
        await site.create_pod("second", volumes=[VOLUME])
        bids = await site.all(site.host, BID)
        (bid,) = [bid for bid in bids if bid["metadata"]["name"].startswith("second")]
        await site.run_host_pod("Succeeded")
        await asyncio.sleep(LOOK_SECONDS - 1.5 + again)
        await site.win(bid, name="lease-2")
        await site.settle(3)
        names = await site.names(site.host, POD)
        assert host_name("default", "second") in names
        assert len(await copies(site)) == 1

    stories(story)


def test_two_of_one_name_never_share_a_volume(stories):
    async def story(site):
        await site.plane.create(VOLUME_CLAIM, CLAIM, "default")
        await site.running(volumes=[DATA])
        (first,) = await site.all(site.host, VOLUME_CLAIM)
        await site.plane.delete(POD, "train", "default", grace_seconds=0)
        await site.plane.delete(VOLUME_CLAIM, "data", "default")
        await site.settle()
        await site.plane.create(VOLUME_CLAIM, CLAIM, "default")
        await second_pod(site, "second", volumes=[DATA])
        host = {"metadata": {"finalizers": []}}
        await site.host.patch(VOLUME_CLAIM, first["metadata"]["name"], host, SPACE)
        await site.settle(A_LOOK)
        (copy,) = await site.all(site.host, VOLUME_CLAIM)
        assert copy["metadata"]["uid"] != first["metadata"]["uid"]
        assert host_name("default", "second") in await site.names(site.host, POD)

    stories(story)
