"""`runbook.open`: a run as an object, with data read on demand.

The object gives access to the plan, steps, results, checks, samples and figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.errors import ParamsError
from runbook.core.table import Row, Table
from runbook.display import CheckTable
from runbook.params import Settings
from runbook.params.schema.run_file import phase_name
from runbook.params.yaml12 import write_scalar
from runbook.phases.messages import PhaseMessage
from runbook.phases.training_results import TrainingResults, read_results, sample_rows
from runbook.plan_file.phase_names import FULL, PHASES
from runbook.planning import Plan, plan_tables
from runbook.records.phase_record import find_phase_record
from runbook.records.run_state import read_run
from runbook.results import run_tables
from runbook.results.figures import run_figures
from runbook.results.metrics import history_frame, slow_steps_table
from runbook.runs import this_machine
from runbook.runs.run_files import read_plan_file, tokenizer_of
from runbook.runs.run_folder import runs_folder
from runbook.runs.status import phases_table, run_folder

PARTS = (
    ".plan .history .results .checks .samples .training .slowest_steps() .loss_figure(*other_runs)"
)
SECTIONS = ("training", "parallel", "data", "jobs.training")
"""Sections searched for a key if the caller gives no section."""


class OpenRun:
    """Training in a run, read from its files, which are read again once they have grown."""

    def __init__(self, run: str | Path, phase: str = FULL) -> None:
        self.phase = phase_name(phase)
        try:
            self.folder = run_folder(str(run))
            self._source = str(self.folder / "run.yaml")
        except ParamsError as no_folder:
            # A run file is never a folder, so report why this folder is not a run folder.
            if Path(run).is_dir():
                raise
            try:
                # Even a run that never started has a plan.
                settings = params.load(str(run))
            except ParamsError as no_file:
                raise ParamsError(
                    PhaseMessage.NO_FOLDER_AND_NO_FILE, no_folder=no_folder, no_file=no_file
                ) from None

            self.folder, self._source = runs_folder(settings.project) / settings.name, str(run)

        self.name = self.folder.name

    @cached_property
    def plan(self) -> "OpenPlan":
        """The plan that the run was started with, or its run file's plan if it never started."""
        return open_plan(self._source, self.folder)

    @property
    def training(self) -> TrainingResults:
        """Steps, evaluations, events, results and figures from the training run.

        Raise `RecordError` if no step has finished yet.
        """
        return read_results(self.folder, read_plan_file(self.folder), self.phase)

    @property
    def history(self) -> Any:
        """A pandas DataFrame with one row per step, over all restarts.

        Column names state the units.
        """
        return history_frame(self.training.history)

    @property
    def results(self) -> Table:
        """Training results, with units.

        Each row refers to the log lines that its value was computed from.
        """
        training = self.training
        return run_tables.numbers_table(
            training.summary, title=f"{self.name}: {self.phase}", history=training.history
        )

    @property
    def checks(self) -> CheckTable:
        """The checks in the records for all executed phases.

        Check names begin with the phase.
        """
        checks = []
        for phase in PHASES:
            record = find_phase_record(self.folder, phase)
            if record is None:
                continue
            for check in record.checks:
                checks.append(replace(check, name=f"{record.phase}: {check.name}"))

        return CheckTable(checks)

    @property
    def samples(self) -> Table:
        """The texts generated before the first step and after the last.

        A sample that was not requested has no row.
        """
        plan = read_plan_file(self.folder).phases[self.phase]
        return Table(sample_rows(self.folder, plan, tokenizer_of(self.folder)), "Samples")

    def slowest_steps(self, count: int = 10) -> Table:
        """Return the slowest steps, each with its cause and the evidence for it."""
        training = self.training
        return slow_steps_table(training.history, training.validation, training.events, count=count)

    def loss_figure(self, *others: "OpenRun | str") -> Any:
        """Draw the loss by iteration or, with other runs, by tokens and by time.

        Return a matplotlib figure.
        """
        if not others:
            return self.training.loss_figure(f"Loss of {self.name}")
        runs = [self]
        for run in others:
            if isinstance(run, OpenRun):
                runs.append(run)
            else:
                runs.append(OpenRun(run, self.phase))

        # Runs in two projects may have the same name, so the labels then include their folders.
        names_differ = len({run.name for run in runs}) == len(runs)
        histories = {}
        for run in runs:
            label = run.name if names_differ else str(run.folder)
            histories[label] = run.training.history

        return run_figures.comparison_figure(histories)

    def states(self) -> Table:
        """Return the state and verdict of each phase."""
        rows: Sequence[Row] = ()
        if self.folder.exists():
            rows = phases_table(read_run(self.folder)).rows
        if rows:
            note = f"It has {PARTS}"
        else:
            note = "It was never run, so it has only its .plan."

        return Table(rows, f"Run {self.name}", (str(self.folder), note))

    def __repr__(self) -> str:
        return self.states().as_text()

    def _repr_html_(self) -> str:
        return self.states().as_html()


