"""Jobs that run Python from a copy on each node match their golden files, and other jobs contain
none of these lines.
"""

import pytest
from sites import COPIED, GOLDEN, copied_files, copied_job, rendered
from suite.programs import shellcheck
from suite.scripts import command_of, commands_of

from runbook.core import shell


@pytest.mark.parametrize("name", COPIED)
def test_the_scripts_are_the_expected_ones_word_for_word(name):
    folder = GOLDEN / "environment-copy" / name
    files = copied_files(name)
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == files


@pytest.mark.parametrize("name", COPIED)
def test_shellcheck_finds_nothing(name):
    for path in (GOLDEN / "environment-copy" / name).iterdir():
        assert shell.run([shellcheck(), str(path)]).out == ""


def test_every_process_starts_the_python_of_its_node():
    files = copied_files("own-trainer-slurm")
    python = ["bash", "$RUNBOOK_JOB_FOLDER/python.sh", "-m"]
    (training,) = [
        command for command in commands_of(files["job.sh"], "srun") if "--no-python" in command
    ]
    place = training.index("bash")
    assert training[place : place + 4] == [*python, "torch.distributed.run"]
    program = command_of(files["rank.sh"], "bash")
    assert program == [*python, "runbook.training", "${arguments[@]}"]


def test_spare_nodes_get_a_copy_too_and_lost_ones_are_not_asked_to_remove_it():
    script = copied_job("own-trainer-slurm").script
    unpack, remove = (script.rindex(f'python.sh" {word}') for word in ("--unpack", "--remove"))
    assert "--nodes=18" in script[unpack - 400 : unpack]
    assert '--nodes="${#trusted[@]}"' in script[remove - 400 : remove]


def test_a_copy_that_is_kept_is_not_removed():
    assert "--remove" not in copied_job("megatron-deepspeed-pbs", ("environment_keep", True)).script


def test_a_program_of_others_finds_its_packages_by_itself():
    assert (
        "package" not in copied_files("megatron-deepspeed-pbs")["python.sh"].partition("where=")[2]
    )


@pytest.mark.parametrize("run", ["azure-175b", "polaris-25b"])
def test_a_job_without_a_copy_has_nothing_of_it(run):
    _, _, job = rendered(run, "04-training")
    assert "python.sh" not in {*job.files}
    assert "python.sh" not in job.script + job.files["rank.sh"]
