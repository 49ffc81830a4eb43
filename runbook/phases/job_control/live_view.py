"""Live view of a training run in progress: state, loss curve and newest events.

The view reads files in the run folder, and asks the queue and the machine.
"""

import math
import time
from collections.abc import Callable, Sequence
from html import unescape
from statistics import median_high
from typing import Any

import psutil

from runbook.core import shell
from runbook.core.errors import ProgramError, ViewInterrupted
from runbook.core.files import Tail
from runbook.core.table import Row
from runbook.core.units import four_digits, show_bytes, show_duration
from runbook.display import Progress, show_text, sparkline
from runbook.jobs.job_folder import ACTIVE, JobState, JobStatus
from runbook.phases.job_control.curve_watch import CurveWatch
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.step_inputs import peak_of
from runbook.records.logbook import make_entry, write_logbook
from runbook.records.pages.overlay import (
    SECONDS_BETWEEN_LIVE_WRITES,
    curve_of_rows,
    write_live_curve,
)
from runbook.records.pages.runs_index import write_runs_index
from runbook.runs.planned_run import PlannedTraining

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
"""How long to wait for a job whose state is unknown. Queue controllers restart now and then.
"""
MOST_ROWS = 1000
SECONDS_BETWEEN_DEVICE_QUESTIONS = 5.0
RECENT = 20
"""Number of steps to take a median over when estimating the remaining time."""
GPU_QUESTION = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
)


