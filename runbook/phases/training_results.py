"""Results from training for tables, figures and checks, and how they compare with the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from runbook.core import quantities
from runbook.core.checks import counted
from runbook.core.files import read_lines
from runbook.core.table import Row, Table
from runbook.core.units import show_count, show_device_hours, show_duration, show_quantity
from runbook.display import View
from runbook.params import Settings
from runbook.phases.steps import step
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.time_and_money import Speed
from runbook.planning.make_plan import Plan
from runbook.records.session import Session
from runbook.results import plan_versus_actual as versus
from runbook.results import wall_time
from runbook.results.devices_in_use import device_seconds, devices_table, spans_text
from runbook.results.figures import run_figures
from runbook.results.history import (
    Event,
    History,
    ValidationLoss,
    events_named,
    read_events,
    read_metrics,
    read_validation,
)
from runbook.results.metrics import WARM_UP_RULE, Summary, summarize
from runbook.results.wall_time import Rates, WallTime, account_wall_time
from runbook.runs.planned_run import PlannedRun
from runbook.tokens.tokenizer import load_tokenizer

RECORDED = (
    *(
        "world_size",
        "iterations",
        "first_loss",
        "last_loss",
        "tokens_per_second",
        "seconds_per_iteration",
    ),
    *("tflops_per_device", "tflops_convention", "validation_loss", "segments"),
)
"""Which summary values the record for a phase contains, by name."""


@dataclass(frozen=True)
class TrainingResults:
    """A training phase, finished or running, read from its files."""

    phase: str
    phase_plan: PhasePlan
    planned: Speed
    """The time estimates in plan.json."""
    promised: Mapping[str, Any]
    """All values predicted by the plan, under the names of the measured values."""
    history: History
    validation: tuple[ValidationLoss, ...]
    events: tuple[Event, ...]

    @cached_property
    def summary(self) -> Summary:
        """Training results, without the warm-up."""
        length = self.phase_plan.model.shape.sequence_length
        return summarize(self.history, sequence_length=length, validation=self.validation)

    @cached_property
    def account(self) -> WallTime | None:
        """How wall time was spent in all jobs.

        All tables use this account. It is None before the first step.
        """
        return account_wall_time(self.history, self.validation, self.events)

    def loss_figure(self, title: str = "") -> Any:
        """Draw the loss over all restarts, with ln(vocabulary) as a line.

        Like the other figures, it is a matplotlib figure.
        """
        vocabulary = self.phase_plan.model.shape.vocabulary
        title = title or f"Loss of {self.phase}"
        return run_figures.loss_figure(
            self.history,
            self.validation,
            vocabulary=vocabulary,
            title=title,
        )

    def throughput_figure(self) -> Any:
        """Draw tokens per second over time, with the planned value as a line."""
        length = self.phase_plan.model.shape.sequence_length
        planned = self.planned
        title = f"Throughput of {self.phase}"
        return run_figures.throughput_figure(
            self.history,
            sequence_length=length,
            planned_tokens_per_second=planned.tokens_per_second,
            title=title,
        )

    def step_time_figure(self) -> Any:
        """Draw the parts of each step, with the planned time as a line."""
        return run_figures.step_time_figure(
            self.history, planned_seconds=self.planned.seconds_per_iteration
        )

    def timeline_figure(self) -> Any:
        """Draw when the run trained, waited for data, evaluated and saved."""
        happened = (self.history, self.validation, self.events)
        return run_figures.timeline_figure(*happened, planned_seconds=self.planned.seconds)

    def results(self) -> dict[str, object]:
        """The results contained in the record for every training phase."""
        model = self.phase_plan.model
        planned = {"parameters": model.parameters, "sequence_length": model.shape.sequence_length}
        measured = {key: rounded(getattr(self.summary, key)) for key in RECORDED}
        results = {
            **planned,
            **measured,
            **_environment_results(self.events),
            "warm_up_rule": WARM_UP_RULE,
        }
        spans = spans_text(self.history)
        if spans:
            results["devices_in_use"] = spans
        return results


def _environment_results(events: Sequence[Event]) -> dict[str, object]:
    """Return on how many nodes in the newest job Python ran from a local copy.

    Return an empty dict if no copy was requested.
    """
    copied = events_named(events, "environment_copied")
    if not copied:
        return {}
    newest = copied[-1]
    return {
        "environment_nodes": newest.nodes,
        "environment_copies": newest.nodes_with_copy,
        "environment_folder": newest.folder,
        "environment_copy_seconds": newest.seconds,
    }


def read_results(folder: Path, plan: Plan, phase: str) -> TrainingResults:
    """Return the results from one training phase in a run folder."""
    phase_plan = plan.phases[phase]
    log = phase_plan.log
    metrics = folder / log.metrics
    state = metrics.stat() if metrics.exists() else None
    return TrainingResults(
        phase,
        phase_plan,
        plan.time[phase],
        versus.planned_numbers(plan, phase),
        replace(
            _read_history(metrics, state and (state.st_mtime_ns, state.st_size)),
            source=log.metrics,
            alarm_settings=log.alarms,
        ),
        read_validation(folder / log.validation),
        read_events(folder / log.events, phase),
    )


@lru_cache(maxsize=2)
def _read_history(path: Path, state: tuple[int, int] | None) -> History:
    """Return the steps in a file.

    All sections in a notebook need them, so the file is read again only if it has changed.
    """
    return read_metrics(path)


def rounded(value: Any) -> Any:
    """Round a measured number to seven digits.

    Seven digits are more accurate than the measurement, and then every form of the record shows the
    same number.

    >>> rounded(10.859001234), rounded(64633856), rounded("megatron-full")
    (10.859, 64633856, 'megatron-full')
    """
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}")


def loss_view(run: PlannedRun, phases: Sequence[str]) -> View:
    """Return the loss curve for each named phase, over all restarts.

    The curve is drawn with ln(vocabulary) as a line, and described as text.
    """
    view = View()
    for phase in phases:
        trained = read_results(run.folder, run.plan, phase)
        summary = trained.summary
        caption = (
            f"{phase}: loss {summary.first_loss:.4g} at iteration {summary.first_iteration}, "
            f"{summary.last_loss:.4g} at {summary.last_iteration}; lowest "
            f"{summary.lowest_loss:.4g}."
        )
        view.append((trained.loss_figure(), caption))

    return view


@step(takes=lambda opened: (opened.run, opened.phase))
def show_loss(run: PlannedRun, phase: str) -> View:
    """Show the loss curve for the open phase over all restarts, and describe it as text."""
    return loss_view(run, [phase])


@step(takes=lambda opened: (opened.run, opened.phase, opened.session))
def show_account(run: PlannedRun, phase: str, session: Session) -> View:
    """Show how wall time was spent in the open phase, and add its goodput to the results."""
    training = read_results(run.folder, run.plan, phase)
    account = training.account
    if account:
        session.add_results(
            {
                "goodput": rounded(account.goodput or 0),
                "lost_steps": account.lost_steps,
                "jobs": account.jobs,
            }
        )

    return account_view(training)


def account_view(training: TrainingResults) -> View:
    """Return the time account for a phase as a figure and a table.

    The table lists each interruption and the idle times.
    """
    account = training.account
    if account is None:
        return View([f"{training.phase} has not completed a step yet."])
    caption = (
        f"{account.goodput or 0:.1%} of {show_duration(account.wall_seconds)} were productive "
        f"steps, over "
        f"{counted(account.jobs, 'job')}; {counted(account.lost_steps, 'step')} done again, "
        f"{counted(account.missing_steps, 'step')} missing."
    )
    title = f"Where the wall time of {training.phase} went"
    view = View(
        [
            (run_figures.goodput_figure(account, title), caption),
            wall_time.wall_time_table(account, title),
        ]
    )
    if spans_text(training.history):
        length = training.phase_plan.model.shape.sequence_length
        view.append(devices_table(training.history, sequence_length=length))

    if account.interruptions:
        view.append(wall_time.interruptions_table(account, f"Interruptions of {training.phase}"))
    stalls = wall_time.stalls_table(
        training.validation, training.events, wall_seconds=account.wall_seconds
    )
    return View([*view, stalls])


def sample_rows(folder: Path, phase_plan: PhasePlan, tokenizer: str) -> list[Row]:
    """Return a row for each sample: its iteration, the prompt and the continuation.

    A line in a different format is skipped, because the trainer did not write it. `runbook verify`
    reports the edited file.
    """
    newest_lines = {}
    for line in filter(_is_sample, read_lines(folder / phase_plan.log.samples)):
        newest_lines[line["iteration"]] = line
    rows: list[Row] = []
    for iteration, line in sorted(newest_lines.items()):
        rows.append(
            {
                "after iteration": iteration,
                "prompt": load_tokenizer(tokenizer).decode(line["prompt_ids"]),
                "continuation": load_tokenizer(tokenizer).decode(line["ids"]),
            }
        )

    return rows


def _is_sample(row: Mapping[str, object]) -> bool:
    """Return whether a line has an iteration and two lists of tokens."""
    for key in ("prompt_ids", "ids"):
        ids = row.get(key)
        if not isinstance(ids, list) or not all(map(_is_token, ids)):
            return False

    iteration = row.get("iteration")
    return type(iteration) is int and iteration >= 0


def _is_token(value: object) -> bool:
    # Do not use isinstance here: it counts True as an int.
    return type(value) is int and 0 <= value < 2**31


def headline(training: TrainingResults, rates: Rates) -> list[tuple[str, str, str]]:
    """Return the main results from training: name, value, and a number to compare with.

    Return an empty list before the first step.
    """
    summary = training.summary
    planned = training.planned
    model = training.phase_plan.model
    account = training.account
    speed = summary.tokens_per_second
    seconds = planned.seconds
    if not speed or account is None or summary.last_loss is None:
        return []
    beside = (
        f"from {summary.first_loss:.4g}; untrained "
        f"{training.promised['first loss (nat/token)']:.4g}"
    )
    validation = ""
    if summary.validation_loss:
        validation = f"; validation {summary.validation_loss:.4g}"
    if planned.tokens_per_second:
        of_plan = f"{speed / planned.tokens_per_second:.0%} of the plan; "
    else:
        of_plan = ""

    per_device = f"{show_quantity('', speed / summary.world_size)} per device"
    is_finished = summary.last_iteration >= training.phase_plan.duration.iterations
    if seconds and is_finished:
        against = f"{account.wall_seconds / seconds:.3g} x the planned {show_duration(seconds)}; "
    else:
        against = ""

    hours, _, _, money = (row for row in wall_time.cost_table(summary, account, rates))
    spent = show_device_hours(hours["value"])
    price = money["value"]
    if price is not None:
        cost = (f"{price:.4g} {money['unit']}", spent)
    else:
        cost = (spent, "no price is known")

    steps = counted(summary.last_iteration, "step")
    if not is_finished:
        planned_steps = counted(training.phase_plan.duration.iterations, "step")
        steps = f"{summary.last_iteration:,} of {planned_steps}"
    tokens = f"{summary.consumed_tokens:,} tokens in {steps}"
    devices = spans_text(training.history) or counted(summary.world_size, "device")
    happened = {
        "checkpoint": len(events_named(training.events, "saved")),
        "evaluation": len(training.validation),
        "loss spike": len(summary.spikes),
        "skipped step": summary.skipped,
    }
    return [
        ("Loss", f"{summary.last_loss:.4g}", beside + validation),
        ("Speed", f"{show_quantity('', speed)} tokens/s", of_plan + per_device),
        (
            "Time",
            show_duration(account.wall_seconds),
            f"{against}{account.goodput or 0:.0%} of it in steps that count",
        ),
        ("Cost", *cost),
        (
            "Model",
            show_count(model.parameters),
            f"parameters on {devices}; {tokens}",
        ),
        (
            "What happened",
            _restarts_text(training),
            ", ".join(counted(number, kind) for kind, number in happened.items()),
        ),
    ]


def _restarts_text(training: TrainingResults) -> str:
    """Return how many restarts there were, and how many of them training.rehearse_stop planned."""
    restarts = training.history.num_segments - 1
    text = counted(restarts, "restart")
    num_planned = sum(event.planned for event in events_named(training.events, "ended"))
    if not restarts or not num_planned:
        return text
    if num_planned >= restarts:
        return f"{text}, planned"
    return f"{text}, {num_planned} planned"


EXPLAINED_DIFFERENCE = 0.05
"""Relative difference from the plan above which a measured number is explained."""


def plan_versus_actual(training: TrainingResults) -> Table:
    """Return a table with planned and measured values for a training phase.

    A large difference is explained.
    """
    planned = {}
    for name, value in training.promised.items():
        if value is not None:
            planned[name] = value

    actual = versus.actual_numbers(training.summary, training.account)
    if training.account and quantities.USEFUL_TIME in planned:
        held_seconds = training.account.wall_seconds - training.account.waiting_seconds
        productive = training.account.parts["productive"]
        if training.account.devices_of_job:
            # A job may also hold nodes on which it does not train.
            productive = device_seconds(training.history.steps) / training.account.devices_of_job

        actual[quantities.USEFUL_TIME] = 100 * productive / held_seconds if held_seconds else None

    memory = (
        "measured: the fullest process's peak, including saves and evaluations; the plan "
        "is for the steps"
    )
    reasons = {
        quantities.STEP_TIME: _step_reason(training),
        quantities.THROUGHPUT: _step_reason(training),
        "wall time (s)": _wall_reason(training),
        quantities.PROCESS_MEMORY: memory,
    }
    reasons_needed = {}
    for name, reason in reasons.items():
        promised = planned.get(name)
        measured = actual.get(name)
        if promised and measured and abs(measured / promised - 1) > EXPLAINED_DIFFERENCE:
            reasons_needed[name] = reason

    return versus.plan_versus_actual(planned, actual, reasons_needed)


def _step_reason(training: TrainingResults) -> str:
    summary = training.summary
    parts = []
    if training.planned.basis:
        parts.append(f"plan: {training.planned.basis}")
    if summary.data_wait_share is not None and summary.data_wait_share >= 0.01:
        parts.append(f"{summary.data_wait_share:.0%} of a step is spent waiting for data")
    low = summary.seconds_low
    high = summary.seconds_high
    if low and high and high > 1.3 * low:
        parts.append(
            f"uneven: 80 % of the steps take {low:.3g} to {high:.3g} s, as on a machine shared "
            "with others"
        )

    parts.append("warm-up left out")
    return "; ".join(parts)


def _wall_reason(training: TrainingResults) -> str:
    so_far = ""
    planned = training.phase_plan.duration.iterations
    if training.summary.last_iteration < planned:
        last = training.summary.last_iteration
        so_far = f"not finished, {last:,} of {counted(planned, 'step')}; "

    seconds_of_parts: Mapping[str, float] = {}
    if training.account:
        seconds_of_parts = training.account.parts
    wall_seconds = sum(seconds_of_parts.values()) or 1.0
    shares = []
    for name, seconds in seconds_of_parts.items():
        share = seconds / wall_seconds
        if name != "productive" and share >= 0.02:
            shares.append((name, share))

    if not shares:
        return f"{so_far}the steps themselves: see step time"
    shares.sort(key=lambda pair: -pair[1])
    share_texts = ", ".join(f"{name} {share:.0%}" for name, share in shares)
    return f"{so_far}of the wall time: {share_texts}"


def device_rates(settings: Settings, phase: str = FULL) -> Rates:
    """Return price and power for a device, if the run, the site or a datasheet states them."""
    site = settings.site
    device = find_accelerator(site.hardware.device)
    job = settings.job(phase)
    return Rates(
        price_per_device_hour=settings.run.jobs.price_per_device_hour or site.price_per_device_hour,
        currency=site.currency,
        watts_per_device=device.power_watts if device else None,
        watts_source="the datasheet's board power, an upper limit",
        held_devices=1 + job.spares / job.nodes,
    )
