"""05-analysis: how well it ran, against the plan and against what others published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.analysis import figure_tables, figures, figures_beside, tables
from runbook.analysis.compare import compare, read_run
from runbook.analysis.cost import cost_table, projection_table
from runbook.analysis.documents import azure_checkpoint_table, lumi_table
from runbook.analysis.ledger import interruption_rows, ledger
from runbook.analysis.step_parts import stalls_table, step_parts_table
from runbook.analysis.stragglers import straggler_table
from runbook.analysis.table import Table
from runbook.display import show_figure, show_table, show_text
from runbook.phases import campaign as campaigns
from runbook.phases import closing, sweep, trained
from runbook.phases.analysis_tables import plan_versus_actual, rates
from runbook.phases.campaign import Campaign
from runbook.plan import Check
from runbook.records.files import write_text

PHASE = "05-analysis"
TRAININGS = ("03-smoke-test", "04-training")
FULL = "04-training"
RESULTS = "results.csv"
VARIANTS = "variants.csv"
DOCUMENTS = "lumi-table.csv"
GPT3_TOKENS = 300_000_000_000
"""What the paper trained on."""


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def show_numbers(campaign: Campaign) -> None:
    """The numbers of each training phase; kept as results.csv too."""
    rows = []
    for phase in TRAININGS:
        one = trained.read(campaign, phase)
        table = tables.numbers_table(one.summary, title=phase, history=one.history)
        show(table)
        rows += [{"phase": phase, **row} for row in table]
    write_text(campaign.folder / RESULTS, Table("results", tuple(rows)).to_csv())


def show_plan_versus_actual(campaign: Campaign) -> None:
    """Each promise of the plan beside what came true, with the reason where it did not; kept in the record."""
    for phase in TRAININGS:
        table = plan_versus_actual(trained.read(campaign, phase))
        show(table)
        for row in table:
            campaign.session.plan[f"{phase}: {row['what']}"] = row["planned"]
            campaign.session.result(f"{phase}: {row['what']}", trained.rounded(row["actual"]))
    for key, value in trained.read(campaign, FULL).results().items():
        campaign.session.result(key, value)


def show_loss(campaign: Campaign) -> None:
    """The loss curves, with restarts and spikes, and the numbers in them."""
    trained.show_loss(campaign, TRAININGS)
    for phase in TRAININGS:
        one = trained.read(campaign, phase)
        vocabulary = one.spec["model"]["padded_vocabulary"]
        show(figure_tables.loss_table(one.history, one.validation, padded_vocabulary=vocabulary))


def show_throughput(campaign: Campaign) -> None:
    """Tokens per second over time, with the planned line."""
    for phase in TRAININGS:
        one = trained.read(campaign, phase)
        length, planned = one.spec["model"]["sequence_length"], one.planned.get("tokens_per_second")
        figure = figures.throughput_figure(
            one.history, sequence_length=length, planned_tokens_per_second=planned, title=f"Throughput of {phase}"
        )
        draw(figure, f"{phase}: median {one.summary.tokens_per_second or 0:,.0f} tokens/s")
        show(figure_tables.throughput_table(one.history, sequence_length=length, planned=planned))


def show_step_parts(campaign: Campaign) -> None:
    """What a step of the training is made of, and whether a rank is slower than the others."""
    one = trained.read(campaign, FULL)
    planned = one.planned.get("seconds_per_iteration")
    draw(figures.step_time_figure(one.history, planned_seconds=planned), "Seconds of each step by part.")
    show(step_parts_table(one.history))
    show(straggler_table(one.history))


def show_time_parts(campaign: Campaign) -> None:
    """Where the wall time went over all jobs, what each interruption cost, and what stood still."""
    for phase in TRAININGS:
        one = trained.read(campaign, phase)
        account = ledger(one.history, one.validation, one.events)
        draw(figures.goodput_figure(account or one.parts, f"Where the wall time of {phase} went"), phase)
        show(tables.goodput_table(account or one.parts))
        if account is not None and account.interruptions:
            show(Table(f"Interruptions of {phase}", tuple(interruption_rows(account)), "events.jsonl, metrics.jsonl"))
        show(stalls_table(one.validation, one.events, wall_seconds=one.parts.wall_seconds))


def show_timeline(campaign: Campaign) -> None:
    """Training, waiting for data, evaluations and saves over time."""
    one = trained.read(campaign, FULL)
    planned = one.planned.get("seconds")
    draw(
        figures.timeline_figure(one.history, one.validation, one.events, planned_seconds=planned), "What happened when."
    )
    show(figure_tables.timeline_table(one.history, one.validation, one.events))


def show_cost(campaign: Campaign) -> None:
    """What the training cost, and what the paper's 300 billion tokens would at this speed."""
    one = trained.read(campaign, FULL)
    found = rates(campaign.settings)
    show(cost_table(one.summary, one.parts, found))
    show(projection_table(one.summary, target_tokens=GPT3_TOKENS, goodput=one.parts.share, rates=found))


