"""
Path 1, bid → pod, as a newcomer walks it: real processes, real sockets, the real kubectl.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import Any

import msgspec
import pytest

from .conftest import Installation, pod

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]


def ready(bidplane: Installation, agent: str, name: str) -> None:
    bidplane.kubectl(agent, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=30s")


def waiting(bidplane: Installation, agent: str, name: str, reason: str) -> str:
    """Wait until the pod says it waits for `reason`; returns what it says."""
    path = '{.status.conditions[?(@.type=="PodScheduled")].reason}'
    # As it was then: a second later it may say something else.
    said = bidplane.kubectl(
        agent, "wait", f"pod/{name}", f"--for=jsonpath={path}={reason}", "--timeout=30s", "-ojson"
    )
    (condition,) = [
        c for c in msgspec.json.decode(said)["status"]["conditions"] if c["type"] == "PodScheduled"
    ]
    message: str = condition["message"]
    return message


def amounts(bidplane: Installation, agent: str) -> tuple[list[int], int]:
    """The amounts of an agent's statement, and its balance, in micro-credits."""
    lines = bidplane.bidplane("wallet", "statement", agent).splitlines()
    rows = [line.split() for line in lines[1:-1]]
    balance = lines[-1].split()[1].rstrip(",")
    return [micro(row[-2]) for row in rows], micro(balance)


def micro(text: str) -> int:
    return round(float(text) * 1_000_000)


