"""What a training phase left behind, read once for tables, figures and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from runbook.analysis import figures, tables
from runbook.analysis.history import Evaluation, History, read_events, read_metrics, read_validation
from runbook.analysis.metrics import Goodput, Summary, goodput, summarize
from runbook.display import show_figure
from runbook.phases.campaign import Campaign


@dataclass(frozen=True)
class Trained:
    """A finished (or running) training phase, from its files."""

    phase: str
    spec: Mapping[str, Any]
    planned: Mapping[str, Any]
    """What plan.json says of the time."""
    promised: Mapping[str, Any]
    """All that it promises, under the names of the measured numbers."""
    history: History
    validation: tuple[Evaluation, ...]
    events: tuple[dict[str, Any], ...]

    @cached_property
    def summary(self) -> Summary:
        """The numbers of the run, warm-up left out."""
        length = self.spec["model"]["sequence_length"]
        return summarize(self.history, sequence_length=length, validation=self.validation)

    @cached_property
    def parts(self) -> Goodput:
        """Where the wall time went."""
        return goodput(self.history, self.validation, self.events)

    def results(self) -> dict[str, Any]:
        """What the record of a training phase holds at least."""
        summary = self.summary
        found = {
            "parameters": self.spec["model"]["parameters"],
            "sequence_length": self.spec["model"]["sequence_length"],
            "world_size": summary.world_size,
            "iterations": summary.iterations,
            "first_loss": summary.first_loss,
            "last_loss": summary.last_loss,
            "tokens_per_second": summary.tokens_per_second,
            "seconds_per_iteration": summary.seconds_per_iteration,
            "tflops_per_device": summary.tflops_per_device,
            "tflops_convention": summary.tflops_convention,
            "validation_loss": summary.validation_loss,
            "segments": summary.segments,
            "warm_up_rule": summary.rule,
        }
        return {key: rounded(value) for key, value in found.items()}


def read(campaign: Campaign, phase: str) -> Trained:
    """The files of one training phase of this run."""
    whole = campaign.plan.as_dict()
    return read_folder(campaign.folder, whole, phase)


def read_folder(folder: Path, plan: Mapping[str, Any], phase: str) -> Trained:
    """The files of one training phase in a run's folder."""
    spec = plan["phases"][phase]
    log = spec["log"]
    return Trained(
        phase,
        spec,
        plan["time"].get(phase, {}),
        tables.planned_numbers(plan, phase),
        replace(_history(folder / log["metrics"]), source=log["metrics"]),
        read_validation(folder / log["validation"]),
        since_begun(read_events(folder / log["events"], phase)),
    )


def _history(path: Path) -> History:
    """The steps in a file, read again only when it changed: the sections of a notebook all ask for them."""
    found = path.stat() if path.exists() else None
    return _kept(path, found.st_mtime_ns, found.st_size) if found is not None else read_metrics(path)


@lru_cache(maxsize=2)
def _kept(path: Path, changed: int, size: int) -> History:
    return read_metrics(path)


def rounded(value: Any) -> Any:
    """Seven digits of a measured number: more than it has, and the same in every form of the record.

    >>> rounded(10.859001234), rounded(64633856), rounded("megatron-full")
    (10.859, 64633856, 'megatron-full')
    """
    return float(f"{value:.7g}") if isinstance(value, float) else value


def since_begun(events: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The events of the training that lies in the folder, without those of one that was set aside.

    >>> since_begun([{"event": "saved"}, {"event": "begun"}, {"event": "started"}])
    ({'event': 'begun'}, {'event': 'started'})
    """
    first = max((place for place, one in enumerate(events) if one["event"] == "begun"), default=0)
    return tuple(events[first:])


def show_loss(campaign: Campaign, phases: Sequence[str]) -> None:
    """The loss curve of each phase, with ln(vocabulary) as the reference and the numbers in words below."""
    for phase in phases:
        trained = read(campaign, phase)
        vocabulary = trained.spec["model"]["padded_vocabulary"]
        figure = figures.loss_figure(
            trained.history, trained.validation, padded_vocabulary=vocabulary, title=f"Loss of {phase}"
        )
        summary = trained.summary
        show_figure(
            figures.as_svg(figure).text,
            f"{phase}: loss {summary.first_loss:.3f} at iteration {summary.first_iteration}, "
            f"{summary.last_loss:.3f} at {summary.last_iteration}; lowest {summary.lowest_loss:.3f}.",
        )
