"""Writes the report on a run: pages, summary card and tables."""

import time
from collections.abc import Sequence
from pathlib import Path

from runbook import params
from runbook.core.errors import ParamsError, RecordError
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.display import Table, sparkline
from runbook.phases import training_results
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import EVALUATION, FULL, PHASES, SMOKE
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.manifest import changed_records, write_manifest
from runbook.records.pages.front_page import FrontPage, write_front_page
from runbook.records.pages.runs_index import write_runs_index
from runbook.records.run_state import RunState, has_current_scores, read_run, run_verdict
from runbook.results import run_tables
from runbook.results.forecast_scores import calibration_text, read_scores_of_all, shown_in_unit
from runbook.results.history import PHENOMENON, read_scores
from runbook.results.messages import ResultMessage
from runbook.results.metrics import history_frame
from runbook.results.scores import as_scores, worse
from runbook.results.wall_time import Rates
from runbook.runs import run_files
from runbook.runs.bad_nodes import FILE_NAME, read_bad_nodes


def write_report(folder: Path, *, manifest: bool = False) -> Path:
    """Write index.html and report.html for the run, and index.html for all runs.

    Set `manifest` at the end of a phase, so that its output files are recorded too. Otherwise only
    the report pages are recorded.
    """
    page = write_front_page(folder, read_front_page(folder))
    write_runs_index(folder.parent)
    if manifest:
        write_manifest(folder, read_run(folder).phase)
    return page


def write_checked_report(folder: Path) -> Path:
    """Rewrite the report on a run from its files.

    The report names the files that have changed since they were recorded. Call this only between
    phases: while a phase ends, its own files are newer than the manifest.
    """
    front_page = read_front_page(folder)._replace(changed=changed_files(folder))
    page = write_front_page(folder, front_page)
    write_runs_index(folder.parent)
    return page


def changed_files(folder: Path) -> list[str]:
    """Return a line for each report file that has changed or been lost since it was recorded."""
    return [f"{finding.kind}: {finding.file}" for finding in changed_records(folder)]


def file_notebook(notebook: Path, folder: Path) -> str:
    """Add a notebook that the user executed to the records for its run.

    A notebook from another run is refused.
    """
    from runbook.records.engine.execute import file_finished_notebook

    filed = file_finished_notebook(notebook, run_folder=folder)
    return f"{notebook} is filed as {filed.notebook.relative_to(folder)}: {filed.state}"


def read_front_page(folder: Path) -> FrontPage:
    """Return the front page: samples before and after, main numbers, and the plan."""
    samples, trained, comparison = _outcome(folder)
    sample = None
    if len(samples) > 1:
        texts = list(samples.values())
        sample = (texts[0], texts[-1])

    tiles: list[tuple[str, str, str]] = []
    if trained:
        tiles = training_results.headline(trained[-1], _rates(folder, trained[-1].phase))

    facts = [*_bad_node_facts(folder), *_forecast_facts(folder.parent)]
    return FrontPage(
        sample,
        comparison,
        tiles,
        read_scores(folder),
        facts=facts,
    )


def _rates(folder: Path, phase: str) -> Rates:
    """Return price and power for a device.

    They are unknown if the dataset, model or site has left params/. The report on an old run is
    then written without its cost.
    """
    try:
        settings = params.load(str(folder / "run.yaml"))
    except ParamsError:
        return Rates()
    return training_results.device_rates(settings, phase)


def _bad_node_facts(folder: Path) -> list[tuple[str, str]]:
    """Return facts about bad nodes on the site for the report; empty if none is known."""
    site = str(run_files.recorded_value(folder, "site"))
    entries = read_bad_nodes(folder.parent / site / FILE_NAME, time.time())
    if not entries:
        return []
    return [("Nodes known as bad", "; ".join(entry.describe() for entry in entries))]


FORECASTS_OF_ALL_RUNS = "Forecasts of all runs"
"""Title for the report entry about forecasts in all runs."""
MOST_MISSES = 3
"""Maximum number of missed forecasts listed in a report. forecasts.jsonl has all of them."""


def _forecast_facts(runs: Path) -> list[tuple[str, str]]:
    """Return how well forecasts in the project are calibrated, and the newest misses.

    Return an empty list if no forecast was scored.
    """
    scores = read_scores_of_all(runs)
    if not scores:
        return []
    misses = [score for score in scores if not score.hit and not score.late]
    miss_texts = []
    for miss in misses[-MOST_MISSES:]:
        actual = shown_in_unit(miss.actual, miss.unit)
        low, high = (
            shown_in_unit(value, miss.unit).removesuffix(f" {miss.unit}")
            for value in (miss.low, miss.high)
        )
        miss_texts.append(
            PhaseMessage.MISSED_FORECAST.fill(
                run=miss.run, quantity=miss.quantity, actual=actual, low=low, high=high
            )
        )

    text = calibration_text(scores)
    if miss_texts:
        missed = "; ".join(miss_texts)
        text = PhaseMessage.MISSED_FORECASTS.fill(misses=missed, calibration=text)
    return [(FORECASTS_OF_ALL_RUNS, text)]


