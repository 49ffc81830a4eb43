"""Plans a ladder: its rungs and their cost.

The rungs fit a budget. They are stored in ladder.json before the first of them is trained.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from runbook.core.errors import ParamsError, RecordError
from runbook.core.files import read_json_record, utc_now, write_text
from runbook.core.table import Table
from runbook.core.units import show_count, show_device_hours, show_duration
from runbook.params import Settings
from runbook.params.schema.run_file import OPTIMIZER_KEYS
from runbook.phases.ladder.rungs import (
    FEWEST_STEPS,
    LARGEST_SHARE,
    Family,
    LadderRung,
    design_rungs,
    short_rungs,
)
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_plan
from runbook.plan_file.phase_names import FULL
from runbook.planning import Plan
from runbook.planning.sizes import padded_vocabulary
from runbook.runs.run_folder import runs_folder

LADDER_FILE = "ladder.json"
DEFAULT_SHARE = 0.01
"""Share of the device-hours for the run that is used if no budget is set."""
DEFAULT_SECONDS = 600.0
"""Smallest default budget, so that even the ladder for a small run gets some time."""
START_SECONDS = 8.0
"""Time a rung needs to start the trainer, check the results and write records.

This takes 8 s of processor time on two cores, with both ranks working at once for 5 s (AMD EPYC,
Zen 4, 2026-11-28). With notebooks it took 40 to 50 s.
"""
FIRST_RUNG_SECONDS = 12.0
"""Additional time for the first rung, which imports torch and tokenizes a small text."""
BUDGET_ROUNDS = 4
CLOSE_ENOUGH = 1.02


@dataclass(frozen=True)
class PlannedRung:
    """A rung with its planned time, which is None if the plan has no estimate."""

    rung: LadderRung
    name: str
    """Run name for the rung, as set by `--as`."""
    seconds: float | None = None
    device_hours: float | None = None
    cost: float | None = None
    is_measured: bool = False
    """Whether a smoke test on this machine has timed a similar step."""
    measured_seconds: float | None = None
    """Wall time spent training the rung over all calls.

    None if the rung is not trained or its time is unknown.
    """

    @property
    def start_seconds(self) -> float:
        """Planned wall time in addition to the steps."""
        if self.rung.number == 1:
            return START_SECONDS + FIRST_RUNG_SECONDS
        return START_SECONDS


@dataclass(frozen=True)
class Ladder:
    """The rungs used to forecast the loss of one run."""

    run: str
    """The run as given to `runbook run`: a name, or RUN:VARIANT."""
    name: str
    """Prefix for rung names."""
    set_words: tuple[str, ...]
    family: dict[str, object]
    """Values that must be equal for losses to be comparable, by key; see `family_values`."""
    parameters: int
    tokens: int
    flops: float
    rungs: tuple[PlannedRung, ...]
    designed: str = ""
    schema: int = 1
    budget_device_hours: float | None = None
    """The requested budget. 0 if none was requested, and None if an earlier version did not record
    it.
    """
    notes: tuple[str, ...] = field(default=())
    spent_seconds: float = 0.0
    """Wall time on this machine that all calls have used so far."""
    planned_flops: float = 0.0
    """Compute for the largest rung as first planned; 0 if the rungs were never resized."""

    @property
    def seconds(self) -> float | None:
        """Return the planned total time for all rungs, including start-up.

        Return None if the time for a rung is unknown.
        """
        times = [rung.seconds for rung in self.rungs]
        known_times = [seconds for seconds in times if seconds is not None]
        if len(known_times) < len(times):
            return None
        return sum(known_times) + starts_seconds(len(known_times))

    @property
    def device_hours(self) -> float | None:
        """Return the planned device-hours for all rungs, including start-up."""
        hours = []
        for rung in self.rungs:
            if rung.device_hours is not None:
                hours.append(rung.device_hours)

        seconds = [rung.seconds for rung in self.rungs if rung.seconds]
        if len(hours) < len(self.rungs) or not seconds:
            return None
        devices = sum(hours) * 3600 / sum(seconds)
        return sum(hours) + devices * starts_seconds(len(hours)) / 3600


def starts_seconds(count: int) -> float:
    """Return the wall time planned to start this many rungs."""
    return START_SECONDS * count + FIRST_RUNG_SECONDS


def plan_ladder(
    run: str,
    set_words: Sequence[str],
    *,
    name: str = "ladder",
    count: int = 5,
    budget_seconds: float = 0.0,
    budget_device_hours: float = 0.0,
    measure_core: Callable[[Settings], float] | None = None,
) -> Ladder:
    """Return the ladder that the budget for a run allows. Nothing is written.

    The default budget is 1% of the device-hours for the run, but at least ten minutes.
    `measure_core` is used to measure core speed, for rungs whose steps no smoke test has timed.
    """
    settings, plan = load_plan(run, set_words, measured=True)
    framework = settings.run.training.framework
    if framework != "runbook":
        raise ParamsError(PhaseMessage.LADDER_NEEDS_OUR_TRAINER, framework=framework)

    family = family_of(settings, plan)
    prefix = f"{settings.variant}-{name}" if settings.variant else name
    ladder = Ladder(
        run=run,
        name=prefix,
        set_words=tuple(set_words),
        family=family_values(settings, plan),
        parameters=family.parameters,
        tokens=family.tokens,
        flops=family.flops,
        rungs=(),
        budget_device_hours=budget_device_hours or budget_seconds * family.devices / 3600,
    )
    hours = ladder.budget_device_hours
    if not hours:
        own_hours = plan.time[FULL].device_hours or 0.0
        hours = max(DEFAULT_SHARE * own_hours, DEFAULT_SECONDS * family.devices / 3600)

    core_flops = measure_core(settings) if measure_core else 0.0
    fitted = _fit_budget(ladder, family, count, hours, core_flops)
    is_on_this_cpu = settings.site.hardware.device == "cpu" and settings.site.scheduler == "local"
    is_measured = all(planned.is_measured for planned in fitted.rungs)
    if not is_on_this_cpu or is_measured:
        return fitted
    note = PhaseMessage.LADDER_TIMES_NOT_MEASURED.fill()
    if core_flops:
        note = PhaseMessage.LADDER_TIMES_BY_A_CORE.fill(gflops=core_flops / 1e9)
    return replace(fitted, notes=(note, *fitted.notes))


def _fit_budget(
    ladder: Ladder,
    family: Family,
    count: int,
    hours: float,
    core_flops: float,
) -> Ladder:
    """Return the ladder whose rungs use this many device-hours.

    The rungs use fewer device-hours if the largest one would otherwise exceed a quarter of the
    compute for the run.
    """
    most_flops = LARGEST_SHARE * family.flops
    start_hours = starts_seconds(count) * family.devices / 3600
    if hours <= start_hours:
        raise ParamsError(
            PhaseMessage.BUDGET_USED_BY_STARTS,
            hours=show_device_hours(hours),
            count=count,
            start_seconds=starts_seconds(count),
            devices=family.devices,
            start_hours=show_device_hours(start_hours),
        )

    largest = most_flops
    for _ in range(BUDGET_ROUNDS):
        designed = design_rungs(family, count, largest)
        planned = tuple(_planned(ladder, rung, core_flops) for rung in designed)
        fitted = replace(ladder, rungs=planned)
        used = fitted.device_hours
        if used is None:
            return _without_times(ladder, family, count)
        ratio = (hours - start_hours) / (used - start_hours)
        if 1 <= ratio <= CLOSE_ENOUGH or (ratio > 1 and largest == most_flops):
            break
        # Aiming below the budget leaves room for whole steps and for widths in coarse units.
        largest = min(most_flops, largest * ratio / math.sqrt(CLOSE_ENOUGH))

    return replace(fitted, notes=notes_of(designed))


def _without_times(ladder: Ladder, family: Family, count: int) -> Ladder:
    """Return a ladder that needs about 1% of the compute for the run.

    It is used if the plan has no step-time estimate.
    """
    designed = design_rungs(family, count, DEFAULT_SHARE / 2 * family.flops)
    note = (
        "The plan has no estimate of the step time on this site: the rungs take 1% of "
        "the run's compute."
    )
    planned = tuple(_planned(ladder, rung) for rung in designed)
    return replace(ladder, rungs=planned, notes=(note, *notes_of(designed)))


def notes_of(rungs: Sequence[LadderRung]) -> tuple[str, ...]:
    """Return notes about these rungs for the user."""
    short = short_rungs(list(rungs))
    if not short:
        return ()
    numbers = ", ".join(f"{rung.number} ({rung.iterations} steps)" for rung in short)
    return (
        f"Rungs {numbers} have fewer than {FEWEST_STEPS} steps: the loss of such a short training "
        "run depends on its steps, not its tokens. Set a larger budget, or a smaller "
        "training.global_batch.",
    )


def _planned(ladder: Ladder, rung: LadderRung, core_flops: float = 0.0) -> PlannedRung:
    set_words = [*ladder.set_words, *rung.words()]
    _, plan = load_plan(ladder.run, set_words, measured=True)
    is_measured = plan.calibration[FULL] is not None
    # The step time in a smoke test already reflects how fast the cores are.
    if core_flops and not is_measured:
        _, plan = load_plan(ladder.run, set_words, core_flops=core_flops)
    time = plan.time[FULL]
    name = f"{ladder.name}-{rung.number}"
    return PlannedRung(
        rung,
        name,
        time.seconds,
        time.device_hours,
        time.cost,
        is_measured,
    )


def family_of(settings: Settings, plan: Plan) -> Family:
    """Return the values in the run from which its rungs are derived."""
    phase = plan.phases[FULL]
    # Rungs use no tensor parallelism, so their vocabulary is padded for one rank.
    vocabulary = padded_vocabulary(phase.model.shape.vocabulary, 1)
    evaluates = phase.evaluation.interval > 0
    return Family(
        shape=replace(phase.model.shape, padded_vocabulary=vocabulary),
        samples=phase.duration.samples,
        global_batch=phase.batch.global_,
        micro_batch=phase.batch.micro,
        rate=phase.learning_rate,
        init_std=phase.model.init_std,
        devices=settings.job(FULL).devices_per_node,
        evaluated_samples=phase.evaluation.iterations * phase.batch.global_ if evaluates else 0,
    )


DATA_KEYS = (
    "data.dataset",
    "data.blend",
    "data.folder",
    "data.tokenizer",
    "data.split",
    "data.held_out",
    "data.keep_sources",
    "data.drop_sources",
    "data.append_eod",
    "training.sequence_length",
)
"""Keys whose values must be equal so that losses from two training runs can be compared."""
RECIPE_KEYS = (
    "training.schedule",
    "training.wsd_decay_fraction",
    "training.wsd_decay_style",
    "training.precision",
    "training.fp8",
    "training.dropout",
    *OPTIMIZER_KEYS,
)
"""Keys that, if changed, shift the losses at all sizes by an unknown amount."""


def family_values(settings: Settings, plan: Plan) -> dict[str, object]:
    """Return the values that must be equal for two training runs' losses to be comparable."""
    phase = plan.phases[FULL]
    rate = phase.learning_rate
    samples = phase.duration.samples
    values = {key: settings.value(key) for key in (*DATA_KEYS, *RECIPE_KEYS)}
    values["vocabulary"] = phase.model.shape.vocabulary
    values["warm-up (share of the steps)"] = round(rate.warmup_samples / samples, 3)
    values["decay (share of the steps)"] = round(rate.decay_samples / samples, 3)
    values["last learning rate (share of the peak)"] = round(rate.minimum / rate.peak, 4)
    return values


