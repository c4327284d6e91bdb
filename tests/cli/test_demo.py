"""The demo's day: told on a screen, evaluated beside a queue, and the same for one seed."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bidplane.api.kinds import POD
from bidplane.api.money import GPU_WEIGHT
from bidplane.cli.operate.up import DEFAULT_FLEET
from bidplane.cli.story import day, demo
from bidplane.cli.story.agents import NAMESPACE, AgentWork, DemoAgents
from bidplane.cli.story.chronicle import WIDTH, Narrator
from bidplane.cli.story.example import play_day
from bidplane.cli.story.judgement import day_result, value
from bidplane.errors import UserError
from bidplane.kube.client import KubeClient
from bidplane.node import fleet as fleets
from bidplane.sim.loop import run
from bidplane.sim.world import World

FLEET = day.with_demo_notice(fleets.load(DEFAULT_FLEET))
DOMAINS = list(day.domains(FLEET))
GPUS = sum(size for _, size in DOMAINS)
SECONDS = day.HOURS * 3600


class Told:
    """A whole day, and every line that was told of it."""

    def __init__(self, works: list[AgentWork], seconds: int = SECONDS) -> None:
        self.lines: list[tuple[int, str]] = []
        self.works = works
        self.played = demo.market_day(works, FLEET, seconds=seconds)
        narrator = Narrator(self.played, lambda at, text, _: self.lines.append((at, text)))
        narrator.run()
        self.result = day_result(1, works, self.played, narrator, DOMAINS)


@pytest.fixture(scope="module")
def told() -> Told:
    return Told(day.works(3600.0))


def test_the_day_fits_in_a_terminal_and_is_told_in_order(told: Told) -> None:
    assert max(len(text) for _, text in told.lines) <= WIDTH
    assert 20 <= len(told.lines) <= 90
    stamps = [text[:5] for _, text in told.lines if text[0].isdigit()]
    assert stamps == sorted(stamps)
    output = "\n".join(text for _, text in told.lines)
    for line in day.NARRATION.values():
        assert line[:40] in output


def test_who_is_displaced_is_told_and_comes_back(told: Told) -> None:
    output = "\n".join(text for _, text in told.lines)
    assert told.result.displacements > 0
    assert ": outbid, compensated, bids again" in output
    assert ": GPUs again, from its checkpoint" in output


def test_no_gpu_is_used_twice(told: Told) -> None:
    edges = sorted(
        edge
        for stay in told.played.stays
        for edge in ((stay.began, stay.job.gpus), (stay.ended, -stay.job.gpus))
    )
    in_use = 0
    for _, gpus in edges:
        in_use += gpus
        assert in_use <= GPUS


def test_what_is_done_has_worked_as_long_as_it_says(told: Told) -> None:
    def seconds_of(name: str) -> int:
        stays = [stay for stay in told.played.stays if stay.job.name == name]
        return sum(stay.ended - stay.began for stay in stays)

    whole = [work.name for work in told.works if seconds_of(work.name) >= work.seconds]
    assert len(whole) >= told.result.market.done_in_time >= len(told.works) - 1


def test_urgent_work_waits_for_a_notice_at_most_and_pays_no_more_than_it_offers(told: Told) -> None:
    result = told.result
    assert result.market.urgent_wait_seconds <= day.NOTICE_SECONDS + 2
    assert result.market.urgent_in_time == result.urgent_jobs
    for agent in result.agents:
        assert 0 < agent.paid_per_hour <= agent.offered_per_hour
    for lease in told.played.leases:
        if lease.active_at:
            seconds = -(-(lease.released_at - lease.active_at) // 1000)
            offered = lease.max_price * lease.weight * seconds
            paid = 3600 * GPU_WEIGHT * (lease.charged - lease.displacement - lease.minimum - 1)
            assert paid <= offered


def test_the_market_beats_the_queue(told: Told) -> None:
    market, queue = told.result.market, told.result.queue
    assert market.value > queue.value
    assert market.utilisation >= queue.utilisation
    assert market.done_in_time >= queue.done_in_time
    assert market.urgent_wait_seconds < queue.urgent_wait_seconds
    assert told.result.ledger_problem == ""


def test_when_bids_wait_agents_spend_what_they_are_granted(told: Told) -> None:
    hours = [hour for hour in told.played.hours() if hour.waiting_seconds > 3000]
    assert len(hours) >= 6
    assert sum(hour.spent for hour in hours) >= 0.6 * sum(hour.granted for hour in hours)


def test_work_that_ends_late_is_worth_nothing() -> None:
    work = AgentWork(agent="chat", name="a", at=0, gpus=2, seconds=7200, due=10_000)
    late = AgentWork(agent="chat", name="b", at=0, gpus=2, seconds=7200, due=7000)
    assert value(work) == 6 * 2 * 2
    result = Told([work, late], seconds=9000).result
    assert result.market.value == value(work)
    assert result.value_of_all == 2 * value(work)
    assert result.market.done_in_time == 1


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What `demo` prints, of a day of which little work is played."""
    output = io.StringIO()
    console = Console(file=output, width=WIDTH, force_terminal=True, color_system=None)
    monkeypatch.setattr(demo, "console", console)
    monkeypatch.setattr("bidplane.cli.common.console", console)
    short = day.PlannedWork(0, "nightly", "embed", 8, 2, 0.2)
    monkeypatch.setattr(day, "SCRIPT", [short, day.PlannedWork(1, "chat", "early", 3, 2, 0.1)])
    return output


