"""The pilot's credential reads the fleet and creates Proposals; every other route refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.gate.policy import ActorRole
from bidplane.errors import ApiError
from bidplane.exchange.http.app import ExchangeApp
from bidplane.exchange.http.news import News
from bidplane.gate.roles import RIGHTS
from bidplane.ledger import Ledger
from bidplane.node.auth import Credentials, InstallationGate
from bidplane.runtime.identity.credentials import HOST_PLANE, Identity
from bidplane.web.credentials import CredentialsApp
from bidplane.web.decisions import DecisionsApp
from bidplane.web.planes import PlanesApp

from .conftest import CORE, OURS, GateSite, Story, cordon

Host = Callable[[Story], None]
PILOT = "pilot:pilot"
REFUSED = (401, 403)

# Reviews write nothing: they tell the sender what the sender may do.
REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")


def readable() -> set[tuple[str, str]]:
    return {
        (group, resource)
        for rule in RIGHTS[ActorRole.PILOT]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "get" in rule["verbs"]
    }


def test_in_the_hosts_api_it_writes_proposals_alone(host: Host) -> None:
    async def story(site: GateSite) -> None:
        tried = 0
        allowed: list[str] = []
        for resource in site.planes.plane(HOST_PLANE).registry:
            base = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
            space = "/namespaces/default" if resource.namespaced else ""
            path = f"/planes/host{base}{space}/{resource.plural}"
            routes = [("POST", path)]
            for sub in ("", *(f"/{name}" for name in resource.subresources)):
                routes += [(verb, f"{path}/x{sub}") for verb in ("POST", "PUT", "PATCH")]
            routes += [("DELETE", path), ("DELETE", f"{path}/x")]
            for verb, route in routes:
                tried += 1
                answer = await site.call(verb, route, {"metadata": {"name": "x"}}, by=PILOT)
                if answer.code not in REFUSED:
                    allowed.append(f"{verb} {resource.plural}")
            answer = await site.call("GET", path, by=PILOT)
            may_read = (resource.group, resource.plural) in readable()
            assert (answer.code == 200) is may_read, f"GET {path}: {answer}"
        writes = [line for line in allowed if line.removeprefix("POST ") not in REVIEWS]
        assert set(writes) == {"POST proposals"}, writes
        assert tried > 500
        exec_path = f"{CORE}/namespaces/default/pods/pod-1/exec"
        assert (await site.call("GET", exec_path, by=PILOT, command="sh")).code == 403
        for path in ("/planes/host/metrics", "/planes/a/api/v1/pods", "/planes/none/api/v1/pods"):
            assert (await site.call("GET", path, by=PILOT)).code in REFUSED

    host(story)


@pytest.mark.parametrize("role", [role for role in ActorRole if role is not ActorRole.OWNER])
def test_no_role_gets_another_credential_or_decides_for_the_owner(
    host: Host, role: ActorRole
) -> None:
    async def story(site: GateSite) -> None:
        by = f"{role}:somebody"
        for app in (CredentialsApp, PlanesApp):
            for route in app.routes:
                for name in ("host", "a", "somebody"):
                    filled = route.path.replace("{agent}", name).replace("{name}", name)
                    path = filled.replace("{user}", name)
                    answer = await site.call(route.method, path, by=by, role="owner", to="b")
                    # Without the life of planes, its routes are those of credentials: not served.
                    assert answer.code in (*REFUSED, 404), f"{route.method} {path}: {answer}"
                    if app is CredentialsApp:
                        assert answer.code == 403
        for decision in DecisionsApp.routes:
            path = decision.path.replace("{name}", "x")
            answer = await site.call("POST", path, by=by, digest="0" * 64)
            if role in (ActorRole.PILOT, ActorRole.NONE):
                assert answer.code == 403

    host(story)


def test_planes_and_the_exchange_and_nodes_take_it_for_nobody(host: Host, tmp_path: Path) -> None:
    async def story(site: GateSite) -> None:
        ledger = Ledger.open(tmp_path / "other.db", durable=False)
        exchange = ExchangeApp(ledger, site.tokens, News(), clock=site.clock)
        token = site.token("pilot", ActorRole.PILOT)
        main = site.app

        async def refuses(app: Any, method: str, path: str) -> None:
            site.app = app
            answer = await site.call(method, path, {}, token=token)
            assert answer.code in REFUSED, f"{method} {path}: {answer}"

        for table in (exchange.routes, exchange.past):
            for route in table:
                path = route.path
                for part in ("{name}", "{pool}", "{number}", "{uid}"):
                    path = path.replace(part, "1")
                await refuses(exchange, route.method, f"/exchange/v1{path}")
        planes_app = PlanesApp(site.planes, site.tokens, clock=site.clock)  # type: ignore[arg-type]
        for plane_route in PlanesApp.routes:
            await refuses(planes_app, plane_route.method, plane_route.path.replace("{name}", "a"))
        site.app = main
        ledger.close()
        node = InstallationGate(site.tokens, clock=site.clock)
        with pytest.raises(ApiError, match="only the installation's owner"):
            await node.admit(Credentials(token), "get", ("pods",))

    host(story)


def test_it_proposes_in_its_own_name_only(host: Host) -> None:
    async def story(site: GateSite) -> None:
        ann = {"name": "ann", "role": "owner"}
        answer = await site.propose(cordon(), by=PILOT, proposer=ann)
        assert answer.code == 403
        assert "spec.proposer must be the sender: name pilot, role pilot" in answer.message
        assert (await site.propose(cordon(), by=PILOT)).code == 201
        status = {"status": {"phase": "Allowed"}}
        for by in (PILOT, "owner:ann"):
            forged = await site.patch(f"{OURS}/proposals/p/status", status, by=by)
            assert forged.code == 403, forged
        changed = {"spec": {"action": {"kind": "CordonNode", "name": "n2"}}}
        assert (await site.patch(f"{OURS}/proposals/p", changed)).code == 422

    host(story)


def test_a_token_that_names_no_role_of_ours_has_no_right(host: Host) -> None:
    async def story(site: GateSite) -> None:
        uid = site.planes.uid(HOST_PLANE)
        assert uid is not None
        odd = Identity(
            plane=HOST_PLANE, uid=uid, user="x", groups=("bidplane:role:king",), expires=2 * 10**9
        )
        token = site.tokens.issue(odd)
        for path in (f"{CORE}/nodes", f"{OURS}/proposals", f"{CORE}/secrets"):
            assert (await site.call("GET", path, token=token)).code == 403

    host(story)
