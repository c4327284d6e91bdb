"""Links of a lease's devices, compared with how they were."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.core.devices import links

widths = st.sampled_from([1, 4, 8, 16])
counts = st.integers(0, 18)


def device(name: str, lanes: int, nvlinks: int) -> dict[str, Any]:
    attributes = {
        labels.WIDTH_ATTRIBUTE: {"int": lanes},
        labels.NVLINKS_ATTRIBUTE: {"int": nvlinks},
    }
    return {"name": name, "attributes": attributes}


@given(st.lists(st.tuples(widths, counts, widths, counts), max_size=4))
def test_exactly_the_links_that_are_less_are_told(cards: list[tuple[int, int, int, int]]) -> None:
    before = links.links_of(device(f"gpu-{i}", a, b) for i, (a, b, _, _) in enumerate(cards))
    now = links.links_of(device(f"gpu-{i}", c, d) for i, (_, _, c, d) in enumerate(cards))
    told = links.problems(before, now)
    assert len(told) == sum((c < a) + (d < b) for a, b, c, d in cards)
    for i, (a, b, c, d) in enumerate(cards):
        mine = [words for words in told if words.startswith(f"gpu-{i}:")]
        assert any(f"from x{a} to x{c}" in words for words in mine) == (c < a)
        assert any(f"{b - d} of {b} NVLinks" in words for words in mine) == (d < b)


def test_what_is_not_known_is_no_problem() -> None:
    silent = {"name": "gpu-0", "attributes": {"productName": {"string": "H100"}}}
    before = links.links_of([device("gpu-0", 16, 18)])
    assert not links.problems(before, links.links_of([silent]))
    assert not links.problems({}, before)
    assert not links.problems(before, links.links_of([{"name": "gpu-0"}]))


def test_how_links_were_is_kept_on_the_node_and_anybodys_text_is_read() -> None:
    before = links.links_of([device("gpu-0", 16, 0)])
    for text, expected in ((links.text(before), before), ("{", {}), ("[1]", {}), ("", {})):
        node = {"metadata": {"annotations": {labels.LINKS_AT_START: text}}}
        assert links.read(node) == expected
