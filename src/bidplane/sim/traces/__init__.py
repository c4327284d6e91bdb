"""
Public workloads, read as jobs: `read(path)` finds out by its content what a file or folder is.

    jobs      a CSV with `submit_time`, `duration` and `num_gpus` (Philly, Shockwave) or `gpu_num`
              (Helios); with `dur_KIND` for `duration`, on GPUs of several kinds (Gavel)
    openb     Alibaba's: a folder with `openb_node_list_gpu_node.csv` and
              `openb_pod_list_default.csv`
    requests  Azure LLM (`TIMESTAMP,ContextTokens,GeneratedTokens`), Mooncake (JSON lines with
              `input_length`), ServeGen (`chunk-N-trace.csv`, or a folder of them), Alibaba's genai
              (`value,timestamp_anon,container_ip`: GPU duty cycles)

The data stays where it is. A line that cannot be read is named, by file and number.
"""

from __future__ import annotations

from pathlib import Path

from bidplane.errors import UserError
from bidplane.sim.traces import jobs, openb, requests
from bidplane.sim.traces.lines import open_text
from bidplane.sim.traces.trace import Trace

__all__ = ["Trace", "read"]

_KNOWN = "jobs (CSV), openb, Azure LLM, Mooncake, ServeGen and genai duty cycles"


def read(path: Path) -> Trace:
    """Raises `UserError` that says what is wrong, and where."""
    if not path.exists():
        raise UserError(f"cannot read {path}: there is no such file or folder")
    if path.is_dir():
        if openb.is_openb(path):
            return openb.read(path)
        if requests.is_servegen(path):
            return requests.read_servegen(path)
        raise UserError(f"{path} is no trace: a folder is one of openb's, or ServeGen's chunks")
    first = _first_line(path)
    columns = [column.strip() for column in first.split(",")]
    if "TIMESTAMP" in columns and "GeneratedTokens" in columns:
        return requests.read_azure(path)
    if first.startswith("{") and '"input_length"' in first:
        return requests.read_mooncake(path)
    if columns == ["value", "timestamp_anon", "container_ip"]:
        return requests.read_duty(path)
    if requests.is_servegen(path):
        return requests.read_servegen(path)
    if "submit_time" in columns:
        return jobs.read(path)
    raise UserError(
        f"{path} is no trace that can be read: its first line is {first[:80]!r}; known are {_KNOWN}"
    )


def _first_line(path: Path) -> str:
    with open_text(path) as lines:
        try:
            return next(iter(lines), "").strip()
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
