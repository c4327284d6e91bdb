"""
The node on machines unlike this one: without root; with cgroups v2, in a group of its own.

What other files promise is run again, there: as another user, and on a kernel of our own.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bidplane.node.process.network.addresses import _no_namespaces
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.testing import ownkernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.elsewhere,
    pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap"),
]

ROOT = Path(__file__).parents[2]
SOMEBODY = 12345
# This Python may lie where others may not go: it is shown to them elsewhere, for this run.
SHOWN = """
mkdir -p /run/bidplane-test/python /run/bidplane-test/site
mount --bind {prefix} /run/bidplane-test/python
mount --bind {site} /run/bidplane-test/site
"""
AS_SOMEBODY = (
    "env LD_LIBRARY_PATH=/run/bidplane-test/python/lib PYTHONDONTWRITEBYTECODE=1"
    f" PYTHONPATH={ROOT}/src:/run/bidplane-test/site HOME=/run"
    f" setpriv --reuid={SOMEBODY} --regid={SOMEBODY} --clear-groups --inh-caps=-all"
    " --bounding-set=-all /run/bidplane-test/python/bin/python3"
)
PYTEST = "-m pytest -q --color=no -p no:cacheprovider -m 'not kube' -rs"


def shown():
    return SHOWN.format(
        prefix=shlex.quote(sys.base_prefix), site=shlex.quote(sysconfig.get_path("purelib"))
    )


def passed(said):
    """How many did, of each run; raises if any did not, or was left out."""
    assert not re.search(r"\d+ (failed|skipped|error)", said), said
    return [int(number) for number in re.findall(r"^(\d+) passed", said, re.M)]


@pytest.mark.skipif(os.geteuid() != 0, reason="without root every other test is this one")
def test_without_root():
    """Sandboxes, exec, probes, volumes, restarts; a fork bomb against a limit of its own."""
    chosen = (
        "succeeds or from_objects or with_and_without_a_terminal or (bomb and rlimit)"
        " or (no_more_rights and tools) or goes_on_with_probes"
    )
    files = ["process", "process_limits", "sandbox", "node_restart"]
    tests = " ".join(f"tests/node/test_{name}.py" for name in files)
    script = f"set -e; {shown()} exec {AS_SOMEBODY} {PYTEST} -k '{chosen}' {tests}"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        cwd=ROOT,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert passed(done.stdout + done.stderr) == [6]


# A machine of its own, and beyond it another that knows nothing of pods.
OUTSIDE = """
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip netns add outside
ip link add out0 type veth peer name eth0 netns outside
ip addr add 192.0.2.1/24 dev out0
ip link set out0 up
ip -n outside addr add 192.0.2.2/24 dev eth0
ip -n outside link set eth0 up
ip -n outside link set lo up
ip route add default via 192.0.2.2
mkdir -p /run/netns/site && echo outside > /run/netns/site/index.html
ip netns exec outside python3 -m http.server --bind 192.0.2.2 --directory /run/netns/site 8080 &
export OUTSIDE=http://192.0.2.2:8080/
"""


@pytest.mark.skipif(bool(_no_namespaces()), reason=_no_namespaces() or "-")
@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_the_way_out_of_a_pods_network():
    test = "tests/node/test_process_limits.py -k beyond_the_machine"
    script = f"set -e; {OUTSIDE} {sys.executable} {PYTEST} {test}; kill %1"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert passed(done.stdout + done.stderr) == [2]


# It runs on one core, at a third of its speed: a minute here, two beside eight busy processes.
KERNEL_SECONDS = 840
in_a_kernel = pytest.mark.timeout(KERNEL_SECONDS + 60)


@pytest.fixture
def kernel():
    try:
        ownkernel.find()
    except ownkernel.KernelError as error:
        pytest.skip(str(error))

    def run(script):
        patient = f"export BIDPLANE_TEST_WITHIN={KERNEL_SECONDS / 4}\n"
        code, said = ownkernel.run(shown() + patient + script, cwd=ROOT, timeout=KERNEL_SECONDS)
        assert code == 0, said
        return passed(said)

    return run


@in_a_kernel
def test_with_cgroups_of_version_two(kernel):
    """Memory, processes and CPU time: as a service of root's, and in a group given to a user."""
    chosen = "-k '(bomb and cgroup) or too_much_memory or (time_and_memory and cgroups)'"
    tests = (
        f"{PYTEST} -o timeout=0 {chosen} tests/node/test_process_limits.py tests/node/test_usage.py"
    )
    script = f"""
    groups=/sys/fs/cgroup
    echo +memory +pids +cpu > $groups/cgroup.subtree_control
    mkdir $groups/service $groups/given
    sh -c "echo \\$\\$ > $groups/service/cgroup.procs; exec {sys.executable} {tests}" || exit 1
    chown -R {SOMEBODY} $groups/given
    sh -c "echo \\$\\$ > $groups/given/cgroup.procs; exec {AS_SOMEBODY} {tests}" || exit 1
    """
    assert kernel(script) == [3, 3]


STORAGE = """
[storage]
driver = "vfs"
runroot = "/run/p/run"
graphroot = "/run/p/store"
rootless_storage_path = "/run/p/store"
[storage.options]
ignore_chown_errors = "true"
"""
CONTAINERS = """
[network]
network_config_dir = "/run/p/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@in_a_kernel
def test_with_podman_and_without_root(kernel):
    """Where a machine allows no container, this kernel does: an image made here, run by nobody."""
    if shutil.which("podman") is None or not Path("/bin/busybox").exists():
        pytest.skip("needs podman and a static busybox")
    script = f"""
    mkdir -p -m 700 /run/p/run /run/p/store /run/p/networks
    echo {shlex.quote(STORAGE)} > /run/p/storage.conf
    echo {shlex.quote(CONTAINERS)} > /run/p/containers.conf
    chown -R {SOMEBODY} /run/p
    export XDG_RUNTIME_DIR=/run/p/run CONTAINERS_CONF=/run/p/containers.conf
    export CONTAINERS_STORAGE_CONF=/run/p/storage.conf
    {AS_SOMEBODY} {PYTEST} -o timeout=0 tests/node/test_podman.py || exit 1
    """
    assert kernel(script) == [1]
