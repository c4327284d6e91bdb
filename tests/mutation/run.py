"""
Draw mutants by seed, run the tests of each one's subject, and list those that survive.

    python tests/mutation/run.py --seed 1 --count 100

The tests of a subject are those in the folder of `tests/` that mirrors the module's folder. Some
decisions are tested through the part that carries them out: `TESTED_THROUGH` says where. Without
either, they are those of the folder above. Files that name the module come first, and slow tests
run only on a mutant that passed the fast ones, so that most mutants end early. Each mutant has its
own copy of the source; the tree is never touched.

`--only 3,17` repeats mutants by their number in the draw. A mutant that runs longer than
`LONGEST_SECONDS`, or takes more than `MOST_MEMORY_BYTES`, counts as killed: both limits are far
above what the unchanged code needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.sites import Mutant, mutants

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src/bidplane")
LONGEST_SECONDS = 600.0
MOST_MEMORY_BYTES = 8 << 30  # of addresses, for each process; a changed loop can take all there is
PASSES = ("not slow and not kube and not elsewhere", "slow and not kube and not elsewhere")
NO_TESTS_COLLECTED = 5  # pytest's exit code
# Kubernetes' own behaviour is tested on two API servers alike, not function by function.
TESTED_THROUGH = {
    "core": ("style/test_frozen.py",),
    "core/workloads": ("controllers/workloads",),
    "core/policies": ("plane/test_policies.py",),
    "core/cel": ("plane/test_rules.py", "plane/test_ruletimes.py", "security/test_cel_cost.py"),
    "core/nodes": ("core/scheduling/test_fitting.py",),
    "core/pods": ("security/test_host_paths.py",),
    "exchange": (
        "security/test_costly_selectors.py",
        "security/test_stalled_rounds.py",
        "security/test_history_reads.py",
        "style/test_frozen.py",
    ),
    "ledger": ("security/test_lost_ledger.py", "style/test_frozen.py"),
}


def draw(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """
    Return `count` mutants of the packages, drawn by the seed.

    Each possible mutant has a lot number of its own, from the seed, its file and its text. So a
    change of one file leaves the mutants drawn from the others as they were.
    """
    numbered: list[tuple[bytes, Mutant]] = []
    for folder in folders:
        for path in sorted((ROOT / PACKAGE / folder).rglob("*.py")):
            module, source = path.relative_to(ROOT), path.read_bytes()
            seen: Counter[str] = Counter()
            for mutant in mutants(module, source):
                text = f"{mutant.before(source)} → {mutant.replacement}"
                seen[text] += 1
                identity = f"{seed} {module.as_posix()} {text} {seen[text]}"
                numbered.append((hashlib.sha256(identity.encode()).digest(), mutant))
    return sorted(mutant for _, mutant in sorted(numbered)[:count])


def tests_of(module: Path) -> list[str]:
    """Return the test files of a module's subject, those that name the module first."""
    subject = module.relative_to(PACKAGE).as_posix()
    folder = Path("tests") / Path(subject).parent
    has_places = Path(subject).parent.as_posix() in TESTED_THROUGH
    while not has_places and not any((ROOT / folder).rglob("test_*.py")):
        folder = folder.parent
    files = sorted((ROOT / folder).rglob("test_*.py"))
    for prefix, places in TESTED_THROUGH.items():
        if subject.startswith(f"{prefix}/"):
            for place in (ROOT / "tests" / name for name in places):
                files += [place] if place.suffix else sorted(place.rglob("test_*.py"))
    dotted = ".".join(module.relative_to("src").with_suffix("").parts)
    parent, _, name = dotted.rpartition(".")

    def distance(path: Path) -> int:
        text = path.read_text()
        if dotted in text:
            return 0
        return 1 if parent in text and name in text else 2

    return [str(path.relative_to(ROOT)) for path in sorted(files, key=distance)]


def survives(mutant: Mutant) -> tuple[bool, float]:
    """Run the subject's tests on the mutant; tell whether all pass, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        changed = Path(folder) / mutant.file
        changed.write_bytes(mutant.apply(changed.read_bytes()))
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        alive = all(_passes(mutant.file, marks, environment) for marks in PASSES)
    return alive, time.monotonic() - began


def _passes(module: Path, marks: str, environment: dict[str, str]) -> bool:
    """Tell whether every test of the module's subject with these marks passes in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks]
    try:
        ended = subprocess.run(
            [*command, *tests_of(module)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode in (0, NO_TESTS_COLLECTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", help="numbers in the draw, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packages", nargs="+", default=["core", "ledger", "exchange"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, hard_limit))
    drawn = dict(enumerate(draw(arguments.packages, arguments.count, arguments.seed), 1))
    if arguments.only:
        drawn = {number: drawn[number] for number in map(int, arguments.only.split(","))}
    survivors: list[str] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = pool.map(survives, drawn.values())
        for (number, mutant), (alive, seconds) in zip(drawn.items(), outcomes, strict=True):
            text = mutant.describe((ROOT / mutant.file).read_bytes())
            outcome = "SURVIVED" if alive else "killed"
            print(f"{number} {outcome} {seconds:.0f} s {text}", file=sys.stderr, flush=True)
            if alive:
                survivors.append(text)
    killed = len(drawn) - len(survivors)
    if arguments.json:
        print(json.dumps({"seed": arguments.seed, "killed": killed, "survivors": survivors}))
    else:
        print(f"{killed} of {len(drawn)} mutants killed (seed {arguments.seed})")
        print("\n".join(survivors))


if __name__ == "__main__":
    main()
