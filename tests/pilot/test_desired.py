"""A folder that declares the fleet: the drift from it, and folders that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidplane.core.gate.fleet import FleetAgent, FleetPool, FleetState
from bidplane.errors import UserError
from bidplane.pilot.desired import drift_of, missing_of, read_desired

HEAD = "apiVersion: bidplane.dev/v1alpha1\nkind: Pool\nmetadata: {name: h100}\n"
FLEET = FleetState(
    pools=(
        FleetPool(
            name="h100",
            floor_price="0.20",
            idle_seconds=300,
            fields={"product": '"H100"', "floorPrice": '"0.20"', "noticeSeconds": "30"},
        ),
    ),
    agents=(FleetAgent(name="a", refill="1", priority=1, fields={"owner": '"team"'}),),
)


def test_the_drift_is_the_difference_in_the_fields_that_are_declared(tmp_path: Path) -> None:
    spec = "spec: {product: H100, floorPrice: '0.5', noticeSeconds: 60}\n"
    agent = (
        "apiVersion: bidplane.dev/v1alpha1\nkind: Agent\nmetadata: {name: a}\nspec: {owner: x}\n"
    )
    other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "fleet.yaml").write_text(f"# fleet\n---\n{HEAD}{spec}---\n{agent}")
    (tmp_path / "work.yml").write_text(other + "---\n" + HEAD.replace("h100", "l4") + spec)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config.yaml").write_text("{{{")
    (tmp_path / "README.md").write_text("not read")
    declared = read_desired(tmp_path)
    assert list(map(str, drift_of(declared, FLEET))) == [
        'RepairDrift a to Agent owner "x"',
        "SetFloorPrice h100 to 0.50",
        "RepairDrift h100 to Pool noticeSeconds 60",
    ]
    (missing,) = missing_of(declared, FLEET)
    assert missing.startswith("Pool l4 (")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{{", "cannot be read"),
        ("- 1\n- 2\n", "no kind"),
        (HEAD + "spec: {floorPrice: '1'}\n", "product"),
        (HEAD.replace("v1alpha1", "v9") + "spec: {product: a}\n", "apiVersion of a Pool is"),
        (HEAD.replace("{name: h100}", "{}") + "spec: {product: a}\n", "needs metadata.name"),
        (HEAD + "spec: {product: a}\n---\n" + HEAD + "spec: {product: b}\n", "declared twice"),
    ],
)
def test_a_folder_that_does_not_parse_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=problem) as refused:
        read_desired(tmp_path)
    assert "bad.yaml" in str(refused.value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this is no folder"):
        read_desired(tmp_path / "none")
