"""The digest: a page whose text cannot be turned into something else by what others wrote."""

from __future__ import annotations

from bidplane.api.gate.action import Effect
from bidplane.api.money import MICRO
from bidplane.core.gate.digest import Digest, DigestLine, markdown, saved


def line(kind: str, message: str = "done", **effect: int) -> DigestLine:
    return DigestLine(
        at="2026-01-01T00:00:00Z",
        actor="pilot pilot",
        summary=f"{kind} x",
        message=message,
        effect=Effect(**effect),
        kind=kind,
    )


def test_what_was_saved() -> None:
    lines = [
        line("ReleaseLease", devices=2, spend=3 * MICRO),
        line("ReleaseLease", devices=1, spend=MICRO),
        line("ParkNode", devices=8),
        line("SetRefill", spend=9 * MICRO),
    ]
    assert saved(lines) == (
        "3 devices given back, with rents of 4.00 credits per hour; 8 devices parked"
    )
    assert saved(lines[3:]) == "nothing"


def test_what_others_wrote_stays_text() -> None:
    evil = "# Done\n<script>`rm`</script> [click](http://x) **now**\u202e"
    page = markdown(Digest(since="a", until="b", refused=[line("OffTopic", evil)]))
    (written,) = [text for text in page.splitlines() if "OffTopic" in text]
    assert r"\# Done \<script\>\`rm\`\</script\> \[click\](http://x) \*\*now\*\*" in written
    assert "\u202e" not in page
    assert page.count("## Done (0)") == 1
