"""The site local-gpu on machines with GPUs, as shown by stubs for nvidia-smi and rocm-smi; the site
local on the same machines.
"""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
from suite.messages import check_about, has_rule, problem_of

from runbook.core.errors import ParamsError, PlanError
from runbook.jobs.render.training_job import render_job
from runbook.params import load
from runbook.params.local_gpus import AMD, NVIDIA, visible_gpus
from runbook.params.messages import ParamsMessage
from runbook.planning import make_plan
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.messages import PlanningMessage
from runbook.planning.rule_codes import PlanCode

CLONE = Path(__file__).parents[2]
H100 = "NVIDIA H100 80GB HBM3"
MI300X = "AMD Instinct MI300X OAM"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that simulates a machine with GPUs. The only programs on its PATH are stubs
    that answer one query.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))

    def program(question, answer, code=0):
        told = [
            f'[ {shlex.quote(shlex.join(question[1:]))} = "$*" ] || exit 64',
            f"printf %s {shlex.quote(answer)}",
        ]
        path = place / question[0]
        path.write_text("\n".join(["#!/bin/sh", *told, f"exit {code}", ""]))
        path.chmod(0o755)

    def make(nvidia=(), amd=(), nvidia_code=0):
        visible_gpus.cache_clear()
        lines = [f"{name}, 81559, GPU-{number:08x}-5a1e\n" for number, name in enumerate(nvidia)]
        if nvidia or nvidia_code:
            program(
                NVIDIA, "".join(lines) or "NVIDIA-SMI has failed: no NVIDIA driver\n", nvidia_code
            )
        cards = {
            f"card{number}": {
                "Unique ID": f"0x{number + 10:x}",
                "VRAM Total Memory (B)": "206141652992",
                "VRAM Total Used Memory (B)": "283000000",
                "Card Series": name,
                "Card Model": "0x74a1",
                "GFX Version": "gfx942",
            }
            for number, name in enumerate(amd)
        }
        if amd:
            program(AMD, json.dumps({**cards, "system": {"Driver version": "6.12.12"}}))

    yield make
    visible_gpus.cache_clear()


def plan(*words, run="local", site="local-gpu"):
    settings = load(run, set_words=[f"site={site}", *words], project=CLONE)
    return settings, make_plan(settings)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 8])
def test_n_gpus_are_planned_for_one_process_each(machine, number):
    machine(nvidia=[H100] * number)
    settings, content = plan()
    for phase in ("03-smoke-test", "04-training"):
        spec = content.phases[phase]
        assert spec.device == H100
        assert spec.parallel.world_size == spec.parallel.data == number
        assert spec.batch.global_ % (spec.batch.micro * number) == 0
        job = render_job(settings, content, phase, python="python3")
        assert f"WORLD_SIZE={number} " in job.script
        assert (
            "VISIBLE_DEVICES" not in job.script
        )  # each rank sees all GPUs, and takes the one with its local rank
    assert asdict(content.computes_on) == {
        "device": H100,
        "devices_per_node": number,
        "device_memory": 81559 * 2**20,
        "source": ParamsMessage.GPUS_OF_THIS_MACHINE.fill(
            program="nvidia-smi", number=number, name=H100, memory="79.6 GiB"
        ),
    }
    assert content.time["04-training"].basis == PlanningMessage.MODELLED.fill(
        device="H100-SXM5", peak=989.4, precision="bf16"
    )


def test_the_same_machine_gives_the_same_plan(machine):
    machine(nvidia=[H100] * 2)
    first = plan()[1]
    visible_gpus.cache_clear()
    assert plan()[1] == first


@pytest.mark.parametrize(
    "variable", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
)
def test_amd_gpus_are_asked_of_rocm_smi(machine, monkeypatch, variable):
    machine(amd=[MI300X] * 8)
    assert plan()[1].phases["04-training"].parallel.world_size == 8
    monkeypatch.setenv(variable, "4,5")
    content = plan()[1]
    assert content.phases["04-training"].parallel.world_size == 2
    assert content.computes_on.source == ParamsMessage.GPUS_OF_THIS_MACHINE.fill(
        program="rocm-smi", number=2, name=MI300X, memory="192 GiB"
    )
    assert find_accelerator(content.phases["04-training"].device).name == "MI300X"


