"""Whether a step that was trained again gave the same numbers, and what explains it if not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbook.plan_file.replay_file import (
    Circumstances,
    Difference,
    RecordedStep,
    compare_steps,
)
from runbook.results.history import Step


class Verdict(StrEnum):
    """What a replay says of the step."""

    SAME = "same"
    DATA = "data"
    PROGRAM = "program"
    MACHINE = "machine"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"


_MEANINGS = {
    Verdict.SAME: "Every recorded number is the same, bit for bit: data, program and hardware "
    "gave what they gave then.",
    Verdict.DATA: "Other tokens were computed: compare the token files and the cached order of the text.",
    Verdict.PROGRAM: "Other versions or other code computed it, which may round otherwise: replay "
    "with those of the run.",
    Verdict.MACHINE: "Another kind of processor or another number of threads computed it, which may "
    "round otherwise: replay on a machine like the run's.",
    Verdict.HARDWARE: "Tokens, versions, code and kind of machine are the same: one of the two "
    "machines computed something wrong. Replay on a third one to see which.",
    Verdict.UNKNOWN: "The run recorded neither tokens nor versions nor machines of these steps, so data, program, "
    "machine and hardware may each explain it.",
}


@dataclass(frozen=True)
class ReplayComparison:
    """A run's steps and the same steps trained again."""

    step: int
    begin: int
    """The iteration of the checkpoint that the replay began with; 0: the first weights."""
    num_compared: int
    """Recorded steps whose fingerprints were compared, of those in between."""
    first_step: int
    """The first step that differs; 0: none."""
    difference: Difference | None
    """Where that step first differs; None where it has no fingerprints, or nothing differs."""
    host: str
    """Where the run computed that rank; empty where that is not known."""
    loss: float | None
    replayed_loss: float | None
    verdict: Verdict
    changes: tuple[str, ...]
    """Versions, code and machines that differ."""

    def as_text(self) -> str:
        """Return what a person reads."""
        lines = [
            f"Steps {self.begin + 1} to {self.step} were trained again; fingerprints of "
            f"{self.num_compared} of them were recorded and compared."
        ]
        if self.first_step:
            lines.append(self._first_text())
        lines.append(f"Verdict: {self.verdict}. {_MEANINGS[self.verdict]}")
        lines += [f"  {change}" for change in self.changes]
        return "\n".join(lines)

    def _first_text(self) -> str:
        losses = f"the loss was {self.loss!r} and is {self.replayed_loss!r}"
        first = f"The first step that differs is {self.first_step}: {losses}"
        if self.difference is None:
            return f"{first}. It has no fingerprints, so rank and layer are not known."
        place = f"rank {self.difference.rank}"
        if self.host:
            place += f" (on {self.host} in the run)"
        others = len(self.difference.ranks) - 1
        also = f", and at once on {others} more of its ranks" if others else ""
        where = self.difference
        block = f"layer {where.layer}, {where.block}, {where.part}"
        return f"{first}; first on {place}, in {block}{also}."


def compare(
    run: Mapping[int, Step],
    replayed: Mapping[int, Step],
    recorded: Mapping[int, RecordedStep],
    again: Mapping[int, RecordedStep],
    *,
    begin: int,
    step: int,
) -> ReplayComparison:
    """Compare the steps after `begin` up to `step`, of a run and trained again."""
    both = [number for number in range(begin + 1, step + 1) if number in run and number in replayed]
    with_marks = [number for number in both if number in recorded and number in again]
    first_step = 0
    for number in both:
        is_marked = number in recorded and number in again
        difference = compare_steps(recorded[number], again[number]) if is_marked else None
        if difference or _numbers(run[number]) != _numbers(replayed[number]):
            first_step = number
            break
    else:
        difference = None

    changes: tuple[str, ...] = ()
    verdict = Verdict.SAME
    if first_step:
        known = first_step if first_step in with_marks else max(with_marks, default=0)
        verdict, changes = _explain(recorded.get(known), again.get(known))

    before = recorded.get(first_step)
    hosts: Sequence[str] = before.circumstances.hosts if before else ()
    shown = first_step or step
    return ReplayComparison(
        step=step,
        begin=begin,
        num_compared=len(with_marks),
        first_step=first_step,
        difference=difference,
        host=hosts[difference.rank] if difference and difference.rank < len(hosts) else "",
        loss=run[shown].loss if shown in run else None,
        replayed_loss=replayed[shown].loss if shown in replayed else None,
        verdict=verdict,
        changes=changes,
    )


def _numbers(step: Step) -> tuple[float | None, float | None]:
    return step.loss, step.grad_norm


def _explain(
    before: RecordedStep | None, now: RecordedStep | None
) -> tuple[Verdict, tuple[str, ...]]:
    """Return what explains a difference, by what was recorded of both, and what changed."""
    if before is None or now is None:
        return Verdict.UNKNOWN, ("training.replay_interval was 0 in the run.",)
    programs = _program_changes(before.circumstances, now.circumstances)
    machines = _machine_changes(before.circumstances, now.circumstances)
    changes = (*programs, *machines)
    if list(before.data) != list(now.data):
        return Verdict.DATA, changes
    if programs:
        return Verdict.PROGRAM, changes
    return (Verdict.MACHINE if machines else Verdict.HARDWARE), changes


def _program_changes(before: Circumstances, now: Circumstances) -> list[str]:
    names = sorted({*before.versions, *now.versions})
    changes = [
        f"{name}: {before.versions.get(name, 'none')} in the run, {now.versions.get(name, 'none')} here"
        for name in names
        if before.versions.get(name) != now.versions.get(name)
    ]
    if before.code != now.code:
        changes.append(
            f"the trainer's code: {before.code[:12]} in the run, {now.code[:12]} here (sha256)"
        )

    return changes


def _machine_changes(before: Circumstances, now: Circumstances) -> list[str]:
    pairs = zip(before.machines, now.machines, strict=False)
    changed = [(rank, *pair) for rank, pair in enumerate(pairs) if pair[0] != pair[1]]
    return [f"rank {rank}: {old} in the run, {new} here" for rank, old, new in changed[:4]]