def _outcome(
    folder: Path,
) -> tuple[dict[int, str], list[training_results.TrainingResults], Sequence[Row]]:
    """Return the samples, the training runs that have metrics, and the comparison with the plan."""
    plan = run_files.read_plan_file(folder)
    tokenizer = run_files.tokenizer_of(folder)
    samples = {}
    for sample in training_results.sample_rows(folder, plan.phases[FULL], tokenizer):
        samples[sample["after iteration"]] = f"{sample['prompt']}{sample['continuation']}"
    trained = []
    rows: list[Row] = []
    for phase in (SMOKE, FULL):
        if not (folder / plan.phases[phase].log.metrics).exists():
            continue
        training = training_results.read_results(folder, plan, phase)
        trained.append(training)
        for row in training_results.plan_versus_actual(training):
            if row["planned"] is not None:
                rows.append({"phase": phase, **row})

    return samples, trained, rows


def card(folder: Path, phases: Sequence[str] = PHASES, ended_in: str = "") -> str:
    """Return the summary of a run: verdict, loss, samples, plan and results, and the report.

    The verdict covers the requested phases. The table also has earlier results of other phases.

    `ended_in` is the phase that failed or was interrupted. The phases after it were not verified.
    Their results may belong to an earlier execution of this phase, so they are named as earlier
    ones, and their numbers are left out.
    """
    run = read_run(folder)
    samples, trained, comparison = _outcome(folder)
    unverified = PHASES[PHASES.index(ended_in) + 1 :] if ended_in else ()
    rows = []
    for state in run.phases:
        verdict = state.record.verdict if state.record else ""
        shown_state = str(state.state)
        if state.phase in unverified and state.record:
            verdict = ""
            shown_state = PhaseMessage.EARLIER_RESULT.fill()
        rows.append({"phase": state.phase, "state": shown_state, "verdict": verdict})

    head = _end_of(run, ended_in) if ended_in else _verdict_of(run, phases)
    if FULL in unverified:
        samples = {}
    trained = [training for training in trained if training.phase not in unverified]
    comparison = [row for row in comparison if row["phase"] not in unverified]
    parts = ["", f"{folder.name}: {head}", Table(rows).as_text()]
    if not ended_in:
        parts += _unknown_checks(run, phases)
    for training in trained:
        losses = [loss for _, loss in training.history.losses]
        if losses:
            curve = sparkline(losses, 40)
            parts.append(
                PhaseMessage.LOSS_CURVE.fill(
                    phase=training.phase, first=losses[0], curve=curve, last=losses[-1]
                )
            )

    for iteration, text in samples.items():
        parts.append(
            PhaseMessage.SAMPLE_AFTER.fill(iteration=iteration, text=" ".join(text.split()))
        )
    scores = [row for row in read_scores(folder) if row["measure"] != PHENOMENON]
    if scores and EVALUATION not in unverified and has_current_scores(run):
        parts.append(Table(scores, title=PhaseMessage.SCORES_BEFORE_AND_AFTER.fill()).as_text())
        parts += [score.worse_text() for score in worse(as_scores(scores))]

    if comparison:
        parts.append(Table(comparison, title=ResultMessage.PLAN_VERSUS_ACTUAL.fill()).as_text())
    parts.append(PhaseMessage.REPORT_WRITTEN.fill(path=folder / "index.html"))
    return "\n\n".join(parts)


def _end_of(run: RunState, phase: str) -> str:
    """Return how a run ended in a phase, which is the verdict if the phase itself is done."""
    (ended,) = (state for state in run.phases if state.phase == phase)
    end = str(ended.state)
    if ended.record and ended.state == ExecutionState.DONE:
        end = ended.record.verdict
    return PhaseMessage.RUN_ENDED_IN.fill(end=end, phase=phase)


def _verdict_of(run: RunState, phases: Sequence[str]) -> str:
    """Return the verdict on these phases, and their names if they are not all phases."""
    states = [state for state in run.phases if state.phase in phases]
    if len(states) == len(run.phases):
        return run.verdict
    first_and_last = dict.fromkeys((phases[0], phases[-1]))
    return f"{run_verdict(states)}, {' to '.join(first_and_last)}"


def _unknown_checks(run: RunState, phases: Sequence[str]) -> list[str]:
    """Return a line for each unknown check, if the verdict of these phases is unknown."""
    states = [state for state in run.phases if state.phase in phases]
    if run_verdict(states) != "unknown":
        return []
    lines = []
    for state in states:
        checks = state.record.checks if state.record else ()
        for check in checks:
            if check.verdict == "unknown":
                lines.append(
                    PhaseMessage.CHECK_UNKNOWN.fill(
                        phase=state.phase, name=check.name, value=check.value
                    )
                )

    return lines


def write_tables(folder: Path, out: Path) -> list[Path]:
    """Write results and steps as tables.

    CSV and Parquet are for computing with, Markdown and LaTeX for pasting into a document.
    """
    _, trained, comparison = _outcome(folder)
    if not trained:
        raise RecordError(PhaseMessage.NOTHING_TRAINED, folder_name=folder.name)

    results = []
    for training in trained:
        for row in run_tables.numbers_table(training.summary, history=training.history):
            results.append({"phase": training.phase, **row})

    tables = {"results": Table(results), "plan-versus-actual": Table(comparison)}
    frames = {name: table.to_frame() for name, table in tables.items()}
    for training in trained:
        frames[f"steps-{training.phase}"] = history_frame(training.history).reset_index()
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_text(out / f"{name}.md", table.as_markdown() + "\n")
        write_text(out / f"{name}.tex", table.as_latex())

    for name, frame in frames.items():
        write_text(out / f"{name}.csv", frame.to_csv(index=False))
        frame.to_parquet(out / f"{name}.parquet", index=False)

    return sorted(path for name in frames for path in out.glob(f"{name}.*"))
