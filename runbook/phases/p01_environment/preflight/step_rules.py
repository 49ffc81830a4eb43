"""The rule about how soon each step of a preflight job ends."""

from runbook.core.units import show_duration
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.job_answers import END, STEP, JobAnswers
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)

LATE_SECONDS = 20.0
"""If a launcher returns later than this after its programs, that is a warning."""
TOO_LATE_SECONDS = 60.0
"""If a launcher returns later than this after its programs, that is a defect."""
STEP_END_RULE = PlacedRule(
    PreflightCheck.STEP_END,
    f"a step ends at most {show_duration(LATE_SECONDS)} after its programs; every start and stop "
    "of the training waits for it",
    "Ask the operators about Slurm's TaskEpilog and SrunEpilog (scontrol show config), and about "
    "processes that cannot be ended.",
)


def step_end_check(answers: JobAnswers, rung: str) -> list[PlacedCheck]:
    """Check how long after its programs the launcher for a stage ended.

    The job script and the program on the first node use the clock of the same machine. Return no
    check if one of the two times is missing.
    """
    step = answers.answer(rung, "", STEP)
    if step is None or not answers.nodes:
        return []
    last = answers.answer(rung, answers.nodes[0], END)
    if last is None:
        return []

    seconds = max(0.0, step.time - last.time)
    value = PhaseMessage.STEP_ENDED_LATE.fill(rung=rung, seconds=show_duration(seconds))
    if seconds > TOO_LATE_SECONDS:
        return [STEP_END_RULE.broken(value)]
    if seconds > LATE_SECONDS:
        return [STEP_END_RULE.broken(value, verdict="warn")]
    return [STEP_END_RULE.passed(value)]
