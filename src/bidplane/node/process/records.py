"""
A pod's folder on the node: the record of its containers and their ends.

    UID/pod.json                   the pod, as the API had it last
    UID/run.json                   where its life is, and its address
    UID/volumes/NAME/              volumes that live and end with the pod
    UID/containers/NAME/N/         the N-th time a container was started; see `shim`

This is the only state: a restarted agent reads it and continues.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec

from bidplane.core.pods.life import ContainerRun, Halt, PodStage
from bidplane.kube.client import Object
from bidplane.node.process.container.lineage import start_time
from bidplane.node.process.volumes import tmpfs
from bidplane.node.process.volumes.removal import remove_tree

_LONGEST_MESSAGE = 4096
_LOST = "The container could not be located when the node looked for it"


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    stage: PodStage = PodStage.PREPARING
    start_time: float | None = None
    address: str = ""
    uid: int | None = None  # the system's user it runs as
    halt: Halt | None = None
    # The memory in use on each of its GPUs that is measured, before it started: bytes, by UUID.
    memory_before: dict[str, int] | None = None


class StartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The process that a shim started, as it recorded it."""

    boot: str
    shim: int
    pid: int
    pid_start: str
    inside: int
    started: float

    def alive(self) -> bool:
        return self.boot == boot_id() and start_time(self.pid) == self.pid_start


