"""A small patch makes no large object: what its copies make is counted before they are made."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from bidplane.errors import ApiError
from bidplane.wire.patches.jsonpatch import COPY_LIMIT, json_patch


def doubling(times: int) -> list[dict[str, Any]]:
    return [{"op": "copy", "from": "/data", "path": f"/data/x{n}"} for n in range(times)]


def test_copies_that_double_are_refused_before_they_are_made() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="copy operations") as refused:
            json_patch({"data": {"a": "x" * 100}}, doubling(40))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code == 413
    assert most < 20 * COPY_LIMIT


def test_copies_within_the_limit_are_made() -> None:
    grown = json_patch({"data": {"a": "x"}}, doubling(3))
    assert grown["data"]["x2"]["x1"]["x0"] == {"a": "x"}
