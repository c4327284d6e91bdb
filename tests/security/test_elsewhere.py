"""The attacks on a node again, as an ordinary user: what holds must not hold because of root."""

from __future__ import annotations

import os
import subprocess

import pytest

from bidplane.node.process.sandbox.confinement import find_bubblewrap
from node.test_elsewhere import AS_SOMEBODY, PYTEST, ROOT, passed, shown

FILES = ("claim_names", "host_paths", "mount_points", "deep_folders", "subpaths", "exec")


@pytest.mark.slow
@pytest.mark.elsewhere
@pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="without root every other test is this one")
def test_the_attacks_without_root() -> None:
    tests = " ".join(f"tests/security/test_{name}.py" for name in FILES)
    script = f"set -e; {shown()} exec {AS_SOMEBODY} {PYTEST} {tests}"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        cwd=ROOT,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    (count,) = passed(done.stdout + done.stderr)
    assert count > 40
