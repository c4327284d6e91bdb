"""The objects that a pod names."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.core.hosting.references import name_problems, volume_claims


def pod(*volumes: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"volumes": list(volumes)}}


GOOD = (
    {"name": "a", "persistentVolumeClaim": {"claimName": "data-1"}},
    {"name": "b", "configMap": {"name": "settings"}},
    {"name": "c", "emptyDir": {}},
    {"name": "d", "projected": {"sources": [{"secret": {"name": "key.pem"}}, {"downwardAPI": {}}]}},
)


def test_names_of_objects_are_no_problem() -> None:
    assert list(name_problems(pod(*GOOD))) == []
    assert volume_claims(pod(*GOOD, GOOD[0])) == ["data-1"]


@pytest.mark.parametrize(
    ("volume", "field"),
    [
        ({"persistentVolumeClaim": {"claimName": "../x"}}, "persistentVolumeClaim.claimName"),
        ({"configMap": {"name": "Upper"}}, "configMap.name"),
        ({"secret": {"secretName": "a/b"}}, "secret.secretName"),
        (
            {"projected": {"sources": [{"secret": {"name": ".."}}]}},
            "projected.sources[0].secret.name",
        ),
    ],
)
def test_any_other_name_is_told_with_its_field(volume: dict[str, Any], field: str) -> None:
    (problem,) = name_problems(pod(*GOOD, {"name": "e", **volume}))
    assert problem.startswith(f"spec.volumes[4].{field}: ")
