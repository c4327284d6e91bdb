"""A volume claim's name is a name, never a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import POD
from bidplane.core.bidding import asks
from bidplane.core.pods.environment import ConfigError
from bidplane.node.process.volumes.mounts import Declared

PATHS = ["../agent-b/data", "/etc", "..", ".", "a/b", "a\0b", "", "A", "a" * 254, "a\n"]


@pytest.mark.parametrize("name", PATHS)
def test_a_node_makes_a_folder_for_names_alone(tmp_path: Path, name: str) -> None:
    declared = Declared(claims_folder=str(tmp_path / "claims"))
    with pytest.raises(ConfigError, match="not a name"):
        declared.claim("agent-a", name)
    with pytest.raises(ConfigError, match="not a name"):
        declared.claim(name, "data")
    assert not (tmp_path / "claims").exists(), "nothing was made"


def test_what_was_there_is_never_opened_to_others(tmp_path: Path) -> None:
    declared = Declared(claims_folder=str(tmp_path))
    made = declared.claim("agent-a", "data")
    assert made is not None
    assert Path(made.path).stat().st_mode & 0o777 == 0o777
    private = tmp_path / "agent-a" / "private"
    private.mkdir(mode=0o700)
    declared.claim("agent-a", "private")
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_new_claim_of_an_old_name_has_a_directory_of_its_own(tmp_path: Path) -> None:
    """So has the claim of a new agent that took an old one's name."""
    declared = Declared(claims_folder=str(tmp_path))
    before = declared.claim("agent-a", "data", "uid-1")
    assert before is not None
    Path(before.path, "secret").write_text("of the first")
    after = declared.claim("agent-a", "data", "uid-2")
    assert after is not None
    assert list(Path(after.path).iterdir()) == []
    assert declared.claim("agent-a", "data", "uid-1") == before


def test_a_directory_of_an_earlier_release_is_kept_for_its_claim(tmp_path: Path) -> None:
    declared = Declared(claims_folder=str(tmp_path))
    (tmp_path / "agent-a" / "data").mkdir(parents=True)
    (tmp_path / "agent-a" / "data" / "file").write_text("written by 0.2.0")
    found = declared.claim("agent-a", "data", "uid-1")
    assert found is not None
    assert Path(found.path, "file").read_text() == "written by 0.2.0"
    other = declared.claim("agent-a", "data", "uid-2")
    assert other is not None
    assert list(Path(other.path).iterdir()) == []


@pytest.mark.parametrize("name", [path for path in PATHS if path])
def test_a_plane_refuses_such_a_pod_by_name(name: str) -> None:
    def pod(**volume: Any) -> dict[str, Any]:
        return {
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {
                "containers": [{"name": "main", "image": "x"}],
                "volumes": [{"name": "data", **volume}],
            },
        }

    for volume in (
        {"persistentVolumeClaim": {"claimName": name}},
        {"configMap": {"name": name}},
        {"secret": {"secretName": name}},
        {"projected": {"sources": [{"secret": {"name": name}}]}},
    ):
        (problem,) = asks.problems(POD, pod(**volume))
        assert problem.startswith("spec.volumes[0].")
        assert repr(name) in problem
    assert asks.problems(POD, pod(persistentVolumeClaim={"claimName": "data-1.x"})) == []
