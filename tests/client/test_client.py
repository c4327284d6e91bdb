"""The SDK and `bidplane run` against a real installation, over HTTPS."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bidplane
from bidplane.client import LeaseTimeout
from bidplane.client import config as configs
from bidplane.errors import UserError

from .conftest import Place

pytestmark = pytest.mark.slow


def test_prices_quotes_wallet_and_statement(place: Place) -> None:
    with bidplane.Client(kubeconfig=place.agent()) as client:
        (pool,) = client.prices().pools
        assert (pool.pool, pool.devices) == ("h100", 4)
        (quote,) = client.quote(gpus=2)
        assert quote.cost_per_hour == "0.40"
        assert quote.wins_without_displacing
        assert client.wallet().balance == "100.00"
        assert client.statement().lines[0].amount == "100.00"
        with pytest.raises(UserError, match="no pool has 9 GPUs"):
            client.quote(gpus=9)


def test_a_lease_for_the_length_of_a_with(place: Place) -> None:
    with bidplane.Client(kubeconfig=place.agent()) as client:
        with client.lease(gpus=2, link="nvlink", max_price=3.0, timeout=30) as holding:
            assert len(holding.devices) == 2
            assert holding.env["CUDA_VISIBLE_DEVICES"].startswith("GPU-box-")
            (lease,) = client.leases()
            assert (lease.name, lease.phase) == (holding.name, "Active")
        deadline = time.monotonic() + 20
        while client.leases():
            assert time.monotonic() < deadline
        assert client.bids() == []


def test_the_same_with_await(place: Place) -> None:
    async def work() -> None:
        async with (
            bidplane.AsyncClient(kubeconfig=place.agent()) as client,
            client.lease(gpus=1, max_price="1.50", timeout=30) as holding,
        ):
            assert len(holding.devices) == 1

    asyncio.run(work())


def test_ctrl_c_while_waiting_takes_the_bid_back(place: Place) -> None:
    program = (
        "import bidplane, sys\n"
        "c = bidplane.Client()\n"
        "tell = lambda p: print(p.reason, flush=True)\n"
        "with c.lease(gpus=1, max_price=0.01, on_progress=tell): pass\n"
    )
    kubeconfig = place.agent()
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "BIDPLANE_KUBECONFIG": str(kubeconfig)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    while "BelowReserve" not in child.stdout.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=20) != 0
    child.stdout.close()
    with bidplane.Client(kubeconfig=kubeconfig) as client:
        assert client.bids() == []
        with (
            pytest.raises(LeaseTimeout, match="below"),
            client.lease(gpus=1, max_price=0.01, timeout=2),
        ):
            pass


def test_credentials_come_from_the_environment(place: Place) -> None:
    config = configs.read(place.agent())
    ca = place.folder / "trusted.pem"
    ca.write_text(config.ca_data or "")
    found_config = configs.find(
        environment={
            "BIDPLANE_URL": config.url,
            "BIDPLANE_TOKEN": config.token,
            "BIDPLANE_CA": str(ca),
        }
    )
    assert (found_config.url, found_config.token, found_config.ca_data) == (
        config.url,
        config.token,
        config.ca_data,
    )
    assert config.token not in repr(config)
    with pytest.raises(UserError, match="go together"):
        configs.find(environment={"BIDPLANE_URL": config.url})
    with pytest.raises(UserError, match="no credential"):
        configs.find(environment={})


def test_run_as_a_pod_prints_the_log_and_exits_as_the_command(place: Place) -> None:
    key = str(place.agent())
    output = place.bidplane(
        "run", "--max-price", "2", "--gpus", "2",
        "--annotation", "bidplane.dev/simulated-seconds=2",
        "--annotation", "bidplane.dev/simulated-exit-code=7",
        "--", "python", "train.py",
        BIDPLANE_KUBECONFIG=key, code=7,
    )  # fmt: skip
    assert "running on" in output
    with bidplane.Client(kubeconfig=key) as client:
        assert client.bids() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_takes_its_pod_with_it(place: Place, number: signal.Signals) -> None:
    key = place.agent()
    child = subprocess.Popen(
        place.command("run", "--max-price", "2", "--", "python", "train.py"),
        env={**place.environment, "BIDPLANE_KUBECONFIG": str(key)},
        stdout=subprocess.PIPE,
        text=True,
        # Ignored where the tests were started in the background; a terminal's child hears it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert child.stdout is not None
    while "second 1" not in child.stdout.readline():
        assert child.poll() is None
    child.send_signal(number)
    assert child.wait(timeout=30) == 128 + number
    child.stdout.close()
    with bidplane.Client(kubeconfig=key) as client:
        for _ in range(600):
            if not client.leases() and not client.bids():
                return
            time.sleep(0.1)
    raise AssertionError("still paid for")


def test_run_here_has_the_devices_in_its_environment(place: Place, tmp_path: Path) -> None:
    key = str(place.agent())
    program = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES']); sys.exit(3)"
    output = place.bidplane(
        "run", "--local", "--max-price", "2", "--timeout", "30",
        "--", sys.executable, "-c", program,
        BIDPLANE_KUBECONFIG=key, code=3,
    )  # fmt: skip
    assert "GPU-box-" in output
    output = place.bidplane(
        "run", "--local", "--max-price", "2", "--", "no-such-command",
        BIDPLANE_KUBECONFIG=key, code=2,
    )  # fmt: skip
    assert "cannot run 'no-such-command'" in output


def test_run_here_checkpoints_on_notice(place: Place) -> None:
    key = str(place.agent())
    program = (
        "import signal, sys, time\n"
        "def save(*_): print('saved', flush=True)\n"
        "signal.signal(signal.SIGUSR1, save)\n"
        "print('began', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    child = subprocess.Popen(
        place.command("run", "--local", "--max-price", "1", "--gpus", "4", "--timeout", "60",
                      "--", sys.executable, "-c", program),
        env={**place.environment, "BIDPLANE_KUBECONFIG": key},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "began\n"
    urgent = place.agent("--owner", "somebody-else")
    with (
        bidplane.Client(kubeconfig=urgent) as client,
        client.lease(gpus=4, max_price=50, timeout=60) as holding,
    ):
        assert len(holding.devices) == 4
    assert child.stdout.readline() == "saved\n"
    assert child.wait(timeout=30) == 128 + signal.SIGTERM
    child.stdout.close()


def test_chargeback_is_printed_as_table_csv_and_html(place: Place, tmp_path: Path) -> None:
    key = place.agent("--team", "vision")
    with (
        bidplane.Client(kubeconfig=key) as client,
        client.lease(gpus=1, max_price=2, timeout=60),
    ):
        pass
    deadline = time.monotonic() + 30
    while key.name.removesuffix(".kubeconfig") not in place.bidplane("report", "chargeback"):
        assert time.monotonic() < deadline
    assert "vision" in place.bidplane("report", "chargeback", "--by", "team,agent")
    csv = place.bidplane("report", "chargeback", "--by", "label:cost", "--format", "csv")
    assert csv.splitlines()[0].startswith("label:cost,leases,rent")
    assert csv.splitlines()[-1].startswith("total,")
    page = tmp_path / "bill.html"
    place.bidplane(
        "report", "chargeback", "--format", "html", "--output", str(page),
        "--credits-per-currency", "0.5",
    )  # fmt: skip
    assert "<svg" in page.read_text()
    for bad, message in (
        (("--by", "mood"), "use agent, team, owner"),
        (("--from", "soon"), "write a day"),
        (("--credits-per-currency", "0"), "above zero"),
    ):
        assert message in place.bidplane("report", "chargeback", *bad, code=2)
