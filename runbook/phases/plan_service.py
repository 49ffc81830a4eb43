"""`runbook check`, `plan`, `why`, `render`.

They examine a run before it starts, with forecasts and layout search.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.checks import counted
from runbook.core.errors import ParamsError
from runbook.core.files import write_text
from runbook.core.units import show_bytes, show_duration
from runbook.display import CheckTable, Table
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.render.preparation import (
    SETUP_FOLDER,
    preparation_files,
    render_preparation,
)
from runbook.jobs.render.task_job import asks_for_queue, data_tasks, render_task
from runbook.jobs.render.training_job import PACKAGE, RenderedJob, render_job, write_job
from runbook.params import Settings
from runbook.params.problems import differences
from runbook.params.project import find_run_file
from runbook.params.schema.keys import document_name
from runbook.params.settings import with_placeholders
from runbook.params.yaml12 import read_text
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import with_values_given_before
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.planning import Check, Plan, plan_tables
from runbook.planning.layout import Choice, full_choice
from runbook.planning.layout_search import (
    RankedLayout,
    Search,
    growth,
    search,
    what_if,
    what_if_table,
)
from runbook.planning.schedule import duration
from runbook.runs import machine
from runbook.runs.consent import command_checks, commands_table
from runbook.runs.run_files import write_plan_file
from runbook.runs.run_folder import runs_folder
from runbook.runs.run_names import named_run


def load_named(word: str, set_words: Sequence[str]) -> Settings:
    """Return the settings of a run, a variant, or a folder that `--as` made.

    Such a folder has a name like `local--quick`. The values given by hand when it was made apply
    again.
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
    """Return a run's settings and plan, without a folder.

    With `measured`, smoke tests that ran here correct the step times; with `core_flops`, the
    measured FLOP/s of a core.
    """
    settings = load_named(run, set_words)
    calibrations = None
    if measured:
        calibrations = machine.known_calibrations(settings, runs_folder(settings.project))
    return settings, machine.make_plan_here(settings, calibrations, core_flops)


def render_jobs(settings: Settings, plan: Plan) -> dict[str, RenderedJob]:
    """Return the job of each training phase as it would be submitted."""
    rendered: dict[str, RenderedJob] = {}
    for phase in plan.phases:
        rendered[phase] = render_job(settings, plan, phase, python=sys.executable)

    return rendered


def render_all(
    run: str,
    set_words: Sequence[str],
    out: Path,
    *,
    placeholders: bool = False,
) -> list[Path]:
    """Write the files of a submission into `out`, which can then be submitted from there.

    `out` is laid out like a run's folder. A missing value is refused, or marked with
    `placeholders`. A folder from which a job was submitted is refused.
    """
    settings = load_named(run, set_words)
    if placeholders:
        settings = with_placeholders(settings)
    plan = machine.make_plan_here(settings)
    jobs = render_jobs(settings, plan)
    if asks_for_queue(settings, "02-data"):
        tasks = data_tasks(settings, sys.executable)
        for task in tasks:
            jobs[task.folder("02-data")] = render_task(settings, "02-data", task, PACKAGE)

    folders = {name: JobFolder(out / "jobs" / name) for name in jobs}
    for folder in folders.values():
        if folder.was_submitted():
            raise ParamsError(PhaseMessage.FOLDER_OF_A_SUBMITTED_JOB, folder=folder.path)

    write_plan_file(settings, plan, out)
    for name, job in jobs.items():
        write_job(folders[name], job)
    if settings.site.scheduler != "local":
        preparation = out / SETUP_FOLDER
        write_text(preparation / "prepare.sh", render_preparation(settings, PACKAGE), mode=0o777)
        for name, content in preparation_files(settings).items():
            write_text(preparation / name, content)

    return [path for path in sorted(out.rglob("*")) if path.is_file()]


def plan_text(settings: Settings, plan: Plan) -> str:
    """Return the whole plan for a terminal."""
    title = f"{settings.name} on {settings.site.site}: {settings.site.title}"
    tables = [
        *_changed_keys_tables(settings),
        *commands_table(settings),
        *plan_tables.tables(plan),
        *plan_tables.site_tables(settings.site, plan, settings.run.training.precision),
        _other_layouts_table(settings),
    ]
    texts = [table.as_text() for table in tables]
    end = f"The scripts, word for word: runbook render {settings.run.run} --out DIR"
    return "\n\n".join([title, *texts, end])