def ladder_folder(settings: Settings, name: str) -> Path:
    """Return the folder for files about the ladder itself, next to the rung folders."""
    return runs_folder(settings.project) / f"{settings.run.run}--{name}"


def read_ladder(folder: Path) -> Ladder | None:
    """Return the ladder started in this folder, or None if there is none."""
    remedy = "Delete it. The ladder is then designed again, and finished rungs are kept."
    return read_json_record(folder / LADDER_FILE, Ladder, "a ladder", remedy)


def write_ladder(ladder: Ladder, folder: Path) -> Ladder:
    """Save a ladder, so that a later call knows its rungs and how much time has been used."""
    dated = replace(ladder, designed=ladder.designed or utc_now())
    text = json.dumps(asdict(dated), indent=1) + "\n"
    write_text(folder / LADDER_FILE, text, error=RecordError)
    return dated


def plan_table(ladder: Ladder) -> Table:
    """Return the rungs with their costs. The last row is the run itself."""
    rows = [_row(planned) for planned in ladder.rungs]
    rows.append(
        {
            "rung": "the run",
            "parameters": show_count(ladder.parameters),
            "tokens": show_count(ladder.tokens),
            "FLOPs": f"{ladder.flops:.2e}",
        }
    )
    largest = max(planned.rung.flops for planned in ladder.rungs)
    seconds = ladder.seconds
    hours = ladder.device_hours
    time = "not known" if seconds is None else show_duration(seconds)
    device_hours = "not known" if hours is None else show_device_hours(hours)
    notes = [
        f"All rungs one after the other: {time} ({device_hours}), of which "
        f"{starts_seconds(len(ladder.rungs)):.0f} s are start-up.",
        f"The run takes {ladder.flops / largest:,.3g} times the compute of the largest rung.",
        *ladder.notes,
    ]
    return Table(rows, f"Ladder of {ladder.run}", notes)


def _row(planned: PlannedRung) -> dict[str, object]:
    rung = planned.rung
    seconds = planned.seconds
    row: dict[str, object] = {
        "rung": planned.name,
        "parameters": show_count(rung.parameters),
        "tokens": show_count(rung.tokens),
        "FLOPs": f"{rung.flops:.2e}",
        "layers x width": f"{rung.layers} x {rung.hidden}",
        "steps": rung.iterations,
        "batch": rung.global_batch,
        "learning rate": f"{rung.learning_rate:.3g}",
        "time": "not known" if seconds is None else show_duration(seconds),
    }
    if planned.cost is not None:
        row["cost"] = f"{planned.cost:,.2f}"
    return row
