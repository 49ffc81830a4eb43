"""The #PBS lines: cores, memory and directives from the site reach the queue, and features that PBS
lacks are refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sites import settings_of
from suite.messages import refuses
from suite.scripts import directives_of

from runbook.core.errors import ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.pbs_scripts import TOLERANCE, PbsScripts
from runbook.params.settings import Settings

PHASE = "04-training"


def plain(*words: str, **site: object) -> Settings:
    """Return the Polaris run on a PBS site where only the number of cores is known."""
    settings = settings_of("polaris-25b", *words)
    update = {"directives": {}, "cores_directive": "ncpus", **site}
    return replace(settings, site=settings.site.model_copy(update=update))


def requests(settings: Settings) -> dict[str, str]:
    """Return the requests that a script makes to PBS, by name."""
    lines = PbsScripts().directives(settings, PHASE, settings.job(PHASE))
    return directives_of("\n".join(lines))


def test_a_plain_pbs_is_asked_for_all_cores_of_nodes_of_their_own():
    """By default PBS grants one core, and may place several parts of a job on one node if it has
    room.
    """
    asked = requests(plain())
    assert (asked["-l select"], asked["-l place"]) == ("8:ncpus=32", "scatter")


def test_polaris_is_asked_for_whole_nodes_as_its_document_does():
    assert requests(settings_of("polaris-25b"))["-l select"] == "8:system=polaris"


@pytest.mark.parametrize(
    ("words", "site", "chunk"),
    [
        (["jobs.training.cpus_per_task=4"], {}, "8:ncpus=16"),
        (["jobs.training.cpus_per_task=4"], {"cores_directive": ""}, "8:ncpus=16"),
        (
            ["jobs.training.cpus_per_task=4"],
            {"directives": {"select": "ncpus=64:ngpus=4"}},
            "8:ncpus=16:ngpus=4",
        ),
        (["jobs.training.memory=480G"], {}, "8:mem=480gb:ncpus=32"),
        (["jobs.training.memory=2048"], {}, "8:mem=2048mb:ncpus=32"),
        ([], {"devices_directive": "ngpus"}, "8:ncpus=32:ngpus=4"),
        ([], {"directives": {"select": "ncpus=64:mpiprocs=4"}}, "8:mpiprocs=4:ncpus=64"),
    ],
)
def test_cores_memory_and_devices_stand_in_the_chunk(words, site, chunk):
    assert requests(plain(*words, **site))["-l select"] == chunk


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "jobs.training.qos=high",
            JobMessage.QUEUE_WITHOUT_QOS.of(queue="PBS", qos="high"),
        ),
        ("jobs.training.reservation=R12", JobMessage.PBS_RESERVATION.of(reservation="R12")),
        (
            "jobs.training.memory=0",
            JobMessage.NOT_A_SIZE_OF_QUEUE.of(queue="PBS", text="0"),
        ),
        ("jobs.training.memory=much", JobMessage.NOT_A_SIZE_OF_QUEUE.of(queue="PBS", text="much")),
    ],
)
def test_what_pbs_does_not_have_is_refused_by_name(word, message):
    with refuses(ParamsError, message):
        requests(plain(word))


def test_out_and_err_are_written_in_their_place_while_the_job_runs():
    assert requests(plain())["-k"] == "doe"


def test_a_sites_words_of_one_letter_are_letters_of_qsub():
    asked = requests(
        plain(
            directives={
                "k": "oe",
                "W": "umask=022,group_list=users",
                "V": "",
                "filesystems": "home",
            }
        )
    )
    assert (asked["-k"], asked["-V"]) == ("oe", "")
    assert asked["-W"] == "umask=022,group_list=users"
    assert asked["-l filesystems"] == "home"
    # The job's own files stay where they are read.
    assert requests(plain(directives={"o": "elsewhere"}))["-o"] == "out"


@pytest.mark.parametrize("word", ["jobs.training.spares=1", "jobs.training.min_nodes=4"])
def test_a_job_that_can_train_on_other_nodes_is_kept_when_it_loses_one(word):
    assert requests(plain(word, "training.framework=runbook"))["-W"] == f"{TOLERANCE}=all"
    assert "-W" not in requests(plain("training.framework=runbook"))


@pytest.mark.parametrize(
    ("of_the_site", "asked"),
    [
        ("group_list=users", f"group_list=users,{TOLERANCE}=all"),
        (f"{TOLERANCE}=job_start", f"{TOLERANCE}=job_start"),
    ],
)
def test_a_site_adds_attributes_and_decides_on_lost_nodes_itself(of_the_site, asked):
    settings = plain("jobs.training.spares=1", directives={"W": of_the_site})
    assert requests(settings)["-W"] == asked
