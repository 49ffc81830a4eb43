"""What run, status, cancel, logs, report, verify and compare print for folders in every state."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, says
from suite.tables import table_rows

from runbook import params
from runbook.cli.messages import CliMessage
from runbook.core.checks import Check
from runbook.core.errors import RecordError
from runbook.core.locks import hold
from runbook.jobs.messages import JobReason
from runbook.log_readers.messages import LogMessage
from runbook.params.messages import ParamsMessage
from runbook.phases import open_phase as phases
from runbook.phases import phase_end
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import FULL, PHASES, SMOKE
from runbook.records import run_state
from runbook.records.messages import RecordMessage
from runbook.results.messages import ResultMessage
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import RUNS_VARIABLE


@pytest.fixture
def made(project: Path, monkeypatch) -> Path:
    """Create a run with one finished phase and one ended job, without executing anything."""
    monkeypatch.setenv(RUNS_VARIABLE, str(project / "runs"))
    open_phase = phases.open_run_phase(
        params.load("local", set_words=["model=tiny"]), "01-environment"
    )
    open_phase.session.check(Check("cores", "pass", "2 cores", "one for each process"))
    job = open_phase.folder / "jobs" / "04-training"
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"job_id": "local-1a2b", "process": None}))
    (job / "out").write_text(
        " iteration        1/     300 | lm loss: 1.0E+01 |\nthe end without a line end"
    )
    (job / "err").write_text("runbook: finished\n")
    (job / "exit_code").write_text("1\n")
    phase_end.plain_end(open_phase.phase)(open_phase)
    return open_phase.folder


def test_status_of_all_and_of_one(runbook, made):
    done = RecordMessage.STATES_DONE.fill(done=1, phases=7)
    row = ["local", "01-environment", done, "unknown"]
    assert row in [cells[:4] for cells in table_rows(runbook("status").out)]
    said = runbook("status", "local")
    assert said.code == 0
    assert said.out.startswith(f"{made}\n")
    job = ["04-training", "local-1a2b", "failed", JobReason.EXIT_CODE.fill(code=1)]
    assert job in [cells[:4] for cells in table_rows(said.out)]


def test_status_counts_copies_in_node_memory_and_starts_from_them(runbook, made):
    assert "node memory" not in runbook("status", "local").out
    events = [
        {"event": "near_saved", "iteration": 8, "copies": 4, "stall_seconds": 0.2, "left_out": 1},
        {"event": "resumed", "iteration": 8, "source": "near own"},
        {"event": "near_saved", "iteration": 12, "copies": 2, "stall_seconds": 0.1, "left_out": 0},
        {"event": "resumed", "iteration": 12, "source": "near partner (rank 1)"},
    ]
    with (made / "events.jsonl").open("a") as stream:
        for event in events:
            stream.write(json.dumps({"time": 1.0, "phase": "04-training", **event}) + "\n")
    copies = json.loads(runbook("status", "local", "--json").out)["near_copies"]
    assert copies == {
        "iteration": 12,
        "copies": 6,
        "left_out": 1,
        "stall_seconds": pytest.approx(0.05),
        "own_starts": 1,
        "partner_starts": 1,
    }
    written = ResultMessage.COPIES_WRITTEN.fill(
        copies=6, iteration=12, seconds=0.05, starts="2 starts"
    )
    partner_starts = ResultMessage.STARTS_FROM_PARTNERS.fill(number=1)
    left_out = ResultMessage.COPIES_LEFT_OUT.fill(number=1)
    text = RunMessage.COPIES_IN_MEMORY.fill(copies=f"{written}{partner_starts}{left_out}")
    assert text in runbook("status", "local").out


def test_status_of_all_names_the_phase_that_failed_and_not_the_newest(runbook, made):
    settings = params.load("local", set_words=["model=tiny"])
    failed = phases.open_run_phase(settings, "03-smoke-test")
    failed.session.check(Check("the loss fell", "fail", "10.9 to 11.2", "lower than at first"))
    with pytest.raises(RecordError):
        phase_end.plain_end(failed.phase)(failed)
    phase_end.plain_end("00-plan")(phases.open_run_phase(settings, "00-plan"))
    assert re.search(r"^local +03-smoke-test +interrupted ", runbook("status").out, re.MULTILINE)


def test_status_of_all_says_that_numbers_are_the_smoke_tests(runbook, made):
    settings = params.load("local", set_words=["model=tiny"])
    smoke = phases.open_run_phase(settings, SMOKE)
    smoke.session.add_results({"first_loss": 10.9, "last_loss": 7.1})
    smoke.session.finish()
    (row,) = [cells for cells in table_rows(runbook("status").out) if cells[0] == "local"]
    assert (row[1], row[-1]) == (SMOKE, "loss 10.90 to 7.10")
    phases.open_run_phase(settings, FULL).session.close()
    (row,) = [cells for cells in table_rows(runbook("status").out) if cells[0] == "local"]
    assert (row[1], row[-1]) == (FULL, f"{SMOKE}: loss 10.90 to 7.10")


def test_a_runs_folder_is_named_to_run_as_it_is_to_status(runbook, made):
    quick = params.load("local", set_words=["model=tiny", "as=quick"])
    folder = phases.open_run_phase(quick, "00-plan").folder
    assert runbook("status", "local--quick").out.startswith(f"{folder}\n")
    said = runbook("run", "local--quick", "--set", "model=small")
    assert said.code == 2
    assert says(said.err, PhaseMessage.FOLDER_OF_OTHER_VALUES, folder=containing(folder))


@pytest.mark.parametrize("command", ["check", "plan", "why"])
def test_a_runs_folder_is_named_to_the_plan_as_it_is_to_run(command, runbook, made):
    quick = params.load("local", set_words=["model=tiny", "as=quick"])
    phases.open_run_phase(quick, "00-plan")
    words = ["model"] if command == "why" else []
    said = runbook(command, "local--quick", *words)
    assert said.code == 0, said.err
    assert "local--quick" in said.out if command != "why" else "tiny" in said.out


def test_status_finds_the_run_of_a_job(runbook, made):
    assert (
        runbook("status", "--find", "local-1a2b").out == f"local: {made / 'jobs' / '04-training'}\n"
    )
    said = runbook("status", "--find", "local-ffff")
    assert said.code == 1
    assert says(said.err, RunMessage.UNKNOWN_JOB_ID, job_id="local-ffff")


def test_status_without_a_run_says_how_to_begin(runbook):
    assert runbook("status").out == f"{RunMessage.NO_RUNS_YET.fill()}\n"


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("status",),
            ("cancel",),
            ("cancel", "--gently"),
            ("report",),
            ("report", "--redact"),
            ("verify",),
        ),
        *(("sample",), ("logs",), ("logs", "--follow"), ("logs", "--json"), ("compare", "local")),
        *(("export", "--out", "weights"), ("import", "--from", ".")),
    ],
    ids=" ".join,
)
def test_an_unknown_run_is_wrong_usage_answered_with_those_that_have_a_folder(runbook, made, words):
    said = runbook(*words, "lokal")
    assert said.code == 2
    assert says(
        said.err,
        RunMessage.NO_SUCH_RUN_FOLDER,
        root=containing("runs/lokal"),
        there="; there are local",
        stem=containing("Did you mean local?"),
    )
    assert "Traceback" not in said.err


def test_cancel_of_a_run_without_a_running_job(runbook, made):
    said = runbook("cancel", "local")
    assert (said.code, said.out) == (0, f"{RunMessage.NOTHING_CANCELLED.fill()}\n")


@pytest.fixture(params=["dataset", "model", "site"])
def outdated(request, made: Path, project: Path) -> Path:
    """Return a run folder, and remove an entry in params/ that the run names."""
    (made / "jobs" / "04-training" / "job.json").write_text(
        json.dumps({"job_id": "local-1a2b", "kind": "local", "process": None})
    )
    if request.param == "site":
        (project / "params" / "sites" / "local.yaml").unlink()
    else:
        name = {"dataset": "corpus", "model": "tiny"}[request.param]
        catalogue = project / "params" / f"{request.param}s.yaml"
        catalogue.write_text(re.sub(rf"(?m)^{name}:", f"{name}-removed:", catalogue.read_text()))
    return made


def test_a_run_can_be_watched_cancelled_and_reported_after_its_entry_left_the_parameters(
    runbook, outdated
):
    for words in (
        ["status", "local"],
        ["status", "local", "--json"],
        ["logs", "local"],
        ["cancel", "local"],
        ["cancel", "local", "--gently"],
        ["report", "local"],
    ):
        said = runbook(*words)
        assert (said.code, said.err) == (0, ""), words


def test_a_recorded_run_with_a_lost_entry_is_named_like_its_folder(runbook, made, project):
    datasets = project / "params" / "datasets.yaml"
    datasets.write_text(datasets.read_text().replace("\ncorpus:", "\nremoved:"))
    said = runbook("plan", made / "run.yaml")
    assert said.code == 2
    assert "Parameters of run local:" in said.err


def test_logs_show_both_outputs_of_the_newest_job_to_their_end(runbook, made):
    for words in (("logs", "local"), ("logs", "local", "--follow")):
        said = runbook(*words)
        assert said.code == 0
        lines = said.out.splitlines()
        assert lines[0] == f"==> {made / 'jobs' / '04-training'} <=="
        job = made / "jobs" / "04-training"
        written = (job / "out").read_text().splitlines() + (job / "err").read_text().splitlines()
        assert len(written) == 3
        assert lines[1:-1] == written
        reason = JobReason.EXIT_CODE.fill(code=1)
        assert lines[-1] == RunMessage.JOB_ENDED_AS.fill(state="failed", reason=reason)


def test_logs_of_a_run_without_a_job_say_what_submits_one(runbook, made):
    (made / "jobs" / "04-training" / "job.json").unlink()
    said = runbook("logs", "local")
    assert (said.code, said.err) == (
        1,
        f"Error: {RunMessage.NO_JOB_SUBMITTED_YET.fill(folder_name='local', run='local')}\n",
    )


@pytest.mark.parametrize("output", ["--json", "--csv"])
def test_a_phase_without_a_step_has_no_records_yet(runbook, made, output):
    said = runbook("logs", "local", output)
    assert said.code == 1
    assert says(
        said.err, CliMessage.NO_METRICS_YET, path=made / "metrics.jsonl", phase="04-training"
    )


def test_logs_take_a_runs_folder_and_a_name_with_a_dot(runbook, made, project: Path):
    expected = runbook("logs", "local").out
    assert runbook("logs", "runs/local").out == expected
    dotted = made.rename(made.parent / "gpt-1.3b")
    assert runbook("logs", "gpt-1.3b").out == expected.replace(str(made), str(dotted))
    (project / "params" / "gpt-2.7b.yaml").write_text("run: gpt-2.7b\n")
    said = runbook("logs", "gpt-2.7b")
    assert says(said.err, RunMessage.NO_SUCH_RUN_FOLDER, root=project / "runs" / "gpt-2.7b")
    assert says(runbook("logs", "train.log").err, LogMessage.LOG_MISSING, path="train.log")


def test_report_says_where_it_is(runbook, made):
    (made / "index.html").unlink()
    said = runbook("report", "local")
    assert (said.code, said.out) == (0, f"{made / 'index.html'}\n")
    assert (made / "index.html").exists()


def test_verify_of_a_running_run_names_what_is_not_recorded_yet(runbook, made, monkeypatch):
    (made / "extra.txt").write_text("x")
    real = run_state.read_run

    def running(folder):
        return replace(real(folder), state="running", phase="04-training")

    monkeypatch.setattr(run_state, "read_run", running)
    said = runbook("verify", "local")
    assert said.code == 0
    assert said.out.startswith("not recorded yet: extra.txt\n")
    assert says(
        said.out, CliMessage.RUNNING_NOT_RECORDED, phase=containing("04-training"), files="1 file"
    )
    (made / "plan.json").write_text("{}")
    assert runbook("verify", "local").code == 1, "what was recorded may not change"


def test_verify_tells_each_change_and_ends_with_one(runbook, made):
    said = runbook("verify", "local")
    assert (said.code, said.out) == (0, f"{made}: {CliMessage.NOTHING_CHANGED.fill()}\n")
    (made / "plan.json").write_text((made / "plan.json").read_text().replace("tiny", "tinx", 1))
    (made / "extra.txt").write_text("x")
    said = runbook("verify", "local")
    assert said.code == 1
    assert says(
        said.out,
        RecordMessage.FILE_DIFFERS,
        kind=containing("changed"),
        file="plan.json",
        expected=containing("sha256"),
    )
    assert says(
        said.out,
        RecordMessage.FILE_DIFFERS,
        kind=containing("added"),
        file="extra.txt",
        expected=RecordMessage.NO_SUCH_FILE.fill(),
        got=RecordMessage.BYTES.fill(size=1),
    )
    assert said.out.endswith(f"{made}: 2 findings\n")


def test_a_held_run_is_refused_by_run(runbook, made):
    with hold(made, "runbook run local"):
        said = runbook("run", "local", "--set", "model=tiny")
    assert said.code == 1
    assert said.err.startswith(f"Error: {made} is in use by process ")


def test_a_folder_of_other_values_is_refused_by_run_with_the_key(runbook, made):
    said = runbook("run", "local", "--set", "model=small")
    assert said.code == 2
    assert says(
        said.err,
        PhaseMessage.VALUE_CHANGED,
        key="model",
        old="tiny",
        new="small",
        origin=" (--set model=small)",
    )


@pytest.mark.parametrize("option", ["--from", "--to", "--redo"])
def test_a_word_that_is_no_phase_is_answered_with_the_phases(runbook, everything, option):
    before = everything()
    said = runbook("run", "local", option, "trainig")
    assert (said.code, said.out) == (2, "")
    refusal = ParamsMessage.NOT_A_PHASE.fill(word="trainig", phases=", ".join(PHASES))
    assert said.err == f"Error: {option}: {refusal}.\n"
    assert everything() == before


@pytest.mark.parametrize(
    "words",
    [
        ["rehearse", "local"],
        ["replay", "local", "--step", "1"],
        ["sample", "local"],
        ["export", "local", "--out", "weights"],
        ["import", "local", "--from", "."],
        ["compare", "local", "local"],
        ["logs", "local", "--json"],
    ],
    ids=lambda words: words[0],
)
def test_a_phase_that_trains_nothing_is_answered_with_those_that_do(runbook, made, words):
    said = runbook(*words, "--phase", "2")
    phases = "03-smoke-test or 04-training"
    assert said.code == 2
    assert says(said.err, CliMessage.PHASE_TRAINS_NOTHING, phase="02-data", phases=phases)


def test_phases_in_the_wrong_order_and_a_bad_name_are_refused(runbook, everything):
    before = everything()
    assert runbook("run", "local", "--from", "training", "--to", "data").code == 2
    said = runbook("run", "local", "--as", "../up")
    assert said.code == 2
    assert says(said.err, ParamsMessage.NOT_A_SET_NAME)
    assert runbook("run", "local", "--all-variants").code in (1, 2)
    assert everything() == before


def test_a_place_that_cannot_be_written_is_told(runbook, project: Path):
    (project / "file").write_text("in the way")
    said = runbook("run", "local", "--runs", project / "file")
    assert said.code == 2, "click: a file is not a folder"
    said = runbook("run", "local", "--runs", project / "file" / "below")
    assert said.code == 1
    assert said.err.startswith(f"Error: {project}/file/below")
    assert "Traceback" not in said.err


def test_compare_needs_two_runs_that_trained(runbook, made):
    assert runbook("compare", "local").code == 2
    said = runbook("compare", "local", "local")
    assert said.code == 1
    assert said.err.startswith("Error: ")
    said = runbook("compare", "local", "local", "--phase", "x")
    assert said.code == 2
    assert says(said.err, ParamsMessage.NOT_A_PHASE, phases=containing("00-plan"))


def test_outside_a_project_every_command_says_so(runbook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (("check", "local"), ("status",), ("run", "local"), ("status", "local")):
        said = runbook(*words)
        assert (said.code, said.out) == (2, ""), words
        assert says(said.err, ParamsMessage.NOT_IN_A_PROJECT, where=containing(tmp_path))
