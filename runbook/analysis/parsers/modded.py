"""modded-nanogpt: `step:12/20344 train_loss:.. train_time:..ms step_avg:..ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite, milliseconds, number

_STEP = re.compile(r"^[^\w\"']*step:(\d+)/\d+ (.*)")
_FIELD = re.compile(r"(\w+):([-+\w.]+)")


@dataclass
class Modded:
    """step_avg is the mean since step 10, not the time of the step; the first ten print `nanms`."""

    name: str = "modded-nanogpt"
    arguments: dict[str, str] = field(default_factory=dict)

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        found = _STEP.match(line) if "step:" in line else None
        if found is None:
            return False
        values = dict(_FIELD.findall(found[2]))
        if "train_time" not in values:
            return False
        iteration = int(found[1])
        if "val_loss" in values:
            loss = number(values["val_loss"])
            if loss is not None and loss == loss:
                out.evaluate(iteration, loss)
            return True
        states: list[str] = []
        record = Record(iteration, line=out.line)
        if "train_loss" in values:
            record.loss = finite(number(values["train_loss"]), "loss", states)
        else:
            states.append("missing_loss")
        mean = milliseconds(values.get("step_avg", "nan"))
        if mean is not None and mean == mean:
            record.seconds = mean
            states.append("seconds_is_running_average")
        else:
            states.append("seconds_not_measured")
        record.states = tuple(states)
        out.add(record)
        return True

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""
