"""05-analysis: how well it ran, against the plan, its variants and what others published."""

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
from runbook.phases import report, training_results
from runbook.phases.open_phase import OpenPhase, binder
from runbook.phases.sealed_forecasts import score_forecasts
from runbook.phases.training_results import TrainingResults, read_results
from runbook.planning import FULL, SMOKE, Check
from runbook.planning.cost.step_inputs import peak_of
from runbook.planning.layout import full_choice
from runbook.results import gates, metrics, run_tables, wall_time
from runbook.results.compare import compare, read_run
from runbook.results.figures import formulas, run_figures
from runbook.runs import machine
from runbook.runs.run_files import read_plan_file

PHASE = "05-analysis"
TRAININGS = (SMOKE, FULL)
RESULTS = "results.csv"
VARIANTS = "variants.csv"
bind = binder(PHASE)


def show_numbers(open_phase: OpenPhase) -> View:
    """The numbers of each training phase; kept as results.csv too."""
    both = both_trainings(open_phase)
    tables = [
        run_tables.numbers_table(one.summary, title=one.phase, history=one.history) for one in both
    ]
    rows = [
        {"phase": one.phase, **row}
        for one, table in zip(both, tables, strict=True)
        for row in table
    ]
    write_text(open_phase.folder / RESULTS, Table(rows).to_csv())
    times = {one.phase: one.summary.seconds_per_iteration for one in both}
    speeds = (
        Formula(*formulas.reached_speed(open_phase.plan, phase, time))
        for phase, time in times.items()
        if time
    )
    return View([*map(sourced, tables), *speeds])


def show_plan_versus_actual(open_phase: OpenPhase) -> View:
    """Each promise of the plan beside what came true, with the reason where it did not.

    Kept in the record.
    """
    trainings = both_trainings(open_phase)
    view = View()
    for one in trainings:
        table = training_results.plan_versus_actual(one)
        view.append(sourced(table))
        rows = {f"{one.phase}: {row['what']}": row for row in table}
        open_phase.session.plan |= {name: row["planned"] for name, row in rows.items()}
        open_phase.session.add_results(
            {name: training_results.rounded(row["actual"]) for name, row in rows.items()}
        )
    open_phase.session.add_results(trainings[-1].results())
    return view


def show_loss(open_phase: OpenPhase) -> View:
    """The loss curves, with restarts and spikes, and the numbers in them."""
    view = training_results.show_loss(open_phase, TRAININGS)
    for one in both_trainings(open_phase):
        vocabulary = one.phase_plan.model.vocabulary
        view.append(
            sourced(run_tables.loss_table(one.history, one.validation, vocabulary=vocabulary))
        )
    return view


def show_throughput(open_phase: OpenPhase) -> View:
    """Tokens per second over time, with the planned line."""
    view = View()
    for one in both_trainings(open_phase):
        length = one.phase_plan.model.sequence_length
        planned = one.planned.tokens_per_second
        words = f"{one.phase}: median {one.summary.tokens_per_second or 0:,.0f} tokens/s"
        table = run_tables.throughput_table(one.history, sequence_length=length, planned=planned)
        view += [(one.throughput_figure(), words), sourced(table)]
    return view


def show_step_parts(open_phase: OpenPhase) -> View:
    """What a step of the training is made of, and whether a rank is slower than the others."""
    one = read_results(open_phase.folder, open_phase.plan, FULL)
    tables = metrics.step_parts_table(one.history), metrics.straggler_table(one.history)
    return View([(one.step_time_figure(), "Seconds of each step by part."), *map(sourced, tables)])


def show_time_parts(open_phase: OpenPhase) -> View:
    """Where the wall time went over all jobs, what each interruption cost, and what stood still."""
    parts = [
        part for one in both_trainings(open_phase) for part in training_results.account_view(one)
    ]
    return View(sourced(part) if isinstance(part, Table) else part for part in parts)


def show_timeline(open_phase: OpenPhase) -> View:
    """Training, waiting for data, evaluations and saves over time."""
    one = read_results(open_phase.folder, open_phase.plan, FULL)
    return View(
        [(one.timeline_figure(), "What happened when; how long, in all, is in the tables above.")]
    )


def show_cost(open_phase: OpenPhase) -> View:
    """What the training cost, and what the paper's 300 billion tokens would at this speed."""
    one = read_results(open_phase.folder, open_phase.plan, FULL)
    rates = training_results.device_rates(open_phase.settings)
    account = one.account
    view = View([sourced(wall_time.cost_table(one.summary, account, rates))] if account else [])
    goodput = account.goodput if account else None
    paper = wall_time.projection_table(
        one.summary, target_tokens=300_000_000_000, goodput=goodput, rates=rates
    )
    return View([*view, sourced(paper)])


