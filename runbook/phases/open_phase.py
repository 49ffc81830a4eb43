"""A run that is open for one phase: its parameters, plan, folder and record."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runbook import params
from runbook.core.errors import ParamsError
from runbook.core.table import Row
from runbook.display import show_table, show_text
from runbook.display.output_place import SERVER_VARIABLE, Place, where_we_are
from runbook.params import Settings
from runbook.params.layers import GIVEN_BEFORE
from runbook.params.parameters_cell import refuse_edits_below_papermill
from runbook.params.project import remember_project, shown_path
from runbook.params.yaml12 import read_file
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import refuse_changed_results
from runbook.plan_file.json_records import as_json
from runbook.plan_file.phase_names import SMOKE
from runbook.plan_file.schema import PhasePlan
from runbook.planning import Plan
from runbook.records import session as sessions
from runbook.runs import run_files, this_machine
from runbook.runs.planned_run import PlannedRun, PlannedTraining
from runbook.runs.run_folder import hold_run, runs_folder


@dataclass
class OpenPhase:
    """A run that is open for one phase. Each step takes the parts that it needs."""

    settings: Settings
    phase: str
    folder: Path
    plan: Plan
    session: sessions.Session

    @property
    def run(self) -> PlannedRun:
        """The run without its record and phase."""
        return PlannedRun(self.settings, self.plan, self.folder)

    @property
    def phase_plan(self) -> PhasePlan:
        """Trainer inputs for this phase."""
        return self.plan.phases[self.phase]

    @property
    def training(self) -> PlannedTraining:
        """The training run in this phase. Only phases that train have one."""
        return self.run.training(self.phase)


def bind_phase(phase: str, namespace: Mapping[str, object]) -> OpenPhase:
    """Check notebook parameters, compute the plan, open the record, and show the parameters.

    Overrides from earlier calls for this run stay in force unless they are set again. Nothing is
    written if a value is invalid, if values do not fit together, or if the run folder was made
    with other parameters.
    """
    settings = with_values_given_before(partial(params.bind, namespace), show_text)
    refuse_record_of_other_run(settings)
    remember_project(settings.project)
    if where_we_are() is not Place.BROWSER:
        refuse_edits_below_papermill(namespace, f"notebooks/{phase}.ipynb")
    open_phase = open_run_phase(settings, phase)
    show_table(
        summary_rows(open_phase.run, phase), title=PhaseMessage.WHAT_IS_BOUND.fill(phase=phase)
    )
    return open_phase


def refuse_record_of_other_run(settings: Settings) -> None:
    """Raise an error if this notebook is a copy that another run executed.

    An executed copy has two parameters cells. With the first alone, which has the defaults, its
    cells would show a different run than its saved outputs.
    """
    notebook = Path(os.environ.get(SERVER_VARIABLE, ""))
    folder = notebook.parent.parent
    is_record = notebook.parent.name == "records" and (folder / "run.yaml").exists()
    bound_folder = runs_folder(settings.project) / settings.name
    if is_record and folder.resolve() != bound_folder.resolve():
        raise ParamsError(
            PhaseMessage.RECORD_OF_OTHER_RUN, recorded=folder.name, bound=settings.name
        )


def binder(phase: str) -> Callable[[Mapping[str, object]], OpenPhase]:
    """Return the function that a phase notebook calls first.

    The function shows only the usual run summary.
    """
    return partial(bind_phase, phase)


def with_values_given_before(load: Callable[..., Settings], say: Callable[[str], None]) -> Settings:
    """Return the run values, and print those that the user set for the folder."""
    settings = load()
    path = runs_folder(settings.project) / settings.name / run_files.OVERRIDES
    if not path.exists():
        return settings
    settings = load(before=read_file(path, shown_path(path, settings.project)))
    values = run_files.given_by_hand(settings, [GIVEN_BEFORE])
    if values:
        values_text = ", ".join(f"{key}={value}" for key, value in values.items())
        say(
            PhaseMessage.KEPT_OVERRIDES.fill(
                run=settings.name, file=run_files.OVERRIDES, values=values_text
            )
        )

    return settings


def open_run_phase(settings: Settings, phase: str) -> OpenPhase:
    """Open the run folder with its run.yaml and plan.json; create it if it does not exist.

    Raise an error if these files do not match the run, or if another process is working on the run,
    because opening a phase moves its newest record to the history.
    """
    folder = runs_folder(settings.project) / settings.name
    plan = this_machine.make_plan_here(settings, this_machine.calibrations_of_run(settings, folder))
    refuse_other_parameters(settings, folder)
    refuse_changed_results(PlannedRun(settings, plan, folder), phase)
    with hold_run(folder, f"opening {phase}"):
        run_files.write_plan_file(settings, plan, folder)
        run_files.write_overrides(settings, folder)
        session = sessions.start(settings, phase, folder)

    session.plan["parameters"] = plan.model.parameters
    if phase in plan.phases:
        session.plan |= _promises(plan, phase)
    return OpenPhase(
        settings,
        phase,
        folder,
        plan,
        session,
    )


def _promises(plan: Plan, phase: str) -> dict[str, object]:
    """Return what the plan predicts for training, which the record shows next to the results."""
    phase_plan = plan.phases[phase]
    promises: dict[str, object] = {
        "parameters": phase_plan.model.parameters,
        "sequence_length": phase_plan.model.shape.sequence_length,
        "world_size": phase_plan.parallel.world_size,
        "iterations": phase_plan.duration.iterations,
        "global_batch": phase_plan.batch.global_,
    }
    for name, value in as_json(plan.time[phase]).items():
        if name != "parts":
            promises[name] = value

    return promises


_GOES_ON = (
    "training.iterations",
    "training.samples",
    "training.tokens",
    "training.micro_batch",
    "parallel.",
)
"""Keys for the length and layout of a training run.

