"""The GPU benchmark: its rehearsal on a CPU, its deadlines, and how it reads a profile."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from benchmarks.gpu_stages import planned, profiles, stages, table
from benchmarks.gpu_stages.job import Job
from benchmarks.gpu_stages.results import Results
from benchmarks.gpu_stages.runner import RESERVE_SECONDS, Runner

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.training
def test_a_rehearsal_runs_without_git_and_is_marked_as_one(tmp_path):
    out = tmp_path / "out"
    words = [
        "--out",
        str(out),
        "--rehearse",
        "--commit",
        "abc1234",
        "--stages",
        "1.3b",
        "precision",
        "ranks",
    ]
    environment = {**os.environ, "PATH": "/nonexistent"}
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    content = json.loads((out / "gpu.json").read_text())
    assert content["rehearsal"] is True and content["commit"] == "abc1234"
    assert {job["state"] for job in content["jobs"]} == {"done"}
    steps = [row for row in content["rows"] if "median_seconds" in row]
    assert [row["program"] for row in steps] == ["ours", "ours", "even-compiled"]
    assert [row["mfu"] for row in steps] == [None, None, None]
    assert steps[0]["parts"] == "" and steps[1]["parts"] == "norm,linear,cross_entropy,layers"
    assert all(len(row["losses"]) == 4 for row in steps)
    assert len([row for row in content["rows"] if "kinds" in row]) == 3
    shared = [row for row in content["rows"] if row["stage"] == "ranks"]
    assert [(row["exit_codes"], row["agrees"]) for row in shared] == [([0, 0], True)] * 2
    assert all(row["worst_relative"] < 1e-5 for row in shared)
    assert answer.stdout.count(table.REHEARSAL) == 1
    assert len(answer.stdout) < 12_000
    assert len(list(out.iterdir())) <= 8


def run_jobs(tmp_path, *jobs, seconds=900.0):
    """Run functions in this module as jobs, and return the content of gpu.json."""
    results = Results(tmp_path / "out", rehearsal=True, commit="")
    Runner(jobs, results, time.monotonic() + seconds).run()
    return json.loads((tmp_path / "out" / "gpu.json").read_text())


def job(name, function="", *, seconds=300.0, least_seconds=1.0, **more):
    """Return a job that does not import anything."""
    return Job("test", name, function, seconds, least_seconds, imports=(), **more)


def test_a_job_that_overruns_is_killed_and_the_next_one_runs(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY}")
    monkeypatch.chdir(REPOSITORY)
    late = Job("test", "late", "results:missing", 0.5, 0.1, imports=("slow",))
    broken = job("broken", "results:missing")
    tight = job("tight", "results:missing", least_seconds=1e6)
    begun = time.monotonic()
    content = run_jobs(tmp_path, late, broken, tight)
    assert time.monotonic() - begun < 600  # the slow import alone would take this long
    states = {found["job"]: found["state"] for found in content["jobs"]}
    assert states == {
        "late": "timeout",
        "broken": "failed",
        "tight": "not run",
    }
    assert "has no attribute 'missing'" in content["jobs"][1]["reason"]


def test_jobs_do_not_run_without_what_they_need(tmp_path):
    results = Results(tmp_path, rehearsal=False, commit="")
    fault = {"works": False, "reason": "no C compiler"}
    results.add_row("environment", "machine", {"triton": fault})
    Runner([job("kernels", needs="triton")], results, time.monotonic() + 60).run()
    assert results.jobs[0]["state"] == "not run"
    assert results.jobs[0]["reason"] == "triton does not work here: no C compiler"


def test_no_job_starts_in_the_reserve(tmp_path):
    results = Results(tmp_path, rehearsal=True, commit="")
    Runner([job("any")], results, time.monotonic() + RESERVE_SECONDS).run()
    assert results.jobs[0]["state"] == "not run"


def event(name, start, duration, category="kernel"):
    """Return one complete event of a chrome trace, in microseconds."""
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": duration}


def test_a_profile_sums_kernels_by_kind_and_finds_the_idle_time():
    events = [
        event("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT", 0, 400_000),
        event("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT", 300_000, 200_000),  # overlaps the first
        event("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", 600_000, 100_000),
        event("Memcpy HtoD (Pinned -> Device)", 700_000, 50_000, "gpu_memcpy"),
        event("cudaStreamSynchronize", 0, 250_000, "cuda_runtime"),
        event("cudaLaunchKernel", 0, 10, "cuda_runtime"),
        {"ph": "M", "name": "process_name"},
    ]
    found = profiles.summary(events, seconds=1.0)
    assert found["busy_seconds"] == pytest.approx(0.65)
    assert found["idle_seconds"] == pytest.approx(0.35)
    assert found["kinds"]["gemm"] == {"seconds": pytest.approx(0.6), "count": 2}
    assert found["kinds"]["attention"]["count"] == 1
    assert found["kinds"]["memcpy"]["seconds"] == pytest.approx(0.05)
    assert (found["host_waits"], found["host_wait_seconds"]) == (1, pytest.approx(0.25))
    assert found["profile_text"].splitlines()[0].startswith("step 1000.0 ms, device busy 650.0 ms")


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>", "norm"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("triton_poi_fused_add_gelu_3", "pointwise"),
        ("_cross_entropy_kernel", "cross entropy"),
        ("pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
    ],
)
def test_kernels_are_sorted_by_what_they_compute(kernel, kind):
    assert profiles.kind_of(kernel) == kind


def test_a_row_is_planned_for_the_gpu_that_measured_it(tmp_path):
    row = {
        "stage": "1.3b",
        "job": "plain kernels",
        "program": "ours",
        "shape": "1.3b",
        "engine": "megatron-core",
        "precision": "bf16",
        "recompute": "none",
        "zero_stage": 1,
        "micro_batch": 4,
        "num_micro_batches": 8,
        "median_seconds": 1.2,
        "peak_bytes": 38 * 2**30,
    }
    other = {"stage": "ceilings", "job": "products", "measured": "qkv forward", "tflops": 600.0}
    environment = {"device": "NVIDIA H200", "device_bytes": 143771 * 2**20}
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"environment": environment, "rows": [row, other]}))
    before = path.read_text()
    copy = tmp_path / "planned.json"
    lines = planned.compare(path, copy)
    assert path.read_text() == before, "what was measured stays as it is"
    first, second = json.loads(copy.read_text())["rows"]
    assert 30 < first["planned"]["bytes"] / 2**30 < 45
    assert 0.8 < first["planned"]["seconds"] < 2.5
    assert first["planned"]["memory_error"] == pytest.approx(
        first["planned"]["bytes"] / row["peak_bytes"] - 1
    )
    assert "planned" not in second and len(lines) == 2


def test_the_table_says_what_failed_and_what_did_not_run():
    content = {
        "rehearsal": False,
        "commit": "abc",
        "date": "2026-11-26",
        "environment": {"device": "NVIDIA H200", "torch": "2.11.0+cu130", "compiles": True},
        "rows": [{"stage": "ceilings", "job": "products", "measured": "fc1 wgrad", "failed": "no"}],
        "jobs": [{"stage": "6.7b", "job": "ours", "state": "not run", "reason": "5 s left"}],
    }
    lines = table.lines_of(content)
    assert lines[0].startswith("measured: NVIDIA H200")
    assert [line.split(": ") for line in lines[2:]] == [
        ["fc1 wgrad", "failed", "no"],
        ["6.7b ours", "not run", "5 s left"],
    ]


def test_every_job_of_a_call_names_a_function_that_exists():
    import importlib

    for found in stages.jobs_of(list(stages.STAGES), rehearsal=False):
        module, function = found.function.split(":")
        assert callable(
            getattr(importlib.import_module(f"benchmarks.gpu_stages.{module}"), function)
        )


def test_the_parts_of_1_3b_are_added_one_after_the_other():
    jobs = stages.jobs_of(["1.3b"], rehearsal=False)
    parts = [found.environment.get(stages.PARTS_VARIABLE) for found in jobs]
    assert parts == [
        "",
        "norm",
        "norm,linear",
        "norm,linear,cross_entropy",
        "norm,linear,cross_entropy,layers",
        None,
        None,
        None,
    ]
