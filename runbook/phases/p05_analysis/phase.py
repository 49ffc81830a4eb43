"""05-analysis: results of the run, compared with the plan, its variants and published results."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.checks import counted, judge
from runbook.core.errors import PlanError, RecordError
from runbook.core.files import write_text
from runbook.core.table import Table
from runbook.display import Formula, View
from runbook.params import Settings
from runbook.phases import training_results
from runbook.phases.finished_training import (
    finished_check,
    refuse_running_training,
    results_so_far,
)
from runbook.phases.open_phase import binder
from runbook.phases.phase_end import end_notebook
from runbook.phases.phase_steps import RESULTS, VARIANTS, phase_end_work
from runbook.phases.recorded_checks import record_checks
from runbook.phases.sealed_forecasts import score_forecasts
from runbook.phases.steps import PhaseStep, run_only, step
from runbook.phases.training_results import TrainingResults, read_results
from runbook.plan_file.phase_names import ANALYSIS, FULL, SMOKE
from runbook.planning import Check
from runbook.planning.choice import full_choice
from runbook.planning.cost.step_inputs import peak_of
from runbook.records.session import Session
from runbook.results import gates, metrics, run_tables, wall_time
from runbook.results.comparison import compare_runs, is_finished, read_run
from runbook.results.figures import formulas, run_figures
from runbook.results.messages import ResultMessage
from runbook.results.slow_ranks import slow_ranks_table
from runbook.runs import this_machine
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_files import read_plan_file

PHASE = ANALYSIS
TRAININGS = (SMOKE, FULL)
END = phase_end_work(PHASE)
bind = binder(PHASE)


@step(takes=run_only)
def show_numbers(run: PlannedRun) -> View:
    """Show the results from each training phase, and save them as results.csv."""
    tables = []
    formulas_of_speed = []
    unfinished = []
    for training in both_trainings(run):
        phase = training.phase
        warning = results_so_far(run, training)
        if warning:
            unfinished.append(warning)
        summary = training.summary
        table = run_tables.numbers_table(summary, title=phase, history=training.history)
        tables.append(sourced(table))
        if summary.seconds_per_iteration:
            terms = formulas.reached_speed(run.plan, phase, summary.seconds_per_iteration)
            formulas_of_speed.append(Formula(*terms))

    write_results(run.folder, both_trainings(run))
    return View([*unfinished, *tables, *formulas_of_speed])


def write_results(folder: Path, trainings: Sequence[TrainingResults]) -> None:
    """Write the results from each training phase as results.csv."""
    rows = []
    for training in trainings:
        table = run_tables.numbers_table(training.summary, history=training.history)
        rows += [{"phase": training.phase, **row} for row in table]

    write_text(folder / RESULTS, Table(rows).to_csv())


@step(takes=lambda opened: (opened.run, opened.session))
def show_plan_versus_actual(run: PlannedRun, session: Session) -> View:
    """Show each planned value next to its result, with the reason for any difference.

    The table is stored in the record.
    """
    return View(record_numbers(session, both_trainings(run)))


def record_numbers(session: Session, trainings: Sequence[TrainingResults]) -> list[Table]:
    """Store planned and measured values in the record, and return them as tables."""
    tables = []
    for training in trainings:
        table = training_results.plan_versus_actual(training)
        tables.append(sourced(table))
        measured = {}
        for row in table:
            name = f"{training.phase}: {row['what']}"
            session.plan[name] = row["planned"]
            measured[name] = training_results.rounded(row["actual"])

        session.add_results(measured)

    session.add_results(trainings[-1].results())
    return tables


@step(takes=run_only)
def show_loss(run: PlannedRun) -> View:
    """Show the loss curves with restarts and spikes, and list the main values."""
    view = training_results.loss_view(run, TRAININGS)
    for training in both_trainings(run):
        vocabulary = training.phase_plan.model.shape.vocabulary
        table = run_tables.loss_table(training.history, training.validation, vocabulary=vocabulary)
        view.append(sourced(table))

    return view


@step(takes=run_only)
def show_throughput(run: PlannedRun) -> View:
    """Show tokens per second over time, with the planned value as a line."""
    view = View()
    for training in both_trainings(run):
        length = training.phase_plan.model.shape.sequence_length
        planned = training.planned.tokens_per_second
        caption = (
            f"{training.phase}: median {training.summary.tokens_per_second or 0:,.0f} tokens/s"
        )
        table = run_tables.throughput_table(
            training.history, sequence_length=length, planned=planned
        )
        view += [(training.throughput_figure(), caption), sourced(table)]

    return view


@step(takes=run_only)
def show_step_parts(run: PlannedRun) -> View:
    """Show the parts of a training step, and whether a rank is slower than the others."""
    training = read_results(run.folder, run.plan, FULL)
    tables = metrics.step_parts_table(training.history), slow_ranks_table(training.history)
    return View(
        [(training.step_time_figure(), "Seconds of each step by part."), *map(sourced, tables)]
    )


@step(takes=run_only)
def show_time_parts(run: PlannedRun) -> View:
    """Show how wall time was spent in all jobs, with interruptions and idle times."""
    view = View()
    for training in both_trainings(run):
        for part in training_results.account_view(training):
            if isinstance(part, Table):
                view.append(sourced(part))
            else:
                view.append(part)

    return view


@step(takes=run_only)
def show_timeline(run: PlannedRun) -> View:
    """Show when the run trained, waited for data, evaluated and saved."""
    training = read_results(run.folder, run.plan, FULL)
    return View(
        [
            (
                training.timeline_figure(),
                "What happened when. The total times are in the tables above.",
            )
        ]
    )


@step(takes=run_only)
def show_cost(run: PlannedRun) -> View:
    """Show what training cost, and what the paper's 300 billion tokens would cost at this speed."""
    training = read_results(run.folder, run.plan, FULL)
    rates = training_results.device_rates(run.settings)
    account = training.account
    view = View()
    goodput = None
    if account:
        view.append(sourced(wall_time.cost_table(training.summary, account, rates)))
        goodput = account.goodput

    paper = wall_time.projection_table(
        training.summary,
        target_tokens=300_000_000_000,
        goodput=goodput,
        rates=rates,
    )
    return View([*view, sourced(paper)])


