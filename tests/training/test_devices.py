"""The trainer computes on the device that the plan names: one GPU per rank, or the CPU with every
GPU hidden.
"""

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from suite.messages import refuses, says
from suite.ports import free_port

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import parse
from runbook.results.failures.finder import find_failures
from runbook.training import process_groups, ranks
from runbook.training.__main__ import train_rank
from runbook.training.health.stopping import StopConditions
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import Ranks

from .specs import spec


def see_gpus(monkeypatch, number):
    """Let torch see this many GPUs, and hide them with the same variables as CUDA and ROCm."""

    def visible():
        gpus = [f"GPU-{number}" for number in range(number)]
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            if (chosen := os.environ.get(name)) is not None:
                gpus = [
                    gpus[int(word)]
                    for word in chosen.split(",")
                    if word.isdigit() and int(word) < len(gpus)
                ]
        return gpus

    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(visible()))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible()))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=visible()[number])
    )
    return chosen


def known(said):
    """Return whether `runbook logs` reports what is wrong."""
    return [one.name for one in find_failures([str(said)])] == ["no GPU for a rank"]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ranks.SHOWN_BY:
        monkeypatch.setenv(name, "")  # so that a test's settings are undone
        monkeypatch.delenv(name)


@pytest.mark.parametrize("number", [0, 1, 8])
def test_a_plan_for_the_cpu_hides_every_gpu(monkeypatch, number):
    see_gpus(monkeypatch, number)
    ranks.use_planned_device("cpu")
    assert not ranks.on_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["HIP_VISIBLE_DEVICES"] == ""
    assert process_groups.device().type == "cpu"


def test_gpus_that_cannot_be_hidden_any_more_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with refuses(RefusedError, TrainingMessage.GPUS_SEEN_BEFORE, cpu="cpu"):
        ranks.use_planned_device("cpu")


def test_a_plan_for_gpus_is_refused_where_torch_sees_none_and_says_what_torch_was_built_for(
    monkeypatch,
):
    see_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    said = TrainingMessage.NO_GPU.of(device="H100-SXM5", built_for="the CPU alone")
    with refuses(RefusedError, said) as caught:
        ranks.use_planned_device("H100-SXM5")
    assert known(caught.value)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    with refuses(RefusedError, TrainingMessage.NO_GPU, built_for="ROCm"):
        ranks.use_planned_device("MI300X")


def test_the_trainer_obeys_the_plan_before_it_looks_at_anything_else(monkeypatch, tmp_path):
    def check(spec, world_size, *, fp16):
        raise RefusedError(f"fp16={fp16}")

    monkeypatch.setattr("runbook.plan_file.trainer_requirements.check", check)
    alone = Ranks(0, 1, 0, "alone", "", 0)
    for number, device, answer in (
        (2, "H100-SXM5", "fp16=True"),
        (2, "cpu", "fp16=False"),
        (0, "H100-SXM5", TrainingMessage.NO_GPU),
    ):
        see_gpus(monkeypatch, number)
        with pytest.raises(RefusedError) as caught:
            train_rank(parse(spec(mock=True, device=device), tmp_path), alone, StopConditions())
        assert (caught.value.message or str(caught.value)) == answer


def begin(number, ranks, variables, results):
    """Join the other ranks on fake GPUs, with gloo in place of nccl."""
    os.environ.update(variables)
    patch = pytest.MonkeyPatch()
    chosen = see_gpus(patch, number)
    join = torch.distributed.init_process_group
    backends = []

    def join_by_gloo(backend, **how):
        backends.append(backend)
        join("gloo", **how)

    patch.setattr(torch.distributed, "init_process_group", join_by_gloo)
    try:
        process_groups.join_process_group(ranks, 20)
        results.put((ranks.rank, backends, chosen))
    except RefusedError as error:
        results.put((ranks.rank, "refused", str(error)))
    except (RuntimeError, OSError) as error:
        results.put((ranks.rank, "failed", repr(error)))
    time.sleep(
        60
    )  # the process with the store must outlive the others; the parent kills all of them


def begin_all(number, world_size, variables, port):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    ranks = [
        Ranks(rank, world_size, rank, "alone", "127.0.0.1", port) for rank in range(world_size)
    ]
    processes = [
        context.Process(target=begin, args=(number, rank, variables(rank.rank), results))
        for rank in ranks
    ]
    for process in processes:
        process.start()
    answers = sorted(results.get() for _ in ranks)
    for process in processes:
        process.kill()  # a rank whose peer was refused still waits for it, as in a job until the script ends it
        process.join()
    return answers


@pytest.fixture
def port():
    return free_port()


@pytest.mark.parametrize("number", [2, 3])
def test_each_rank_has_a_gpu_of_its_own_and_they_meet_by_nccl(number, port):
    assert begin_all(number, number, lambda _: {}, port) == [
        (rank, ["nccl"], [rank]) for rank in range(number)
    ]


def test_a_launcher_may_show_each_rank_its_own_gpu_alone(port):
    shown = begin_all(2, 2, lambda rank: {"CUDA_VISIBLE_DEVICES": str(rank)}, port)
    assert shown == [(0, ["nccl"], [0]), (1, ["nccl"], [0])]


def test_a_second_rank_on_the_only_gpu_is_refused_before_it_joins():
    with refuses(
        RefusedError, TrainingMessage.NO_GPU_OF_ITS_OWN, local_rank=1, visible=1
    ) as caught:
        ranks.own_gpu(1, 1, {})
    assert known(caught.value)
    with refuses(RefusedError, TrainingMessage.NO_GPU_OF_ITS_OWN, local_rank=2, visible=2):
        ranks.own_gpu(2, 2, {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize("variable", ranks.SHOWN_BY[:2])
def test_two_ranks_that_are_shown_the_same_gpu_are_refused(variable, port):
    answers = begin_all(2, 2, lambda _: {variable: "1"}, port)
    (refused,) = [answer for answer in answers if answer[1] == "refused"]
    assert says(refused[2], TrainingMessage.GPU_SHARED, rank=refused[0], identity="GPU-1")
    assert says(refused[2], TrainingMessage.GPU_SHARED)
    assert known(refused[2])


def test_torch_is_asked_for_gpus_in_one_place_alone():
    folder = Path(ranks.__file__).parent
    askers = {path.name for path in folder.rglob("*.py") if "cuda.is_available" in path.read_text()}
    assert askers == {"ranks.py"}
