"""Scripts of jobs in a chain and with spare nodes: as expected word for word, and nothing in them for any other job."""

import pytest
from sites import UNATTENDED, rendered, unattended_file, unattended_job
from suite.programs import shellcheck

from runbook.core import shell
from runbook.core.errors import JobError


@pytest.mark.parametrize("name", UNATTENDED)
def test_the_script_is_the_expected_one_word_for_word(name):
    assert unattended_job(name).script == unattended_file(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", UNATTENDED)
def test_shellcheck_finds_nothing(name):
    assert shell.run([shellcheck(), str(unattended_file(name))]).out == ""


def test_a_job_without_a_chain_and_spares_has_nothing_of_both():
    _, _, job = rendered("azure-175b", "04-training")
    for word in ("attempt", "next_job", "no-kill", "chain", "spare"):
        assert word not in job.script


def test_the_queue_is_asked_for_the_spare_nodes_and_the_step_is_not():
    script = unattended_job("own-trainer-slurm").script
    assert "#SBATCH --nodes=18" in script
    assert "#SBATCH --no-kill" in script
    assert "--nodes=16 " in script
    assert '--nodelist="$step_nodes"' in script


def test_a_program_whose_progress_is_not_known_is_refused():
    with pytest.raises(JobError, match="progress of nemo is not known"):
        rendered("aws-pile-175b", "03-smoke-test", "jobs.smoke.chain=2")
