"""When `runbook run` takes a phase for done, and what status says of runs in every state."""

from __future__ import annotations

import pytest
from toy_run import FakeScheduler, open_run

from runbook.errors import JobError, RecordError
from runbook.phases import closing, jobs, status
from runbook.phases.report import card, write_report
from runbook.phases.run import why_not_done
from runbook.records.html import write_html
from runbook.schedulers.base import State

PHASE = "01-environment"


@pytest.fixture
def finished(runs):
    """A phase finished in this process, with the files that its execution as a notebook would add."""
    campaign = open_run(PHASE, runs=runs)
    campaign.session.check("cores", "pass", "2 cores", "one for each process")
    closing.finish(campaign, [])
    return campaign


def missing(campaign) -> str:
    return why_not_done(campaign.settings, campaign.plan, campaign.folder, campaign.phase)


def add_forms(campaign) -> None:
    records = campaign.folder / "records"
    (records / f"{PHASE}.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    write_html(campaign.folder, PHASE)


def test_a_phase_is_done_with_its_mark_and_its_whole_record(finished):
    assert missing(finished) == "its executed notebook is not among the records"
    add_forms(finished)
    assert missing(finished) == ""


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.unlink(), "its record is missing"),
        (lambda path: path.write_text("{"), "its record cannot be read"),
        (
            lambda path: path.write_text(path.read_text().replace('"done"', '"interrupted"')),
            "its newest record says interrupted",
        ),
    ],
)
def test_a_phase_whose_record_was_lost_or_never_ended_is_executed_again(finished, damage, told):
    add_forms(finished)
    damage(finished.folder / "records" / f"{PHASE}.json")
    assert missing(finished) == told


def test_a_phase_opened_anew_by_hand_and_left_is_not_done(finished, runs):
    add_forms(finished)
    open_run(PHASE, runs=runs).session.close()
    assert missing(finished) == "its newest record says interrupted"


def test_a_failed_check_stops_the_phase_and_leaves_no_mark(runs):
    campaign = open_run(PHASE, runs=runs)
    campaign.session.check("disk", "fail", "1 GiB free", "at least 2 GiB")
    with pytest.raises(RecordError, match="01-environment did not pass; its checks above say why"):
        closing.finish(campaign, [])
    assert missing(campaign) == "not done yet"


def test_status_shows_every_run_also_one_whose_record_is_broken(finished, runs, queue: FakeScheduler):
    assert "local  01-environment  1 of 6 done  unknown" in status.status_of_all(runs)
    text = status.status_of_one("local", runs)
    assert "01-environment  done     pass" in text
    assert "04-training     not run" in text
    (finished.folder / "records" / f"{PHASE}.json").write_text("{")
    assert "unreadable" in status.status_of_all(runs)
    assert "unreadable" in status.status_of_one("local", runs)
    assert "is not the twin of a notebook" in status.status_of_one("local", runs)
    assert "01-environment  unreadable" in card(finished.folder)


def test_status_of_nothing_says_how_to_begin(runs):
    assert status.status_of_all(runs) == "No runs yet: runbook run local makes the first one."
    with pytest.raises(
        RecordError, match=r"runs/local is not a run's folder; there are no runs yet\. runbook run local"
    ):
        status.run_folder("local", runs)


def test_the_nearest_run_is_named(finished, runs):
    with pytest.raises(RecordError, match=r"runs/locale is not a run's folder; there are local\. "):
        status.run_folder("locale", runs)
    assert status.run_folder("local", runs) == finished.folder
    assert status.run_folder("params/local.yaml", runs) == finished.folder
    assert status.run_folder(str(finished.folder), None) == finished.folder


def test_jobs_are_listed_in_their_order_and_found_by_their_id(runs, queue: FakeScheduler):
    campaign = open_run("04-training", runs=runs)
    for _ in range(11):
        queue.after_submit = State.STOPPED
        jobs.launch(campaign)
    names = [job.path.name for job in status.job_folders(campaign.folder)]
    assert names == ["04-training", *(f"04-training-{n}" for n in range(2, 12))]
    assert status.find_job("fake-04-training-10", runs) == f"local: {campaign.folder}/jobs/04-training-10"
    with pytest.raises(JobError, match="No run here submitted a job 12345; runbook status lists the runs"):
        status.find_job("12345", runs)


def test_cancel_ends_the_jobs_that_run_and_no_other(runs, queue: FakeScheduler):
    campaign = open_run("04-training", runs=runs)
    jobs.launch(campaign)
    queue.states["04-training"] = State.STOPPED
    jobs.launch(campaign)
    assert status.cancel_jobs("local", runs) == "04-training-2: cancelled (cancelled)"
    assert queue.calls[-1] == "cancel 04-training-2"
    assert status.cancel_jobs("local", runs) == "No job of this run is running; nothing was cancelled."


def test_a_report_of_a_run_that_has_only_a_plan_can_be_written(runs):
    campaign = open_run("00-plan", runs=runs)
    assert write_report(campaign.folder) == campaign.folder / "index.html"
    assert "04-training     not run" in card(campaign.folder)
