"""
The rig: where the real Kubernetes binaries are, and how they are made.

    python -m bidplane.testing.rig build                  all five, once
    python -m bidplane.testing.rig build --only kubectl   just that one
    python -m bidplane.testing.rig path                   the folder they are in

They are looked for in `$KUBEBUILDER_ASSETS`, in the cache, then on PATH. One place must have all
that is asked for: an apiserver of one release beside the controllers of another is no reference.

The recipe is the Go module in `rig/` at the top of the repository. An installed wheel does not
carry it; there, binaries can be found (also those a checkout left in the cache) but not built.

Only the standard library is used: `make` runs this before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bidplane.errors import UserError

COMMANDS: Mapping[str, str] = {
    # Cheapest first, so that what fails for want of a compiler or a network fails at once.
    "etcd": "go.etcd.io/etcd/server/v3",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
OLDEST_MINOR = 34  # resource.k8s.io/v1, which the product stands on, came with 1.34
HEARTBEAT = 20.0  # seconds; kube-apiserver compiles for minutes, and silence looks like a hang


class RigError(UserError):
    """
    Raised when the binaries are missing or could not be built; the message is one line for people.
    """


@dataclass(frozen=True)
class Binaries:
    """Executables by command name, all from one place."""

    source: str
    paths: Mapping[str, Path]

    def __getitem__(self, command: str) -> Path:
        return self.paths[command]

    def __contains__(self, command: str) -> bool:
        return command in self.paths


@dataclass(frozen=True)
class Recipe:
    """The Go module that builds the rig."""

    folder: Path
    version: str
    digest: str

    @property
    def ldflags(self) -> str:
        return linker_flags(self.version)


def linker_flags(version: str) -> str:
    """Flags that make every command report `version`, as a release build does."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "archive",
    }
    settings = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in facts.items()]
    return " ".join(["-s", "-w", *settings])