@step(takes=run_only)
def show_published(run: PlannedRun) -> View:
    """Show the published results for the nearest model sizes, and whether they are comparable."""
    training = read_results(run.folder, run.plan, FULL)
    device = run.settings.site.hardware.device
    precision = training.phase_plan.precision.format
    shape = training.phase_plan.model.shape
    peak = peak_of(run.settings.site, precision)
    speed = run_tables.speed_table(
        training.summary,
        shape,
        device=device,
        precision=precision,
        peak=peak,
    )
    table = run_tables.published_table(
        training.summary,
        parameters=training.phase_plan.model.parameters,
        device=device,
        precision=precision,
        peak=peak,
    )
    drawn = (
        run_figures.published_figure(table),
        "Tokens per second and device; the numbers are in the table below.",
    )
    share = (
        run_figures.mfu_figure(table),
        "Share of the peak; the numbers are in the table below.",
    )
    return View([sourced(speed), drawn, share, sourced(table)])


@step(takes=lambda opened: (opened.run, opened.session))
def show_forecasts(run: PlannedRun, session: Session) -> View:
    """Score the forecasts sealed before the first step.

    The scores are also stored in forecasts.jsonl in the project.
    """
    return score_forecasts(run, session)


@step(takes=run_only)
def show_variants(run: PlannedRun) -> View:
    """Show the table from the LUMI document for this run and all its variants, executed or not."""
    settings = run.settings
    runs = run.folder.parent
    name = settings.run.run
    # The run as it was opened, followed by its variants
    variants = [settings]
    if name in params.run_names(settings.project):
        for sibling in variants_of(name, settings.project):
            if sibling.name != settings.name:
                variants.append(sibling)

    table, scaling = variants_tables(variants, runs)
    view = View([sourced(table)])
    write_text(run.folder / VARIANTS, table.to_csv())
    facts = []
    for variant in variants:
        folder = runs / variant.name
        if not (folder / "metrics.jsonl").exists():
            continue
        try:
            facts.append(read_run(folder))
        except RecordError as error:
            view.append(f"{folder.name} is not compared: {error}")

    if len(facts) < 2:
        view.append(
            f"Nothing to compare: runbook run {name} --all-variants runs the others; "
            "runbook compare A B compares any two."
        )
        return view

    view += [(run_figures.scaling_figure(scaling), "Speed by number of devices."), sourced(scaling)]
    for fact in facts:
        if not is_finished(fact):
            planned = counted(fact.planned_iterations, "iteration")
            progress = f"{fact.summary.last_iteration:,} of {planned}"
            view.append(f"{fact.name}: {ResultMessage.NOT_FINISHED.fill(progress=progress)}")

    result = compare_runs(facts)
    losses = run_figures.comparison_figure({fact.name: fact.history for fact in facts})
    tables = (result.parameters, result.metrics, result.environment)
    return View([*view, (losses, "By tokens and by time trained."), *map(sourced, tables)])


@step(takes=lambda opened: (opened.run, opened.session), work=END)
def finish(run: PlannedRun, session: Session) -> None:
    """Check the plan against the results, write the record and mark the phase done.

    While a training job is running, raise `JobError`: its results would be recorded as final.
    """
    for phase in TRAININGS:
        refuse_running_training(run, phase, waiting=PHASE)

    # Earlier cells may have been executed while the training was running, and not again since.
    trainings = both_trainings(run)
    write_results(run.folder, trainings)
    record_numbers(session, trainings)
    checks = []
    for training in trainings:
        checks.append(finished_check(run, training))
        checks.append(plan_check(training))

    record_checks(session, checks)
    end_notebook(END, run, session)