class LiveView:
    """A view of a training phase, read from its files at each update."""

    def __init__(self, training: PlannedTraining) -> None:
        settings = training.settings
        phase_plan = training.phase_plan
        folder = training.folder
        self.settings = settings
        self.phase_plan = phase_plan
        self.metrics, self.events = (
            Tail(folder / phase_plan.log.metrics),
            Tail(folder / phase_plan.log.events),
        )
        # Peak speed from the datasheet, as in 05-analysis; None on a CPU or an unknown device
        self.peak = peak_of(settings.site, phase_plan.precision.format)
        total = phase_plan.duration.iterations
        self.progress = Progress(
            phase_plan.phase,
            total=total,
            unit="iterations",
            timed=False,
        )
        self.folder = folder
        self._written = 0
        self._expected = CurveWatch(training)
        self._device = ""
        self._published = -math.inf
        self._asked, self._silent_since = -math.inf, math.inf

    def follow(
        self,
        state: Callable[[], JobStatus],
        enough: Callable[[list[dict[str, Any]]], bool] | None = None,
    ) -> JobStatus:
        """Show the job until it ends, or until `enough` is true for its metrics rows."""
        status = state()
        self._publish(is_running=status.state in ACTIVE)
        write_runs_index(self.folder.parent)
        try:
            while self._lasts(status) and not (enough is not None and enough(self.metrics.read())):
                self.progress.draw_beside(self.curve(), self.last_events())
                self.progress.update(**self.facts(status))
                self._publish_now_and_then()
                time.sleep(POLL_SECONDS)
                status = state()
        except KeyboardInterrupt:
            self.finish(status)
            again = f"runbook logs {self.settings.name} --follow"
            show_text(
                "The view has ended, but not the job. Run this cell again (after a restart of the "
                f"kernel, run the cells above it first), or: {again}"
            )
            raise ViewInterrupted from None

        self.finish(status)
        return status

    def _lasts(self, status: JobStatus) -> bool:
        """Return whether the job may still be running.

        If the queue does not answer, the job counts as running for `PATIENCE_SECONDS`.
        """
        if status.state is not JobState.UNKNOWN:
            self._silent_since = math.inf
            return status.state in ACTIVE

        self._silent_since = min(self._silent_since, time.monotonic())
        return time.monotonic() - self._silent_since < PATIENCE_SECONDS

    def finish(self, status: JobStatus) -> None:
        """Draw the final view, from everything that the job has written."""
        self.progress.draw_beside(self.curve(), self.last_events())
        self.progress.finish(**self.facts(status))
        self._publish(is_running=status.state in ACTIVE)

    def _publish_now_and_then(self) -> None:
        if time.monotonic() - self._published >= SECONDS_BETWEEN_LIVE_WRITES:
            self._publish(is_running=True)

    def _publish(self, *, is_running: bool) -> None:
        """Write the curve so far for the page of all runs. That page does not show smoke tests."""
        if self.phase_plan.phase != FULL:
            return
        self._published = time.monotonic()
        rows = thinned(self.metrics.read())
        write_live_curve(self.folder, curve_of_rows(self.folder, rows, is_running=is_running))

    def facts(self, status: JobStatus) -> Row:
        """Return the job, step, loss, speed, remaining time and machine utilization."""
        rows = self.metrics.read()
        active = status.state in ACTIVE
        facts: dict[str, object] = {
            "job": status.job_id,
            "state": str(status.state),
            "queue": None,
            "ran": None,
        }
        if status.state is JobState.PENDING:
            facts["queue"] = status.reason or None
        if status.ended and status.started:
            facts["ran"] = show_duration(status.ended - status.started)
        if rows:
            facts |= training_facts(rows, self.phase_plan, self.peak, active)
            is_running = status.state is JobState.RUNNING
            if is_running and self._has_yet_to_step(status.job_id, rows[-1]):
                facts = _without_speed(facts, rows[-1]["iteration"])
            planned_devices = self.phase_plan.parallel.world_size
            facts["devices"] = fewer_devices_text(rows, planned_devices) or None
            facts["expected final loss"] = self._expected.look()

        facts["in use"] = None
        if active:
            facts["in use"] = self._in_use() or None
        return facts

    def curve(self) -> tuple[str, list[tuple[float, float]]]:
        """Draw the loss by iteration so far."""
        points = []
        for row in thinned(self.metrics.read()):
            if row.get("loss") is not None:
                points.append((row["iteration"], row["loss"]))

        return "loss", points

    def last_events(self) -> list[str]:
        """Return the newest events in this phase, one line each."""
        rows = self.events.read()
        if len(rows) != self._written:
            self._written = len(rows)
            write_logbook(self.folder)

        of_phase = [row for row in rows if row.get("phase") == self.phase_plan.phase]
        lines = []
        for entry in map(make_entry, of_phase[-4:]):
            lines.append(f"{entry.moment[11:23]} {unescape(entry.text)}")
        return lines

    def _has_yet_to_step(self, job_id: str, last_row: Row) -> bool:
        """Return whether the trainer is still starting: the last row predates this start.

        The order of events decides, because clocks on two machines may differ. Jobs in a chain are
        submitted while an earlier one runs, so only the submission of this job counts.
        """
        is_starting = False
        segment = None
        for event in self.events.read():
            if event.get("phase") != self.phase_plan.phase:
                continue
            name = event.get("event")
            is_own_submission = name == "submitted" and str(event.get("id")) == job_id
            if name == "started":
                is_starting = False
                segment = event.get("segment")
            elif name == "ended" or is_own_submission:
                is_starting = True

        return is_starting or (segment or 0) > last_row.get("segment", math.inf)

    def _in_use(self) -> str:
        """Return the CPU and GPU utilization if the job runs on this machine.

        Most calls repeat the last measurement instead of making a new one.
        """
        if self.settings.site.scheduler != "local":
            return "unknown here: the job runs on other nodes"
        if time.monotonic() - self._asked >= SECONDS_BETWEEN_DEVICE_QUESTIONS:
            first = self._asked == -math.inf
            self._asked = time.monotonic()
            # psutil measures utilization since the previous call, so the first call has no result.
            cpu = psutil.cpu_percent()
            # If jobs compute on the CPU, GPUs are not shown.
            if self.settings.site.hardware.device == "cpu":
                gpus = []
            else:
                gpus = gpus_in_use(ask_gpus)

            self._device = "; ".join([*([] if first else [f"CPU {cpu:.0f} %"]), *gpus])

        return self._device


