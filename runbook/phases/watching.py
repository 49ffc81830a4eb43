"""The picture of a job that runs: what its files, its queue and its machine say, as facts, a curve and last events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from runbook import shell
from runbook.display import Progress, show_text, sparkline
from runbook.errors import ProgramError
from runbook.params import Settings
from runbook.params.catalogue import SchedulerKind
from runbook.params.schema import Precision
from runbook.phases import machine
from runbook.phases.tail import Tail
from runbook.plan.cpu_speed import CORE_FLOPS, cpu_path
from runbook.schedulers.base import ACTIVE, JobStatus, State
from runbook.units import show_bytes, show_duration

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
"""For so long a job is waited for whose state is not known: a queue's controller is restarted now and then."""
SHOWN_EVENTS = 4
MOST_ROWS = 1000
SECONDS_BETWEEN_DEVICE_QUESTIONS = 5.0
RECENT = 20
"""Steps whose middle time is the pace that the rest is reckoned with."""
GPU_QUESTION = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")


Enough = Callable[[list[dict[str, Any]]], bool]


@dataclass
class Picture:
    """What is shown of one phase's training, read anew from its files at each `show`."""

    settings: Settings
    spec: Mapping[str, Any]
    metrics: Tail
    events: Tail
    peak: float | None = None
    _device: str = ""
    _asked: float = field(default=float("-inf"))
    _silent_since: float = field(default=float("inf"))

    def __post_init__(self) -> None:
        total, unit = self.spec["duration"]["iterations"], "iterations"
        self.peak = self._peak()
        self.progress = Progress(self.spec["phase"], total=total, unit=unit, timed=False)

    def follow(self, state: Callable[[], JobStatus], enough: Enough | None = None) -> JobStatus:
        """Show the job until it ends, or until `enough` of its metrics rows say so."""
        status = state()
        try:
            while self._lasts(status) and not (enough is not None and enough(self.metrics.read())):
                self.progress.draw_beside(self.curve(), self.last_events())
                self.progress.update(**self.facts(status))
                time.sleep(POLL_SECONDS)
                status = state()
        except KeyboardInterrupt:
            self.finish(status)
            show_text(
                f"Watching ended, not the job. Run this cell again, or: runbook logs {self.settings.name} --follow"
            )
            raise
        self.finish(status)
        return status

    def _lasts(self, status: JobStatus) -> bool:
        """Whether the job may still go on; one whose queue does not answer is waited for, a while."""
        if status.state is not State.UNKNOWN:
            self._silent_since = float("inf")
            return status.state in ACTIVE
        self._silent_since = min(self._silent_since, time.monotonic())
        return time.monotonic() - self._silent_since < PATIENCE_SECONDS

    def finish(self, status: JobStatus) -> None:
        """The final picture, with everything the job wrote."""
        self.progress.draw_beside(self.curve(), self.last_events())
        self.progress.finish(**self.facts(status))

    def facts(self, status: JobStatus) -> dict[str, Any]:
        """Job and step, loss, speed, time left, use of the machine."""
        facts: dict[str, Any] = {"job": status.job_id, "state": str(status.state)}
        facts["queue"] = status.reason if status.state is State.PENDING and status.reason else None
        rows = self.metrics.read()
        active = status.state in ACTIVE
        facts["ran"] = show_duration(status.ended - status.started) if status.ended and status.started else None
        if rows:
            facts |= training_facts(rows, self.spec, self.peak, active)
        facts["in use"] = (self._in_use() or None) if active else None
        return facts

    def curve(self) -> tuple[str, list[tuple[float, float]]]:
        """Loss by iteration so far."""
        rows = thinned(self.metrics.read())
        return "loss", [(row["iteration"], row["loss"]) for row in rows if row.get("loss") is not None]

    def last_events(self) -> list[str]:
        """The newest events of this phase, one line each."""
        own = [row for row in self.events.read() if row.get("phase") == self.spec["phase"]]
        return [event_line(row) for row in own[-SHOWN_EVENTS:]]

    def _peak(self) -> float | None:
        """TFLOP/s of a device: its datasheet's, or what products of matrices reach on this machine's cores."""
        form, hardware = self.spec["precision"]["format"], self.settings.site.hardware
        here = machine.measure(self.settings.site)
        path = cpu_path(Precision(form), here.flags) if here is not None else None
        if here is None or path is None or hardware.device != "cpu":
            return hardware.peak_tflops.get(str(form))
        return here.cores * CORE_FLOPS[path] / 1e12 / hardware.devices_per_node

    def _in_use(self) -> str:
        """CPU and GPU of the machine we are on, where the job runs on it; asked now and then."""
        if self.settings.site.scheduler is not SchedulerKind.LOCAL:
            return "not known here: the job runs on other nodes"
        if time.monotonic() - self._asked >= SECONDS_BETWEEN_DEVICE_QUESTIONS:
            first = self._asked == float("-inf")
            self._asked = time.monotonic()
            cpu = psutil.cpu_percent()  # since the last question; the first one has nothing to compare with
            self._device = "; ".join([*([] if first else [f"CPU {cpu:.0f} %"]), *gpus_in_use(ask_gpus)])
        return self._device


