"""The demo's day, played in the simulator: the same script, cast and report as on the screen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bidplane.api.kinds import POD
from bidplane.api.money import parse_credits
from bidplane.cli.operate.up import DEFAULT_FLEET
from bidplane.cli.story import day
from bidplane.cli.story.agents import NAMESPACE, AgentWork, DemoAgents
from bidplane.cli.story.chronicle import WIDTH, DayLog, run_day
from bidplane.cli.story.demo import HOUR_SECONDS
from bidplane.cli.story.example import play_day
from bidplane.cli.story.judgement import DayComparison, DaySchedule, Paid, compare_with_queue, value
from bidplane.kube.client import KubeClient
from bidplane.ledger import statement, verify
from bidplane.node import fleet as fleets
from bidplane.sim.loop import run
from bidplane.sim.world import World

FLEET = day.with_short_notice(fleets.load(DEFAULT_FLEET))
GPUS = sum(size for _, size in day.domains(FLEET))


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


class Day:
    """One day, and what was said of it."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.works = day.works(HOUR_SECONDS)
        self.sound = False
        self.verdict = run(self._play(folder))

    async def _play(self, folder: Path) -> DayComparison:
        world = World(folder, FLEET)
        await world.start_all()
        cast = DemoAgents(SimulatedStage(world))
        for character in day.AGENTS:
            await cast.create(character)
        self.chronicle = DayLog(
            self.works, HOUR_SECONDS, lambda text, style: self.lines.append(text)
        )
        await run_day(cast, self.chronicle, self.works, HOUR_SECONDS)
        for name in cast.names:
            for pod in (await cast.client(name).list(POD, NAMESPACE)).items:
                await cast.delete_pod(name, pod["metadata"]["name"])

        async def settled() -> bool:
            assert world.ledger is not None
            return not world.ledger.live_leases()

        await world.until(settled, within=30)
        world.check()
        assert world.ledger is not None
        paid = {agent.name: _paid(world, agent.name) for agent in day.AGENTS}
        await world.stop()
        self.sound = verify(world.ledger_file).is_sound
        domains = list(day.domains(FLEET))
        return compare_with_queue(self.works, self.chronicle, paid, domains, HOUR_SECONDS)


def _paid(world: World, agent: str) -> Paid:
    assert world.ledger is not None
    [wallet] = world.ledger.wallets_named(agent)
    lines = statement(world.ledger, wallet.id.partition("/")[2], now=wallet.opened_at)
    assert lines is not None
    return Paid(
        sum(-line.amount for line in lines.lines if line.amount < 0),
        sum(line.amount for line in lines.lines if line.kind == "compensation"),
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Day:
    return Day(tmp_path_factory.mktemp("day"))


def test_the_day_fits_in_a_terminal(played: Day) -> None:
    assert max(map(len, played.lines)) <= WIDTH
    assert 20 <= len(played.lines) <= 70  # told in a minute, and read in one
    output = "\n".join(played.lines)
    for line in day.NARRATION.values():
        assert line[:40] in output


def test_high_value_work_displaces_is_told_and_what_leaves_comes_back(played: Day) -> None:
    output = " ".join(line[16:].strip() for line in played.lines)
    assert played.chronicle.displacements > 0
    assert ": outbid, paid for leaving, bids again" in output
    assert ": GPUs again, from its checkpoint" in output


def test_no_gpu_is_used_twice(played: Day) -> None:
    edges = sorted(
        edge
        for stay in played.chronicle.runs
        for edge in ((stay.started, stay.gpus), (stay.ended, -stay.gpus))
    )
    busy = 0
    for _, gpus in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        busy += gpus
        assert busy <= GPUS


def test_prices_move(played: Day) -> None:
    prices = [
        line.split("H100 ")[1].split()[0]
        for line in played.lines
        if "H100 " in line and "A100" in line
    ]
    assert len(set(prices)) > 2


def test_the_report_adds_up(played: Day) -> None:
    assert played.sound
    verdict = played.verdict
    assert [row[0] for row in verdict.bill] == [agent.name for agent in day.AGENTS]
    paid = {row[0]: parse_credits(row[2]) for row in verdict.bill}
    assert all(paid.values())
    prices = {agent.name: parse_credits(agent.price) for agent in day.AGENTS}
    for name, _, _, each, _ in verdict.bill:
        assert 0 < parse_credits(each) <= 2 * prices[name]
    # Who is displaced is paid, by those who displace.
    assert sum(parse_credits(row[4]) for row in verdict.bill) > 0
    assert paid["chat"] > 0


def test_the_market_beats_the_queue_where_it_says_so(played: Day) -> None:
    verdict = played.verdict
    ours = value(played.works, verdict.market, HOUR_SECONDS)
    queue = value(played.works, verdict.queue, HOUR_SECONDS)
    assert ours > queue
    rows = {row[0]: row[1:] for row in verdict.beside}
    assert float(rows["chat waited at most"][0].split()[0]) < float(
        rows["chat waited at most"][1].split()[0]
    )


def test_work_that_ends_late_is_worth_nothing() -> None:
    work = AgentWork(agent="chat", name="a", at=0, gpus=2, seconds=4, due=10)
    in_time, late = DaySchedule({"a": 0}, {"a": 9.9}), DaySchedule({"a": 0}, {"a": 10.1})
    assert value([work], in_time, 2.0) == pytest.approx(5.0 * 2 * 2)
    assert value([work], late, 2.0) == 0
    assert value([work], DaySchedule({}, {}), 2.0) == 0


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
        world.check()
        await world.stop()

    run(story())
