"""What each framework calls a learning-rate schedule.

A schedule that a framework lacks is refused.
"""

from collections.abc import Callable, Mapping

from runbook.frameworks.option_rows import PhaseRun, Reader, one_of
from runbook.plan_file.learning_rate import Schedule

SCHEDULE_NAMES: dict[str, Mapping[Schedule, str]] = {
    "megatron-lm": {
        "cosine": "cosine",
        "linear": "linear",
        "constant": "constant",
        "wsd": "WSD",
    },
    "megatron-deepspeed": {
        "cosine": "cosine",
        "linear": "linear",
        "constant": "constant",
    },
    "nemo": {
        "cosine": "CosineAnnealing",
        "linear": "PolynomialDecayAnnealing",
        "constant": "WarmupHoldPolicy",
    },
}
"""What each framework calls each of our schedules, in the pinned versions."""


def schedule_writer(framework: str) -> Callable[[PhaseRun], str]:
    """Return a writer for the schedule in a phase, under its name in the framework."""
    names = SCHEDULE_NAMES[framework]
    return lambda run: names[run.phase.learning_rate.schedule]


def schedule_reader(framework: str) -> Reader:
    """Return a reader to translate a schedule name used by a framework into ours.

    >>> schedule_reader("megatron-lm")("WSD"), schedule_reader("nemo")("CosineAnnealing")
    ('wsd', 'cosine')
    """
    names = SCHEDULE_NAMES[framework]
    return one_of({name.lower(): schedule for schedule, name in names.items()})
