"""Messages about drills, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class DrillMessage(Message):
    """Messages about drills."""

    AS_PLANNED = "as planned"
    BROKEN = "broken: {rules}"
    COPIES_EVERY = "copies in node memory every {steps}"
    ENDED_AS_THEY_SHOULD = "{passed} of {all} ended as they should"
    FIGURE = "{name} {value:.3g} {unit} ({band})"
    FEWER_NODES_NEVER = "never fewer nodes"
    NOT_A_FAULT = (
        "{variable}: {text!r} is not a fault; the kinds are {kinds}, and their keys are {keys}. "
        "Unset {variable} to train without faults"
    )
    NO_COPIES = "no copies in node memory"
    NO_PROCESSES_LEFT = "no processes left"
    NO_RATE_OF_FAILURES = (
        "A campaign needs the time of a step and a failure rate; this plan does not have both.\n"
        "Failure rates are known only for accelerators: name the run of a cluster whose device is "
        "known."
    )
    NO_SPARE_NODE = "no spare node"
    NO_SUCH_DRILL = "There is no drill {word!r}. {hint}"
    OF_ALL_DRILLS = "{score} (there are {all} drills)"
    PROCESSES_LEFT = "processes left: {processes}"
    SAVES_HALF_AS_OFTEN = "saves half as often"
    SAVES_TWICE_AS_OFTEN = "saves twice as often"
    SAVES_BY_DALY = "a save every {interval} (Daly)"
    SECOND_ATTEMPTS = ", {number} at the second attempt"
    STEP_AT_SAMPLE = "step {step} ended at sample {samples}"
    UNUSUAL_BAND = "usually {low:g} to {high:g}, so this is unusual"
    USUAL_BAND = "usually {low:g} to {high:g}"
