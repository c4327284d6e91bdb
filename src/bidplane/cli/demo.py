"""`bidplane demo`: the idea as a story of a minute, on a real installation."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bidplane.api import labels
from bidplane.api.exchange import Leases, Statement
from bidplane.api.money import format_credits, parse_credits
from bidplane.cli.common import ask, console, print_table
from bidplane.cli.story import Cast, Character, Work
from bidplane.cli.up import Running
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.ledger import verify
from bidplane.runtime.installation import Installation
from bidplane.sim.first_come import Job, Run, first_come, utilisation

FLEET = """
nodes:
  - {name: h100, product: H100, gpus: 8}
pools:
  - {product: H100, floorPrice: "0.20", noticeSeconds: 5, restartSeconds: 5}
"""
GPUS = 8

CAST = [
    Character(name="trainer", priority=2, refill="50", price="1.00"),
    Character(name="research", priority=1, refill="50", price="0.80"),
    Character(name="batch", priority=1, refill="20", price="0.60"),
    Character(name="chat", priority=5, refill="50", price="6.00"),
]
SCRIPT = [
    *(Work(agent="trainer", name=f"train-{n}", at=0, gpus=2, seconds=34) for n in (1, 2)),
    Work(agent="research", name="sweep", at=2, gpus=8, seconds=6),
    *(Work(agent="batch", name=f"embed-{n}", at=4, gpus=1, seconds=12) for n in range(1, 7)),
    Work(agent="chat", name="answer-1", at=10, gpus=2, seconds=8),
    Work(agent="chat", name="answer-2", at=29, gpus=2, seconds=8),
]
TELLING = {
    0: "trainer starts two jobs of two GPUs, worth 1.00 a GPU-hour to it",
    2: "research wants all eight GPUs, but only at 0.80: a queue would now hold everyone up",
    4: "batch offers 0.60 for single GPUs: small work fits beside",
    10: "chat has users waiting, and 6.00 to say so",
    29: "chat again; this time there is room",
}
_LONGEST_SECONDS = 90.0
_SETTLED_SECONDS = 20.0


def demo() -> None:
    """
    Play the idea as a story: four agents, eight GPUs, about a minute.

    Starts a Bidplane of its own in a temporary directory (with simulated GPUs) and
    removes it afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="bidplane-demo-") as folder:
        asyncio.run(_play(Path(folder)))


async def _play(folder: Path) -> None:
    fleet = folder / "my-fleet.yaml"
    fleet.write_text(FLEET)
    where = Installation(folder / "data")
    running = Running(where, port=0, fleet=fleet)
    cast: Cast | None = None
    try:
        with console.status("starting a Bidplane with one simulated node of eight GPUs …"):
            await running.start()
            cast = Cast(where)
            for character in CAST:
                await cast.enter(character)
        console.print(
            "[bold]Eight GPUs, four agents.[/bold] Each has a Kubernetes of its own and a wallet;"
            " prices are credits per GPU-hour.\n"
        )
        chronicle = Chronicle()
        await _perform(cast, chronicle)
        await _all_settled(where)
        await asyncio.to_thread(_report, where, chronicle)
    finally:
        if cast is not None:
            await cast.leave()
        await running.stop()


async def _perform(cast: Cast, chronicle: Chronicle) -> None:
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(cast.watch(name, chronicle.tell)) for name in cast.names]
        chronicle.begin()
        for moment, line in TELLING.items():
            await asyncio.sleep(max(0.0, moment - chronicle.now))
            chronicle.say("", line, style="bold")
            for work in SCRIPT:
                if work.at == moment:
                    await cast.submit(work)
        try:
            async with asyncio.timeout(_LONGEST_SECONDS - chronicle.now):
                await chronicle.finished.wait()
        except TimeoutError:
            left = sorted({work.name for work in SCRIPT} - chronicle.done)
            raise UserError(f"the story did not end in time: {', '.join(left)}") from None
        finally:
            for task in watching:
                task.cancel()


async def _all_settled(where: Installation) -> None:
    """The last pod's end is paid for in the next round."""
    async with asyncio.timeout(_SETTLED_SECONDS):
        while (
            await asyncio.to_thread(ask, where.folder, "GET", "/exchange/v1/leases", Leases)
        ).leases:
            await asyncio.sleep(0.2)