def _changed_keys_tables(settings: Settings) -> list[Table]:
    """Return a table of the values that differ because the site is not the one in the file."""
    rows = []
    for key, reason in sorted(settings.scaled_down().items()):
        rows.append({"key": key, "here": settings.value(key), "because": reason})
    if not rows:
        return []
    title = f"Changed because the run file was written for another site than {settings.site.site}"
    return [Table(rows, title)]


def _other_layouts_table(settings: Settings) -> Table:
    """Return the memory and time of other layouts of the same run."""
    calibrations = machine.known_calibrations(settings, runs_folder(settings.project))
    measured_machine = machine.measure_machine(settings.site)
    return what_if_table(what_if(settings, measured_machine, calibrations), settings.site.currency)


def run_checks(run: str, set_words: Sequence[str]) -> tuple[str, list[Check]]:
    """Return the name of a run and every rule that its plan satisfies.

    Values that another YAML reader would interpret differently are listed as well.
    """
    settings, plan = load_plan(run, set_words)
    file = find_run_file(named_run(run).run)
    # papermill -f would read these values of the run file differently. Our own reader, which every
    # command uses, takes them as intended.
    rule = PhaseMessage.SAME_IN_BOTH_YAML.fill()
    yaml_checks = []
    for difference in differences(read_text(file.path, file.where), file.where):
        name = f"YAML 1.1: {difference.key}"
        yaml_checks.append(
            Check(
                name,
                "warn",
                difference.where,
                rule,
                str(difference.rule),
            )
        )

    return settings.name, [*yaml_checks, *command_checks(settings), *plan.checks]


def check_text(run: str, set_words: Sequence[str]) -> str:
    """Return the checks of a run as a table, and the number that need attention."""
    name, checks = run_checks(run, set_words)
    counts = Counter(check.verdict for check in checks)
    open_parts = []
    if counts["warn"]:
        open_parts.append(PhaseMessage.TO_BE_LOOKED_AT.fill(number=counts["warn"]))
    if counts["unknown"]:
        open_parts.append(f"{counts['unknown']} that cannot be known yet")
    if open_parts:
        end = PhaseMessage.NO_RULE_BROKEN.fill(open_parts=" and ".join(open_parts))
    else:
        end = PhaseMessage.EVERYTHING_FITS.fill()

    return f"{CheckTable(checks).as_text()}\n{name}: {end}"


def why_facts(run: str, key: str, set_words: Sequence[str]) -> list[dict[str, object]]:
    """Return the origins of a value, and what the plan derives from it.

    There are several if a name in the documents has several meanings.
    """
    settings, plan = load_plan(run, set_words)
    explained = document_name(key)
    names: Sequence[str] = [params.key_meant(key)] if not explained else explained.keys
    facts = []
    for name in names:
        derived = _derived_text(name, plan)
        facts.append({**params.origin_facts(settings, name), "plan_makes_of_it": derived})

    return facts


def why_text(run: str, key: str, set_words: Sequence[str]) -> str:
    """A value's chain of origins, and the numbers that the plan derives from it."""
    settings, plan = load_plan(run, set_words)
    explained = document_name(key)
    if explained:
        keys = [_why_key(settings, plan, name) for name in explained.keys]
        return "\n".join([f"{key}: {explained.meaning}", *keys])

    return _why_key(settings, plan, params.key_meant(key))


def _why_key(settings: Settings, plan: Plan, name: str) -> str:
    derived = _derived_text(name, plan)
    origins = params.why(settings, name)
    if not derived:
        return origins
    return PhaseMessage.PLAN_MAKES.fill(origins=origins, derived="; ".join(derived))


LENGTH_KEYS = (
    "iterations",
    "samples",
    "tokens",
    "global_batch",
    "micro_batch",
    "sequence_length",
)
"""Keys that determine the length of a training."""


