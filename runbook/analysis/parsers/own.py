"""Our own metrics.jsonl and validation.jsonl; our trainer's log lines are Megatron-LM's."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from runbook.analysis.parsers.assembly import Assembly
from runbook.analysis.parsers.record import Record, finite


@dataclass
class Own:
    """JSON lines that name their fields."""

    name: str = "runbook"
    arguments: dict[str, str] = field(default_factory=dict)
    _segment: int | None = None

    def feed(self, line: str, out: Assembly) -> bool:
        """Take the line where it is ours."""
        if not line.startswith("{") or '"iteration"' not in line:
            return False
        try:
            values = json.loads(line)
            return self._keep(values, out)
        except (ValueError, TypeError):
            return False

    def flush(self, out: Assembly) -> None:
        """Nothing is held back."""

    def _keep(self, values: dict[str, Any], out: Assembly) -> bool:
        if "perplexity" in values:
            out.evaluate(int(values["iteration"]), float(values["loss"]), float(values["perplexity"]))
            return True
        if "seconds" not in values or "loss" not in values:
            return False
        states: list[str] = []
        record = Record(int(values["iteration"]), finite(values["loss"], "loss", states), line=out.line)
        record.grad_norm = finite(values.get("grad_norm"), "grad_norm", states)
        record.learning_rate, record.loss_scale = values.get("learning_rate"), values.get("loss_scale")
        record.seconds, record.tokens_per_second = values["seconds"], values.get("tokens_per_second")
        record.tflops, record.tflops_convention = values.get("tflops_per_device"), values.get("tflops_convention")
        record.skipped, record.nan = values.get("skipped"), values.get("nan")
        if values.get("global_batch") and record.seconds:
            record.samples_per_second = values["global_batch"] / record.seconds
        if record.loss is None and not states:
            states.append("missing_loss")
        if record.skipped and record.loss is None:
            states.append("all_skipped")
            record.samples_per_second = record.tokens_per_second = record.tflops = record.tflops_convention = None
        segment = values.get("segment")
        if segment is not None and self._segment is not None and segment != self._segment:
            out.restart()
        self._segment = segment
        record.states = tuple(states)
        out.add(record)
        return True
