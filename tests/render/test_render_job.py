import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from local_job import golden_job
from sites import settings_of
from suite.messages import refuses
from suite.programs import shellcheck
from suite.scripts import command_of, commands_of, directives_of, environment_of, options_of

from runbook.core import shell
from runbook.core.errors import JobError, ParamsError
from runbook.core.files import write_text
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.task_job import Task, asks_for_queue, data_tasks, num_shares, render_task
from runbook.jobs.render.training_job import RenderedJob, render_job, write_job
from runbook.phases.messages import PhaseMessage
from runbook.phases.p02_data.tokenize_share import share_of, workers_of

GOLDEN = Path(__file__).parent.parent / "golden" / "local"


@pytest.mark.parametrize("phase", ["03-smoke-test", "04-training"])
def test_the_script_is_the_expected_one_word_for_word(phase):
    rendered = golden_job(phase)
    assert rendered.script == (GOLDEN / phase / "job.sh").read_text(encoding="utf-8")
    assert rendered.arguments == json.loads(
        (GOLDEN / phase / "arguments.json").read_text(encoding="utf-8")
    )
    assert rendered.files == {}


@pytest.mark.parametrize("phase", ["03-smoke-test", "04-training"])
def test_shellcheck_finds_nothing(phase):
    assert shell.run([shellcheck(), str(GOLDEN / phase / "job.sh")], timeout=600).out == ""


@pytest.mark.parametrize("phase", ["03-smoke-test", "04-training"])
def test_bash_can_read_the_script(phase):
    shell.run(["bash", "-n", str(GOLDEN / phase / "job.sh")])


def test_two_local_jobs_that_start_at_the_same_time_choose_different_ports(tmp_path):
    """Both jobs draw the same random numbers here, and neither listens at its port yet."""
    script = golden_job("03-smoke-test").script
    start = script.index("port_is_used()")
    choice = script[start : script.index("export MASTER_ADDR", start)]
    program = f"RANDOM=1\n{choice}\necho $MASTER_PORT"
    ports = [shell.run(["bash", "-c", program]).out for _ in range(2)]
    assert len(set(ports)) == 2
    assert {20000 <= int(port) < 30000 for port in ports} == {True}


def test_rendering_twice_gives_the_same_text():
    first, second = (golden_job("04-training") for _ in range(2))
    assert first == second


def test_a_phase_without_training_has_no_job(make_settings, make_plan, tmp_path):
    with refuses(
        JobError,
        JobMessage.NO_TRAINING_JOB,
        phase="02-data",
        training_phases="03-smoke-test, 04-training",
    ):
        render_job(make_settings(), make_plan(), "02-data")


def test_several_nodes_are_refused_on_one_machine(make_settings, make_plan, tmp_path):
    with refuses(
        JobError, JobMessage.SITE_IS_ONE_MACHINE, phase="04-training", nodes=4, site="local"
    ):
        render_job(make_settings(nodes=4), make_plan(), "04-training")


@pytest.mark.parametrize("name", ["A B", "A;reboot", "$(x)", "1A", "", "Ä", "A=B", "A\n"])
def test_a_name_no_variable_can_have_is_refused(name, make_settings, make_plan, tmp_path):
    with refuses(ParamsError, JobMessage.NOT_A_VARIABLE_NAME):
        render_job(make_settings({"group": {name: "1"}}), make_plan(), "04-training")


@pytest.mark.parametrize(
    ("value", "why"),
    [("a\0b", JobMessage.NUL_CHARACTER.of()), ("\ud800", JobMessage.NOT_UTF8.of())],
)
def test_a_value_no_program_can_be_given_is_refused(value, why, make_settings, make_plan, tmp_path):
    with refuses(ParamsError, why):
        render_job(make_settings({"group": {"NAME": value}}), make_plan(), "04-training")