def _derived_text(key: str, plan: Plan) -> list[str]:
    phase_plan = plan.phases[SMOKE if "smoke" in key else FULL]
    model = phase_plan.model
    parallel = phase_plan.parallel
    duration = phase_plan.duration
    section, _, name = key.rpartition(".")
    if section == "training.shape":
        return [f"{getattr(model.shape, name):,}, of model {model.name}"]
    if name == "model":
        return [
            f"{model.parameters:,} parameters",
            f"{model.shape.layers} layers x {model.shape.hidden}",
        ]
    if key.startswith("parallel.") or name in ("nodes", "devices_per_node", "tensor", "pipeline"):
        return [f"world size {parallel.world_size}", f"{parallel.data} data-parallel copies"]
    if name in LENGTH_KEYS:
        length = (
            f"{duration.iterations:,} iterations, {duration.samples:,} sequences, "
            f"{duration.tokens:,} tokens"
        )
        return [length, f"{phase_plan.batch.num_microbatches} micro-batches a step on each copy"]

    if name.startswith(("warmup", "decay")):
        rate = phase_plan.learning_rate
        return [
            f"warm-up over {rate.warmup_samples:,} sequences, decay over {rate.decay_samples:,}"
        ]

    return []


@dataclass(frozen=True)
class RunSearch:
    """Every layout of a run's training that fits its nodes, best first.

    Then follows the best on more and more nodes.
    """

    run: str
    choice: Choice
    tokens: float
    found: Search
    growth: tuple[RankedLayout | str, ...]
    """The best layout each time the nodes double; a reason if there is none."""

    def as_dict(self) -> dict[str, object]:
        """Return the content of --json."""
        growth_steps: list[dict[str, Any]] = []
        for step in self.growth:
            if isinstance(step, str):
                growth_steps.append({"reason": step})
            else:
                growth_steps.append(step.as_dict())

        return {
            "run": self.run,
            "device": self.choice.site.hardware.device,
            "nodes": self.choice.nodes,
            "tokens": self.tokens,
            "global_batch": self.choice.global_batch,
            "looked_at": self.found.looked_at,
            "did_not_fit": self.found.did_not_fit,
            "broke_a_rule": self.found.broke_a_rule,
            "reason": self.found.reason or None,
            "currency": self.choice.site.currency or None,
            "layouts": [layout.as_dict() for layout in self.found.ranked],
            "growth": growth_steps,
        }

    def as_text(self) -> str:
        """Return the best layouts and the growth for a terminal."""
        found_layouts = self.found
        choice = self.choice
        nodes = counted(choice.nodes, "node")
        head = (
            f"{self.run}: {found_layouts.looked_at:,} layouts over {nodes} of "
            f"{choice.site.hardware.device}; "
            f"{found_layouts.did_not_fit:,} do not fit the memory, "
            f"{found_layouts.broke_a_rule:,} break a rule"
        )
        if found_layouts.reason:
            return f"{head}\nNo layout: {found_layouts.reason}."
        row = partial(_layout_row, currency=choice.site.currency or "")
        best = Table([*map(row, found_layouts.ranked[:10])], "Best layouts")
        layouts = []
        reasons = []
        for step in self.growth:
            if isinstance(step, str):
                reasons.append(step)
            else:
                layouts.append(row(step))

        grown = Table(layouts, "Best layout on more nodes, with the same global batch", reasons)
        return "\n\n".join([head, best.as_text(), grown.as_text()])


def search_run(run: str, set_words: Sequence[str]) -> RunSearch:
    """Search the layouts of a run's training."""
    settings = load_named(run, set_words)
    choice = full_choice(settings)
    tokens = float(duration(choice).tokens)
    found_layouts = search(choice, tokens)
    larger: tuple[RankedLayout | str, ...] = ()
    if found_layouts.looked_at:
        larger = tuple(growth(choice, tokens))
    return RunSearch(
        settings.name,
        choice,
        tokens,
        found_layouts,
        larger,
    )


def _layout_row(ranked: RankedLayout, currency: str) -> dict[str, str]:
    layout = ranked.layout
    choice = ranked.choice
    days = "not known"
    if ranked.days is not None:
        days = f"{ranked.days:,.3g}"
    cost = "not known"
    if ranked.cost is not None:
        cost = f"{ranked.cost:,.0f} {currency}".strip()
    return {
        "GPUs": f"{layout.world_size:,}",
        "tensor": str(layout.tensor),
        "pipeline": str(layout.pipeline),
        "virtual": str(layout.virtual_pipeline),
        "copies": str(layout.data),
        "micro": str(choice.micro_batch),
        "recompute": choice.training.recompute,
        "ZeRO": str(layout.zero_stage),
        "memory": show_bytes(ranked.memory_bytes),
        "a step": show_duration(ranked.seconds_per_step),
        "MFU": f"{ranked.mfu:.1%}",
        "days": days,
        "cost": cost,
        PhaseMessage.NODES_IN_MULTIPLES.fill(): str(choice.node_multiple),
    }
