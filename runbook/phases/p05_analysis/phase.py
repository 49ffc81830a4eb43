"""05-analysis: how well the run went, against the plan, its variants and published results."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from runbook import params
from runbook.core.checks import judge
from runbook.core.errors import PlanError, RecordError
from runbook.core.files import write_text
from runbook.core.table import Table
from runbook.display import Formula, View
from runbook.params import Settings
from runbook.phases import phase_end, training_results
from runbook.phases.open_phase import OpenPhase, binder
from runbook.phases.sealed_forecasts import score_forecasts
from runbook.phases.training_results import TrainingResults, read_results
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.planning import Check
from runbook.planning.cost.step_inputs import peak_of
from runbook.planning.layout import full_choice
from runbook.results import gates, metrics, run_tables, wall_time
from runbook.results.comparison import compare_runs, read_run
from runbook.results.figures import formulas, run_figures
from runbook.results.stragglers import straggler_table
from runbook.runs import machine
from runbook.runs.run_files import read_plan_file

PHASE = "05-analysis"
TRAININGS = (SMOKE, FULL)
RESULTS = "results.csv"
VARIANTS = "variants.csv"
bind = binder(PHASE)


def show_numbers(open_phase: OpenPhase) -> View:
    """Show the numbers of each training phase; they are also saved as results.csv."""
    tables = []
    formulas_of_speed = []
    rows = []
    for training in both_trainings(open_phase):
        phase = training.phase
        summary = training.summary
        table = run_tables.numbers_table(summary, title=phase, history=training.history)
        tables.append(sourced(table))
        rows += [{"phase": phase, **row} for row in table]
        if summary.seconds_per_iteration:
            terms = formulas.reached_speed(open_phase.plan, phase, summary.seconds_per_iteration)
            formulas_of_speed.append(Formula(*terms))

    write_text(open_phase.folder / RESULTS, Table(rows).to_csv())
    return View([*tables, *formulas_of_speed])


def show_plan_versus_actual(open_phase: OpenPhase) -> View:
    """Show each promise of the plan next to its result, with the reason for any difference.

    The table is kept in the record.
    """
    trainings = both_trainings(open_phase)
    view = View()
    for training in trainings:
        table = training_results.plan_versus_actual(training)
        view.append(sourced(table))
        measured = {}
        for row in table:
            name = f"{training.phase}: {row['what']}"
            open_phase.session.plan[name] = row["planned"]
            measured[name] = training_results.rounded(row["actual"])

        open_phase.session.add_results(measured)

    open_phase.session.add_results(trainings[-1].results())
    return view


def show_loss(open_phase: OpenPhase) -> View:
    """Show the loss curves, with restarts and spikes, and their numbers."""
    view = training_results.show_loss(open_phase, TRAININGS)
    for training in both_trainings(open_phase):
        vocabulary = training.phase_plan.model.shape.vocabulary
        table = run_tables.loss_table(training.history, training.validation, vocabulary=vocabulary)
        view.append(sourced(table))

    return view


def show_throughput(open_phase: OpenPhase) -> View:
    """Show tokens per second over time, with the planned line."""
    view = View()
    for training in both_trainings(open_phase):
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


def show_step_parts(open_phase: OpenPhase) -> View:
    """Show the parts of a training step, and whether a rank is slower than the others."""
    training = read_results(open_phase.folder, open_phase.plan, FULL)
    tables = metrics.step_parts_table(training.history), straggler_table(training.history)
    return View(
        [(training.step_time_figure(), "Seconds of each step by part."), *map(sourced, tables)]
    )


def show_time_parts(open_phase: OpenPhase) -> View:
    """Show where the wall time of all jobs went, the cost of each interruption, and idle times."""
    view = View()
    for training in both_trainings(open_phase):
        for part in training_results.account_view(training):
            if isinstance(part, Table):
                view.append(sourced(part))
            else:
                view.append(part)

    return view


def show_timeline(open_phase: OpenPhase) -> View:
    """Show training, waiting for data, evaluations and saves over time."""
    training = read_results(open_phase.folder, open_phase.plan, FULL)
    return View(
        [
            (
                training.timeline_figure(),
                "What happened when; how long, in all, is in the tables above.",
            )
        ]
    )


def show_cost(open_phase: OpenPhase) -> View:
    """Show the cost of the training, and that of the paper's 300 billion tokens at this speed."""
    training = read_results(open_phase.folder, open_phase.plan, FULL)
    rates = training_results.device_rates(open_phase.settings)
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