def test_a_group_of_variables_is_switched_on_this_machine_too(make_settings, make_plan):
    settings = make_settings({"debug": {"NCCL_DEBUG": "INFO"}})
    site = settings.site.model_copy(update={"switched_off": ["debug"]})
    off = replace(settings, site=site)
    jobs = off.run.jobs.model_copy(update={"switch": "+debug"})
    on = replace(off, run=off.run.model_copy(update={"jobs": jobs}))
    assert "NCCL_DEBUG" not in render_job(off, make_plan(), "04-training").script
    assert "export NCCL_DEBUG=INFO\n" in render_job(on, make_plan(), "04-training").script


def test_asking_a_scheduler_loads_no_template_engine():
    code = "import sys, runbook.jobs; print('jinja2' in sys.modules)"
    assert shell.run([sys.executable, "-c", code]).out.strip() == "False"


@pytest.mark.parametrize(
    ("cores", "world_size", "threads"),
    [(8, 2, "4"), (8, 3, "2"), (2, 4, "1"), (1, 1, "1"), (96, 8, "12")],
)
def test_known_cores_are_shared_out_to_the_ranks(
    cores, world_size, threads, make_settings, make_plan, tmp_path
):
    script = render_job(make_settings(cores=cores), make_plan(world_size), "04-training").script
    assert f"export OMP_NUM_THREADS={threads}\n" in script
    assert "nproc" not in script


def test_files_are_written_whole_and_the_script_can_be_executed(tmp_path):
    folder = JobFolder(tmp_path / "jobs" / "04-training")
    script = "#!/bin/sh\necho ünï\n"
    write_job(folder, RenderedJob(script, ["a b", "ü"], {"ds/config.json": "{}"}))
    assert folder.script.read_text(encoding="utf-8") == script
    assert folder.script.stat().st_mode & 0o777 == 0o755
    assert json.loads(folder.arguments.read_text(encoding="utf-8")) == ["a b", "ü"]
    assert (folder.path / "ds" / "config.json").read_text() == "{}"
    assert sorted(path.name for path in folder.path.iterdir()) == ["arguments.json", "ds", "job.sh"]
    assert shell.run([str(folder.script)]).out == "ünï\n"


@pytest.mark.parametrize(
    ("run", "before"),
    [
        (
            "azure-175b",
            (
                "--no-container-mount-home",
                "--container-env=PYTHONPATH,PYTHONSAFEPATH,PYTHONUNBUFFERED",
            ),
        ),
        ("lumi-13b", ("--pwd", "$PWD", "--no-home", "${SIF}")),
        ("polaris-25b", ()),
    ],
)
def test_a_task_in_the_container_has_the_trainers_modules_image_and_python_and_no_device(
    run, before
):
    settings = settings_of(run)
    task = Task(
        "a rehearsal",
        ("python3", "-m", "runbook.training.rehearsal"),
        in_container=True,
        part="rehearsal",
    )
    script = render_task(settings, "01-environment", task, Path("/project")).script
    starter = {"azure-175b": "srun", "lumi-13b": "singularity", "polaris-25b": "python3"}[run]
    program = (*before, "python3", "-m", "runbook.training.rehearsal")
    (command,) = [
        tuple(command) for command in commands_of(script, starter) if command[-1] == program[-1]
    ]
    assert command[-len(program) :] == program
    assert before or command == program
    assert " ".join(program[-3:]) + " </dev/null &\n" in script
    loaded = [module for command in commands_of(script, "module") for module in command[2:]]
    assert loaded == settings.site.modules
    directives = directives_of(script)
    assert not any("gpu" in f"{name}={value}" for name, value in directives.items())
    assert run == "polaris-25b" or directives["cpus-per-task"] == "1"


def test_a_users_umask_holds_for_the_files_of_a_job(tmp_path):
    before = os.umask(0o077)
    try:
        write_job(JobFolder(tmp_path / "job"), RenderedJob("exit 0\n", ["a"], {"run.env": "A=1\n"}))
        write_text(tmp_path / "job" / "job.json", "{}")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "job").iterdir()}
    assert modes == {"job.sh": 0o700, "arguments.json": 0o600, "run.env": 0o600, "job.json": 0o600}


