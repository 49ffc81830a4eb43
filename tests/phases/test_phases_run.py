"""When `runbook run` considers a phase done, and what status reports about runs in every state."""

from __future__ import annotations

import contextlib
import json
from html import unescape

import pytest
from recorded_run import write_recorded_run
from suite.messages import containing, refuses
from suite.tables import table_rows
from toy_run import FakeScheduler, launch_jobs, open_run, write_metrics

from runbook.core.checks import Check
from runbook.core.errors import JobError, ParamsError, RecordError
from runbook.jobs.job_folder import JobState
from runbook.phases import phase_end, run_report, training_results
from runbook.phases.job_control import continuation
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import FULL_TRAINING, TOKENIZE
from runbook.phases.run_report import card, write_report
from runbook.phases.runner import why_not_done
from runbook.plan_file.phase_names import EVALUATION, FULL, PHASES
from runbook.records.messages import RecordMessage
from runbook.records.pages.notebook_page import write_html
from runbook.records.pages.runs_index import main_scores
from runbook.records.run_state import OUTDATED, RECORD_MISSING, read_run
from runbook.results.wall_time import Rates
from runbook.runs import status
from runbook.runs.messages import RunMessage
from runbook.runs.run_files import read_plan_file
from runbook.runs.step import StepState, write_mark

PHASE = "01-environment"


@pytest.fixture
def finished(runs):
    """Finish a phase in this process, and add the files that its executed notebook would leave."""
    open_phase = open_run(PHASE, runs=runs)
    open_phase.session.check(Check("cores", "pass", "2 cores", "one for each process"))
    phase_end.plain_end(open_phase.phase)(open_phase)
    return open_phase


def missing(open_phase) -> str:
    return why_not_done(open_phase.settings, open_phase.plan, open_phase.folder, open_phase.phase)