def both_trainings(run: PlannedRun) -> list[TrainingResults]:
    """Return the results from the smoke test and the full training."""
    return [read_results(run.folder, run.plan, phase) for phase in TRAININGS]


def plan_check(training: TrainingResults) -> Check:
    """Compare the planned and the measured step time.

    A bad estimate is a warning, not a failure.
    """
    name = f"{training.phase}: plan came true"
    rule = f"the measured step time is within a factor of {gates.CREDIBLE_FACTOR:g} of the plan's"
    planned = training.planned.seconds_per_iteration
    actual = training.summary.seconds_per_iteration
    band = gates.credible_step_seconds(planned)
    if not planned or not band or not actual:
        return Check(name, "unknown", "nothing to compare", rule)
    return judge(
        name,
        band[0] <= actual <= band[1],
        f"{actual / planned:.2f} of the plan's",
        rule,
        otherwise="warn",
    )


def sourced(table: Table) -> Table:
    """Return a table with its source added to its notes."""
    return replace(table, notes=[f"Source: {table.source}.", *table.notes])


def variants_of(run: str, project: Path | None = None) -> list[Settings]:
    """Return the named run and all its variants."""
    names = [run, *(f"{run}:{variant}" for variant in params.variant_names(run, project))]
    return [params.load(name, project=project) for name in names]


def variants_tables(runs_of: Sequence[Settings], runs: Path) -> tuple[Table, Table]:
    """Return a table with a row for each layout, and a scaling table.

    A layout that was not run is shown as not measured. The scaling table contains only device
    counts that were measured.
    """
    hardware = runs_of[0].site.hardware
    rows = [_variant_row(settings, runs) for settings in runs_of]
    precision = str(runs_of[0].run.training.precision)
    source = "metrics.jsonl of each run"
    points = []
    for row in rows:
        if row.samples_per_second:
            points.append((row.name, row.parallel.world_size, row.samples_per_second))

    table = run_tables.results_table(
        rows,
        device=hardware.device,
        precision=precision,
        source=source,
    )
    return table, run_tables.scaling_table(points)


def variants_text(runs_of: Sequence[Settings], runs: Path, name: str) -> str:
    """Return the table for a terminal.

    The table is also saved as NAME.variants.csv next to the run folders.
    """
    table, _ = variants_tables(runs_of, runs)
    path = runs / f"{Path(name).stem}.variants.csv"
    write_text(path, table.to_csv())
    rows = []
    for row in table:
        rows.append({key: value for key, value in row.items() if key != "source"})
    return Table(rows, table.title, (*table.notes, f"as CSV: {path}")).as_text()


def _variant_row(settings: Settings, runs: Path) -> run_tables.ThroughputRow:
    """Return the layout used by a run or variant, with its measured speed.

    If it was not run and its plan is refused, the row gives the reason.
    """
    folder = runs / settings.name
    name = settings.name
    per_node = settings.site.hardware.devices_per_node
    label = settings.model.label or settings.run.model
    row = partial(run_tables.ThroughputRow, label, devices_per_node=per_node, name=name)
    if (folder / "plan.json").exists():
        plan = read_plan_file(folder)
        source = f"{name}/plan.json"
        speed = None
        unfinished = ""
        spec = plan.phases[FULL]
        with contextlib.suppress(RecordError):  # The run has not completed a step yet.
            training = read_results(folder, plan, FULL)
            first = training.history.steps[0]
            last = training.history.steps[-1]
            speed = training.summary.samples_per_second
            if last.iteration < spec.duration.iterations:
                planned = counted(spec.duration.iterations, "iteration")
                unfinished = f"{last.iteration:,} of {planned}"
            source = f"{name}/{training.history.source}:{first.line}-{last.line}"

        return row(
            spec.model.shape,
            spec.parallel,
            recompute=spec.recompute,
            samples_per_second=speed,
            unfinished=unfinished,
            source=source,
        )

    refused = ""
    choice = full_choice(settings)
    try:
        this_machine.make_plan_here(settings)
    except PlanError as error:
        check = error.checks[0]
        refused = f"{check.name}: {check.value}."

    return row(
        choice.shape,
        choice.layout,
        recompute=choice.training.recompute,
        refused=refused,
        source="not run",
    )


STEPS: tuple[PhaseStep[Any], ...] = (
    show_numbers,
    show_plan_versus_actual,
    show_loss,
    show_throughput,
    show_step_parts,
    show_time_parts,
    show_timeline,
    show_cost,
    show_published,
    show_forecasts,
    show_variants,
    finish,
)
