"""What differs by nature between two sides is blanked the same way, whatever was drawn."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from .sides import blanked

SUFFIXES = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)
HASHES = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=8, max_size=10)


@given(suffix=SUFFIXES)
@example(suffix="22m5s")
@example(suffix="2455s")
@example(suffix="225ms")
def test_a_pods_suffix_is_a_suffix_whatever_it_reads_like(suffix: str) -> None:
    line = f"work-{suffix} 0/1 Pending 0 3s"
    assert blanked(line, "w-31013101") == "work-POD 0/1 Pending 0 AGE"
    assert blanked(f"Created pod: work-{suffix}", "w-31013101") == "Created pod: work-POD"


@given(digest=HASHES, suffix=SUFFIXES)
@example(digest="5555555555", suffix="22m5s")
@example(digest="555555m5s", suffix="bcdfg")
def test_the_name_of_a_deployments_pod_is_blanked_whole(digest: str, suffix: str) -> None:
    line = f"pod/web-{digest}-{suffix} 1/1 Running 0 1m5s"
    assert blanked(line, "w-31013101") == "pod/web-HASH-POD 1/1 Running 0 AGE"
    assert blanked(f"replicaset.apps/web-{digest} 2", "w-31013101") == "replicaset.apps/web-HASH 2"


@given(st.integers(0, 999), st.sampled_from(("s", "ms", "m", "m5s")))
def test_an_age_is_blanked(number: int, unit: str) -> None:
    assert blanked(f"one 1 {number}{unit}", "w-31013101") == "one 1 AGE"
    assert blanked(f"Normal Created {number}{unit} (x2 over {number}{unit})", "w-31013101") in (
        "Normal Created AGE",
    )
