"""Where the rig's binaries are looked for, and what is said when they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidplane.testing import rig

EVERY = tuple(rig.COMMANDS)
# Stands in for any of the commands: they are only ever asked for their version here.
ANSWERS = """#!/bin/sh
case "$1" in
version) echo '{"clientVersion": {"gitVersion": "VERSION"}}' ;;
*) echo "Kubernetes VERSION" ;;
esac
"""


def fill(folder: Path, commands: tuple[str, ...] = EVERY, version: str = "v1.37.1") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        (folder / command).write_text(ANSWERS.replace("VERSION", version))
        (folder / command).chmod(0o755)
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> rig.Recipe:
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "go.mod").write_text("module x\n\nrequire k8s.io/kubernetes v1.37.1\n")
    (folder / "go.sum").write_text("")
    read_recipe = rig.read_recipe(folder)
    assert read_recipe is not None
    return read_recipe


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine with nothing on it."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}


def test_assets_come_before_the_cache_and_the_path(
    tmp_path: Path, environ: dict[str, str], recipe: rig.Recipe
) -> None:
    on_path = fill(tmp_path / "bin")
    assert rig.find(environ=environ, recipe=recipe)["etcd"] == on_path / "etcd"
    cached = fill(rig.built_folder(recipe, environ))
    assert rig.find(environ=environ, recipe=recipe)["etcd"] == cached / "etcd"
    environ["KUBEBUILDER_ASSETS"] = str(fill(tmp_path / "assets"))
    binaries = rig.find(environ=environ, recipe=recipe)
    assert binaries.source == "KUBEBUILDER_ASSETS"
    assert binaries["etcd"] == tmp_path / "assets" / "etcd"


def test_places_are_never_mixed(
    tmp_path: Path, environ: dict[str, str], recipe: rig.Recipe
) -> None:
    environ["KUBEBUILDER_ASSETS"] = str(fill(tmp_path / "assets", EVERY[:3]))
    fill(tmp_path / "bin", EVERY[3:])
    with pytest.raises(rig.RigError, match="lacks kube-controller-manager, kube-scheduler"):
        rig.find(environ=environ, recipe=recipe)
    # What the folder does have can be had alone.
    assert rig.find(EVERY[:3], environ=environ, recipe=recipe).source == "KUBEBUILDER_ASSETS"


def test_old_binaries_on_the_path_are_not_used(
    tmp_path: Path, environ: dict[str, str], recipe: rig.Recipe
) -> None:
    fill(tmp_path / "bin", version="v1.33.9")
    with pytest.raises(rig.RigError, match="make kube"):
        rig.find(environ=environ, recipe=recipe)
    fill(tmp_path / "bin", version="v1.34.0")
    assert rig.find(environ=environ, recipe=recipe).source == "PATH"


def test_a_file_that_cannot_be_run_is_missing(
    tmp_path: Path, environ: dict[str, str], recipe: rig.Recipe
) -> None:
    assets = fill(tmp_path / "assets")
    (assets / "etcd").chmod(0o644)
    environ["KUBEBUILDER_ASSETS"] = str(assets)
    with pytest.raises(rig.RigError, match="lacks etcd;"):
        rig.find(environ=environ, recipe=recipe)


def test_the_recipe_decides_which_build_is_current(
    environ: dict[str, str], recipe: rig.Recipe
) -> None:
    fill(rig.built_folder(recipe, environ))
    (recipe.folder / "go.sum").write_text("changed\n")
    changed = rig.read_recipe(recipe.folder)
    assert changed is not None
    assert changed.digest != recipe.digest
    with pytest.raises(rig.RigError):
        rig.find(environ=environ, recipe=changed)


def test_without_the_recipe_the_newest_build_is_found(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig, "read_recipe", lambda: None)
    for version in ("v1.9.0", "v1.36.4", "v1.37.1"):
        fill(rig.cache_folder(environ) / f"{version}-abc")
    assert rig.find(environ=environ)["kubectl"].parent.name == "v1.37.1-abc"


def test_without_the_recipe_nothing_is_built(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig, "read_recipe", lambda: None)
    with pytest.raises(rig.RigError, match="only in a checkout"):
        rig.build(environ=environ)


def test_without_go_one_line_says_what_to_do(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert rig.main(["build"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "install Go" in lines[0]
    assert "KUBEBUILDER_ASSETS" in lines[0]


def fake_go(folder: Path, body: str) -> None:
    """A `go` that finds the file after -o, and does `body` with it as $out."""
    folder.mkdir(exist_ok=True)
    script = 'while [ "$1" != -o ]; do shift; done; out=$2\n'
    (folder / "go").write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}{body}\n")
    (folder / "go").chmod(0o755)


def test_a_build_is_done_once(
    tmp_path: Path, environ: dict[str, str], recipe: rig.Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_go(tmp_path / "bin", 'echo x > "$out"; chmod +x "$out"; echo . >> ../count')
    rig.build(["kubectl"], environ=environ, recipe=recipe)
    rig.build(environ=environ, recipe=recipe)
    rig.build(environ=environ, recipe=recipe)
    assert (tmp_path / "count").read_text().count(".") == len(EVERY)
    progress = capsys.readouterr().err
    assert "[2/5] kubectl v1.37.1: already built" in progress
    assert "[5/5] kube-scheduler v1.37.1: built in 0 s" in progress


def test_a_failed_build_leaves_nothing_and_says_why(
    tmp_path: Path, environ: dict[str, str], recipe: rig.Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_go(tmp_path / "bin", 'echo half > "$out"; echo "no space left" >&2; exit 1')
    with pytest.raises(rig.RigError, match=r"\[1/5\] etcd v1.37.1: go build failed"):
        rig.build(environ=environ, recipe=recipe)
    assert "no space left" in capsys.readouterr().err
    assert list(rig.built_folder(recipe, environ).iterdir()) == []


def test_the_recipe_of_this_checkout_is_read() -> None:
    recipe = rig.read_recipe()
    assert recipe is not None
    assert recipe.version.startswith("v1.")
    assert f"gitVersion={recipe.version}" in recipe.ldflags