@pytest.mark.parametrize(
    ("words", "directives", "options", "shares"),
    [
        (
            ["nodes=4", "tasks_per_node=32"],
            {"nodes": "4", "ntasks-per-node": "32"},
            {
                "--nodes": "4",
                "--ntasks": "128",
                "--ntasks-per-node": "32",
                "--kill-on-bad-exit": "0",
                "--cpu-bind": "none",
            },
            128,
        ),
        (
            ["nodes=2", "array=3", "tasks_per_node=8", "cpus_per_task=4"],
            {"nodes": "2", "ntasks-per-node": "8", "cpus-per-task": "4", "array": "0-2"},
            {
                "--nodes": "2",
                "--ntasks": "16",
                "--ntasks-per-node": "8",
                "--kill-on-bad-exit": "0",
                "--cpus-per-task": "4",
            },
            48,
        ),
    ],
)
def test_nodes_and_tasks_of_the_data_job_share_the_text(words, directives, options, shares):
    settings = settings_of("azure-175b", *(f"jobs.data.{word}" for word in words))
    assert asks_for_queue(settings, "02-data")
    assert num_shares(settings.run.jobs.data) == shares
    share, join = data_tasks(settings, "python3")
    script = render_task(settings, "02-data", share, Path("/project")).script
    assert directives.items() <= directives_of(script).items()
    command = command_of(script, "srun")
    assert options_of(command, "srun") == options
    place = command.index("python3")
    assert command[place : place + 3] == ["python3", "-m", "runbook.phases.p02_data.tokenize_share"]
    assert len(command[:place]) == 1 + len(options)
    joining = render_task(settings, "02-data", join, Path("/project")).script
    assert "RUNBOOK_TASKS" in script
    assert "RUNBOOK_TASKS" not in joining
    assert "srun" not in joining
    assert directives_of(joining)["nodes"] == "1"


def test_pbs_starts_the_tasks_of_the_data_job_by_mpiexec():
    words = ["jobs.data.nodes=2", "jobs.data.tasks_per_node=4", "jobs.data.partition=debug"]
    settings = settings_of("polaris-25b", *words)
    share = data_tasks(settings, "python3")[0]
    script = render_task(settings, "02-data", share, Path("/project")).script
    command = command_of(script, "mpiexec")
    options = {"-n": "8", "--ppn": "4", "--hostfile": "$job/hostfile"}
    assert options_of(command, "mpiexec") == options
    assert command[7:9] == ["python3", "-m"]
    assert environment_of(script)["RUNBOOK_TASKS"] == "8"


def test_each_task_of_each_element_has_a_share_of_its_own():
    elements = [{"RUNBOOK_ELEMENT": str(number), "RUNBOOK_ELEMENTS": "3"} for number in range(3)]
    shares = [
        share_of(element | {"RUNBOOK_TASKS": "4", variable: str(rank)})
        for element, variable in zip(
            elements, ("SLURM_PROCID", "PMI_RANK", "PALS_RANKID"), strict=True
        )
        for rank in range(4)
    ]
    assert shares == [(index, 12) for index in range(12)]
    assert share_of({}) is None
    assert share_of(elements[2]) == (2, 3)
    with refuses(JobError, PhaseMessage.SHARE_UNKNOWN, tasks=4):
        share_of({"RUNBOOK_TASKS": "4"})


def test_tasks_on_one_node_divide_its_cores():
    def workers(*words):
        return workers_of(settings_of("azure-175b", *words))

    assert workers() == 0
    assert workers("jobs.data.tasks_per_node=10000") == 1
    assert workers("jobs.data.tasks_per_node=2", "jobs.data.cpus_per_task=7") == 7
    assert workers("jobs.data.tasks_per_node=2", "data.workers=3") == 3