class Attempt:
    """One start of a container, and its folder."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def create(self, ordered: float, backoff: float) -> None:
        """Create the folder, with the time of the order and the seconds that the start waits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        order = {"ordered": ordered, "backoff": backoff}
        _write(self.folder / "order.json", msgspec.json.encode(order))
        # The container writes its termination message here, under any user.
        for folder in (self.folder, self.folder.parent):
            folder.chmod(0o711)
        self.message_file.touch()
        self.message_file.chmod(0o666)

    @property
    def message_file(self) -> Path:
        return self.folder / "termination-log"

    def is_begun(self) -> bool:
        """Return true if a shim has begun to start the container."""
        return (self.folder / "begun").exists()

    def is_supervised(self) -> bool:
        """Return true if the shim is running: it holds the lock."""
        try:
            with (self.folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def state(self) -> StartRecord | None:
        lines = _lines(self.folder / "state")
        if not lines:
            return None
        pid, pid_start = lines["pid"].split(" ")
        return StartRecord(
            boot=lines["boot"],
            shim=int(lines["shim"].split(" ")[0]),
            pid=int(pid),
            pid_start=pid_start,
            inside=int(lines["inside"]),
            started=float(lines["started"]),
        )

    def mark_failed(self, code: int, reason: str, message: str, at: float) -> None:
        """Record that the container could not be started, as a run that ended at once."""
        failed = {"code": code, "reason": reason, "message": message, "at": at}
        _write(self.folder / "failed.json", msgspec.json.encode(failed))

    def run(self) -> ContainerRun:
        order = msgspec.json.decode((self.folder / "order.json").read_bytes())
        run = ContainerRun(attempt=self.number, ordered=order["ordered"], backoff=order["backoff"])
        if (self.folder / "failed.json").exists():
            failed = msgspec.json.decode((self.folder / "failed.json").read_bytes())
            return msgspec.structs.replace(
                run,
                started=failed["at"],
                finished=failed["at"],
                exit_code=failed["code"],
                reason=failed["reason"],
                message=failed["message"],
            )
        state, ended = self.state(), _lines(self.folder / "exit")
        if state is not None:
            run = msgspec.structs.replace(run, started=state.started)
        if ended:
            return self._ended(run, ended)
        return run

    def _ended(self, run: ContainerRun, ended: dict[str, str]) -> ContainerRun:
        code = int(ended["code"])
        reason, message = "", self._message()
        if (self.folder / "problem").exists():
            reason, message = "StartError", (self.folder / "problem").read_text()
        elif ended["oom"] == "1" and code == 137:
            reason = "OOMKilled"
        finished = float(ended["finished"])
        return msgspec.structs.replace(
            run,
            started=run.started if run.started is not None else finished,
            finished=finished,
            exit_code=code,
            reason=reason,
            message=message,
        )

    def mark_lost(self, at: float) -> None:
        """Record that the shim or the machine died, so that the exit code is unknown."""
        self.mark_failed(137, "ContainerStatusUnknown", _LOST, at)

    def _message(self) -> str:
        try:
            with self.message_file.open("rb") as file:
                return file.read(_LONGEST_MESSAGE).decode(errors="replace")
        except OSError:
            return ""

    def log_tail(self) -> str:
        """Return the end of the log, for `terminationMessagePolicy: FallbackToLogsOnError`."""
        logs = sorted(self.folder.glob("*.log"), key=lambda path: int(path.stem))
        if not logs:
            return ""
        lines = logs[-1].read_bytes().splitlines()[-80:]
        text = b"\n".join(line.split(b" ", 3)[-1] for line in lines)
        return text[-2048:].decode(errors="replace")


class PodFolder:
    def __init__(self, root: Path, uid: str) -> None:
        self.uid = uid
        self.path = root / uid
        self.volumes = self.path / "volumes"

    def create(self) -> None:
        # Other users may pass through to their volumes; nobody may list.
        for folder in (self.path, self.volumes, self.path / "containers"):
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o711)

    def close_to_others(self, user: int | None) -> None:
        """Let only the pod's user pass through the folder; with None, only our own user."""
        if user is None:
            self.path.chmod(0o700)
            return
        os.chown(self.path, -1, user)
        self.path.chmod(0o710)

    def containers(self) -> list[Path]:
        """Return the folder of each container that was ever started."""
        try:
            return sorted((self.path / "containers").iterdir())
        except FileNotFoundError:
            return []

    def exists(self) -> bool:
        return self.path.exists()

    def save_pod(self, pod: Object) -> None:
        _write(self.path / "pod.json", msgspec.json.encode(pod))

    def pod(self) -> Object:
        pod: Object = msgspec.json.decode((self.path / "pod.json").read_bytes())
        return pod

    def write_hosts(self, text: str) -> Path:
        """Write the pod's /etc/hosts, in place: containers have this very file mounted."""
        path = self.path / "hosts"
        if not path.exists() or path.read_text() != text:
            with path.open("r+" if path.exists() else "w") as file:
                file.write(text)
                file.truncate()
            path.chmod(0o644)
        return path

    def save(self, record: PodRecord) -> None:
        _write(self.path / "run.json", msgspec.json.encode(record))

    def record(self) -> PodRecord:
        try:
            return msgspec.json.decode((self.path / "run.json").read_bytes(), type=PodRecord)
        except FileNotFoundError:
            return PodRecord()

    def attempt(self, container: str, number: int) -> Attempt:
        return Attempt(self.path / "containers" / container / str(number), number)

    def attempts(self, container: str) -> list[Attempt]:
        """Return the stored attempts of a container, oldest first."""
        folder = self.path / "containers" / container
        numbers = sorted(int(path.name) for path in folder.iterdir()) if folder.exists() else []
        attempts = [self.attempt(container, number) for number in numbers]
        return [attempt for attempt in attempts if (attempt.folder / "order.json").exists()]

    def remove_old_attempts(self, container: str, keep: int = 2) -> None:
        for old in self.attempts(container)[:-keep]:
            remove_tree(old.folder)

    def remove(self) -> None:
        if self.volumes.exists():
            for volume in self.volumes.iterdir():
                tmpfs.unmount(volume)
        remove_tree(self.path)


class Notes:
    """A pod's record, saved whenever it changes."""

    def __init__(self, folder: PodFolder) -> None:
        self._folder = folder
        self.record = folder.record()

    def keep(self, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.record, **changes)
        if changed != self.record:
            self.record = changed
            self._folder.save(changed)


def pod_folders(root: Path) -> list[PodFolder]:
    """Return the folders of all pods that were not removed."""
    if not root.exists():
        return []
    folders = [PodFolder(root, path.name) for path in sorted(root.iterdir()) if path.is_dir()]
    return [folder for folder in folders if (folder.path / "pod.json").exists()]


def remove_leftovers(root: Path) -> None:
    """Remove the folders of pods whose removal was interrupted; none of them runs."""
    for path in root.iterdir() if root.exists() else ():
        if path.is_dir() and not (path / "pod.json").exists():
            PodFolder(root, path.name).remove()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _lines(path: Path) -> dict[str, str]:
    try:
        text = path.read_text()
    except OSError:
        return {}
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.rename(path)