def picture_of(settings: Settings, spec: Mapping[str, Any], folder: Path) -> Picture:
    """The picture of a phase whose files lie in a run's folder."""
    return Picture(settings, spec, Tail(folder / spec["log"]["metrics"]), Tail(folder / spec["log"]["events"]))


def training_facts(
    rows: Sequence[Mapping[str, Any]], spec: Mapping[str, Any], peak: float | None, active: bool
) -> dict[str, Any]:
    """What the newest rows of the metrics say; `peak` is a device's TFLOP/s, where it is known."""
    last, recent = rows[-1], rows[-RECENT:]
    seconds = sorted(row["seconds"] for row in recent)[len(recent) // 2]
    left = (spec["duration"]["iterations"] - last["iteration"]) * seconds
    facts: dict[str, Any] = {
        "done": last["iteration"],
        "loss": last["loss"],
        "losses": sparkline([row["loss"] for row in thinned(rows)]),
        "tokens/s": round(last["tokens_per_second"]),
    }
    speed = last.get("tflops_per_device")
    if speed is not None:
        facts["MFU"] = f"{speed / peak:.1%} of {peak:g} TFLOP/s" if peak else "not known: no peak of this device"
    if last.get("memory_bytes"):
        facts["memory"] = show_bytes(last["memory_bytes"])
    facts["left"] = show_duration(left) if active and left > 0 else None
    return facts


def thinned(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """About a thousand rows of many, the newest among them: looking at a long training must not cost more each day.

    >>> [len(thinned([{}] * number)) for number in (0, 3, 1000, 1_000_000)], thinned([{"n": n} for n in range(25)])[-1]
    ([0, 3, 1000, 1001], {'n': 24})
    """
    step = max(1, len(rows) // MOST_ROWS)
    kept = list(rows[::step])
    return kept if not rows or (len(rows) - 1) % step == 0 else [*kept, rows[-1]]


def event_line(row: Mapping[str, Any]) -> str:
    """An event as a person reads it.

    >>> event_line({"time": 0, "event": "saved", "phase": "04-training", "iteration": 8, "seconds": 0.25})
    '00:00:00 UTC saved, iteration 8, seconds 0.25'
    """
    moment = time.strftime("%H:%M:%S UTC", time.gmtime(row["time"]))
    kept = {key: value for key, value in row.items() if key not in ("time", "event", "phase", "bytes", "id")}
    shown = [f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in kept.items()]
    return ", ".join([f"{moment} {row['event']}", *shown])


def ask_gpus() -> str:
    """What nvidia-smi says of this machine's GPUs; empty where there is none."""
    try:
        return str(shell.run(list(GPU_QUESTION), timeout=5).out)
    except (ProgramError, OSError):
        return ""


def gpus_in_use(ask: Callable[[], str]) -> list[str]:
    r"""Use and memory of each GPU.

    >>> gpus_in_use(lambda: "98, 40536\n7, 12\n"), gpus_in_use(lambda: "")
    (['GPU 0 98 %, 40536 MiB', 'GPU 1 7 %, 12 MiB'], [])
    """
    found = []
    for number, line in enumerate(ask().splitlines()):
        use, _, memory = line.partition(",")
        found.append(f"GPU {number} {use.strip()} %, {memory.strip()} MiB")
    return found
