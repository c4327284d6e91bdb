"""The log endpoint of simulated nodes: for the owner, exact, and never without an end."""

import asyncio

import pytest

from bidplane.api.kinds import POD, RESOURCE_CLAIM
from bidplane.errors import ApiError
from bidplane.node.auth import InstallationGate
from bidplane.node.server import KubeletServer
from bidplane.node.simulatedruntime import SimulatedRuntime
from bidplane.runtime.identity.credentials import Identity

SPACE = "agent-a"
PATH = "/containerLogs/agent-a/train/main"


class Asked:
    """One request, in ASGI's words; `leave` is the client going away."""

    def __init__(self, site, path=PATH, query="", *, plane="host", header=None):
        identity = Identity(plane=plane, uid="u", user="me", expires=int(site.clock.now()) + 10**6)
        bearer = f"Bearer {site.tokens.issue(identity)}".encode() if header is None else header
        self.scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode("latin-1"),
            "headers": [(b"authorization", bearer)],
        }
        self.code, self.body, self.over = None, b"", False
        self.leave = asyncio.Event()
        self._asked = False
        server = KubeletServer(
            SimulatedRuntime(site.nodes, clock=site.clock),
            InstallationGate(site.tokens, clock=site.clock),
            clock=site.clock,
        )
        self.task = asyncio.create_task(server(self.scope, self.receive, self.send))

    async def receive(self):
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b""}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.code = message["status"]
        else:
            self.body += message["body"]
            self.over = not message.get("more_body")

    @property
    def lines(self):
        return [line.split(" ", 1)[1] for line in self.body.decode().splitlines()]


async def answer(site, *args, **options):
    asked = Asked(site, *args, **options)
    await asked.task
    return asked


def test_one_line_a_second_and_what_it_runs_on(stories):
    async def story(site):
        await site.claim("lease-1", "gpu-2", "gpu-3")
        await site.create(claim="lease-1")
        await asyncio.sleep(3.5)
        asked = await answer(site)
        assert asked.code == 200
        assert asked.over
        assert asked.lines == [
            "main: simulated on h100-a/gpu-2, h100-a/gpu-3",
            "main: second 1",
            "main: second 2",
            "main: second 3",
        ]

    stories(story)


def test_the_log_of_a_pod_that_ended_stays_when_its_claim_is_gone(stories):
    async def story(site):
        await site.claim("lease-1", "gpu-2")
        await site.create(claim="lease-1", seconds="2")
        await asyncio.sleep(5)
        await site.client.delete(RESOURCE_CLAIM, "lease-1", SPACE)
        await site.kill()
        site.start()
        await asyncio.sleep(5)
        asked = await answer(site)
        assert asked.lines == [
            "main: simulated on h100-a/gpu-2",
            "main: second 1",
            "main: second 2",
            "main: ended",
        ]

    stories(story)


@pytest.mark.parametrize(("tail", "count"), [("0", 0), ("2", 2), ("100", 4)])
def test_the_tail(stories, tail, count):
    async def story(site):
        await site.create()
        await asyncio.sleep(3.5)
        whole = (await answer(site)).lines
        assert (await answer(site, query=f"tailLines={tail}")).lines == whole[len(whole) - count :]

    stories(story)


def test_following_gives_every_line_once_and_ends_with_the_pod(stories):
    async def story(site):
        await site.create(seconds="5")
        await asyncio.sleep(2.5)
        asked = Asked(site, query="follow=true")
        await asyncio.sleep(10)
        assert asked.task.done()
        assert asked.lines == (await answer(site)).lines
        assert asked.lines[-1] == "main: ended"

    stories(story)


def test_following_over_a_restart_of_the_container(stories):
    async def story(site):
        await site.create(policy="Always", seconds="5")
        await asyncio.sleep(0.5)
        asked = Asked(site, query="follow=true")
        await asyncio.sleep(8)
        begun = [line for line in asked.lines if "simulated on" in line]
        assert len(begun) == 2
        after = asked.lines[len(asked.lines) - asked.lines[::-1].index(begun[1]) :]
        assert after[:2] == ["main: second 1", "main: second 2"]
        asked.leave.set()
        await asked.task

    stories(story)


def test_following_ends_when_the_pod_is_gone_or_another(stories):
    async def story(site):
        await site.create()
        await asyncio.sleep(1)
        asked = Asked(site, query="follow=true")
        await site.client.delete(POD, "train", SPACE, grace_seconds=0)
        await site.create()
        await asyncio.sleep(3)
        assert asked.task.done()

    stories(story)


def test_following_ends_when_the_client_has_gone(stories):
    """A server takes what is sent to nobody without a word."""

    async def story(site):
        await site.create()
        await asyncio.sleep(1)
        asked = Asked(site, query="follow=true")
        await asyncio.sleep(3)
        assert not asked.task.done()
        asked.leave.set()
        await asyncio.sleep(0.01)
        assert asked.task.done()
        assert not asked.over

    stories(story)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"header": b""}, 401),
        ({"header": b"Bearer x.y.z"}, 401),
        ({"header": b"Bearer \xff\xfe"}, 401),
        ({"plane": "trainer"}, 403),
        ({"path": "/"}, 404),
        ({"path": "/containerLogs/agent-a/none/main"}, 404),
        ({"path": "/containerLogs/agent-a/train/other"}, 400),
        ({"path": "/containerLogs/agent-a/waits/main"}, 400),
        ({"query": "tailLines=many"}, 400),
        ({"query": "tailLines=-1"}, 400),
        ({"query": "tailLines=" + "9" * 5000}, 400),
    ],
)
def test_who_and_what_is_refused(stories, options, code):
    async def story(site):
        await site.create()
        await site.create("waits", claim="missing")
        await asyncio.sleep(1)
        asked = await answer(site, **options)
        assert (asked.code, asked.over) == (code, True)

    stories(story)


def test_a_query_of_any_bytes_is_read(stories):
    async def story(site):
        await site.create()
        await asyncio.sleep(1)
        assert (await answer(site, query="follow=\xff")).code == 200

    stories(story)


def test_a_simulated_pod_cannot_be_entered_and_says_so(stories):
    async def story(site):
        await site.create()
        await asyncio.sleep(1)
        runtime = SimulatedRuntime(site.nodes, clock=site.clock)
        found = runtime.find(SPACE, "train")
        assert [pod["metadata"]["name"] for pod in runtime.pods()] == ["train"]
        for asked in (
            runtime.exec(found, "main", ["sh"], stdin=False, tty=False),
            runtime.attach(found, "main", stdin=False),
            runtime.connect(found, 80),
        ):
            with pytest.raises(
                ApiError, match='pod "train" is simulated: no process runs on h100-a'
            ):
                await asked

    stories(story)


def test_options_choose_among_the_lines(stories):
    async def story(site):
        await site.create()
        await asyncio.sleep(3.5)
        since = await answer(site, query="sinceSeconds=2&timestamps=true")
        assert [line.rsplit(" ", 1)[1] for line in since.body.decode().splitlines()] == ["2", "3"]
        assert len((await answer(site, query="limitBytes=30")).body) == 30
        previous = await answer(site, query="previous=true")
        assert previous.code == 400
        assert b'previous terminated container "main" in pod "train" not found' in previous.body

    stories(story)