@pytest.mark.parametrize(
    ("visible", "number"), [("0", 1), ("1,3", 2), ("GPU-00000002", 1), ("0,-1,1", 1)]
)
def test_only_the_visible_gpus_are_planned_for(machine, monkeypatch, visible, number):
    machine(nvidia=[H100] * 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert plan()[1].phases["04-training"].parallel.world_size == number


def test_more_processes_than_gpus_are_refused(machine):
    machine(nvidia=[H100])
    with pytest.raises(PlanError) as caught:
        plan("jobs.training.devices_per_node=2")
    (check,) = caught.value.checks
    values = {"devices_per_node": 2, "site_devices": 1, "site": "local-gpu"}
    assert check_about([check], PlanCode.DEVICES_ON_NODE, "04-training", **values)


@pytest.mark.parametrize("why", ["no program", "no driver", "hidden"])
def test_without_a_gpu_the_plan_says_so_and_what_to_do(machine, monkeypatch, why):
    if why == "no driver":
        machine(nvidia_code=9)
    elif why == "hidden":
        machine(nvidia=[H100])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PlanError) as caught:
        plan()
    (check,) = caught.value.checks
    assert check_about([check], PlanCode.NO_GPU_SEEN, site="local-gpu")
    assert "--set site=local." in check.remedy


def test_gpus_of_different_kinds_are_refused_until_some_are_chosen(machine, monkeypatch):
    machine(nvidia=[H100, "NVIDIA T400 4GB", H100])
    with pytest.raises(ParamsError) as error:
        plan()
    assert has_rule(
        problem_of(error.value, "site"),
        ParamsMessage.DIFFERENT_GPUS,
        program="nvidia-smi",
        names=f"{H100}, NVIDIA T400 4GB",
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert plan()[1].phases["04-training"].parallel.world_size == 2


@pytest.mark.parametrize(
    "run", ["lumi-13b", "azure-175b", "polaris-25b", "slurm-oscar", "aws-pile-175b"]
)
def test_a_cluster_s_run_is_cut_down_to_the_gpus_that_are_here(machine, run):
    machine(nvidia=[H100] * 4)
    settings, content = plan("model=tiny", run=run)
    assert {spec.parallel.world_size for spec in content.phases.values()} == {4}
    assert settings.scaled_down()


def test_site_local_is_the_cpu_whatever_gpus_there_are(machine):
    here = plan(site="local")[1]
    machine(nvidia=[H100] * 8)
    assert plan(site="local")[1] == here
    assert {spec.device for spec in here.phases.values()} == {"cpu"}
    assert here.computes_on.source == "params/sites/local.yaml"


def test_only_a_site_of_this_machine_may_ask_it(machine, tmp_path):
    machine(nvidia=[H100])
    project = tmp_path / "project"
    for name in ("models.yaml", "datasets.yaml", "local.yaml", "sites/local-gpu.yaml"):
        path = project / "params" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((CLONE / "params" / name).read_text())
    site = project / "params/sites/local-gpu.yaml"
    site.write_text(site.read_text().replace("scheduler: local", "scheduler: slurm"))
    with pytest.raises(ParamsError) as caught:
        load("local", set_words=["site=local-gpu"], project=project)
    values = {"auto": "auto", "scheduler": "slurm"}
    (problem,) = caught.value.problems
    assert has_rule(problem, ParamsMessage.AUTO_ASKS_THIS_MACHINE, **values)
    site.write_text(
        site.read_text()
        .replace("scheduler: slurm", "scheduler: local")
        .replace("auto", "H100-SXM5")
    )
    with pytest.raises(ParamsError) as caught:
        load("local", set_words=["site=local-gpu"], project=project)
    (problem,) = caught.value.problems
    assert has_rule(problem, ParamsMessage.NO_DEVICES_PER_NODE, auto="auto")
