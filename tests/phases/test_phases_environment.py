"""A real set-up of a machine (clone, virtual environment, squashed file, stale lock), and the
results from a probe.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, refuses, says
from toy_run import PROJECT, TOY

from runbook import params
from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.jobs.job_request import QueueLimits
from runbook.jobs.slurm import Slurm
from runbook.params.schema.site import Checkout, Preparation
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment import node_probe as checks
from runbook.phases.p01_environment import phase as setting_up
from runbook.phases.p01_environment.doctor import (
    array_checks,
    image_check,
    locks_check,
    queue_checks,
    secret_checks,
    sharing_checks,
    site_checks,
    space_checks,
)
from runbook.phases.p01_environment.preflight.run_preflight import climb
from runbook.planning import Plan, make_plan

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false", "-C")


def repository(folder: Path) -> str:
    """Create a repository with one file. Return its commit."""
    shell.run(["git", "init", "-q", str(folder)])
    (folder / "pretrain_gpt.py").write_text("print('hello')\n")
    shell.run([*GIT, str(folder), "add", "."])
    shell.run([*GIT, str(folder), "commit", "-q", "-m", "one"])
    return shell.run(["git", "-C", str(folder), "rev-parse", "HEAD"]).out.strip()


def site_of(tmp_path: Path, *steps: Preparation, commit: str = "") -> params.Settings:
    """Return the local run on a site with these steps, and with a checkout if a commit is given."""
    stage = tmp_path / "the stage"
    words = [*TOY, f"jobs.stage={stage}", *(["training.framework=megatron-lm"] if commit else [])]
    settings = params.load("local", set_words=words, project=PROJECT)
    update: dict[str, object] = {"preparation": list(steps)}
    if commit:
        place = f"{stage}/Megatron-LM"
        url = (tmp_path / "upstream").as_uri()
        update["frameworks"] = {
            "megatron-lm": Checkout(repository=url, commit=commit, folder=place)
        }
    return replace(settings, site=settings.site.model_copy(update=update))


def test_a_machine_is_set_up_once_and_verified_afterwards(tmp_path):
    commit = repository(tmp_path / "upstream")
    venv = Preparation(
        title="a virtual environment",
        creates="{stage}/venv/bin/python3",
        commands=["python3 -m venv --without-pip {stage}/venv"],
    )
    steps = [venv]
    if shutil.which("mksquashfs"):
        pack = [
            "mksquashfs {stage}/venv {stage}/venv.part -quiet -no-progress",
            "mv {stage}/venv.part {stage}/venv.sqsh",
        ]
        steps.append(
            Preparation(title="packed into one file", creates="{stage}/venv.sqsh", commands=pack)
        )
    settings = site_of(tmp_path, *steps, commit=commit)
    folder = tmp_path / "run"
    folder.mkdir()
    first = setting_up.set_up(settings, folder)
    stage = tmp_path / "the stage"
    assert [one["state"] for one in first] == ["done", "looked", *["done"] * len(steps)]
    assert (stage / "Megatron-LM" / "pretrain_gpt.py").exists() and (
        stage / "venv" / "bin" / "python3"
    ).exists()
    if len(steps) == 2:
        assert (stage / "venv.sqsh").read_bytes()[:4] == b"hsqs"
        assert image_check(with_image(settings, str(stage / "venv.sqsh"))).verdict == "pass"
    before = {
        path: path.stat().st_mtime_ns for path in stage.rglob("*") if ".git" not in path.parts
    }
    second = setting_up.set_up(settings, folder)
    assert [one["state"] for one in second] == ["found", "looked", *["verified"] * len(steps)]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (stage / "venv" / "bin" / "python3").unlink()
    assert [one["state"] for one in setting_up.set_up(settings, folder)][
        2
    ] == "done"  # whatever is missing is created again


def with_image(settings: params.Settings, image: str) -> params.Settings:
    container = settings.site.container.model_copy(update={"kind": "pyxis", "image": image})
    return replace(settings, site=settings.site.model_copy(update={"container": container}))


def test_a_stale_lock_is_removed_and_a_fresh_one_is_left(tmp_path):
    commit = repository(tmp_path / "upstream")
    settings = site_of(tmp_path, commit=commit)
    folder = tmp_path / "run"
    folder.mkdir()
    setting_up.set_up(settings, folder)
    build = tmp_path / "the stage" / "Megatron-LM" / "megatron" / "fused_kernels" / "build"
    build.mkdir(parents=True)
    lock = build / "lock"
    lock.touch()
    setting_up.set_up(settings, folder)
    assert lock.exists()
    old = time.time() - 3600
    for path in (lock, build):
        os.utime(path, (old, old))
    assert locks_check(settings).verdict == "warn"
    setting_up.set_up(settings, folder)
    assert not build.exists()


def test_a_checkout_that_was_moved_on_is_refused(tmp_path):
    commit = repository(tmp_path / "upstream")
    settings = site_of(tmp_path, commit=commit)
    folder = tmp_path / "run"
    folder.mkdir()
    setting_up.set_up(settings, folder)
    clone = str(tmp_path / "the stage" / "Megatron-LM")
    shell.run([*GIT, clone, "commit", "-q", "--allow-empty", "-m", "two"])
    with refuses(
        ProgramError,
        PhaseMessage.STEP_FAILED,
        last_lines=containing("check that commit out, or move the folder away"),
    ):
        setting_up.set_up(settings, folder)


def test_a_step_that_fails_is_told_with_its_own_words_and_done_when_mended(tmp_path):
    broken = Preparation(
        title="an import", creates="{stage}/image", commands=["echo no such image >&2; exit 7"]
    )
    folder = tmp_path / "run"
    folder.mkdir()
    with refuses(
        ProgramError,
        PhaseMessage.STEP_FAILED,
        title="an import",
        exit_code="exit code 7",
        last_lines="no such image",
        log=containing("1-an-import.log"),
    ):
        setting_up.set_up(site_of(tmp_path, broken), folder)
    mended = broken.model_copy(update={"commands": ["mkdir -p {stage} && touch {stage}/image"]})
    assert [one["state"] for one in setting_up.set_up(site_of(tmp_path, mended), folder)] == [
        "done"
    ]
    lying = broken.model_copy(update={"creates": "{stage}/other", "commands": ["true"]})
    with refuses(
        ProgramError,
        PhaseMessage.STEP_FAILED,
        last_lines=containing("finished, but", "other does not exist"),
    ):
        setting_up.set_up(site_of(tmp_path, lying), folder)


def test_a_password_is_used_and_written_nowhere(tmp_path, monkeypatch):
    step = Preparation(
        title="log in",
        creates="{stage}/seen",
        commands=[
            'mkdir -p {stage} && printf %s "${{#secret}}" >{stage}/seen'.replace("{{", "{").replace(
                "}}", "}"
            )
        ],
        secret="env:TOY_KEY",
    )
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.delenv("TOY_KEY", raising=False)
    with refuses(
        ProgramError, PhaseMessage.STEP_FAILED, last_lines=containing("TOY_KEY: is not set")
    ):
        setting_up.set_up(site_of(tmp_path, step), folder)
    monkeypatch.setenv("TOY_KEY", "pass-0123456789")
    setting_up.set_up(site_of(tmp_path, step), folder)
    assert (tmp_path / "the stage" / "seen").read_text() == "15"
    written = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert written and not any("pass-0123456789" in text for text in written)
    loud = step.model_copy(
        update={"creates": "{stage}/never", "commands": ['echo "I was given $secret" >&2; exit 3']}
    )
    with refuses(
        ProgramError, PhaseMessage.STEP_FAILED, last_lines="I was given [secret]"
    ) as error:
        setting_up.set_up(site_of(tmp_path, loud), folder)
    (log,) = (folder / "environment").glob("*.log")
    assert "pass-0123456789" not in str(error.value) + log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_file_with_a_secret_that_others_can_read_is_told(tmp_path):
    (tmp_path / "key").write_text("pass-0123456789\n")
    step = Preparation(
        title="log in", creates="{stage}/seen", commands=[], secret=f"file:{tmp_path / 'key'}"
    )
    for mode, verdict in ((0o644, "warn"), (0o640, "warn"), (0o600, "pass"), (0o400, "pass")):
        (tmp_path / "key").chmod(mode)
        (check,) = secret_checks(site_of(tmp_path, step))
        assert check.verdict == verdict, oct(mode)
        assert "pass-0123456789" not in str(check)
    assert check.rule == f"for {step.title}{PhaseMessage.SECRET_FILE_READABLE.fill()}"


@pytest.mark.training
def test_this_machine_climbs_the_whole_ladder_and_its_two_ranks_use_every_group(tmp_path):
    """Let the local scheduler start the probe in place of the trainer.

    The processes, gloo and the written file are real.
    """
    settings = params.load("local", set_words=TOY, project=PROJECT)
    result = climb(settings, make_plan(settings), tmp_path, [], print)
    assert [rung.name for rung in result.rungs] == [
        "questions",
        "hosts",
        "torch",
        "peers",
        "groups",
    ]
    facts = result.ranks
    assert [one["rank"] for one in facts] == [0, 1]
    assert all(
        one["group"]["sum_is_right"] and one["group"]["bus_bytes_per_second"] > 0 for one in facts
    )
    assert facts[0]["write"]["bytes"] == 64 << 20 and facts[1]["write"] is None
    rows = {one.name: one for one in result.checks}
    assert {one.verdict for one in rows.values()} <= {"pass", "warn"} and result.defect is None
    assert "torch 2" in rows["software"].value
    assert says(rows["all-reduce"].value, PhaseMessage.BUS_BANDWIDTH, backend="gloo")
    assert "DATA_PARALLEL_GROUP" in {one["name"] for one in facts[1]["groups"]["sums"]}
    assert rows["writing"].verdict in ("pass", "warn") and "GB/s" in rows["writing"].value
    content = result.as_dict()
    keys = {"name", "verdict", "value", "rule", "remedy", "where"}
    assert all(keys <= check.keys() for check in content["checks"])
    (node,) = content["nodes"].values()
    assert node["hosts"]["limits"].keys() >= {"memlock", "nofile"}


def made_facts(**changes: object) -> dict[str, object]:
    """Return what a rank on a GPU node reports."""
    device = {"name": "GPU", "free": 79 << 30, "total": 80 << 30}
    return {
        "rank": 0,
        "world_size": 1,
        "host": "n1",
        "python": "3.11",
        "packages": {"torch": "2.5", "megatron-core": "0.16.1", "numpy": "2.0"},
        "networks": ["lo", "eth0", "hsn0"],
        "infiniband": ["mlx5_ib0"],
        "errors": {},
        "torch": {
            "version": "2.5",
            "cuda": "12.4",
            "hip": None,
            "nccl": "2.21.5",
            "devices": [device] * 8,
        },
        "group": {
            "bytes": 1 << 24,
            "seconds": 0.01,
            "bus_bytes_per_second": 1e9,
            "sum_is_right": True,
            "clock_spread": 0.01,
            "backend": "nccl",
        },
        "write": {"bytes": 1 << 26, "seconds": 0.1, "bytes_per_second": 6e8, "clock_of_files": 0.0},
        **changes,
    }


def azure() -> tuple[params.Settings, Plan]:
    settings = params.load("azure-175b", set_words=["jobs.stage=/lustre"], project=PROJECT)
    return settings, make_plan(settings)


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "value"),
    [
        ("GPUs", {}, "pass", "8 on each of 1 nodes, idle"),
        ("GPUs", {"torch": {"version": "2", "cuda": "12.4", "devices": []}}, "fail", "n1: 0"),
        (
            "GPUs",
            {"torch": {"version": "2+cpu", "devices": []}},
            "fail",
            "n1: 0; torch 2+cpu is built for the CPU alone",
        ),
        (
            "network devices",
            {"networks": ["lo"], "infiniband": []},
            "fail",
            "NCCL_SOCKET_IFNAME=eth0 on n1",
        ),
        (
            "clocks",
            {"write": {"bytes_per_second": 1e9, "clock_of_files": -90.0}},
            "warn",
            "1 min 30 s to the files",
        ),
        (
            "writing",
            {"write": {"bytes_per_second": 1e8, "clock_of_files": 0.0}},
            "warn",
            "2.22 TiB in",
        ),
        (
            "software",
            {},
            "pass",
            "torch 2.5, megatron-core 0.16.1, numpy 2.0, CUDA 12.4, NCCL 2.21.5",
        ),
        (
            "software",
            {"packages": {"torch": None}},
            "unknown",
            "missing: torch, megatron-core, numpy",
        ),
    ],
)
def test_what_nodes_say_is_held_against_site_and_plan(name, changes, verdict, value):
    settings, plan = azure()
    rows = checks.probe_checks([made_facts(**changes)], settings.site, plan, "megatron-lm")
    row = next(one for one in rows if one.name == name)
    assert (row.verdict, value in row.value) == (verdict, True), row


@pytest.mark.parametrize(("seen", "verdict"), [(0, "pass"), (1, "fail")])
def test_a_site_of_cpus_hides_its_gpus_from_the_ranks(seen, verdict):
    settings = params.load("local", project=PROJECT)
    gpu = {"name": "GPU", "free": 80 << 30, "total": 80 << 30}
    facts = made_facts(torch={"version": "2", "devices": [gpu] * seen})
    row = checks.devices_check([facts], settings.site)
    assert (row.verdict, row.rule) == (verdict, PhaseMessage.GPUS_HIDDEN.fill())


def test_a_gpu_that_somebody_uses_is_told():
    settings, plan = azure()
    busy = {"name": "GPU", "free": 20 << 30, "total": 80 << 30}
    facts = made_facts(torch={"version": "2", "devices": [busy] * 8})
    row = next(
        one
        for one in checks.probe_checks([facts], settings.site, plan, "runbook")
        if one.name == "GPUs"
    )
    assert row.verdict == "warn"
    assert says(row.value, PhaseMessage.GPU_MEMORY_IN_USE, number=0, memory="60.0 GiB")


def test_nodes_with_other_libraries_below_torch_are_told():
    settings, plan = azure()
    old = {"version": "2.5", "cuda": "12.4", "nccl": "2.20.5", "devices": []}
    other = made_facts(host="n2", torch=old)
    rows = checks.probe_checks([made_facts(), other], settings.site, plan, "runbook")
    places = {"n1": "2.21.5", "n2": "2.20.5"}
    versions = [
        PhaseMessage.VERSION_ON_NODES.fill(version=version, nodes=node)
        for node, version in places.items()
    ]
    differs = {"package": "NCCL", "versions": ", ".join(versions)}
    assert rows[0].verdict == "fail"
    assert rows[0].value == PhaseMessage.DIFFERENT_VERSIONS.fill(**differs)


def test_the_remedy_for_a_missing_device_lists_the_devices_of_that_node():
    settings, _ = azure()
    other = made_facts(host="n2", networks=["lo", "ens5"], infiniband=["mlx5_ib0"])
    row = checks.networks_check([made_facts(), other], settings.site.environment)
    assert row.verdict == "fail"
    absent = row.value.split("; ")
    assert absent
    for text in absent:
        assert says(text, PhaseMessage.ABSENT_DEVICE, node="n2")
    devices = f"n2 has {', '.join(other['networks'] + other['infiniband'])}"
    assert row.remedy == PhaseMessage.NAME_PRESENT_DEVICES.fill(devices=devices)


def test_nobody_asked_is_unknown_and_never_guessed():
    settings, plan = azure()
    rows = checks.probe_checks([], settings.site, plan, "megatron-lm")
    assert {row.verdict for row in rows} == {"unknown"} and all(row.remedy for row in rows)


def test_a_site_without_its_image_or_its_space_fails_by_name(tmp_path):
    settings = params.load("azure-175b", set_words=[f"jobs.stage={tmp_path}"], project=PROJECT)
    rows = {row.name: row for row in site_checks(settings)}
    assert rows["image"].verdict == "fail"
    assert says(
        rows["image"].value,
        PhaseMessage.IMAGE_NOT_READABLE,
        image=containing("pytorch+25.03+py3.sqsh"),
        reason=os.strerror(errno.ENOENT),
    )
    (space,) = space_checks(
        settings, make_plan(settings), tmp_path
    )  # both folders are on one file system
    assert (
        space.name == "disk"
        and f"free at {tmp_path}, " in space.value
        and "TiB needed" in space.value
    )
    wanted = 2**40 * float(re.search(r"([\d.]+) TiB needed", space.value)[1])
    # The checkpoints from two training runs, the token files, and 895 GB for the text.
    plan = make_plan(settings)
    checkpoints = sum(store.disk_bytes for store in plan.checkpoint.values())
    assert wanted == pytest.approx(checkpoints + plan.data.estimated_bytes + 895e9, rel=0.002)
    (tmp_path / "pytorch+25.03+py3.sqsh").write_bytes(b"not an image")
    assert says(
        image_check(settings).value,
        PhaseMessage.IMAGE_OF_NO_KIND,
        image=containing("pytorch+25.03+py3.sqsh"),
    )


@pytest.mark.parametrize(
    ("state", "verdict", "value"),
    [
        ("UP", "pass", "p4de"),
        ("INACTIVE", "fail", "p4de is INACTIVE"),
        ("DOWN", "warn", "p4de is DOWN"),
    ],
)
def test_a_rented_cluster_whose_machines_are_stopped_is_reported_with_how_to_start_them(
    state, verdict, value, tmp_path, monkeypatch
):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f"#!/bin/sh\necho 'PartitionName=p4de MaxTime=UNLIMITED State={state} TotalNodes=8'\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    settings = params.load("aws-pile-175b", project=PROJECT)
    row = next(one for one in queue_checks(settings) if one.name == "queue of jobs.smoke")
    assert (row.verdict, row.value) == (verdict, value)
    start = PhaseMessage.START_MACHINES.fill(fleet="fleet.sh")
    assert (row.remedy or "").endswith(start) == (state != "UP")
    elsewhere = replace(settings, site=settings.site.model_copy(update={"fleet": None}))
    row = next(one for one in queue_checks(elsewhere) if one.name == "queue of jobs.smoke")
    assert row.verdict == verdict and "fleet" not in (row.remedy or "")


@pytest.mark.parametrize(("largest", "verdict"), [(1, "fail"), (1001, "pass")])
def test_an_array_that_slurm_does_not_allow_is_named(largest, verdict, tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho 'MaxArraySize            = {largest}'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    settings = params.load("aws-pile-175b", project=PROJECT, set_words=["jobs.data.array=2"])
    (check,) = array_checks(settings, Slurm())
    assert (check.name, check.verdict) == (
        PhaseMessage.ARRAY_OF_JOB.fill(section="data"),
        verdict,
    )
    assert check.value == PhaseMessage.ARRAY_SIZES.fill(size=2, largest=largest)


def test_a_partition_that_gives_cores_to_several_jobs_is_warned_of():
    settings = params.load("aws-pile-175b", project=PROJECT)
    name = settings.run.jobs.training.partition
    shared = QueueLimits(name, jobs_per_core=4)

    def with_directives(directives: dict[str, bool]):
        site = settings.site.model_copy(update={"directives": directives})
        return replace(settings, site=site)

    (check,) = sharing_checks(with_directives({}), [shared])
    assert (check.verdict, check.value) == (
        "warn",
        PhaseMessage.CORES_SHARED.fill(name=name, jobs=4),
    )
    assert sharing_checks(with_directives({}), [QueueLimits(name)]) == []
    assert sharing_checks(with_directives({"exclusive": True}), [shared]) == []


def test_setting_up_a_rented_cluster_writes_what_starts_its_machines(tmp_path):
    settings = site_of(tmp_path)
    folder = tmp_path / "run"
    fleet = params.load("aws-pile-175b", project=PROJECT).site.fleet
    settings = replace(settings, site=settings.site.model_copy(update={"fleet": fleet}))
    folder.mkdir()
    assert setting_up.set_up(settings, folder) == []
    assert "wait_until '\"RUNNING\"'" in (folder / "environment" / "fleet.sh").read_text()