def show_published(open_phase: OpenPhase) -> View:
    """Show the published results nearest in size, and whether they can be compared."""
    training = read_results(open_phase.folder, open_phase.plan, FULL)
    device = open_phase.settings.site.hardware.device
    precision = training.phase_plan.precision.format
    shape = training.phase_plan.model.shape
    peak = peak_of(open_phase.settings.site, precision)
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


def show_forecasts(open_phase: OpenPhase) -> View:
    """Score the forecasts that were sealed before the first step.

    The scores are also kept in the project's forecasts.jsonl.
    """
    return score_forecasts(open_phase)


def show_variants(open_phase: OpenPhase) -> View:
    """Show the LUMI document's table for this run and its variants.

    Those that were executed are compared.
    """
    settings = open_phase.settings
    runs = open_phase.folder.parent
    run = settings.run.run
    # The run as it was opened, followed by its variants
    variants = [settings]
    if run in params.run_names(settings.project):
        for sibling in variants_of(run, settings.project):
            if sibling.name != settings.name:
                variants.append(sibling)

    table, scaling = variants_tables(variants, runs)
    view = View([sourced(table)])
    write_text(open_phase.folder / VARIANTS, table.to_csv())
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
            f"Nothing to compare: runbook run {run} --all-variants runs the others, "
            "runbook compare A B any two."
        )
        return view

    view += [(run_figures.scaling_figure(scaling), "Speed by number of devices."), sourced(scaling)]
    result = compare_runs(facts)
    losses = run_figures.comparison_figure({fact.name: fact.history for fact in facts})
    tables = (result.parameters, result.metrics, result.environment)
    return View([*view, (losses, "By tokens and by time trained."), *map(sourced, tables)])


def finish(open_phase: OpenPhase) -> None:
    """Judge the plan by its results, write the record and mark the phase done."""
    open_phase.check([plan_check(training) for training in both_trainings(open_phase)])
    phase_end.finish(open_phase, [open_phase.folder / name for name in (RESULTS, VARIANTS)])


def both_trainings(open_phase: OpenPhase) -> list[TrainingResults]:
    """Return the results of the smoke test and of the training."""
    return [read_results(open_phase.folder, open_phase.plan, phase) for phase in TRAININGS]


def plan_check(training: TrainingResults) -> Check:
    """Check the plan's step time against the measured one.

    An estimate that was far off is a warning, not a failure.
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
    """Return a table with its source among its notes."""
    return replace(table, notes=[f"Source: {table.source}.", *table.notes])


def variants_of(run: str, project: Path | None = None) -> list[Settings]:
    """Return the named run and each of its variants."""
    names = [run, *(f"{run}:{variant}" for variant in params.variant_names(run, project))]
    return [params.load(name, project=project) for name in names]


def variants_tables(runs_of: Sequence[Settings], runs: Path) -> tuple[Table, Table]:
    """Return one row for each layout; one that was not run counts as not measured.

    Efficiency covers the device counts that were measured.
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

    It is also saved as NAME.variants.csv next to the run folders.
    """
    table, _ = variants_tables(runs_of, runs)
    path = runs / f"{Path(name).stem}.variants.csv"
    write_text(path, table.to_csv())
    rows = []
    for row in table:
        rows.append({key: value for key, value in row.items() if key != "source"})
    return Table(rows, table.title, (*table.notes, f"as CSV: {path}")).as_text()


def _variant_row(settings: Settings, runs: Path) -> run_tables.ThroughputRow:
    """Return the layout of a run or variant with its measured speed.

    If it was not run, return why the plan refuses it.
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
        spec = plan.phases[FULL]
        with contextlib.suppress(RecordError):  # The run has made no step yet.
            training = read_results(folder, plan, FULL)
            first = training.history.steps[0]
            last = training.history.steps[-1]
            speed = training.summary.samples_per_second
            source = f"{name}/{training.history.source}:{first.line}-{last.line}"

        return row(
            spec.model.shape,
            spec.parallel,
            recompute=spec.recompute,
            samples_per_second=speed,
            source=source,
        )

    refused = ""
    choice = full_choice(settings)
    try:
        machine.make_plan_here(settings)
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
