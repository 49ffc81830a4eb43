"""Compares a replayed step with its record, and explains a difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runbook.plan_file.replay_file import (
    Circumstances,
    Difference,
    RecordedStep,
    compare_steps,
    ranks_of_other_samples,
)
from runbook.results.history import Step
from runbook.tools.replay.messages import ReplayMessage


class Verdict(StrEnum):
    """What a replay says about a step."""

    SAME = "same"
    DATA = "data"
    PROGRAM = "program"
    MACHINE = "machine"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"


_MEANINGS = {
    Verdict.SAME: (
        "Every recorded number is the same, bit for bit: data, program and hardware gave the same "
        "results as in the run."
    ),
    Verdict.DATA: "The tokens were different: compare the token files and the cached sample order.",
    Verdict.PROGRAM: (
        "Versions or code were different, and may round differently. Replay with the versions and "
        "code of the run."
    ),
    Verdict.MACHINE: (
        "The processor or the number of threads was different, and may round differently: replay "
        "on a machine like the run's."
    ),
    Verdict.HARDWARE: "Tokens, versions, code and kind of machine are the same: one of the two "
    "machines computed something wrong. Replay on a third machine to see which.",
    Verdict.UNKNOWN: (
        "Too little was recorded about the step to tell whether data, program, machine or "
        "hardware explains the difference."
    ),
}


@dataclass(frozen=True)
class ReplayComparison:
    """The result of comparing steps in a run with their replay."""

    step: int
    begin: int
    """Iteration of the checkpoint that the replay started from, or 0 for the initial weights."""
    num_compared: int
    """How many recorded steps in the range had their fingerprints compared."""
    first_step: int
    """The first step that differs, or 0 if none does."""
    difference: Difference | None
    """The place where that step first differs.

    The value is None if the step has no fingerprints, or if nothing differs.
    """
    host: str
    """The machine that computed the differing rank in the run, or an empty string if unknown."""
    loss: float | None
    replayed_loss: float | None
    verdict: Verdict
    changes: tuple[str, ...]
    """Differences in versions, code and machines, or a note about missing records."""
    ranks_of_other_samples: tuple[int, ...] = ()
    """Ranks that read different samples in the first step that differs."""
    has_fingerprints: bool = False
    """Whether both sides have fingerprints for the first step that differs."""

    def as_text(self) -> str:
        """Return the verdict as readable text."""
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
        if self.loss == self.replayed_loss:
            first = ReplayMessage.FIRST_STEP_WITH_SAME_LOSS.fill(
                step=self.first_step, loss=self.loss
            )
        else:
            first = ReplayMessage.FIRST_STEP.fill(
                step=self.first_step, loss=self.loss, again=self.replayed_loss
            )

        readers = ", ".join(map(str, self.ranks_of_other_samples))
        if self.difference is None and readers:
            return ReplayMessage.OTHER_SAMPLES_LATER.fill(first=first, ranks=readers)
        if self.difference is None and self.has_fingerprints:
            return ReplayMessage.SAME_FIRST_MICRO_BATCH.fill(first=first)
        if self.difference is None:
            return ReplayMessage.WITHOUT_FINGERPRINTS.fill(first=first)
        rank_text = f"rank {self.difference.rank}"
        if self.host:
            rank_text += f" (on {self.host} in the run)"
        others = len(self.difference.ranks) - 1
        also = f", and simultaneously on {others} more of its ranks" if others else ""
        where = self.difference
        block = f"layer {where.layer}, {where.block}, {where.part}"
        read = f" Ranks that read other samples: {readers}." if readers else ""
        return f"{first}; first on {rank_text}, in {block}{also}.{read}"


def compare(
    run: Mapping[int, Step],
    replayed: Mapping[int, Step],
    recorded: Mapping[int, RecordedStep],
    again: Mapping[int, RecordedStep],
    *,
    begin: int,
    step: int,
) -> ReplayComparison:
    """Compare the steps from `begin` + 1 to `step` with their replay."""
    both = []
    for number in range(begin + 1, step + 1):
        if number in run and number in replayed:
            both.append(number)

    with_marks = [number for number in both if number in recorded and number in again]
    differing = (
        number
        for number in both
        if _differs(number, run, replayed) or _marks_differ(number, recorded, again)
    )
    first_step = next(differing, 0)
    cause = DifferenceCause(Verdict.SAME)
    if first_step in with_marks:
        cause = _explain(recorded[first_step], again[first_step])
    elif first_step:
        cause = _explain_unrecorded(first_step, with_marks, recorded, again)
    difference = _marks_differ(first_step, recorded, again)
    shown_step = first_step or step
    host = _host(recorded[first_step], difference) if difference else ""
    return ReplayComparison(
        step=step,
        begin=begin,
        num_compared=len(with_marks),
        first_step=first_step,
        difference=difference,
        host=host,
        loss=_loss(run, shown_step),
        replayed_loss=_loss(replayed, shown_step),
        verdict=cause.verdict,
        changes=cause.changes,
        ranks_of_other_samples=cause.ranks_of_other_samples,
        has_fingerprints=first_step in with_marks,
    )


@dataclass(frozen=True)
class DifferenceCause:
    """Why there is a difference, with the evidence."""

    verdict: Verdict
    changes: tuple[str, ...] = ()
    ranks_of_other_samples: tuple[int, ...] = ()


def _differs(number: int, run: Mapping[int, Step], replayed: Mapping[int, Step]) -> bool:
    """Return whether the loss or the gradient norm differs at a step."""
    return _numbers(run[number]) != _numbers(replayed[number])


def _marks_differ(
    number: int, recorded: Mapping[int, RecordedStep], again: Mapping[int, RecordedStep]
) -> Difference | None:
    """Return where the fingerprints for a step differ, or None if either side has none."""
    if number not in recorded or number not in again:
        return None
    return compare_steps(recorded[number], again[number])


def _host(step: RecordedStep, difference: Difference) -> str:
    hosts = step.circumstances.hosts
    return hosts[difference.rank] if difference.rank < len(hosts) else ""


def _loss(steps: Mapping[int, Step], number: int) -> float | None:
    return steps[number].loss if number in steps else None


def _numbers(step: Step) -> tuple[float | None, float | None]:
    return step.loss, step.grad_norm


def _explain(before: RecordedStep, replayed: RecordedStep) -> DifferenceCause:
    """Return the cause of a difference, based on the records from both sides."""
    programs = _program_changes(before.circumstances, replayed.circumstances)
    machines = _machine_changes(before.circumstances, replayed.circumstances)
    readers = ranks_of_other_samples(before, replayed)
    verdict = Verdict.HARDWARE
    if readers:
        verdict = Verdict.DATA
    elif programs:
        verdict = Verdict.PROGRAM
    elif machines:
        verdict = Verdict.MACHINE
    return DifferenceCause(verdict, (*programs, *machines), readers)


def _explain_unrecorded(
    first_step: int,
    with_marks: Sequence[int],
    recorded: Mapping[int, RecordedStep],
    again: Mapping[int, RecordedStep],
) -> DifferenceCause:
    """Return why an unrecorded step differs, judging by the last recorded step."""
    if not with_marks:
        return DifferenceCause(Verdict.UNKNOWN, ("training.replay_interval was 0 in the run.",))
    last_marked = with_marks[-1]
    cause = _explain(recorded[last_marked], again[last_marked])
    if cause.verdict is not Verdict.HARDWARE:
        return replace(cause, ranks_of_other_samples=())
    reasons = (
        ReplayMessage.TOKENS_NOT_RECORDED.fill(step=first_step),
        "Versions, code and machines are the same. `runbook verify` compares the token files.",
    )
    return DifferenceCause(Verdict.UNKNOWN, reasons)


def _program_changes(before: Circumstances, here_now: Circumstances) -> list[str]:
    names = sorted({*before.versions, *here_now.versions})
    changes = []
    for name in names:
        if before.versions.get(name) != here_now.versions.get(name):
            changes.append(
                f"{name}: {before.versions.get(name, 'none')} in the run, "
                f"{here_now.versions.get(name, 'none')} here"
            )

    if before.code != here_now.code:
        changes.append(
            f"the trainer's code: {before.code[:12]} in the run, {here_now.code[:12]} here (sha256)"
        )

    return [*changes, *_odd_ranks(before)]


def _odd_ranks(circumstances: Circumstances) -> list[str]:
    """Return the ranks whose versions or code differ from those on the first rank."""
    programs = circumstances.programs
    odd = [rank for rank, program in enumerate(programs) if program != programs[0]]
    hosts = circumstances.hosts
    return [
        ReplayMessage.OTHER_PROGRAM_OF_RANK.fill(rank=rank, host=hosts[rank]) for rank in odd[:4]
    ]


def _machine_changes(before: Circumstances, here_now: Circumstances) -> list[str]:
    pairs = zip(before.machines, here_now.machines, strict=False)
    changed = []
    for rank, pair in enumerate(pairs):
        if pair[0] != pair[1]:
            changed.append((rank, *pair))

    return [f"rank {rank}: {old} in the run, {new} here" for rank, old, new in changed[:4]]