def training_facts(
    rows: Sequence[Row],
    phase_plan: PhasePlan,
    peak: float | None,
    active: bool,
) -> Row:
    """Return step, loss, speed and remaining time from the newest metrics rows.

    `peak` is the TFLOP/s that a device can reach, if known.
    """
    last = rows[-1]
    speed = rows[-1].get("tflops_per_device")
    memory = rows[-1].get("memory_bytes")
    seconds = median_high(row["seconds"] for row in rows[-RECENT:])
    seconds_left = (phase_plan.duration.iterations - last["iteration"]) * seconds
    if speed is not None and peak:
        used = {"MFU": PhaseMessage.MFU_OF_PEAK.fill(mfu=speed / peak, peak=peak)}
    else:
        used = {}

    return {
        "done": last["iteration"],
        "loss": None if last["loss"] is None else four_digits(last["loss"]),
        "losses": sparkline([row["loss"] for row in thinned(rows)]),
        "tokens/s": round(last["tokens_per_second"]),
        **used,
        **({"memory": show_bytes(memory)} if memory else {}),
        "left": show_duration(seconds_left) if active and seconds_left > 0 else None,
    }


def _without_speed(facts: Row, iteration: int) -> dict[str, object]:
    """Return the facts except those about the last step, which belongs to an earlier start.

    These facts become None, because a view keeps the old value if a fact is left out.
    """
    of_the_step = dict.fromkeys(("tokens/s", "MFU", "memory", "left"))
    state = PhaseMessage.RUNNING_WITHOUT_STEP.fill(iteration=iteration)
    return {**facts, **of_the_step, "state": state}


def fewer_devices_text(rows: Sequence[Row], planned: int) -> str:
    """Return how many devices train, and since which step, if fewer train than planned.

    Return an empty string if all planned devices train.

    >>> rows = [{"iteration": step, "world_size": 8 if step < 5 else 4} for step in range(1, 9)]
    >>> fewer_devices_text(rows, 8), fewer_devices_text(rows[:4], 8)
    ('4 of 8, since step 5', '')
    """
    devices = rows[-1].get("world_size", planned)
    if devices >= planned:
        return ""
    since = rows[-1]["iteration"]
    for row in reversed(rows):
        if row.get("world_size") != devices:
            break
        since = row["iteration"]

    return f"{devices} of {planned}, since step {since}"


def thinned(rows: Sequence[Row]) -> list[Row]:
    """Reduce many rows to about a thousand, including the newest, so that a view stays fast.

    >>> [len(thinned([{}] * number)) for number in (0, 3, 1000,
    ... 1_000_000)], thinned([{"n": n} for n in range(25)])[-1]
    ([0, 3, 1000, 1001], {'n': 24})
    """
    step = max(1, len(rows) // MOST_ROWS)
    newest = rows[-1:] if rows and (len(rows) - 1) % step else []
    return [*rows[::step], *newest]


def ask_gpus() -> str:
    """Return the nvidia-smi report on the GPUs in this machine, or '' if there are none."""
    try:
        return str(shell.run(list(GPU_QUESTION), timeout=5).out)
    except (ProgramError, OSError):
        return ""


def gpus_in_use(ask: Callable[[], str]) -> list[str]:
    r"""Return utilization and memory use for each GPU.

    >>> gpus_in_use(lambda: "98, 40536\n7, 12\n"), gpus_in_use(lambda: "")
    (['GPU 0 98 %, 40536 MiB', 'GPU 1 7 %, 12 MiB'], [])
    """
    uses = [line.partition(",") for line in ask().splitlines()]
    in_use: list[str] = []
    for number, (use, _, memory) in enumerate(uses):
        in_use.append(
            PhaseMessage.GPU_IN_USE.fill(number=number, use=use.strip(), memory=memory.strip())
        )

    return in_use