@dataclass(frozen=True, repr=False)
class OpenPlan:
    """A plan whose parts can be shown as tables.

    `with_` returns a changed plan, and `difference` compares two plans.
    """

    settings: Settings
    # The complete plan as frozen dataclasses
    plan: Plan
    # The run file, or the run.yaml of a run folder
    source: str
    folder: Path
    # Overrides, as for `--set`
    set_words: tuple[str, ...] = ()

    @property
    def memory(self) -> Table:
        """Memory for each component, in GiB, on a rank in the fullest stage.

        The total and the capacity are per device or per node.
        """
        return plan_tables.by_phase(partial(plan_tables.memory_numbers, self.plan), "Memory")

    @property
    def time(self) -> Table:
        """Planned speed and duration for both training runs.

        An empty cell means that the value is unknown; the notes below the table give the reason.
        """
        notes = [f"{phase}: {speed.basis}" for phase, speed in self.plan.time.items()]
        numbers_of_phase = partial(plan_tables.time_numbers, self.plan)
        return plan_tables.by_phase(numbers_of_phase, "Time", *notes)

    @property
    def checks(self) -> CheckTable:
        """Every rule against which the plan was checked."""
        return CheckTable(self.plan.checks)

    def with_(self, *set_words: str, **values: object) -> "OpenPlan":
        """Return the plan with these values changed.

        For example, call `with_(micro_batch=2)` or `with_("training.smoke.micro_batch=2")`.

        Raise `PlanError` if the values break a rule, and `ParamsError` if a key or value does not
        exist. Nothing is written.
        """
        new_words = []
        for key, value in values.items():
            new_words.append(f"{self._full_key(key)}={write_scalar(value)}")

        return open_plan(self.source, self.folder, (*self.set_words, *set_words, *new_words))

    def difference(self, other: "OpenPlan", phase: str = FULL) -> Table:
        """Return the differences between two plans in one phase.

        The comparison covers chosen values, sizes, memory, time and verdicts.
        """
        phase = phase_name(phase)
        own_facts = self._facts(phase)
        other_facts = other._facts(phase)
        rows = []
        for fact in dict.fromkeys((*own_facts, *other_facts)):
            before = own_facts.get(fact)
            after = other_facts.get(fact)
            if before == after:
                continue
            change_percent = None
            if isinstance(before, int | float) and isinstance(after, int | float) and before:
                change_percent = 100 * (after / before - 1)
            rows.append(
                {"what": fact, "before": before, "after": after, "change (%)": change_percent}
            )

        notes = () if rows else (PhaseMessage.NO_DIFFERENCE.fill(),)
        return Table(rows, f"{phase}: {self} against {other}", notes)

    def _facts(self, phase: str) -> dict[str, object]:
        """Return everything that `difference` compares: values, numbers and verdicts."""
        facts: dict[str, object] = dict(self.settings.values())
        facts |= plan_tables.memory_numbers(self.plan, phase)
        facts |= plan_tables.time_numbers(self.plan, phase)
        facts |= {check.name: check.verdict for check in self.plan.checks}
        return facts

    def _full_key(self, key: str) -> str:
        for section in SECTIONS:
            full_key = f"{section}.{key}"
            if full_key in params.all_keys():
                return full_key

        return params.key_meant(key)

    def __str__(self) -> str:
        return ", ".join((self.settings.name, *self.set_words))

    def __repr__(self) -> str:
        return f"{self}\n{plan_tables.summary_table(self.plan).as_text()}"

    def _repr_html_(self) -> str:
        return plan_tables.summary_table(self.plan).as_html()


def open_plan(source: str, folder: Path, set_words: tuple[str, ...] = ()) -> OpenPlan:
    """Return the plan for a run file with these `--set` arguments.

    Without arguments, return the plan in the run folder.
    """
    settings = params.load(source, set_words=set_words)
    if not set_words and (folder / "plan.json").exists():
        return OpenPlan(settings, read_plan_file(folder), source, folder)
    plan = this_machine.make_plan_here(settings, this_machine.calibrations_of_run(settings, folder))
    return OpenPlan(
        settings,
        plan,
        source,
        folder,
        set_words,
    )
