"""DeepSpeed's JSON in a here-document, as keys of a run file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from runbook.adopt.findings import Findings
from runbook.adopt.marks import Word

_GIVEN = {
    "train_batch_size": "training.global_batch",
    "train_micro_batch_size_per_gpu": "training.micro_batch",
    "gradient_clipping": "training.clip_gradient",
}
_OURS = ("steps_per_print", "wall_clock_breakdown", "prescale_gradients", "gradient_accumulation_steps", "bf16")


def documents(heredocs: Iterable[Word]) -> list[tuple[Word, dict[str, Any]]]:
    """The here-documents that are JSON objects; parts that only running would tell become null."""
    found = []
    for word in heredocs:
        text = re.sub("\ue002[^\ue003]*\ue003", "null", word.text)
        try:
            content = json.loads(text)
        except ValueError:
            continue
        if isinstance(content, dict):
            found.append((word, content))
    return found


def take_documents(heredocs: Iterable[Word], findings: Findings) -> None:
    """Values of DeepSpeed's configuration; options of the training program win over it."""
    for word, content in documents(heredocs):
        if not {"train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "train_batch_size"} & content.keys():
            continue
        for name, value in content.items():
            line = _line(word, name)
            if name in _GIVEN:
                _number(name, value, line, findings)
            elif name == "zero_optimization" and isinstance(value, Mapping):
                _zero(value, line, word, findings)
            elif name == "fp16" and isinstance(value, Mapping):
                _scale(value, line, findings)
            elif name in _OURS:
                findings.does(line, f"DeepSpeed's {name}", "written from the run file")
            else:
                where = "write it under frameworks.megatron-deepspeed.deepspeed of the site's file"
                findings.leave(line, f"DeepSpeed's {name}", f"no key of the run file has it: {where}")


def _number(name: str, value: Any, line: int, findings: Findings) -> None:
    key = _GIVEN[name]
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    there = findings.taken.get(key)
    if there and there.line and there.value != value:
        findings.leave(line, f"DeepSpeed's {name} {value}", f"the training's option says {there.value}")
    findings.take(key, value, line, f"DeepSpeed's {name}", over=False)


def _zero(value: Mapping[str, Any], line: int, word: Word, findings: Findings) -> None:
    stage = value.get("stage")
    if isinstance(stage, int):
        findings.take("parallel.zero_stage", stage, line, "DeepSpeed's zero stage", over=False)
    device = value.get("offload_optimizer", {})
    if isinstance(device, Mapping) and device.get("device") == "cpu":
        findings.take("training.offload", True, _line(word, "offload_optimizer"), "DeepSpeed's offload_optimizer")
    rest = sorted(set(value) - {"stage", "offload_optimizer"})
    if rest:
        where = "write them under frameworks.megatron-deepspeed.deepspeed of the site's file"
        findings.leave(line, f"DeepSpeed's zero_optimization: {', '.join(rest)}", where)


def _scale(value: Mapping[str, Any], line: int, findings: Findings) -> None:
    if value.get("enabled"):
        findings.take("training.precision", "fp16", line, "DeepSpeed's fp16", over=False)
    for name, key in (
        ("loss_scale_window", "training.loss_scale_window"),
        ("hysteresis", "training.loss_scale_hysteresis"),
    ):
        if isinstance(value.get(name), int):
            findings.take(key, value[name], line, f"DeepSpeed's {name}")
    if isinstance(value.get("min_loss_scale"), int | float):
        findings.take("training.min_loss_scale", float(value["min_loss_scale"]), line, "DeepSpeed's min_loss_scale")
    static = findings.taken.get("training.static_loss_scale")
    if value.get("loss_scale") == 0 and static:  # two scales: DeepSpeed's is the one that works
        findings.drop("training.static_loss_scale")
        findings.leave(static.line, f"--loss-scale {static.value:g}", "DeepSpeed's dynamic scale is the one in use")
    power = value.get("initial_scale_power")
    if isinstance(power, int) and 0 <= power <= 64:
        findings.take("training.initial_loss_scale", float(2**power), line, f"DeepSpeed's 2^{power}")


def _line(word: Word, name: str) -> int:
    for number, row in enumerate(word.text.splitlines()):
        if f'"{name}"' in row:
            return word.line + number
    return word.line