def add_forms(open_phase) -> None:
    records = open_phase.folder / "records"
    (records / f"{PHASE}.ipynb").write_text(
        '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    write_html(open_phase.folder, PHASE)


def test_a_phase_is_done_with_its_mark_and_its_whole_record(finished):
    assert missing(finished) == PhaseMessage.NOTEBOOK_NOT_AMONG_RECORDS.fill()
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
    assert missing(finished) == PhaseMessage.NEWEST_RECORD_SAYS.fill(state="interrupted")


def end_with_training(runs, phase: str, iterations: int):
    """End a phase by hand, after training wrote this many iterations."""
    training = open_run(FULL, runs=runs)
    write_metrics(training, iterations)
    FULL_TRAINING.of(training.run).mark_done()
    opened = open_run(phase, runs=runs)
    opened.session.check(Check("scores", "pass", "3 scores", "at least one"))
    opened.session.add_results({"iterations": iterations})
    phase_end.plain_end(phase)(opened)
    return opened


def test_results_of_an_earlier_training_are_outdated_once_it_was_extended(runs):
    """Status called 06 done and passed, with its numbers, after the training had gone on."""
    opened = end_with_training(runs, EVALUATION, 4)
    assert phase_of(opened, EVALUATION).state == "done"
    assert read_run(opened.folder).numbers["iterations"] == 4
    end_with_training(runs, FULL, 6)
    assert phase_of(opened, FULL).state == "done"
    assert phase_of(opened, EVALUATION).state == OUTDATED
    run = read_run(opened.folder)
    assert (run.state, run.phase, run.verdict) == (OUTDATED, EVALUATION, "unknown")
    assert run.numbers["iterations"] == 6
    page = write_report(opened.folder).read_text()
    assert RecordMessage.OUTDATED.fill(phase=EVALUATION) in page
    end_with_training(runs, EVALUATION, 6)
    assert phase_of(opened, EVALUATION).state == "done"


@pytest.mark.parametrize("changed", ["plan", "data"])
def test_a_training_is_outdated_once_its_plan_or_data_has_changed(runs, changed):
    """After `--redo 00 --to 00` with more iterations, a run of half of them was called done."""
    opened = open_run(FULL, runs=runs)
    continuation.note_start(opened.training, FULL_TRAINING.of(opened.run))
    end_with_training(runs, FULL, 6)
    assert phase_of(opened, FULL).state == "done"
    if changed == "plan":
        path = opened.folder / "plan.json"
        content = json.loads(path.read_text())
        content["phases"][FULL]["duration"]["iterations"] = 12
        path.write_text(json.dumps(content))
    else:
        tokens = opened.folder / "data" / "tokens"
        tokens.write_text("other")
        write_mark(opened.folder, TOKENIZE, 1, "def", [tokens])
    assert phase_of(opened, FULL).state == OUTDATED
    assert read_run(opened.folder).state == OUTDATED


def test_phases_that_read_an_outdated_training_are_outdated_too(runs):
    """04 was called outdated, but 06, which had scored its weights, was still done."""
    opened = open_run(FULL, runs=runs)
    continuation.note_start(opened.training, FULL_TRAINING.of(opened.run))
    evaluated = end_with_training(runs, EVALUATION, 6)
    end_with_training(runs, FULL, 6)
    write_scores(opened.folder)
    assert phase_of(opened, EVALUATION).state == "done"
    assert main_scores(read_run(opened.folder))
    path = opened.folder / "plan.json"
    content = json.loads(path.read_text())
    content["phases"][FULL]["duration"]["iterations"] = 12
    path.write_text(json.dumps(content))
    assert phase_of(opened, FULL).state == OUTDATED
    assert phase_of(evaluated, EVALUATION).state == OUTDATED
    assert main_scores(read_run(opened.folder)) == (), "the list of runs shows no old scores"
    page = write_report(opened.folder).read_text()
    assert RecordMessage.OUTDATED.fill(phase=EVALUATION) in page
    assert OUTDATED in card_lines(opened.folder)[EVALUATION]


def test_compare_warns_of_a_run_whose_training_is_outdated_or_did_not_end(runs):
    """Its numbers were compared without a word, if it had reached its last iteration."""
    opened = open_run(FULL, runs=runs)
    rule = RunMessage.PHASE_IS_DONE.fill()
    name = f"{opened.folder.name}: {FULL}"
    unfinished = Check(name, "warn", "interrupted", rule)
    assert status.state_checks([opened.folder] * 2, FULL) == [unfinished]
    continuation.note_start(opened.training, FULL_TRAINING.of(opened.run))
    end_with_training(runs, FULL, 6)
    assert status.state_checks([opened.folder], FULL) == []
    assert status.state_checks([opened.folder], EVALUATION) == [], "it was not executed"
    (opened.folder / "data" / "tokens").write_text("other")
    write_mark(opened.folder, TOKENIZE, 1, "def", [opened.folder / "data" / "tokens"])
    outdated = Check(name, "warn", OUTDATED, rule)
    assert status.state_checks([opened.folder], FULL) == [outdated]
    metrics = opened.folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss": ', '"loss": 1'))
    (_, changed) = status.state_checks([opened.folder], FULL)
    assert (changed.verdict, changed.value) == ("warn", "changed: metrics.jsonl")
    assert changed.rule == RunMessage.FILES_ARE_AS_RECORDED.fill()


def write_scores(folder):
    score = {"what": "corpus", "measure": "bits per byte", "samples": 18}
    row = {**score, "before": 4.6, "after": 3.6, "iteration": 6}
    (folder / "evaluation").mkdir(exist_ok=True)
    (folder / "evaluation" / "built-in.jsonl").write_text(json.dumps(row) + "\n")


def card_lines(folder) -> dict[str, str]:
    """Return the lines in the summary card by their first word."""
    lines = [line for line in card(folder).splitlines() if line]
    return {line.split()[0]: line for line in reversed(lines)}


def test_a_phase_that_has_ended_but_lost_its_record_is_not_called_not_run(runs):
    """It looked like a phase that nobody had executed, and the remedy was not named."""
    opened = end_with_training(runs, EVALUATION, 4)
    (opened.folder / "records" / f"{EVALUATION}.json").unlink()
    problem = RecordMessage.RECORD_MISSING.fill(phase=EVALUATION, run=opened.folder.name)
    phase = phase_of(opened, EVALUATION)
    assert (phase.state, phase.problem) == (RECORD_MISSING, problem)
    run = read_run(opened.folder)
    assert (run.state, run.verdict) == (RECORD_MISSING, "unknown")
    page = unescape(write_report(opened.folder).read_text())
    assert problem in page
    assert problem in status.status_of_one(str(opened.folder), None)
    assert RECORD_MISSING in card_lines(opened.folder)[EVALUATION]


def test_status_shows_when_a_phase_ended_without_fractions_of_a_second(runs):
    opened = end_with_training(runs, EVALUATION, 4)
    ended = phase_of(opened, EVALUATION).record.ended
    (row,) = (row for row in status.phases_table(read_run(opened.folder)).rows if row["ended"])
    assert row["ended"] == f"{ended[:10]} {ended[11:19]} UTC"


@pytest.mark.parametrize(("iterations", "shown"), [(12, "12 of 24 steps"), (24, "24 steps")])
def test_a_report_of_half_a_training_does_not_compare_its_time_with_the_whole(
    runs, iterations, shown
):
    folder = write_recorded_run(runs)
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [json.dumps(row) for row in rows if row["iteration"] <= iterations]
    path.write_text("\n".join(kept) + "\n")
    training = training_results.read_results(folder, read_plan_file(folder), FULL)
    tiles = {name: text for name, _, text in training_results.headline(training, Rates())}
    assert tiles["Model"].endswith(f" in {shown}")
    assert ("the planned" in tiles["Time"]) == (iterations == 24)
    remarks = {row["what"]: row["remark"] for row in training_results.plan_versus_actual(training)}
    assert (shown in remarks["wall time (s)"]) == (iterations == 12)


def phase_of(open_phase, phase: str):
    (state,) = (state for state in read_run(open_phase.folder).phases if state.phase == phase)
    return state


def test_a_failed_check_stops_the_phase_and_leaves_no_mark(runs):
    open_phase = open_run(PHASE, runs=runs)
    open_phase.session.check(Check("disk", "fail", "1 GiB free", "at least 2 GiB"))
    with refuses(RecordError, PhaseMessage.PHASE_DID_NOT_PASS, phase="01-environment"):
        phase_end.plain_end(open_phase.phase)(open_phase)
    assert missing(open_phase) == StepState.NOT_DONE


def test_status_shows_every_run_also_one_whose_record_is_broken(
    finished, runs, queue: FakeScheduler
):
    done = RecordMessage.STATES_DONE.fill(done=1, phases=7)
    rows = [cells[:4] for cells in table_rows(status.status_of_all(runs))]
    assert ["local", "01-environment", done, "unknown"] in rows
    rows = table_rows(status.status_of_one("local", runs))
    assert ["01-environment", "done", "pass"] in [cells[:3] for cells in rows]
    assert ["04-training", "not run"] in [cells[:2] for cells in rows]
    (finished.folder / "records" / f"{PHASE}.json").write_text("{")
    assert "unreadable" in status.status_of_all(runs)
    assert "unreadable" in status.status_of_one("local", runs)
    assert f"is not {RecordMessage.PHASE_RECORD.fill()}" in status.status_of_one("local", runs)
    assert "01-environment  unreadable" in card(finished.folder)


def test_status_of_nothing_says_how_to_begin(runs):
    assert status.status_of_all(runs) == RunMessage.NO_RUNS_YET.fill()
    with refuses(
        ParamsError,
        RunMessage.NO_SUCH_RUN_FOLDER,
        root=containing("runs/local"),
        there="; there are no runs yet",
        stem=containing("runbook run local --to 00-plan"),
    ):
        status.run_folder("local", runs)


def test_a_folder_that_is_no_run_is_named_as_it_was_given(runs, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with refuses(ParamsError, RunMessage.FOLDER_OF_NO_RUN, folder=folder):
        status.run_folder(str(folder), runs)


def test_the_nearest_run_is_named(finished, runs):
    with refuses(
        ParamsError,
        RunMessage.NO_SUCH_RUN_FOLDER,
        root=containing("runs/locale"),
        there="; there are local",
    ):
        status.run_folder("locale", runs)
    assert status.run_folder("local", runs) == finished.folder
    assert status.run_folder("params/local.yaml", runs) == finished.folder
    assert status.run_folder(str(finished.folder), None) == finished.folder


def test_jobs_are_listed_in_their_order_and_found_by_their_id(runs, queue: FakeScheduler):
    open_phase = open_run("04-training", runs=runs)
    for _ in range(11):
        queue.after_submit = JobState.STOPPED
        launch_jobs(open_phase)
    names = [job.path.name for job in status.job_folders(open_phase.folder)]
    assert names == ["04-training", *(f"04-training-{n}" for n in range(2, 12))]
    assert (
        status.find_job("fake-04-training-10", runs)
        == f"local: {open_phase.folder}/jobs/04-training-10"
    )
    with refuses(JobError, RunMessage.UNKNOWN_JOB_ID, job_id="12345"):
        status.find_job("12345", runs)


def test_the_card_of_a_run_to_a_phase_has_the_verdict_of_those_phases(
    finished, runs, queue: FakeScheduler
):
    failed = open_run("05-analysis", runs=runs)
    failed.session.check(Check("figures", "fail", "none", "every figure is drawn"))
    with pytest.raises(RecordError):
        phase_end.plain_end(failed.phase)(failed)
    assert card(finished.folder).startswith("\n\nlocal: fail\n")
    early = card(finished.folder, [PHASE])
    assert early.startswith("\n\nlocal: pass, 01-environment\n")
    assert ["05-analysis", "done", "fail"] in [cells[:3] for cells in table_rows(early)]
    assert card(finished.folder, ["01-environment", "02-data"]).startswith(
        "\n\nlocal: unknown, 01-environment to 02-data\n"
    )
    assert card(finished.folder, PHASES).startswith("\n\nlocal: fail\n")


def test_the_card_of_an_unknown_run_names_the_unknown_checks(finished, runs):
    for phase, verdict in (("02-data", "unknown"), ("05-analysis", "fail")):
        opened = open_run(phase, runs=runs)
        opened.session.check(Check(f"texts of {phase}", verdict, "not counted", "at least one"))
        with contextlib.suppress(RecordError):
            phase_end.plain_end(phase)(opened)
    line = PhaseMessage.CHECK_UNKNOWN.fill(
        phase="02-data", name="texts of 02-data", value="not counted"
    )
    assert line in card(finished.folder, [PHASE, "02-data"]).splitlines()
    assert line not in card(finished.folder, [PHASE])
    assert line not in card(finished.folder), "the run failed for another reason"


def test_the_card_of_an_interrupted_run_does_not_show_results_of_later_phases_as_its_own(
    finished, runs, monkeypatch
):
    """Otherwise, analysis and scores for earlier weights would seem to belong to this run."""
    interrupted = open_run("04-training", runs=runs)
    interrupted.session.close()
    scored = open_run("06-evaluation", runs=runs)
    scored.session.check(Check("scores", "pass", "200 pairs", "every score is a number"))
    phase_end.plain_end(scored.phase)(scored)
    row = {"what": "corpus", "measure": "bits per byte", "samples": 18, "before": 4.5, "after": 4.1}
    monkeypatch.setattr(run_report, "read_scores", lambda folder: [row])
    title = PhaseMessage.SCORES_BEFORE_AND_AFTER.fill()
    assert title in card(finished.folder)
    ended = card(finished.folder, PHASES, ended_in="04-training")
    assert title not in ended
    head = PhaseMessage.RUN_ENDED_IN.fill(end="interrupted", phase="04-training")
    assert ended.startswith(f"\n\nlocal: {head}\n")
    rows = [cells[:3] for cells in table_rows(ended)]
    assert ["06-evaluation", PhaseMessage.EARLIER_RESULT.fill()] in [cells[:2] for cells in rows]
    assert ["01-environment", "done", "pass"] in rows
    assert ["05-analysis", "not run"] in [cells[:2] for cells in rows]


def test_the_numbers_of_a_run_are_not_those_of_a_training_that_is_repeated(finished, runs):
    scored = open_run("06-evaluation", runs=runs)
    scored.session.add_results({"last_loss": 3.25})
    phase_end.plain_end(scored.phase)(scored)
    assert read_run(finished.folder).numbers["last_loss"] == 3.25
    open_run("04-training", runs=runs).session.close()
    assert "last_loss" not in read_run(finished.folder).numbers
    again = open_run("06-evaluation", runs=runs)
    again.session.add_results({"last_loss": 3.5})
    phase_end.plain_end(again.phase)(again)
    assert read_run(finished.folder).numbers["last_loss"] == 3.5


def test_cancel_ends_the_jobs_that_run_and_no_other(runs, queue: FakeScheduler):
    open_phase = open_run("04-training", runs=runs)
    launch_jobs(open_phase)
    queue.states["04-training"] = JobState.STOPPED
    launch_jobs(open_phase)
    cancelled = RunMessage.JOB_CANCELLED.fill(
        job_name="04-training-2", state="cancelled", reason="cancelled"
    )
    assert status.cancel_jobs(open_phase.folder, queue) == cancelled
    assert queue.calls[-1] == "cancel 04-training-2"
    assert status.cancel_jobs(open_phase.folder, queue) == RunMessage.NOTHING_CANCELLED.fill()


def test_a_report_of_a_run_that_has_only_a_plan_can_be_written(runs):
    open_phase = open_run("00-plan", runs=runs)
    assert write_report(open_phase.folder) == open_phase.folder / "index.html"
    rows = table_rows(card(open_phase.folder))
    assert ["04-training", "not run"] in [cells[:2] for cells in rows]
