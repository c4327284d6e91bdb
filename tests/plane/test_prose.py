"""`kubectl explain` has words where a package that carries them is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bidplane.api.kinds import POD
from bidplane.plane import explaintexts
from bidplane.plane.registry import Registry
from bidplane.wire.schema import openapi

POD_SPEC = "io.k8s.api.core.v1.PodSpec"


def _package(folder: Path, version: str, words: str) -> None:
    spec = {
        "description": f"{words} spec",
        "properties": {
            "nodeName": {"description": f"{words} node", "type": ["string", "null"]},
            "affinity": {"description": f"{words} affinity", "$ref": "elsewhere"},
        },
    }
    place = folder / f"{version}-local"
    place.mkdir(parents=True)
    (place / "_definitions.json").write_text(json.dumps({"$defs": {POD_SPEC: spec}}))


def _pods(words: Any) -> dict[str, Any]:
    document = json.loads(openapi.document([Registry().of(POD)], words))
    schema: dict[str, Any] = document["components"]["schemas"][POD_SPEC]
    return schema


def test_the_words_of_the_newest_release_that_is_not_newer_than_ours(tmp_path: Path) -> None:
    for version, words in (("v1.9.9", "old"), ("v1.36.0", "ours"), ("v1.38.0", "new")):
        _package(tmp_path, version, words)
    spec = _pods(explaintexts.read(tmp_path, "v1.37.1"))
    assert spec["description"] == "ours spec"
    assert spec["properties"]["nodeName"]["description"] == "ours node"
    assert spec["properties"]["nodeName"]["type"] == "string", "the type is our own"
    affinity = spec["properties"]["affinity"]
    assert affinity["description"] == "ours affinity"
    assert affinity["allOf"][0]["$ref"].endswith(".Affinity")


def test_without_the_package_there_are_fields_and_no_words(tmp_path: Path) -> None:
    assert explaintexts.read(tmp_path, "v1.37.1") == {}
    assert "description" not in _pods({})["properties"]["nodeName"]
