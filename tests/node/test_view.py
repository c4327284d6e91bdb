"""Where a container's paths lead, and what is opened so that a volume finds room."""

import pytest

from bidplane.node.process.sandbox.filesystem import Mount, mount_arguments, resolve_links


@pytest.fixture
def root(tmp_path):
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "usr" / "bin").mkdir()
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "out").symlink_to("../../../etc")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/data", "/data"),
        ("/var/run/secrets/x", "/run/secrets/x"),
        ("/lib/x", "/usr/lib/x"),
        ("/out/passwd", "/etc/passwd"),  # the container's own, never the machine's
        ("/a/../b/./c", "/b/c"),
        ("/round/x", "/round/x"),
        ("/", "/"),
    ],
)
def test_links_lead_where_they_lead_inside(root, path, where):
    assert resolve_links(path, str(root)) == where


def test_the_machines_own_run_is_one_link_away():
    assert resolve_links("/var/run/secrets", "") == "/run/secrets"


def words(*mounts, root):
    return " ".join(mount_arguments(mounts, lambda mount: "7", root=str(root)))


def test_a_folder_is_opened_only_where_a_volume_finds_no_place(root):
    inside = words(Mount("/x", "/usr/bin"), root=root)
    assert f"--ro-bind {root}/usr /usr" in inside
    assert "--bind /x /usr/bin" in inside
    beside = words(Mount("/x", "/usr/share/models", True), root=root)
    assert f"--dir /usr --ro-bind {root}/usr/bin /usr/bin --ro-bind {root}/usr/lib" in beside
    assert beside.endswith("--ro-bind /x /usr/share/models")
    assert f"--ro-bind {root}/var /var" in beside