`continuation.why_continued` decides whether a training run continues with changed values.
"""


def refuse_other_parameters(settings: Settings, folder: Path) -> None:
    """Raise an error if the folder was made with different values.

    The error names each value, and where the new value is set.
    """
    changed = run_files.changed_values(folder, settings)
    if not changed:
        return
    changes = []
    from_a_cell = False
    for key, old, new in changed:
        origin_text = ""
        if key in settings.origins:
            origin = settings.origins[key][-1]
            origin_text = f" ({origin.where})"
            if origin.layer == "notebook":
                from_a_cell = True
                origin_text = f' (cell "parameters", {origin.where.removeprefix("notebook ")})'

        changes.append(
            PhaseMessage.VALUE_CHANGED.fill(key=key, old=old, new=new, origin=origin_text)
        )

    remedies = ""
    if from_a_cell:
        remedies = PhaseMessage.PUT_CELL_BACK.fill()

    remedies += PhaseMessage.KEEP_BOTH_OR_DO_AGAIN.fill(run=settings.run.run)
    if all(key.startswith(_GOES_ON) for key, _, _ in changed):
        remedies += PhaseMessage.LONGER_TRAINING_GOES_ON.fill()

    raise ParamsError(
        PhaseMessage.FOLDER_OF_OTHER_VALUES,
        folder=folder,
        changes="".join(changes),
        remedies=remedies,
    )


def summary_rows(run: PlannedRun, phase: str) -> list[Row]:
    """Return a few rows about the run, with the values that a user checks before continuing."""
    settings = run.settings
    computes_on = run.plan.computes_on
    model = settings.model
    name = settings.run.model
    if phase == SMOKE:
        model = settings.smoke_model
        name = settings.smoke_model_name

    devices = computes_on.device
    if devices == "cpu":
        devices = "CPU, GPUs hidden, processes"
    data_row = ("data", f"{settings.run.data.dataset}: {settings.dataset.title}", "data.dataset")
    if settings.blend:
        total_weight = sum(text.weight for text in settings.blend)
        shares = [
            PhaseMessage.SHARES_OF_BLEND.fill(share=text.weight / total_weight, text=text.name)
            for text in settings.blend
        ]
        data_row = ("data", ", ".join(shares), "data.blend")

    training = settings.run.training
    rows = [
        ("run", settings.name, "run"),
        ("site", f"{settings.site.site}: {settings.site.title}", "site"),
        (
            "computes on",
            f"{devices}: {computes_on.devices_per_node} a node ({computes_on.source})",
            "site",
        ),
        ("model", f'{name} ("{model.label}"): {model.layers} layers x {model.hidden}', "model"),
        data_row,
        ("engine", f"{training.engine}, {training.precision}", "training.engine"),
    ]
    origins = settings.parameters()
    summary: list[Row] = []
    for label, value, key in rows:
        origin = origins.get(key, {}).get("origin", "built-in")
        summary.append({"what": label, "value": value, "from": origin})

    return summary