def show_published(open_phase: OpenPhase) -> View:
    """Published results nearest in size, and whether they can be compared."""
    one = read_results(open_phase.folder, open_phase.plan, FULL)
    device = open_phase.settings.site.hardware.device
    precision = one.phase_plan.precision.format
    shape = one.phase_plan.model
    peak = peak_of(open_phase.settings.site, precision)
    speed = run_tables.speed_table(
        one.summary, shape, device=device, precision=precision, peak=peak
    )
    table = run_tables.published_table(
        one.summary, parameters=shape.parameters, device=device, precision=precision, peak=peak
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
    """The forecasts that were sealed before the first step, scored.

    Kept in the project's forecasts.jsonl too.
    """
    return score_forecasts(open_phase)


def show_variants(open_phase: OpenPhase) -> View:
    """The LUMI document's table for this run and its variants; those that were run are compared."""
    settings = open_phase.settings
    runs = open_phase.folder.parent
    run, variants = settings.run.run, [settings]  # as it was bound, and its siblings
    if run in params.run_names(settings.project):
        variants += [one for one in variants_of(run, settings.project) if one.name != settings.name]
    table, scaling = variants_tables(variants, runs)
    view = View([sourced(table)])
    write_text(open_phase.folder / VARIANTS, table.to_csv())
    facts = []
    for folder in (runs / one.name for one in variants):
        if (folder / "metrics.jsonl").exists():
            try:
                facts.append(read_run(folder))
            except RecordError as error:
                view.append(f"{folder.name} is not compared: {error}")
    if len(facts) < 2:
        words = (
            f"Nothing to compare: runbook run {run} --all-variants runs the others, "
            f"runbook compare A B any two."
        )
        return View([*view, words])
    view += [(run_figures.scaling_figure(scaling), "Speed by number of devices."), sourced(scaling)]
    result = compare(facts)
    losses = run_figures.comparison_figure({fact.name: fact.history for fact in facts})
    tables = (result.parameters, result.metrics, result.environment)
    return View([*view, (losses, "By tokens and by time trained."), *map(sourced, tables)])


def finish(open_phase: OpenPhase) -> None:
    """Judge the plan by what came true, write the record and mark the phase done."""
    open_phase.check([plan_check(one) for one in both_trainings(open_phase)])
    report.finish(open_phase, [open_phase.folder / name for name in (RESULTS, VARIANTS)])


def both_trainings(open_phase: OpenPhase) -> list[TrainingResults]:
    """The results of the smoke test and of the training."""
    return [read_results(open_phase.folder, open_phase.plan, phase) for phase in TRAININGS]


def plan_check(one: TrainingResults) -> Check:
    """Whether the plan's step time came true.

    An estimate that was far off is worth a question, not a failure.
    """
    name = f"{one.phase}: plan came true"
    rule = f"the measured step time is within a factor of {gates.CREDIBLE_FACTOR:g} of the plan's"
    planned = one.planned.seconds_per_iteration
    actual = one.summary.seconds_per_iteration
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
    """A table with its source among its notes."""
    return replace(table, notes=[f"Source: {table.source}.", *table.notes])


def variants_of(run: str, project: Path | None = None) -> list[Settings]:
    """The run named, and each of its variants."""
    names = [run, *(f"{run}:{variant}" for variant in params.variant_names(run, project))]
    return [params.load(name, project=project) for name in names]


def variants_tables(runs_of: Sequence[Settings], runs: Path) -> tuple[Table, Table]:
    """One row for each, of what was not run as never measured.

    Efficiency over the numbers of devices measured.
    """
    hardware = runs_of[0].site.hardware
    rows = [_variant_row(one, runs) for one in runs_of]
    precision = str(runs_of[0].run.training.precision)
    source = "metrics.jsonl of each run"
    points = [
        (one.name, one.parallel.world_size, one.samples_per_second)
        for one in rows
        if one.samples_per_second
    ]
    table = run_tables.results_table(
        rows, device=hardware.device, precision=precision, source=source
    )
    return table, run_tables.scaling_table(points)


def variants_text(runs_of: Sequence[Settings], runs: Path, name: str) -> str:
    """The table for a terminal; kept as NAME.variants.csv beside the run folders."""
    found, _ = variants_tables(runs_of, runs)
    path = runs / f"{Path(name).stem}.variants.csv"
    write_text(path, found.to_csv())
    shown = [{key: value for key, value in row.items() if key != "source"} for row in found]
    return Table(shown, found.title, (*found.notes, f"as CSV: {path}")).as_text()


def _variant_row(settings: Settings, runs: Path) -> run_tables.ThroughputRow:
    """Return the layout of a run or variant with its measured speed.

    Where it was not run: why the plan refuses it.
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
        with contextlib.suppress(RecordError):  # it has made no step yet
            one = read_results(folder, plan, FULL)
            first = one.history.steps[0]
            last = one.history.steps[-1]
            speed = one.summary.samples_per_second
            source = f"{name}/{one.history.source}:{first.line}-{last.line}"
        return row(
            spec.model,
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
        choice.parallel,
        recompute=choice.training.recompute,
        refused=refused,
        source="not run",
    )
