"""The digest of each day: written once after midnight in UTC, posted once, the newest 90 kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bidplane.api.times import parse_rfc3339
from bidplane.cli.common import installation
from bidplane.cli.gate.flying import digests_of as installations_digests
from bidplane.cli.operate.up import up
from bidplane.core.gate.digest import Digest, DigestLine
from bidplane.core.minds.observation import Intention, Observation
from bidplane.errors import UserError
from bidplane.ledger.audit.summary import digest_of_day
from bidplane.pilot.digests import KEPT_DIGESTS, DailyDigests
from bidplane.pilot.loop import Pilot

from .conftest import GateSite, Story, cordon
from .test_pilot import PilotsClient

DAY = 86_400.0
NOON = parse_rfc3339("2026-11-18T12:00:00Z")


async def propose_nothing(observation: Observation) -> Sequence[Intention]:
    return []


class Posts(list[str]):
    async def tell(self, text: str) -> None:
        self.append(text)


def digests_of(site: GateSite, folder: Path, posts: Posts) -> DailyDigests:
    async def read(begin: float, end: float) -> Digest | None:
        return await site.gate.record(lambda trail: digest_of_day(trail, begin=begin, end=end))

    return DailyDigests(folder, read, tell=posts.tell)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def midnight(site: GateSite) -> None:
    now = site.clock.now()
    await asyncio.sleep(DAY - now % DAY - 40)


def test_a_pilot_writes_the_day_that_ended_and_no_day_twice(
    host: Callable[[Story], None], tmp_path: Path
) -> None:
    folder = tmp_path / "pilot" / "digests"

    async def story(site: GateSite) -> None:
        posts = Posts()

        async def fly(*, seconds: float) -> None:
            pilot = Pilot(
                PilotsClient(site),  # type: ignore[arg-type]
                propose_nothing,
                clock=site.clock,
                digests=digests_of(site, folder, posts),
            )
            await pilot.run(asyncio.sleep, until=site.clock.now() + seconds)

        await midnight(site)
        await site.propose(cordon(), name="before")
        await fly(seconds=39)
        assert names(folder) == [], "the audit began today"
        await asyncio.sleep(2)
        await site.propose(cordon("n2"), name="after")
        await fly(seconds=120)
        (name,) = names(folder)
        page = (folder / name).read_text()
        assert posts == [page]
        assert "CordonNode n1" in page
        assert "## Waiting for you (1)" in page
        assert "n2" not in page, "it was proposed on the next day"
        end = page.splitlines()[0].split()[-1]
        assert parse_rfc3339(end) % DAY == 0
        assert page.splitlines()[0] == f"# Changes from {name[:10]}T00:00:00Z to {end}"

        await fly(seconds=120)  # started anew
        assert len(posts) == 1
        await midnight(site)
        await fly(seconds=120)
        assert len(posts) == len(names(folder)) == 2
        assert "CordonNode n2" in posts[1]

    host(story)


def test_the_commands_read_the_installations_audit(
    host: Callable[[Story], None], tmp_path: Path
) -> None:
    times: list[float] = []

    async def story(site: GateSite) -> None:
        await site.propose(cordon())
        await asyncio.sleep(1)
        times.append(site.clock.now())

    host(story)
    posts = Posts()
    digests = installations_digests(installation(tmp_path), posts.tell)
    path = asyncio.run(digests.write_due(times[0] + DAY))
    assert path is not None
    assert path.parent == tmp_path / "pilot" / "digests"
    assert posts == [path.read_text()]
    assert "CordonNode n1" in posts[0]


def test_up_refuses_a_webhook_that_nothing_would_post_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="so give --pilot propose"):
        up(webhook="https://hooks.example/x", data=tmp_path)
    with pytest.raises(UserError, match="begins with https"):
        up(pilot="propose", webhook="hooks.example", data=tmp_path)


async def two_lines(begin: float, end: float) -> Digest | None:
    line = DigestLine(at="t", actor="owner ann", summary="CordonNode n1", message="done")
    return Digest(since=str(begin), until=str(end), done=[line] * 2)


def test_it_keeps_the_newest_90(tmp_path: Path) -> None:
    async def work() -> None:
        digests = DailyDigests(tmp_path / "d", two_lines)
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "mine.md").write_text("a person's")
        for day in range(KEPT_DIGESTS + 3):
            assert await digests.write_due(NOON + day * DAY)
        files = names(tmp_path / "d")
        assert len(files) == KEPT_DIGESTS + 1
        assert (files[0], files[-1]) == ("2026-11-20.md", "mine.md")

    asyncio.run(work())


def test_of_two_pilots_one_posts(tmp_path: Path) -> None:
    async def work() -> None:
        posts, both_read = Posts(), asyncio.Barrier(2)

        async def read(begin: float, end: float) -> Digest | None:
            await both_read.wait()
            return await two_lines(begin, end)

        pilots = [DailyDigests(tmp_path, read, tell=posts.tell) for _ in range(2)]
        paths = await asyncio.gather(*(pilot.write_due(NOON) for pilot in pilots))
        assert sorted(map(str, paths)) == [str(tmp_path / "2026-11-17.md"), "None"]
        assert len(posts) == 1
        assert names(tmp_path) == ["2026-11-17.md"]

    asyncio.run(work())


@pytest.mark.parametrize("error", [UserError("no ledger"), PermissionError("no")])
def test_what_fails_is_tried_again(tmp_path: Path, error: Exception) -> None:
    async def work() -> None:
        failures = [error]

        async def read(begin: float, end: float) -> Digest | None:
            if failures:
                raise failures.pop()
            return await two_lines(begin, end)

        digests = DailyDigests(tmp_path, read)
        assert await digests.write_due(NOON) is None
        assert await digests.write_due(NOON + 30) == tmp_path / "2026-11-17.md"
        assert await digests.write_due(NOON + 60) is None

    asyncio.run(work())


def test_a_post_is_no_longer_than_a_message_may_be(tmp_path: Path) -> None:
    async def work() -> None:
        posts = Posts()

        async def read(begin: float, end: float) -> Digest | None:
            digest = await two_lines(begin, end)
            assert digest is not None
            return Digest(since=digest.since, until=digest.until, done=list(digest.done) * 1000)

        path = await DailyDigests(tmp_path, read, tell=posts.tell).write_due(NOON)
        assert path is not None
        assert len(path.read_text()) > 2 * len(posts[0]) > 30_000
        assert posts[0].endswith("done\n\n… and more: `bidplane audit digest`")

    asyncio.run(work())