def read_recipe(folder: Path | None = None) -> Recipe | None:
    """The recipe beside this checkout, or None when there is none (an installed wheel)."""
    folder = folder or Path(__file__).resolve().parents[3] / "rig"
    try:
        module, sums = (folder / "go.mod").read_bytes(), (folder / "go.sum").read_bytes()
    except OSError:
        return None
    pinned = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", module.decode(), re.MULTILINE)
    if pinned is None:
        return None
    version = pinned[1]
    digest = hashlib.sha256()
    for part in (module, sums, linker_flags(version).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return Recipe(folder, version, digest.hexdigest()[:12])


def cache_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bidplane" / "kube"


def built_folder(recipe: Recipe, environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / f"{recipe.version}-{recipe.digest}"


def find(
    commands: Sequence[str] = tuple(COMMANDS),
    *,
    environ: Mapping[str, str] | None = None,
    recipe: Recipe | None = None,
) -> Binaries:
    """
    The binaries in the first place that has all of `commands`. Raises `RigError` that names what
    is missing.
    """
    environ = os.environ if environ is None else environ
    for source, folder in _places(environ, recipe or read_recipe()):
        if not _missing(folder, commands):
            return Binaries(source, {command: folder / command for command in commands})
    on_path = {command: shutil.which(command, path=environ.get("PATH")) for command in commands}
    paths = {command: Path(path) for command, path in on_path.items() if path}
    if len(paths) == len(commands) and all(map(_is_recent, paths.values())):
        return Binaries("PATH", paths)
    raise RigError(_absence(commands, environ))


def _places(environ: Mapping[str, str], recipe: Recipe | None) -> Iterator[tuple[str, Path]]:
    """The folders to look in, with their names."""
    if assets := environ.get("KUBEBUILDER_ASSETS"):
        yield "KUBEBUILDER_ASSETS", Path(assets)
    if recipe is not None:
        yield "cache", built_folder(recipe, environ)
        return
    # Without the recipe nothing says which build is wanted; the newest release is the best guess.
    built = [folder for folder in cache_folder(environ).glob("v*-*") if folder.is_dir()]
    for folder in sorted(built, key=_release, reverse=True):
        yield "cache", folder


def _release(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name.partition("-")[0])]


def _missing(folder: Path, commands: Sequence[str]) -> list[str]:
    return [command for command in commands if not os.access(folder / command, os.X_OK)]


def _absence(commands: Sequence[str], environ: Mapping[str, str]) -> str:
    """The message about missing binaries."""
    assets = environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = ", ".join(_missing(Path(assets), commands))
        return f"KUBEBUILDER_ASSETS={assets} lacks {missing}; add them, or run `make kube`"
    return f"no {', '.join(commands)}; run `make kube`, or set KUBEBUILDER_ASSETS to their folder"


def version_of(binary: Path) -> str | None:
    """The version that the binary reports, or None when it does not answer."""
    arguments = ["version", "--client", "-o", "json"] if binary.name == "kubectl" else ["--version"]
    try:
        answer = subprocess.run(
            [binary, *arguments], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        if binary.name == "kubectl":
            return str(json.loads(answer)["clientVersion"]["gitVersion"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
    match = re.search(r"v?\d+\.\d+\.\d+\S*", answer)
    return match[0] if match else None


def _is_recent(binary: Path) -> bool:
    """Return True if the binary's version is supported."""
    version = version_of(binary)
    if binary.name == "etcd":
        return version is not None
    numbers = re.match(r"v1\.(\d+)\.", version or "")
    return numbers is not None and int(numbers[1]) >= OLDEST_MINOR


def build(
    commands: Sequence[str] = tuple(COMMANDS),
    *,
    environ: Mapping[str, str] | None = None,
    recipe: Recipe | None = None,
) -> Binaries:
    """
    Build what the cache lacks, unless all binaries already exist somewhere.

    Each binary is renamed into place when it is complete, so an interrupted build keeps what it
    finished and never leaves half a file; a second builder waits for the first.
    """
    environ = os.environ if environ is None else environ
    recipe = recipe or read_recipe()
    with contextlib.suppress(RigError):
        return find(commands, environ=environ, recipe=recipe)
    if recipe is None:
        raise RigError(
            "no recipe: rig/go.mod is only in a checkout of the repository; "
            "set KUBEBUILDER_ASSETS to a folder with " + ", ".join(commands)
        )
    go = shutil.which("go", path=environ.get("PATH"))
    if go is None:
        raise RigError(
            "no Go on PATH: install Go 1.26 or newer and run `make kube`, "
            "or set KUBEBUILDER_ASSETS to a folder with " + ", ".join(commands)
        )
    folder = built_folder(recipe, environ)
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.with_name(f"{folder.name}.lock")):
        for number, command in enumerate(commands, start=1):
            label = f"[{number}/{len(commands)}] {command} {recipe.version}"
            if _missing(folder, [command]):
                _build_one(go, recipe, command, folder, label, environ)
            else:
                _print(f"{label}: already built")
    return Binaries("cache", {command: folder / command for command in commands})


@contextlib.contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock; waits for another build."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print("another build is under way; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build_one(
    go: str, recipe: Recipe, command: str, folder: Path, label: str, environ: Mapping[str, str]
) -> None:
    started = time.monotonic()
    # Inside the cache, because a rename is only atomic within one file system.
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as build_folder:
        target, log = Path(build_folder, command), Path(build_folder, "log")
        arguments = [go, "build", "-trimpath", "-ldflags", recipe.ldflags]
        arguments += ["-o", str(target), COMMANDS[command]]
        # GOWORK: a workspace file above the checkout would replace the recipe's versions.
        settings = {**environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        with log.open("wb") as sink:
            process = subprocess.Popen(
                arguments, cwd=recipe.folder, env=settings, stdout=sink, stderr=sink
            )
            try:
                _wait(process, label, started)
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            last_lines = log.read_text(errors="replace").strip().splitlines()[-15:]
            _print("\n".join(last_lines))
            raise RigError(f"{label}: go build failed (exit {process.returncode}), see above")
        size = target.stat().st_size / 1e6
        target.replace(folder / command)
    _print(f"{label}: built in {time.monotonic() - started:.0f} s, {size:.0f} MB")


def _wait(process: subprocess.Popen[bytes], label: str, started: float) -> None:
    _print(f"{label}: building")
    while True:
        try:
            process.wait(HEARTBEAT)
            return
        except subprocess.TimeoutExpired:
            _print(f"{label}: {time.monotonic() - started:.0f} s so far")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bidplane.testing.rig", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("action", choices=["build", "path"])
    parser.add_argument("--only", action="append", choices=list(COMMANDS), metavar="COMMAND")
    options = parser.parse_args(arguments)
    commands = tuple(options.only or COMMANDS)
    try:
        binaries = (build if options.action == "build" else find)(commands)
    except RigError as error:
        _print(f"rig: {error}")
        return 2
    folders = sorted({str(path.parent) for path in binaries.paths.values()})
    print("\n".join(folders))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
