"""00-plan: shows what is trained, on what hardware and for how long, and has a form to change it.

The form starts with values from the run file and the parameters cell. A run file that the form
writes includes both.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from runbook import params
from runbook.core.checks import Check
from runbook.core.errors import ParamsError, PlanError
from runbook.core.files import write_text
from runbook.display import Formula, Table, View, show_table
from runbook.display.jupyter.widgets import Answer, Field, show_form
from runbook.params import Settings
from runbook.params.catalogues import read_datasets, read_models
from runbook.params.editing import edited_text, values_in, without_sums
from runbook.params.layers import GIVEN, SCALED_DOWN
from runbook.params.problems import InvalidParams
from runbook.params.schema.keys import Key, all_keys
from runbook.params.schema.value_types import is_name
from runbook.params.yaml12 import nest, read_text, write_scalar, write_tree
from runbook.phases.job_control import rehearsal_gate
from runbook.phases.loss_forecast import show_planned_loss
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase, bind_phase
from runbook.phases.phase_end import end_notebook
from runbook.phases.phase_steps import phase_end_work
from runbook.phases.recorded_checks import record_checks
from runbook.phases.rendered_jobs import render_jobs
from runbook.phases.steps import PhaseStep, plan_only, run_only, step
from runbook.plan_file.phase_names import FULL, PLAN, SMOKE
from runbook.planning import Plan, plan_tables
from runbook.planning.layout_search import what_if, what_if_table
from runbook.planning.plan_tables import data_table, summary_table
from runbook.records.session import Session
from runbook.results.figures import formulas, plan_figures
from runbook.runs import this_machine
from runbook.runs.consent import command_checks
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_folder import runs_folder

PHASE = PLAN
END = phase_end_work(PHASE)


def bind(namespace: Mapping[str, object]) -> OpenPhase:
    """Check the parameters, compute the plan, and open the record.

    Show the values needed to decide.
    """
    open_phase = bind_phase(PHASE, namespace)
    show_table(summary_table(open_phase.plan))
    return open_phase


@step(takes=lambda opened: (opened.settings,))
def choose(settings: Settings) -> None:
    """Show the run values as a form that shows what a change affects and writes a run file.

    Outside a browser, show a table.
    """
    run = str(run_file_of(settings))
    given_values = values_over_file(run, settings)
    sections = form_fields(settings)
    keys = []
    for fields in sections.values():
        for field in fields:
            keys.append(field.key)

    def write(name: str, changes: Mapping[str, str]) -> str:
        path = write_run_file(run, name, changes, given_values)
        file = path.relative_to(settings.project)
        return (
            f"{file} is written and passes runbook check. "
            f'Next: run = "{path.stem}" in the first cell.'
        )

    consider = partial(consider_changes, run, keys=keys, values_over_file=given_values)
    show_form(
        sections,
        consider,
        write,
        values_table(settings),
        f"{settings.run.run}-mine",
    )


@step(takes=plan_only)
def show_sizes(plan: Plan) -> View:
    """Show how many parameters each part of the model has, and their sum.

    Compare them with the sizes in the models' names.
    """
    return View([plan_tables.sizes_table(plan), Formula(*formulas.parameters(plan, FULL))])


@step(takes=lambda opened: (opened.run, opened.session))
def show_layout(run: PlannedRun, session: Session) -> View:
    """Show the layout in a table and figures, with every rule that it was checked against."""
    plan = run.plan
    training = plan.phases[FULL]
    time = plan.time[FULL]
    show_table(plan_tables.layout_table(plan))
    record_checks(session, [*command_checks(run.settings), *plan.checks])
    devices = plan_figures.device_figure(training, plan.computes_on.devices_per_node)
    view = View([Formula(*formulas.batch(plan, FULL))])
    view.append((devices, f"Which device holds what: {plan_tables.devices_sum(training)}."))
    if training.parallel.pipeline > 1 and time.parts and time.seconds_per_iteration:
        pipeline = plan_figures.planned_pipeline_figure(
            training, time.parts, time.seconds_per_iteration
        )
        caption = (
            "The work of each stage in a step, as planned. The rehearsal below counts each stage "
            "separately."
        )
        view.append((pipeline, caption))

    rates = plan_figures.rate_figure({"smoke test": plan.phases[SMOKE], "training": training})
    return View([*view, (rates, "The learning rate over the steps; its numbers are in the table.")])


@step(takes=plan_only)
def show_memory(plan: Plan) -> View:
    """Show the memory for each part on the fullest device, next to its capacity."""
    figure = plan_figures.memory_figure(plan, {SMOKE: "smoke test", FULL: "training"})
    caption = "Memory of one rank of the fullest stage; its numbers are in the table."
    return View(
        [plan_tables.memory_table(plan), Formula(*formulas.memory(plan, FULL)), (figure, caption)]
    )


@step(takes=plan_only)
def show_time(plan: Plan) -> View:
    """Show FLOPs, step time and checkpoints. Each estimate states its basis."""
    view = View([plan_tables.time_table(plan)])
    formula = formulas.step_time(plan, FULL)
    if formula:
        view.append(Formula(*formula))
    parts = plan.time[FULL].parts
    if parts:
        figure = plan_figures.step_figure(parts, plan_tables.PART_WORDS)
        view += [
            plan_tables.parts_table(plan),
            (figure, "This shows where a step's time goes; the numbers are in the table."),
        ]

    return View([*view, plan_tables.endurance_table(plan), plan_tables.flops_table(plan)])


@step(takes=run_only)
def show_storage(run: PlannedRun) -> View:
    """Show how large checkpoints and data are, and what it costs to prepare the text.

    Compare the method used here with the one in the documents.
    """
    plan = run.plan
    settings = run.settings
    site_tables = plan_tables.site_tables(settings.site, plan, settings.run.training)
    return View(
        [
            plan_tables.storage_table(plan),
            *site_tables,
            data_table(plan),
            plan_tables.places_table(plan),
        ]
    )


@step(takes=lambda opened: (opened.run, opened.session))
def show_rehearsal(run: PlannedRun, session: Session) -> None:
    """Show a dry run of one full-size training step, stage by stage, next to the plan."""
    rehearsal_gate.show(run.training(FULL), session)


@step(takes=run_only)
def show_what_if(run: PlannedRun) -> Table:
    """Show the plan with one value changed at a time, and the best layout from a search."""
    settings = run.settings
    measured = this_machine.calibrations_of_run(settings, run.folder)
    layouts = what_if(settings, this_machine.measure_machine(settings.site), measured)
    return what_if_table(layouts, settings.site.currency)


@step(takes=run_only)
def show_forecast(run: PlannedRun) -> View:
    """Forecast the final loss for the run, and for other model sizes at the same compute."""
    return show_planned_loss(run.settings, run.plan)


@step(takes=run_only)
def show_scripts(run: PlannedRun) -> View:
    """Show the job scripts verbatim."""
    jobs = render_jobs(run.settings, run.plan)
    return View(f"jobs/{phase}/job.sh\n\n{job.script}" for phase, job in jobs.items())


@step(takes=lambda opened: (opened.run, opened.session), work=END)
def finish(run: PlannedRun, session: Session) -> None:
    """Write the record and mark the phase done."""
    plan = run.plan
    for (phase, phase_plan), label in zip(plan.phases.items(), plan.labels, strict=False):
        numbers = {
            "model": label.text,
            "parameters": phase_plan.model.parameters,
            "tokens": phase_plan.duration.tokens,
            "expected seconds": plan.time[phase].seconds,
            "memory of a node (B)": plan.memory[phase].least_bytes,
            "checkpoint (B)": plan.checkpoint[phase].checkpoint_bytes,
        }
        results = {f"{phase}: {name}": number for name, number in numbers.items()}
        session.add_results(results)

    end_notebook(END, run, session)


FIRST = (
    *("site", "model", "data.dataset", "jobs.training.nodes", "jobs.training.devices_per_node"),
    *(
        "parallel.tensor",
        "parallel.pipeline",
        "parallel.zero_stage",
        "training.engine",
        "training.precision",
    ),
    *("training.iterations", "training.samples", "training.tokens", "training.micro_batch"),
    *("training.global_batch", "training.learning_rate", "training.recompute"),
)
"""The keys that people change most often. All other keys are in the folded sections below."""
MADE_BY = "# Written by the form of 00-plan from run "
"""First line in files that the form may overwrite."""


def run_file_of(settings: Settings) -> Path:
    """Return the file in params/ that a run is named after."""
    return settings.project / "params" / f"{settings.run.run}.yaml"


def values_over_file(run: str, settings: Settings) -> Mapping[str, Any]:
    """Return the values that override the run file, nested by section and as written.

    They come from a variant, a parameters cell or --set.
    """
    file = params.load(run)
    differing = {}
    for key, value in _chosen_values(settings).items():
        if settings.value(key) != file.value(key):
            differing[key] = value

    return nest(differing)


def _chosen_values(settings: Settings) -> dict[str, Any]:
    """Return, as written, all values that come neither from the defaults nor from the site file."""
    layers = ("run file", "variant", SCALED_DOWN, *GIVEN)
    chosen = {}
    for key in settings.values():
        newest = settings.origins[key][-1]
        if newest.layer in layers:
            chosen[key] = newest.value

    return chosen


def form_fields(settings: Settings) -> dict[str, list[Field]]:
    """Return every key in the schema as a form field: the most common keys first, then by section."""
    named = {
        "site": tuple(params.site_names(settings.project)),
        "model": tuple(read_models(settings.project).names),
        "data.dataset": tuple(read_datasets(settings.project).names),
    }
    fields: dict[str, list[Field]] = {"": []}
    for key in sorted(all_keys().values(), key=_place_in_form):
        if key.name == "run":
            continue
        section = ""
        if key.name not in FIRST:
            section = key.name.rpartition(".")[0]
        choices = named.get(key.name, ())
        if get_origin(key.kind) is Literal:
            choices = get_args(key.kind)
        elif key.kind is bool or isinstance(key.default, bool):
            choices = ("false", "true")

        field = Field(key.name, key.help, value_as_written(settings, key.name), choices)
        fields.setdefault(section, []).append(field)

    return fields


def _place_in_form(key: Key) -> int:
    """Return the position for a frequently changed key. Other keys follow in schema order."""
    if key.name in FIRST:
        return FIRST.index(key.name)
    return len(FIRST)


def values_table(settings: Settings) -> Table:
    """Return a table with the values that change most often, with origin and meaning."""
    origins = settings.parameters()
    rows = []
    for key in FIRST:
        rows.append(
            {
                "key": key,
                "value": value_as_written(settings, key),
                "from": origins[key]["origin"],
                "what": all_keys()[key].help,
            }
        )

    note = (
        "In JupyterLab this is a form. Elsewhere: "
        "runbook plan RUN --set KEY=VALUE shows what a change would do."
    )
    return Table(rows, "Frequently changed values", [note])


def consider_changes(
    run: str,
    changes: Mapping[str, str],
    keys: Iterable[str],
    values_over_file: Mapping[str, Any] | None = None,
) -> Answer:
    """Return what the changes affect.

    This is a short version of the plan, or each error next to its field.
    """
    try:
        settings = params.load(run, overrides=values_over_file, set_words=_set_words(changes))
        calibrations = this_machine.known_calibrations(settings, runs_folder(settings.project))
        plan = this_machine.make_plan_here(settings, calibrations)
    except InvalidParams as error:
        problems = [(problem.key, str(problem.rule)) for problem in error.problems]
        return Answer(_problems_by_field(problems, keys))
    except PlanError as error:
        broken = [(_field_of(check, changes, keys), check.as_text()) for check in error.checks]
        return Answer(_problems_by_field(broken, keys))
    except ParamsError as error:
        return Answer({"": str(error)})

    table = summary_table(plan)
    values = {key: value_as_written(settings, key) for key in keys}
    return Answer({}, Table(table.rows, table.title), values)


def write_run_file(
    run: str,
    name: str,
    changes: Mapping[str, str],
    values_over_file: Mapping[str, Any] | None = None,
) -> Path:
    """Write params/<name>.yaml, which is the run file with the changes.

    Never overwrite a file that this form did not write.
    """
    name = name.removesuffix(".yaml")
    if not is_name(name):
        raise ParamsError(PhaseMessage.NOT_A_RUN_NAME, name=name)

    settings = params.load(run, overrides=values_over_file, set_words=_set_words(changes))
    this_machine.make_plan_here(settings)
    path = settings.project / "params" / f"{name}.yaml"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(MADE_BY):
        raise ParamsError(PhaseMessage.RUN_FILE_EXISTS, path_name=path.name)

    write_text(path, file_text(settings, name))
    params.load(str(path), project=settings.project, portable=True)
    return path


def file_text(settings: Settings, name: str) -> str:
    """Return the text of the run file with every chosen value.

    Comments, order and unchanged lines are kept.
    """
    values = {"run": name} | _chosen_values(settings) | {"run": name}
    head = f"{MADE_BY}{settings.run.run}; runbook check {name} says whether it still fits.\n"
    path = run_file_of(settings)
    try:
        lines = read_text(path, path.name).splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith(MADE_BY))
        edited = edited_text(text, path.name, values)
        only_renamed = edited_text(text, path.name, values_in(text, path.name) | {"run": name})
        if edited == only_renamed:
            return head + edited
        return head + without_sums(edited, path.name)
    except ParamsError:
        # No file has that name, or its text cannot be edited in place.
        return head + write_tree(nest(values))


def value_as_written(settings: Settings, key: str) -> str:
    """Return a value in the notation used by the user.

    For example, return 00:30:00 for 1800 seconds.
    """
    value = settings.value(key)
    origin = settings.origins[key][-1]
    if isinstance(origin.value, str) and not isinstance(value, str):
        return origin.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return write_scalar(value)
    return str(value)


def _set_words(changes: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def _problems_by_field(problems: Iterable[tuple[str, str]], keys: Iterable[str]) -> dict[str, str]:
    """Return the problems by field.

    Problems with keys that have no field are listed under "", together with the key.
    """
    field_keys = set(keys)
    lines: dict[str, list[str]] = {}
    for key, text in problems:
        if key in field_keys:
            lines.setdefault(key, []).append(text)
        elif key:
            lines.setdefault("", []).append(f"{key}: {text}")
        else:
            lines.setdefault("", []).append(text)

    return {key: "\n".join(texts) for key, texts in lines.items()}


def _field_of(check: Check, changes: Mapping[str, str], keys: Iterable[str]) -> str:
    """Return the field that a broken rule is shown next to, or an empty string if no field fits.

    Prefer a changed field that can fix the rule, then the field changed last, then the first field
    that can fix the rule.
    """
    mending = [key for key in keys if key in check.keys]
    changed = [key for key in mending if key in changes]
    candidates = changed or list(changes)[-1:] or mending
    if not candidates:
        return ""
    return candidates[0]


STEPS: tuple[PhaseStep[Any], ...] = (
    choose,
    show_sizes,
    show_layout,
    show_memory,
    show_time,
    show_storage,
    show_forecast,
    show_what_if,
    show_rehearsal,
    show_scripts,
    finish,
)
