"""05-analysis: how well it ran, against the plan and against what others published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.analysis import figures, tables
from runbook.analysis.table import Table
from runbook.display import show_figure, show_table
from runbook.phases import campaign as campaigns
from runbook.phases import closing, trained
from runbook.phases.analysis_tables import plan_versus_actual
from runbook.phases.campaign import Campaign
from runbook.plan import Check
from runbook.records.files import write_text

PHASE = "05-analysis"
TRAININGS = ("03-smoke-test", "04-training")
RESULTS = "results.csv"


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)


def show_numbers(campaign: Campaign) -> None:
    """The numbers of each training phase; kept as results.csv too."""
    rows = []
    for phase in TRAININGS:
        table = tables.numbers_table(trained.read(campaign, phase).summary, title=phase)
        show(table)
        rows += [{"phase": phase, **row} for row in table]
    write_text(campaign.folder / RESULTS, Table("results", tuple(rows)).to_csv())


def show_plan_versus_actual(campaign: Campaign) -> None:
    """Each promise of the plan beside what came true; kept in the record."""
    for phase in TRAININGS:
        table = plan_versus_actual(trained.read(campaign, phase))
        show(table)
        for row in table:
            campaign.session.plan[f"{phase}: {row['what']}"] = row["planned"]
            campaign.session.result(f"{phase}: {row['what']}", trained.rounded(row["actual"]))
    for key, value in trained.read(campaign, "04-training").results().items():
        campaign.session.result(key, value)


def show_loss(campaign: Campaign) -> None:
    """The loss curves."""
    trained.show_loss(campaign, TRAININGS)


def show_throughput(campaign: Campaign) -> None:
    """Tokens per second over time, with the planned line."""
    for phase in TRAININGS:
        one = trained.read(campaign, phase)
        figure = figures.throughput_figure(
            one.history,
            sequence_length=one.spec["model"]["sequence_length"],
            planned_tokens_per_second=one.planned.get("tokens_per_second"),
            title=f"Throughput of {phase}",
        )
        show_figure(figures.as_svg(figure).text, f"{phase}: median {one.summary.tokens_per_second:,.0f} tokens/s")


def show_time_parts(campaign: Campaign) -> None:
    """Where the wall time went."""
    for phase in TRAININGS:
        parts = trained.read(campaign, phase).parts
        show_figure(figures.as_svg(figures.goodput_figure(parts, f"Where the wall time of {phase} went")).text, phase)
        show(tables.goodput_table(parts))


def show_published(campaign: Campaign) -> None:
    """Published results nearest in size, and whether they can be compared."""
    one = trained.read(campaign, "04-training")
    hardware = campaign.settings.site.hardware
    show(
        tables.published_table(
            one.summary,
            parameters=one.spec["model"]["parameters"],
            device=hardware.device,
            precision=one.spec["precision"]["format"],
            own_peaks=hardware.peak_tflops,
        )
    )


def finish(campaign: Campaign) -> None:
    """Judge the plan by what came true, write the record and mark the phase done."""
    campaign.check([plan_check(trained.read(campaign, phase)) for phase in TRAININGS])
    closing.finish(campaign, [campaign.folder / RESULTS])


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
