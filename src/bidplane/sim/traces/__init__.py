"""
Public workloads, read as jobs: `read(path)` detects the format of a file or folder.

    jobs      a CSV with `submit_time`, `duration` and `num_gpus` (Philly, Shockwave) or `gpu_num`
              (Helios); with `dur_KIND` for `duration`, on GPUs of several kinds (Gavel)
    openb     Alibaba's: a folder with `openb_node_list_gpu_node.csv` and
              `openb_pod_list_default.csv`
    requests  Azure LLM (`TIMESTAMP,ContextTokens,GeneratedTokens`), Mooncake (JSON lines with
              `input_length`), ServeGen (`chunk-N-trace.csv`, or a folder of them), Alibaba's genai
              (`value,timestamp_anon,container_ip`: GPU duty cycles)
    recorded  what `bidplane shadow --save` wrote

The data is not copied. An error names the line that cannot be read, by file and number.
"""

from __future__ import annotations

from pathlib import Path

from bidplane.errors import UserError
from bidplane.sim.traces import jobs, openb, recorded, requests
from bidplane.sim.traces.lines import open_text
from bidplane.sim.traces.trace import Trace

__all__ = ["Trace", "read"]

_FORMATS = (
    "jobs (CSV), openb, Azure LLM, Mooncake, ServeGen, genai duty cycles and recordings of"
    " `bidplane shadow`"
)


def read(path: Path) -> Trace:
    """Read a trace; raises `UserError` that names the problem and its place."""
    if not path.exists():
        raise UserError(f"cannot read {path}: there is no such file or folder")
    if path.is_dir():
        if openb.is_openb(path):
            return openb.read(path)
        if requests.is_servegen(path):
            return requests.read_servegen(path)
        raise UserError(f"{path} is no trace: a folder must be openb's, or hold ServeGen's chunks")
    first = _first_line(path)
    if recorded.is_recording(first):
        return recorded.read(path)
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
        f"{path} is in no known format: its first line is {first[:80]!r}; known are {_FORMATS}"
    )


def _first_line(path: Path) -> str:
    with open_text(path) as lines:
        try:
            return next(iter(lines), "").strip()
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
