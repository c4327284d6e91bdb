"""What a benchmark prints, and that its ratios point the right way."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bidplane import bench
from bidplane.bench.report import (
    BenchReport,
    Result,
    at_least,
    at_most,
    less,
    more,
    print_report,
    progress,
    ratio_above,
    ratio_at_least,
)
from bidplane.cli.bench import bench as command
from bidplane.errors import UserError


def test_json_has_exactly_the_published_fields() -> None:
    report = BenchReport(name="x", how="y", results=(more("m", "u", 2.0, peer=1.0, peer_name="p"),))
    assert json.loads(msgspec.json.encode(report)) == {
        "name": "x",
        "how": "y",
        "results": [
            {
                "metric": "m",
                "unit": "u",
                "ours": 2.0,
                "peer": 1.0,
                "peer_name": "p",
                "ratio": 2.0,
                "aim": None,
                "met": True,
            }
        ],
    }


def test_a_ratio_above_one_means_we_are_better_either_way() -> None:
    assert more("value", "", 20.0, peer=10.0, peer_name="p").ratio == 2.0
    assert less("time", "s", 10.0, peer=20.0, peer_name="p").ratio == 2.0


@pytest.mark.parametrize(
    ("result", "met"),
    [
        (less("t", "ms", 20.0, aim=at_most(20)), True),
        (less("t", "ms", 20.1, aim=at_most(20)), False),
        (more("w", "", 0.995, aim=at_least(0.995)), True),
        (more("w", "", 0.99, aim=at_least(0.995)), False),
        (more("w", "", 1.0, peer=1.0, peer_name="p", aim=ratio_at_least(1)), True),
        (more("w", "", 1.0, peer=1.0, peer_name="p", aim=ratio_above(1)), False),
        (more("w", "", 1.0, aim=ratio_at_least(1)), False),  # an aim needs its peer
        (more("w", "", 0.0), True),
        (less("preemptions", "", 0.0, peer=5.0, peer_name="p", aim=ratio_above(1)), True),
        (less("preemptions", "", 0.0, peer=0.0, peer_name="p", aim=ratio_above(1)), False),
    ],
)
def test_an_aim_is_met_or_missed(result: Result, met: bool) -> None:
    assert result.met is met
    assert BenchReport(name="x", how="", results=(result,)).is_met is met


def test_a_figure_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a figure"):
        more("w", "", math.nan)


def test_the_table_names_what_was_missed() -> None:
    text = io.StringIO()
    report = BenchReport(name="x", how="how", results=(less("slow", "ms", 30.0, aim=at_most(20)),))
    print_report(report, Console(file=text, width=120))
    assert "how" in text.getvalue()
    assert "missed" in text.getvalue()


def test_progress_hands_on_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress("counting", range(3), total=3)) == [0, 1, 2]
    assert capsys.readouterr().out == ""


def test_an_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="choose one of " + ", ".join(bench.BENCHES)):
        bench.find("speed")


def test_a_data_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a folder"):
        command("market", data=tmp_path / "none")


def test_json_on_standard_output_and_exit_code_one_when_an_aim_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*, quick: bool, data: Path | None) -> BenchReport:
        how = f"quick={quick}"
        return BenchReport(name="market", how=how, results=(less("t", "ms", 2.0, aim=at_most(1)),))

    monkeypatch.setattr(bench, "find", lambda name: run)
    with pytest.raises(SystemExit) as exit_info:
        command("market", quick=True, json=True)
    assert exit_info.value.code == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["how"] == "quick=True"
    assert printed["results"][0]["met"] is False