class Chronicle:
    """Turns what happens to pods into lines, and remembers who ran when."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()
        self.done: set[str] = set()
        self.runs: list[Run] = []
        self.first_start: dict[str, float] = {}
        self._began = 0.0
        self._running: dict[str, tuple[float, int]] = {}  # by uid: since when, GPUs
        self._said: dict[str, str] = {}

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def begin(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def say(self, who: str, line: str, *, style: str = "") -> None:
        # The longest of the story fits in 100 columns.
        console.print(f"{self.now:5.1f} s  {who:<9} {line}", style=style, soft_wrap=True)

    def tell(self, agent: str, event: str, pod: Object) -> None:
        """Of one pod one line each: waiting and why, running, told to leave, done."""
        metadata = pod["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        phase = (pod.get("status") or {}).get("phase", "")
        gpus = _gpus(pod)
        if event == "DELETED" or phase in ("Succeeded", "Failed"):
            self._stopped(name, uid)
        if event == "DELETED":
            return
        if phase == "Succeeded" and name not in self.done:
            self.done.add(name)
            self.say(agent, f"{name} is done")
            if self.done == {work.name for work in SCRIPT}:
                self.finished.set()
        elif metadata.get("deletionTimestamp"):
            self._once(uid, "leaving", agent, f"{name} is outbid: it is paid, and bids again")
        elif phase == "Running" and uid not in self._running:
            self._running[uid] = self.now, gpus
            self.first_start.setdefault(name, self.now)
            self.say(agent, f"{name} runs on {gpus} GPU{'s' * (gpus > 1)}", style="green")
        elif phase == "Pending":
            self._explain(agent, pod)

    def _explain(self, agent: str, pod: Object) -> None:
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                reason, name = condition.get("reason", ""), pod["metadata"]["name"]
                if reason not in ("Bidding", "Won"):
                    text = f"{name} waits: {condition.get('message', '')}"
                    self._once(pod["metadata"]["uid"], reason, agent, text)

    def _once(self, uid: str, what: str, agent: str, line: str) -> None:
        if self._said.get(uid) != what:
            self._said[uid] = what
            self.say(agent, line, style="yellow")

    def _stopped(self, name: str, uid: str) -> None:
        if uid in self._running:
            started, gpus = self._running.pop(uid)
            self.runs.append(Run(job=name, gpus=gpus, started=started, ended=self.now))


def _gpus(pod: Object) -> int:
    limits: dict[str, Any] = pod["spec"]["containers"][0]["resources"]["limits"]
    return int(limits[labels.GPU_RESOURCE])


def _report(where: Installation, chronicle: Chronicle) -> None:
    console.print()
    rows = []
    for character in CAST:
        path = f"/exchange/v1/wallets/{character.name}/statement"
        found = ask(where.folder, "GET", path, Statement)
        paid = given = 0
        for line in found.lines:
            amount = parse_credits(line.amount.removeprefix("-"))
            if line.amount.startswith("-"):
                paid += amount
            elif line.kind == "compensation":
                given += amount
        rows.append([character.name, format_credits(paid), format_credits(given), found.balance])
    console.print("[bold]Who paid what[/bold] (credits)")
    print_table(["agent", "paid", "compensated", "balance"], rows, right="paid compensated balance")
    console.print()
    _compare(chronicle)
    books = verify(where.ledger)
    console.print(
        f"\nThe ledger {'adds up' if books.is_sound else 'is broken: ' + books.problem}:"
        f" {books.transfers} transfers in {books.commits} commits."
    )


def _compare(chronicle: Chronicle) -> None:
    jobs = [
        Job(name=work.name, arrives=work.at, gpus=work.gpus, seconds=work.seconds)
        for work in SCRIPT
    ]
    queue = first_come(jobs, [GPUS])
    useful = sum(job.gpus * job.seconds for job in jobs)
    ours_end = max(run.ended for run in chronicle.runs)
    queue_end = max(run.ended for run in queue)
    queue_start = {run.job: run.started for run in queue}
    chats = [work for work in SCRIPT if work.agent == "chat"]

    def wait(start: dict[str, float]) -> str:
        return f"{max(start[work.name] - work.at for work in chats):.1f} s"

    console.print("[bold]The same work, first come first served[/bold]")
    print_table(
        ["", "Bidplane", "first come"],
        [
            [
                "useful utilisation",
                f"{utilisation(useful, GPUS, ours_end):.0%}",
                f"{utilisation(useful, GPUS, queue_end):.0%}",
            ],
            ["all done after", f"{ours_end:.0f} s", f"{queue_end:.0f} s"],
            ["chat waited at most", wait(chronicle.first_start), wait(queue_start)],
        ],
        right="Bidplane first come",
    )
    console.print(
        "Useful: GPU time of work that ended well; what an evicted job has to do again"
        " does not count.",
        style="dim",
    )
