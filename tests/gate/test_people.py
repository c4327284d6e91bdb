"""People's changes of the host, as kubectl sends them: one gate, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bidplane.core.gate.lifecycle import ProposalEvent

from .conftest import CORE, OURS, GateSite, Story

Host = Callable[[Story], None]
CORDON = {"spec": {"unschedulable": True}}


def test_an_owner_is_allowed_and_the_audit_shows_it(host: Host) -> None:
    async def story(site: GateSite) -> None:
        answer = await site.patch(f"{CORE}/nodes/n1", CORDON)
        assert answer.code == 200, answer
        assert answer.body["spec"]["unschedulable"] is True
        allowed, begun, applied = await site.audit()
        assert (allowed.event, begun.event, applied.event) == (
            ProposalEvent.ALLOWED,
            ProposalEvent.BEGUN,
            ProposalEvent.APPLIED,
        )
        assert (allowed.actor, allowed.role, allowed.action) == ("ann", "owner", "CordonNode")
        assert (allowed.target, allowed.devices, allowed.agents) == ("Node n1", 2, 1)
        assert allowed.policy.startswith("default@")
        assert allowed.policy.endswith("/owners")

    host(story)


def test_an_operators_change_is_refused_with_the_name_of_its_proposal(host: Host) -> None:
    async def story(site: GateSite) -> None:
        answer = await site.patch(f"{CORE}/nodes/n1", CORDON, by="operator:oli")
        assert answer.code == 403
        assert "needs the approval of one person (owner or approver)" in answer.message
        assert "Proposal oli-" in answer.message
        name = answer.message.split("Proposal ")[1].split()[0]
        again = await site.patch(f"{CORE}/nodes/n1", CORDON, by="operator:oli")
        assert f"Proposal {name} " in again.message, "a second one was made"
        await asyncio.sleep(1)
        status = (await site.proposal(name))["status"]
        assert (status["phase"], status["needs"]) == ("Waiting", 1)
        assert not (await site.call("GET", f"{CORE}/nodes/n1")).body["spec"].get("unschedulable")

        own = await site.decide(name, "approve", by="operator:oli", digest=status["digest"])
        assert own.code == 403
        assert "somebody else must approve" in own.message
        other = await site.decide(name, "approve", by="finance:fee", digest=status["digest"])
        assert other.code == 403
        assert "owner or approver may" in other.message
        wrong = await site.decide(name, "approve", by="approver:bea", digest="0" * 64)
        assert wrong.code == 409
        assert "about another action" in wrong.message
        without = await site.decide(name, "approve", by="approver:bea")
        assert without.code == 400
        good = await site.decide(name, "approve", by="approver:bea", digest=status["digest"])
        assert good.code == 200, good
        await asyncio.sleep(1)
        assert (await site.call("GET", f"{CORE}/nodes/n1")).body["spec"]["unschedulable"] is True
        status = (await site.proposal(name))["status"]
        assert (status["phase"], status["reason"]) == ("Applied", "Approved")
        assert status["undo"] == [{"kind": "ReturnNode", "name": "n1", "namespace": "", "uid": "",
                                   "value": ""}]  # fmt: skip
        twice = await site.decide(name, "approve", by="owner:ann", digest=status["digest"])
        assert (twice.code, "it waits for nobody" in twice.message) == (409, True)
        await asyncio.sleep(120)
        status = (await site.proposal(name))["status"]
        assert status["measured"]["devices"] == status["effect"]["devices"] == 2

        undone = await site.decide(name, "undo", by="owner:ann")
        assert undone.code == 200, undone
        await asyncio.sleep(1)
        assert not (await site.call("GET", f"{CORE}/nodes/n1")).body["spec"].get("unschedulable")
        late = await site.decide(name, "undo", by="owner:ann")
        assert late.code == 409
        assert "no longer applies" in late.message

    host(story)


def test_a_role_gives_the_listed_actions_and_nothing_else(host: Host) -> None:
    async def story(site: GateSite) -> None:
        trusted = {"spec": {"trusted": True}}
        answer = await site.patch(f"{OURS}/agents/a", trusted, by="operator:oli")
        assert answer.code == 403
        assert "only what is a listed action" in answer.message
        assert (await site.patch(f"{OURS}/agents/a", trusted)).code == 200
        both = {"spec": {"refill": "99", "trusted": False}}
        assert (await site.patch(f"{OURS}/agents/a", both, by="finance:fee")).code == 403
        for path in (f"{CORE}/secrets", f"{CORE}/namespaces/default/secrets"):
            assert (await site.call("GET", path, by="operator:oli")).code == 403
        assert (await site.patch(f"{CORE}/nodes/n1", CORDON, by="finance:fee")).code == 403
        policy = f"{OURS}/policies/default"
        assert (await site.call("DELETE", policy, by="operator:oli")).code == 403

    host(story)


def test_an_eviction_and_a_deletion_are_the_same_action(host: Host) -> None:
    async def story(site: GateSite) -> None:
        pods = f"{CORE}/namespaces/default/pods"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "pod-1", "namespace": "default"},
        }
        for by in ("operator:oli", "owner:ann"):
            evicted = await site.call("POST", f"{pods}/pod-1/eviction", eviction, by=by)
            deleted = await site.call("DELETE", f"{pods}/pod-2", by=by)
            if by == "owner:ann":
                assert (evicted.code, deleted.code) == (201, 200), (evicted, deleted)
            else:
                assert (evicted.code, deleted.code) == (403, 403)
                assert "Proposal oli-" in evicted.message
                assert "Proposal oli-" in deleted.message
        kinds = [entry.action for entry in await site.audit() if entry.event == "applied"]
        assert kinds == ["EvictPod", "EvictPod"]

    host(story)


def test_limits_hold_for_all_changes_of_the_window(host: Host) -> None:
    async def story(site: GateSite) -> None:
        rules = [{"name": "all", "when": "true", "ruling": "Allow"}]
        limits = [{"name": "hour", "devices": 3}]
        assert (await site.set_policy({"rules": rules, "limits": limits})).code == 200
        assert (await site.patch(f"{CORE}/nodes/n1", CORDON)).code == 200
        answer = await site.patch(f"{CORE}/nodes/n2", CORDON, by="operator:oli")
        assert answer.code == 403
        assert "OverLimit" in answer.message
        assert "at most 3 devices in 3600 s; 2 were touched, this would touch 2" in answer.message
        denied = (await site.audit())[-1]
        assert (denied.event, denied.reason) == (ProposalEvent.DENIED, "OverLimit")
        await asyncio.sleep(3601)
        assert (await site.patch(f"{CORE}/nodes/n2", CORDON, by="operator:oli")).code == 200

    host(story)


def test_a_dry_run_is_judged_and_leaves_nothing(host: Host) -> None:
    async def story(site: GateSite) -> None:
        path = f"{CORE}/nodes/n1"
        assert (await site.patch(path, CORDON, dryRun="All")).code == 200
        answer = await site.patch(path, CORDON, by="operator:oli", dryRun="All")
        assert answer.code == 403
        assert "needs the approval" in answer.message
        assert not await site.audit()
        proposals = (await site.call("GET", f"{OURS}/proposals")).body["items"]
        assert not proposals

    host(story)


def test_without_the_audit_nothing_is_changed(host: Host) -> None:
    async def story(site: GateSite) -> None:
        def lost() -> None:
            from bidplane.errors import UserError

            raise UserError("ledger.db is not there")

        site.gate.close()
        site.gate._trail = None
        site.gate._open_trail = lost  # type: ignore[assignment]
        answer = await site.patch(f"{CORE}/nodes/n1", CORDON)
        assert answer.code == 503
        assert "nothing is changed: ledger.db is not there" in answer.message
        assert (
            await site.patch(f"{CORE}/nodes/n1", {"metadata": {"labels": {"a": "b"}}})
        ).code == (200)

    host(story)


def test_nobody_passes_for_a_part_of_bidplane(host: Host) -> None:
    async def story(site: GateSite) -> None:
        await site.set_policy({"rules": []})
        as_exchange = (
            (b"impersonate-user", b"bidplane-exchange"),
            (b"impersonate-group", b"system:masters"),
        )
        answer = await site.call(
            "PATCH",
            f"{CORE}/nodes/n1",
            CORDON,
            media="application/merge-patch+json",
            headers=as_exchange,
        )
        assert answer.code == 403
        assert "cannot be impersonated" in answer.message
        assert (await site.patch(f"{CORE}/nodes/n1", CORDON)).code == 403
        for name in ("bidplane-exchange", "pilot", "owner", "Ann", "system-x"):
            made = await site.call("POST", f"/bidplane/v1/users/{name}", role="operator")
            assert made.code == 400, made

    host(story)


def test_a_bad_policy_is_refused_and_the_old_one_stays(host: Host) -> None:
    async def story(site: GateSite) -> None:
        for when in ("actor.role ==", "'yes'", "size(target.labels)", "who == 'x'"):
            spec = {"rules": [{"name": "r", "when": when, "ruling": "Allow"}]}
            answer = await site.set_policy(spec)
            assert answer.code == 422, answer
            assert "spec.rules[0].when" in answer.message
        assert (await site.patch(f"{CORE}/nodes/n1", CORDON)).code == 200

    host(story)


def test_two_changes_of_one_write_count_together(host: Host) -> None:
    async def story(site: GateSite) -> None:
        rules = [{"name": "all", "when": "true", "ruling": "Allow"}]
        await site.set_policy({"rules": rules, "limits": [{"name": "few", "agents": 1}]})
        both = {"spec": {"refill": "11", "priority": 3}}
        answer = await site.patch(f"{OURS}/agents/a", both)
        assert answer.code == 403
        assert "at most 1 agents" in answer.message
        agent = (await site.call("GET", f"{OURS}/agents/a")).body
        assert (agent["spec"]["refill"], agent["spec"]["priority"]) == ("10", 2), "half of it was"
        assert (await site.patch(f"{OURS}/agents/a", {"spec": {"priority": 3}})).code == 200

        asks = [{"name": "all", "when": "true", "ruling": "RequireApproval"}]
        await site.set_policy({"rules": asks})
        answer = await site.patch(f"{OURS}/agents/a", {"spec": {"refill": "12", "priority": 4}})
        assert answer.code == 403
        assert "it makes SetRefill and SetPriority at once: send one at a time" in answer.message

    host(story)