def show_published(campaign: Campaign) -> None:
    """Published results nearest in size, and whether they can be compared."""
    one = trained.read(campaign, FULL)
    hardware = campaign.settings.site.hardware
    precision, shape = one.spec["precision"]["format"], tables.shape_from_spec(one.spec)
    own_peaks = hardware.peak_tflops
    show(tables.speed_table(one.summary, shape, device=hardware.device, precision=precision, own_peaks=own_peaks))
    table = tables.published_table(
        one.summary,
        parameters=one.spec["model"]["parameters"],
        device=hardware.device,
        precision=precision,
        own_peaks=own_peaks,
    )
    draw(figures_beside.published_figure(table), "Tokens per second and device; the numbers stand in the table below.")
    draw(figures_beside.mfu_figure(table), "Share of the peak; the numbers stand in the table below.")
    show(table)


def show_variants(campaign: Campaign) -> None:
    """The LUMI document's table for this run and its variants; those that were run are held against each other."""
    runs, run = campaign.folder.parent, campaign.settings.run.run
    names = sweep.around(campaign.settings)
    table = sweep.table(names, runs)
    show(table)
    write_text(campaign.folder / VARIANTS, table.to_csv())
    done = sweep.done(names, runs)
    if len(done) < 2:
        show_text(f"Nothing to compare: runbook run {run} --all-variants runs the others, runbook compare A B any two.")
        return
    scaling = sweep.scaling(names, runs)
    draw(figures_beside.scaling_figure(scaling), "Speed by number of devices.")
    show(scaling)
    facts = [read_run(folder) for folder in done]
    result = compare(facts)
    draw(
        figures_beside.comparison_figure({fact.name: fact.history for fact in facts}), "By tokens and by time trained."
    )
    for one in (result.parameters, result.metrics, result.environment):
        show(one)


def show_documents(campaign: Campaign) -> None:
    """The result tables of the documents this project starts from, recomputed and judged; the same for every run."""
    show(lumi_table())
    show(azure_checkpoint_table())
    write_text(campaign.folder / DOCUMENTS, lumi_table().to_csv())


def finish(campaign: Campaign) -> None:
    """Judge the plan by what came true, write the record and mark the phase done."""
    campaign.check([plan_check(trained.read(campaign, phase)) for phase in TRAININGS])
    closing.finish(campaign, [campaign.folder / name for name in (RESULTS, VARIANTS, DOCUMENTS)])


def plan_check(one: trained.Trained) -> Check:
    """Whether the plan's step time came true; an estimate that was far off is worth a question, not a failure."""
    name, rule = f"{one.phase}: plan came true", "the measured step time is within a factor of 2 of the plan's"
    planned, actual = one.planned.get("seconds_per_iteration"), one.summary.seconds_per_iteration
    if not planned or not actual:
        return Check(name, "unknown", "nothing to compare", rule)
    return Check(
        name, "pass" if 0.5 <= actual / planned <= 2 else "warn", f"{actual / planned:.2f} of the plan's", rule
    )


def show(table: Table) -> None:
    """A table with its source and notes below."""
    show_table(list(table), title=table.title, notes=[f"Source: {table.source}.", *table.notes])


def draw(figure: Any, caption: str) -> None:
    """A figure as SVG, with its caption."""
    show_figure(figures.as_svg(figure).text, caption)
