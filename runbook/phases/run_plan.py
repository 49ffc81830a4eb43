"""Plans a run before it starts, and renders the text for `runbook plan`."""

from collections.abc import Sequence
from functools import partial

from runbook import params
from runbook.display import Table
from runbook.params import Settings
from runbook.phases.open_phase import with_values_given_before
from runbook.planning import Plan, plan_tables
from runbook.planning.layout_search import what_if, what_if_table
from runbook.runs import this_machine
from runbook.runs.consent import commands_table
from runbook.runs.run_folder import runs_folder
from runbook.runs.run_names import named_run


def load_named(word: str, set_words: Sequence[str]) -> Settings:
    """Return the settings for a run, a variant, or a folder made by `--as`.

    Such a folder has a name like `local--quick`. The values that the user set for it apply again.
    """
    named = named_run(word)
    set_and_named_words = [*named.set_words, *set_words]
    if not named.as_name:
        return params.load(named.run, set_words=set_and_named_words)
    load = partial(params.load, named.run, set_words=set_and_named_words)
    return with_values_given_before(load, lambda _: None)


def load_plan(
    run: str,
    set_words: Sequence[str],
    *,
    measured: bool = False,
    core_flops: float = 0.0,
) -> tuple[Settings, Plan]:
    """Return settings and plan for a run. No folder is created.

    With `measured`, the step times are corrected by smoke tests on this machine; with `core_flops`,
    by the FLOP/s measured on a core.
    """
    settings = load_named(run, set_words)
    calibrations = None
    if measured:
        calibrations = this_machine.known_calibrations(settings, runs_folder(settings.project))
    return settings, this_machine.make_plan_here(settings, calibrations, core_flops)


def plan_text(settings: Settings, plan: Plan) -> str:
    """Return the whole plan for a terminal."""
    title = f"{settings.name} on {settings.site.site}: {settings.site.title}"
    tables = [
        *_changed_keys_tables(settings),
        *commands_table(settings),
        *plan_tables.tables(plan),
        *plan_tables.site_tables(settings.site, plan, settings.run.training),
        _other_layouts_table(settings),
    ]
    texts = [table.as_text() for table in tables]
    end = f"The scripts, word for word: runbook render {settings.run.run} --out DIR"
    return "\n\n".join([title, *texts, end])


def _changed_keys_tables(settings: Settings) -> list[Table]:
    """Return a table of the values that differ because the run file was written for another site."""
    rows = []
    for key, reason in sorted(settings.scaled_down().items()):
        rows.append({"key": key, "here": settings.value(key), "because": reason})
    if not rows:
        return []
    title = f"Changed because the run file was written for a site other than {settings.site.site}"
    return [Table(rows, title)]


def _other_layouts_table(settings: Settings) -> Table:
    """Return memory and time for other layouts of the same run."""
    calibrations = this_machine.known_calibrations(settings, runs_folder(settings.project))
    measured_machine = this_machine.measure_machine(settings.site)
    return what_if_table(what_if(settings, measured_machine, calibrations), settings.site.currency)