def test_one_seed_gives_one_output_and_another_another(screen: io.StringIO) -> None:
    outputs = []
    for seed in (3, 3, 4):
        demo.demo(seed=seed, seconds=0)
        outputs.append(screen.getvalue())
        screen.seek(0)
        screen.truncate()
    assert outputs[0] == outputs[1] != outputs[2]
    assert max(map(len, outputs[0].splitlines())) <= WIDTH
    assert "Planes and pods are not played." in outputs[0]


def test_json_is_the_result(screen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    demo.demo(seed=3, json=True)
    result = json.loads(capsys.readouterr().out)
    assert result["seed"] == 3
    assert {row["agent"] for row in result["agents"]} == {agent.name for agent in day.AGENTS}
    assert screen.getvalue() == ""


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_length_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(UserError, match="--seconds must be 0 or more"):
        demo.demo(seconds=seconds)


def test_lines_appear_at_their_moment_however_long_playing_takes(screen: io.StringIO) -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    say = demo.paced(0.5, lambda: now[0], sleep)
    say(10, "first", "")
    now[0] += 20  # a busy machine
    say(12, "late", "")
    say(60, "last", "")
    assert slept == [5.0, 5.0]
    assert screen.getvalue().split() == ["first", "late", "last"]


class SimulatedStage:
    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def host(self) -> KubeClient:
        return self._world.client()

    async def connect(self, agent: str) -> KubeClient:
        return self._world.client(agent)

    async def close(self) -> None:
        return None


def test_make_up_plays_the_same_day_over_and_over(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path, FLEET)
        await world.start_all()
        cast = DemoAgents(SimulatedStage(world))
        for character in day.AGENTS:
            await cast.create(character)
        names: set[str] = set()
        watching = [
            asyncio.create_task(
                cast.watch(name, lambda agent, event, pod: names.add(pod["metadata"]["name"]))
            )
            for name in cast.names
        ]
        for number in (1, 2):
            await play_day(cast, number, 2.0)
        for task in watching:
            task.cancel()
        for number in (1, 2):
            assert {work.name for work in day.works(2.0, f"-day{number}")} <= names
        for name in cast.names:
            for pod in (await cast.client(name).list(POD, NAMESPACE)).items:
                await cast.delete_pod(name, pod["metadata"]["name"])
        world.check()
        await world.stop()

    run(story())