def test_the_first_path(bidplane: Installation) -> None:
    said = bidplane.bidplane("agent", "create", "trainer", "--priority", "1", "--refill", "100")
    assert "/planes/trainer" in said
    assert "100.00 credits" in said

    watch = bidplane.watch("trainer", "pods")
    bidplane.apply("trainer", pod("train", price="2.10"))
    ready(bidplane, "trainer", "train")

    # The lease is a node with exactly the devices that were won.
    (node,) = bidplane.get("trainer", "nodes")["items"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert bidplane.get("trainer", "pod/train")["spec"]["nodeName"] == node["metadata"]["name"]
    (lease,) = bidplane.get("trainer", "gpuleases")["items"]
    assert [device["name"] for device in lease["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert "simulated on box/gpu-0, box/gpu-1" in bidplane.kubectl("trainer", "logs", "train")
    described = bidplane.kubectl("trainer", "describe", "pod", "train")
    assert "the lease it won" in described
    assert "Started" in described

    # A second agent values the same GPUs more.
    bidplane.bidplane("agent", "create", "chat", "--priority", "5", "--refill", "100")
    bidplane.apply("chat", pod("answer", price="6.00"))
    ready(bidplane, "chat", "answer")

    # The trainer's pod was told, evicted, paid for, and bids again.
    message = waiting(bidplane, "trainer", "train", "Outbid")
    assert "your maximum of 2.10 credits per GPU-hour lost to" in message
    assert "To win now, set bidplane.dev/max-price to" in message
    train = bidplane.get("trainer", "pod/train")
    assert train["metadata"]["annotations"]["bidplane.dev/evictions"] == "1"
    assert not train["spec"].get("nodeName")
    events = bidplane.kubectl("trainer", "get", "events")
    assert "another agent outbid this lease" in events
    assert "compensation" in bidplane.bidplane("wallet", "statement", "trainer")
    assert "Displaced" in bidplane.bidplane("market", "watch", "--no-follow", "--last", "50")

    # When the chat is done, the trainer gets the GPUs back.
    bidplane.kubectl("chat", "delete", "pod", "answer")
    ready(bidplane, "trainer", "train")
    bidplane.kubectl("trainer", "delete", "pod", "train")
    bidplane.kubectl("trainer", "wait", "--for=delete", "gpuleases", "--all", "--timeout=30s")
    assert bidplane.get("trainer", "nodes")["items"] == []

    for agent in ("trainer", "chat"):
        moved, balance = amounts(bidplane, agent)
        assert sum(moved) == balance
        assert any(amount < 0 for amount in moved)
    assert "the ledger is sound" in bidplane.bidplane("ledger", "verify")

    watch.terminate()
    assert watch.stdout is not None
    seen = watch.stdout.read()
    watch.wait()
    assert seen.index("Pending") < seen.index("Running") < seen.index("Terminating")


def test_why_a_bid_won_or_lost_is_told_and_its_round_comes_out_again(
    bidplane: Installation,
) -> None:
    """While the exchange runs: by its pod's name, and by the uid that its agent sees."""
    bidplane.bidplane("agent", "create", "asker", "--refill", "100")
    bidplane.apply("asker", pod("low", price="0.01"))
    waiting(bidplane, "asker", "low", "BelowReserve")
    said = bidplane.bidplane("market", "explain", "asker/low")
    assert "Your maximum of 0.01 credits per GPU-hour is below what h100 sells for." in said
    assert "To win now, set" in said
    assert "an hour" in said
    (seen,) = bidplane.get("asker", "bids")["items"]
    assert (
        bidplane.bidplane("market", "explain", seen["metadata"]["uid"]).partition(":")[2]
        == (said.partition(":")[2])
    )
    found = re.search(r"round (\d+):", said)
    assert found is not None
    assert "the same result again, to the byte" in bidplane.bidplane(
        "market", "replay", found.group(1)
    )
    bidplane.kubectl("asker", "delete", "pod", "low")
    bidplane.apply("asker", pod("high", price="6.00"))
    ready(bidplane, "asker", "high")
    said = bidplane.bidplane("market", "explain", "high")
    assert "won 2 GPUs in h100 at " in said
    assert "one less than the price would have lost" in said
    bidplane.kubectl("asker", "delete", "pod", "high")

    said = bidplane.bidplane("market", "explain", "nobody/nothing", code=2)
    assert "there is no bid or pod 'nobody/nothing' now" in said
    said = bidplane.bidplane("market", "replay", "999999", code=2)
    assert "there is no round 999999: rounds 1 to " in said


def test_config_maps_and_secrets_a_pod_names_go_with_it(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "reader", "--refill", "100", "--max-price", "3.00")
    bidplane.kubectl("reader", "create", "configmap", "settings", "--from-literal=a=1")
    bidplane.kubectl("reader", "create", "secret", "generic", "key", "--from-literal=k=v")
    manifest: dict[str, Any] = pod("reads", gpus=1)
    manifest["spec"]["containers"][0]["envFrom"] = [
        {"configMapRef": {"name": "settings"}},
        {"secretRef": {"name": "key"}},
    ]
    bidplane.apply("reader", manifest)
    ready(bidplane, "reader", "reads")
    bidplane.kubectl("reader", "delete", "pod", "reads")


def test_nine_gpus_are_refused_with_what_to_do(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "greedy", "--refill", "100")
    bidplane.apply("greedy", pod("huge", gpus=9, price="3.00"))
    message = waiting(bidplane, "greedy", "huge", "NoMachineHasAll")
    assert "ask for less" in message
    (bid,) = bidplane.get("greedy", "bids")["items"]
    assert bid["status"]["phase"] == "Refused"
    # Asked for the most a machine here has, the same pod is served.
    bidplane.kubectl("greedy", "delete", "pod", "huge")
    bidplane.apply("greedy", pod("huge", gpus=2, price="3.00"))
    ready(bidplane, "greedy", "huge")
    bidplane.kubectl("greedy", "delete", "pod", "huge")


def test_a_price_that_does_not_parse_is_refused_at_once(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "vague", "--refill", "100")
    for price in ("cheap", "-1", "1e3", "0", ""):
        said = bidplane.apply("vague", pod("train", price=price), code=1)
        assert "bidplane.dev/max-price" in said
    assert bidplane.get("vague", "pods")["items"] == []
    assert bidplane.get("vague", "bids")["items"] == []


def test_an_empty_wallet_waits_and_is_served_once_funded(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "poor", "--refill", "0", "--max-price", "3.00")
    bidplane.apply("poor", pod("train"))
    message = waiting(bidplane, "poor", "train", "WalletTooSmall")
    assert "Fund it" in message
    assert amounts(bidplane, "poor") == ([], 0)
    bidplane.bidplane("wallet", "fund", "poor", "1.00")
    ready(bidplane, "poor", "train")
    bidplane.kubectl("poor", "delete", "pod", "train")


def test_a_bad_agent_is_refused_by_name(bidplane: Installation) -> None:
    for name in ("Trainer", "9lives", "host", "a" * 41, "under_score"):
        said = bidplane.bidplane("agent", "create", name, code=2)
        assert len(said.splitlines()) == 1
        assert name in said
    assert "--priority" in bidplane.bidplane("agent", "create", "ok", "--priority", "0", code=2)
    assert "--refill" in bidplane.bidplane("agent", "create", "ok", "--refill", "lots", code=2)
    assert "ok" not in bidplane.bidplane("agent", "list")


def test_a_deleted_agent_leaves_nothing(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "brief", "--refill", "100", "--max-price", "3.00")
    bidplane.apply("brief", pod("train"))
    ready(bidplane, "brief", "train")
    bidplane.bidplane("agent", "delete", "brief")
    said = bidplane.kubectl("brief", "get", "pods", code=1)
    assert "Unauthorized" in said or "must be logged in" in said
    assert "brief" not in bidplane.bidplane("agent", "list")
    # An agent of that name is another: the old credential does not open its plane.
    old = (bidplane.folder / "brief.kubeconfig").read_text()
    bidplane.bidplane("agent", "create", "brief", "--refill", "100")
    bidplane.kubectl("brief", "get", "pods")
    (bidplane.folder / "old.kubeconfig").write_text(old)
    bidplane.kubectl("old", "get", "pods", code=1)
    assert "the ledger is sound" in bidplane.bidplane("ledger", "verify")


def test_one_agents_credential_does_not_open_anothers_plane(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "left", "--refill", "1")
    bidplane.bidplane("agent", "create", "right", "--refill", "1")
    left = (bidplane.folder / "left.kubeconfig").read_text()
    stolen = left.replace("/planes/left", "/planes/right")
    assert stolen != left
    (bidplane.folder / "stolen.kubeconfig").write_text(stolen)
    bidplane.kubectl("stolen", "get", "pods", code=1)
    (bidplane.folder / "host.kubeconfig").write_text(left.replace("/planes/left", "/planes/host"))
    bidplane.kubectl("host", "get", "agents.bidplane.dev", code=1)


@pytest.mark.parametrize("process", ["server", "exchange", "node"])
def test_a_killed_process_comes_back_and_pods_run_on(bidplane: Installation, process: str) -> None:
    agent = f"kill-{process}"
    bidplane.bidplane("agent", "create", agent, "--refill", "100", "--max-price", "3.00")
    bidplane.apply(agent, pod("train"))
    ready(bidplane, agent, "train")
    before = bidplane.get(agent, "pod/train")
    os.kill(bidplane.children()[process], signal.SIGKILL)
    bidplane.apply(agent, {**pod("later", gpus=1), "kind": "Pod"})  # waits out the restart
    waiting(bidplane, agent, "later", "NoFreeBlock")
    after = bidplane.get(agent, "pod/train")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["nodeName"] == before["spec"]["nodeName"]
    assert after["status"]["startTime"] == before["status"]["startTime"]
    bidplane.kubectl(agent, "delete", "pod", "later")
    bidplane.kubectl(agent, "delete", "pod", "train")
    bidplane.kubectl(agent, "wait", "--for=delete", "gpuleases", "--all", "--timeout=30s")
    assert "the ledger is sound" in bidplane.bidplane("ledger", "verify")


def test_a_second_start_goes_on(fresh: Installation) -> None:
    fresh.up()
    port = int(fresh.bidplane("agent", "create", "trainer").split("/planes/")[0].split(":")[-1])
    fresh.apply("trainer", pod("train", price="3.00"))
    ready(fresh, "trainer", "train")
    before = fresh.get("trainer", "pod/train")
    supervisor = fresh.pid
    processes = fresh.children()
    assert set(processes) == {"server", "exchange", "activator", "node"}
    assert fresh.down() == 0
    for pid in [supervisor, *processes.values()]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    fresh.up(port=port)
    ready(fresh, "trainer", "train")
    after = fresh.get("trainer", "pod/train")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["startTime"] == before["status"]["startTime"]
    assert "the ledger is sound" in fresh.bidplane("ledger", "verify")


def test_up_says_in_one_line_why_it_cannot_start(bidplane: Installation) -> None:
    def refused(*arguments: str) -> str:
        said = bidplane.bidplane("up", *arguments, code=2)
        assert len(said.splitlines()) == 1, said
        return said

    assert "in use by a running Bidplane" in refused("--port", "0")
    other = str(bidplane.folder / "other")
    server = bidplane.bidplane("agent", "create", "port-finder").split("/planes/")[0]
    busy = server.split(":")[-1]
    assert f"127.0.0.1:{busy}" in refused("--data", other, "--port", busy)
    in_the_way = bidplane.folder / "file"
    in_the_way.write_text("not a folder")
    assert "cannot write to the data directory" in refused("--data", str(in_the_way / "data"))
    missing = str(bidplane.folder / "missing.yaml")
    assert "cannot read the fleet file" in refused("--data", other, "--fleet", missing)


def test_without_an_installation_a_command_says_how_to_start_one(fresh: Installation) -> None:
    for command in (["agent", "list"], ["market", "prices"], ["ledger", "verify"]):
        said = fresh.bidplane(*command, code=2)
        assert "bidplane up" in said
        assert len(said.splitlines()) == 1


def test_the_supervisors_death_ends_its_processes(fresh: Installation) -> None:
    fresh.up()
    processes = fresh.children()
    os.kill(fresh.pid, signal.SIGKILL)
    fresh._process.wait()  # type: ignore[union-attr]
    for pid in processes.values():
        # `tail --pid` returns when the process is gone.
        subprocess.run(["tail", f"--pid={pid}", "-f", os.devnull], timeout=20, check=True)
    fresh._process = None


def test_priority_decides_between_agents_that_name_no_price(fresh: Installation) -> None:
    fresh.up()
    fresh.bidplane("agent", "create", "low", "--priority", "1", "--refill", "100")
    fresh.bidplane("agent", "create", "high", "--priority", "5", "--refill", "100")
    fresh.apply("low", pod("train"))
    ready(fresh, "low", "train")
    fresh.apply("high", pod("answer"))
    ready(fresh, "high", "answer")
    assert "Outbid" in waiting(fresh, "low", "train", "Outbid")
    assert "list" in fresh.bidplane("market", "prices").splitlines()[0]
