"""A pool is divided into lots: by what its devices have in common, and by selectors of bids."""

from __future__ import annotations

import json

from bidplane.core.cel import CelError
from bidplane.core.market.lots import DeviceKind, partition

WIDE = DeviceKind(("x16",), json.dumps({"driver": "d", "width": 16}).encode())
SLIM = DeviceKind(("x4",), json.dumps({"driver": "d", "width": 4}).encode())
OLD = DeviceKind(("x16",), json.dumps({"driver": "d", "width": 16, "old": True}).encode())


def selects(selector: str, device: bytes) -> bool:
    """Selectors that name a field: true of devices that have it."""
    if selector == "broken":
        raise CelError("no such attribute")
    return selector in json.loads(device)


def test_a_pool_of_one_lot_gives_it_its_name() -> None:
    assert partition("h100", [WIDE, OLD, WIDE], [], selects=selects).names == {
        WIDE: "h100",
        OLD: "h100",
    }


def test_several_lots_are_named_after_their_devices() -> None:
    names = partition("h100", [WIDE, SLIM], [], selects=selects).names
    assert names == {WIDE: "h100/x16", SLIM: "h100/x4"}


def test_a_selector_splits_a_lot_unless_there_would_be_too_many() -> None:
    split = partition("h100", [WIDE, OLD], ["old", "width"], most=2, selects=selects)
    assert split.names[WIDE] != split.names[OLD]
    assert all(name.startswith("h100/x16") for name in split.names.values())
    assert split.true_of == {"old": {split.names[OLD]}, "width": set(split.names.values())}
    whole = partition("h100", [WIDE, OLD], ["old"], most=1, selects=selects)
    assert whole.too_fine == {"old"}
    assert set(whole.names.values()) == {"h100"}


def test_a_selector_that_fails_is_named() -> None:
    failing = partition("h100", [WIDE], ["broken"], selects=selects)
    assert failing.broken["broken"].startswith("no such attribute")
    assert "broken" not in failing.true_of
