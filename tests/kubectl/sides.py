"""
A plane and a real cluster side by side, and the same commands to both.

A story is a list of lines. Most are arguments of kubectl, and what it prints is compared. A line
may begin with a word of its own:

    quiet: …      not compared: its output has an order or a moment of its own
    sorted: …     compared line by line in any order
    until: C ~ T  repeated on each side until its output has the text T; not compared
    ready: L      what a kubelet would say of the pods with the labels L: they run
    ended: L      … they have ended well
    watch: …      begins to run in the background; `watched: N` compares its first N lines

Ages, uids, revisions and generated names are blanked; everything else must be the same.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from .conftest import Kubectl

PATIENCE = 30.0
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_BLANKED: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"resourceVersion: \"\d+\"", "resourceVersion"),
    (r"\"resourceVersion\": \"\d+\"", "resourceVersion"),
    (r"Resource Version:\s+\d+", "Resource Version"),
    (r"[WIE]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ ", "LOG "),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    # Generated names first: a suffix such as 22m5s reads like an age. In front of a space or a
    # sign, so that what is long by nature stays.
    (rf"-{_RANDOM}{{8,10}}-{_RANDOM}{{5}}\b", "-HASH-POD"),
    (rf"-{_RANDOM}{{8,10}}\b", "-HASH"),
    (rf"pod-template-hash(=|: |\":\"){_RANDOM}+", "pod-template-hash"),
    (rf"\b([a-z]+)-{_RANDOM}{{5}}\b", r"\1-POD"),
    # Nor is an age part of a name.
    (r"(?<![\w-])\d+(s|ms|m\d*s?)\b", "AGE"),
    (r"\(x\d+ over AGE\)", ""),
    (r"https://127\.0\.0\.1:\d+(/planes/agent)?", "SERVER"),
    (r"[ \t]+", " "),
    (r"(?m) $", ""),
    (r"(?m)^[-+]{3} \S+ .*$", "FILE"),
    (r"diff -u -N \S+ \S+", "DIFF"),
    (r"eyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN"),
    (r"10\.96\.\d+\.\d+", "CLUSTER-IP"),
)
_RUNS = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "podIPs": [{"ip": "10.0.0.1"}],
    "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ],
}
_ENDED = {
    "phase": "Succeeded",
    "conditions": [
        {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ],
}


def blanked(text: str, namespace: str) -> str:
    text = text.replace(namespace, "NS")
    for pattern, blank in _BLANKED:
        text = re.sub(pattern, blank, text)
    return text.strip()


class Side:
    """One of the two, with a namespace of the test's own and files to apply."""

    def __init__(
        self, kubectl: Kubectl, folder: Path, namespace: str, files: Mapping[str, str]
    ) -> None:
        self.kubectl, self.folder, self.namespace = kubectl, folder, namespace
        self._watching: subprocess.Popen[str] | None = None
        self._seen: queue.Queue[str] = queue.Queue()
        for name, text in files.items():
            (folder / name).write_text(re.sub(r"\bNS\b", namespace, text))
        (folder / "editor").write_text("#!/bin/sh\nsed -i 's/k: v/k: edited/' \"$1\"\n")
        (folder / "editor").chmod(0o755)

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.kubectl.binary), *command.split()],
            capture_output=True,
            text=True,
            timeout=90,
            env={**self.kubectl.environment, "KUBE_EDITOR": str(self.folder / "editor")},
            cwd=self.folder,
        )

    def do(self, line: str) -> str:
        """What one line of a story comes to; nothing for a line that is not compared."""
        line = line.replace("NS", self.namespace)
        word, _, rest = line.partition(": ")
        match word:
            case "quiet":
                self._run(rest)
                return ""
            case "sorted":
                return "\n".join(sorted(self.say(rest).splitlines()))
            case "until":
                command, _, text = rest.partition(" ~ ")
                self.until(command, text)
                return ""
            case "ready":
                self._kubelet(rest, _RUNS)
                return ""
            case "ended":
                self._kubelet(rest, _ENDED)
                return ""
            case "watch":
                self._watch(rest)
                return ""
            case "watched":
                return self._watched(int(rest))
        return self.say(line)

    def say(self, command: str) -> str:
        """What a command prints, with what differs by nature blanked; its exit code first."""
        done = self._run(command)
        return blanked(f"{done.returncode}\n{done.stdout}{done.stderr}", self.namespace)

    def until(self, command: str, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in (found := self._run(command)).stdout + found.stderr:
            if time.monotonic() > end:
                raise AssertionError(f"kubectl {command} never said {text!r}: {found}")
            time.sleep(0.1)

    def _kubelet(self, labels: str, status: Mapping[str, object]) -> None:
        names = self.kubectl("get", "pods", "-l", labels, "-o", "name").split()
        patch = json.dumps({"status": status})
        for name in names:
            # One that goes meanwhile needs no kubelet.
            self.kubectl.run(
                "patch", name, "--subresource=status", "--type=merge", "-p", patch, check=False
            )

    def _watch(self, command: str) -> None:
        self._watching = subprocess.Popen(
            [str(self.kubectl.binary), *command.split()],
            stdout=subprocess.PIPE,
            text=True,
            env=self.kubectl.environment,
        )
        threading.Thread(target=self._read, args=(self._watching,), daemon=True).start()

    def _read(self, watching: subprocess.Popen[str]) -> None:
        assert watching.stdout is not None
        for line in watching.stdout:
            self._seen.put(line)

    def _watched(self, count: int) -> str:
        lines = [self._seen.get(timeout=PATIENCE) for _ in range(count)]
        return blanked("".join(lines), self.namespace)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.terminate()
            self._watching.wait()
        self.kubectl.run("delete", "namespace", self.namespace, "--wait=false", check=False)
