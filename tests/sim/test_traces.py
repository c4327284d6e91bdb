"""Every reader: what it makes of a small sample, and what it says of a broken one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bidplane.errors import UserError
from bidplane.sim.traces import read
from bidplane.sim.traces.requests import PATIENCE, PROMPT_TOKENS
from bidplane.sim.workload import Job

JOBS = "job_id,submit_time,num_gpus,duration,tenant\n"
HELIOS = "job_id,user,gpu_num,cpu_num,state,submit_time,duration\n"
GAVEL = "job_id,submit_time,num_gpus,job_type,dur_v100,dur_p100,dur_k80\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
DUTY = "value,timestamp_anon,container_ip\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,64000,262144,8,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_jobs_are_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    path = put(tmp_path, "t.csv", JOBS + "b,20.7,2,0.4,x\na,10,1,60.9,\n")
    assert read(path).jobs == [
        Job(name="a", arrives=10, gpus=1, seconds=60),
        Job(name="b", arrives=20, gpus=2, seconds=1, tenant="x"),
    ]


def test_helios_has_dates_users_and_jobs_of_cpus_alone(tmp_path: Path) -> None:
    rows = (
        "7,ann,8,64,COMPLETED,2020-04-01 00:00:30,100\n"
        "8,bob,0,16,COMPLETED,2020-04-01 00:00:40,100\n"
        "6,bob,1,16,FAILED,2020-04-01 00:00:00,50\n"
    )
    assert read(put(tmp_path, "h.csv", HELIOS + rows)).jobs == [
        Job(name="6", arrives=0, gpus=1, seconds=50, tenant="bob"),
        Job(name="7", arrives=30, gpus=8, seconds=100, tenant="ann"),
    ]


def test_gavels_jobs_have_a_speed_on_each_kind_and_a_fleet(tmp_path: Path) -> None:
    trace = read(put(tmp_path, "g.csv", GAVEL + "0,0.0,4,LM,100.0,200.0,\n"))
    (job,) = trace.jobs
    assert (job.seconds, job.speeds) == (100, {"v100": 1.0, "p100": 0.5})
    assert sum(trace.nodes) == 8 + 16, "no job can use a K80"
    assert set(trace.kinds) == {"v100", "p100"}


def test_openb_is_nodes_of_several_models_and_pods_in_time(tmp_path: Path) -> None:
    put(tmp_path, "openb_node_list_gpu_node.csv", NODES)
    put(tmp_path, "openb_pod_list_default.csv", PODS + "p1,1,1,0,0,,5,9\np0,1,1,1,460,P100,3,10\n")
    trace = read(tmp_path)
    assert (trace.nodes, trace.kinds) == ((2, 8), ("P100", "T4"))
    assert trace.jobs == [Job(name="p0", arrives=3, gpus=1, seconds=7, speeds={"P100": 1.0})]


def test_requests_become_the_gpus_that_answer_them(tmp_path: Path) -> None:
    """In the first minute a GPU and a half are busy, in the second one: two GPUs, then one."""
    minute = 60 * PROMPT_TOKENS
    rows = (
        f"2023-11-16 18:00:00.5000000,{minute},0\n"
        f"2023-11-16 18:00:20.0000000,{minute // 2},0\n"
        f"2023-11-16 18:01:10.0000000,{minute},0\n"
    )
    first, second = read(put(tmp_path, "a.csv", AZURE + rows)).jobs
    assert (first.arrives, first.seconds, first.requests) == (0, 120, 2.0)
    assert (second.arrives, second.seconds, second.requests) == (0, 60, 1.0)
    assert first.urgent
    assert first.patience == PATIENCE


def test_mooncake_counts_milliseconds(tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": 10, "output_length": 5, "hash_ids": [1]}}\n'
    jobs = read(put(tmp_path, "m.jsonl", line.format(0) + line.format(180_000))).jobs
    assert [(job.arrives, job.seconds) for job in jobs] == [(0, 60), (180, 60)]


def test_servegen_adds_up_its_clients(tmp_path: Path) -> None:
    put(tmp_path, "chunk-0-trace.csv", "0,0,0,,0,0\n600,2.0,1.5,Gamma,0.4,0.2\n")
    put(tmp_path, "chunk-1-trace.csv", "0,0,0,,0,0\n600,3.0,1.5,Weibull,0.4,0.2\n")
    jobs = read(tmp_path).jobs  # five requests a second, four to a GPU
    assert [(job.arrives, job.seconds, job.requests) for job in jobs] == [(600, 600, 1500.0)] * 2
    assert read(tmp_path / "chunk-0-trace.csv").jobs[0].requests == 1200


def test_duty_cycles_of_all_pods_make_one_service(tmp_path: Path) -> None:
    rows = "80.0,60.0,a\n80.0,60.0,b\n0.0,120.0,a\n50.0,180.0,b\n"
    jobs = read(put(tmp_path, "duty.csv.gz", DUTY + rows)).jobs
    assert [(job.arrives, job.seconds) for job in jobs] == [(0, 60), (0, 60), (120, 60)]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("t.csv", "", "is in no known format"),
        ("t.csv", "colour,shape\nred,round\n", "known are jobs"),
        ("t.csv", JOBS, "no job with a GPU in it"),
        ("t.csv", "submit_time,num_gpus,duration\n0,1,5\n", "no column job_id"),
        ("t.csv", "job_id,submit_time,duration\na,0,5\n", "line 2: there is no column num_gpus"),
        ("t.csv", "job_id,submit_time,num_gpus\na,0,1\n", "line 2: the job has no duration"),
        ("t.csv", JOBS + "a,0,many,5,x\n", "t.csv, line 2: the number of GPUs 'many' is not a"),
        ("t.csv", JOBS + "a,0,1,5,x\nb,0,0,5,x\n", "t.csv, line 3: a job needs a GPU"),
        ("t.csv", JOBS + "a,0,1.5,5,x\n", "line 2: a job needs whole GPUs, not 1.5"),
        ("t.csv", JOBS + "a,-5,1,5,x\n", "line 2: the time -5 must be 0 or more"),
        ("t.csv", JOBS + "a,0,1,-5,x\n", "line 2: the duration -5 must be 0 or more"),
        ("t.csv", JOBS + "a,0,1,nan,x\n", "line 2: the duration nan must be"),
        ("t.csv", JOBS + "a,0\n", "line 2: it has 2 values for 5 columns"),
        ("t.csv", JOBS + "a,0,1,5,x\na,0,1,5,x\n", "line 3: a second job is called a"),
        ("h.csv", HELIOS + "1,u,1,1,X,2020-13-01 00:00:00,5\n", "line 2: the time .* nor a date"),
        ("g.csv", GAVEL + "0,0.0,4,LM,-1,200.0,\n", "line 2: the duration dur_v100 -1 must be"),
        ("g.csv", GAVEL + "0,0.0,4,LM,,,\n", "line 2: the job has no duration"),
        ("a.csv", AZURE, "has no request in it"),
        ("a.csv", AZURE + "yesterday,1,1\n", "line 2: 'yesterday' is not a time"),
        ("a.csv", AZURE + "2023-11-16 18:00:00,x,1\n", "line 2: ContextTokens 'x' is not a"),
        ("m.jsonl", '{"input_length": 1}\n', "line 1 cannot be read"),
        (
            "m.jsonl",
            '{"timestamp": -1, "input_length": 1, "output_length": 1}\n',
            "line 1: a time and tokens",
        ),
        ("chunk-0-trace.csv", "0,1,1\n", "line 1: it has 3 values; ServeGen"),
        ("chunk-0-trace.csv", "0,-1,1,,0,0\n", "line 1: the rate -1 must be 0"),
        ("chunk-0-trace.csv", "0,0,0,,0,0\n", "has no request"),
        ("chunk-0-trace.csv", "0,1e9,0,,0,0\n", "would need .* GPUs at once"),
        ("d.csv", DUTY + "101,0,a\n", "line 2: a duty cycle of 101"),
        ("d.csv", DUTY + "0,0,a\n", "no GPU is ever busy"),
        ("d.csv", DUTY, "has no sample"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        read(put(tmp_path, name, text))


def test_what_is_no_file_and_no_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(UserError, match="a folder must be"):
        read(tmp_path)
    path = tmp_path / "d.csv.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(UserError, match="cannot read"):
        read(path)
    path.write_bytes(gzip.compress((DUTY + "1,0,a\n" * 9000).encode())[:-20])
    with pytest.raises(UserError, match=r"after line \d+"):
        read(path)


def test_pods_that_end_before_they_begin_and_missing_lists_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "openb_node_list_gpu_node.csv", NODES)
    pods = put(tmp_path, "openb_pod_list_default.csv", PODS + "p0,1,1,1,460,,30,10\n")
    with pytest.raises(UserError, match=r"line 2: .* a negative duration"):
        read(tmp_path)
    pods.write_text(PODS + "p0,1,1,one,460,,3,10\n")
    with pytest.raises(UserError, match=r"openb_pod_list_default\.csv, line 2: num_gpu 'one'"):
        read(tmp_path)
    pods.rename(tmp_path / "openb_pod_list_a.csv")
    put(tmp_path, "openb_pod_list_b.csv", PODS)
    with pytest.raises(UserError, match="has 2 lists"):
        read(tmp_path)
