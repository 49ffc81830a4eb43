"""NeMo's Hydra overrides and DeepSpeed's JSON as keys of a run file."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.adopt.findings import Findings
from runbook.adopt.sandbox.script import Script, StartedProgram, Word
from runbook.frameworks.nemo import READ
from runbook.frameworks.options import truth

_NEMO = re.compile(
    r"(run\.|exp_manager\.(explicit_log_dir|resume_if_exists|wandb)|trainer\.enable_checkpointing|"
    r"model\.tokenizer\.|model\.data\.(index_mapping_dir|data_prefix|data_impl)|container|base_results_dir|"
    r"bignlp_path|launcher_scripts_path|data_dir|cluster(_type|\.)|stages|env_vars\.)"
)
MODELS = {"126m": "126m", "5b": "5b", "20b": "20b", "40b": "40b", "175b": "nemo-175b"}
"""The catalogue's name of each of NeMo's sizes."""


def size_of(words: Sequence[Word]) -> Word | None:
    """The size of NeMo's own file: `--config-name=175b.yaml`, or `training=gpt3/5b` of the launcher."""
    for word in words:
        match = re.fullmatch(r"(?:--config-name=|(?:\+\+)?training=\w+/)([\w.-]+?)(?:\.yaml)?", word.text)
        if match:
            return Word(match[1].lower(), word.line)
    return None


def take_overrides(words: Sequence[Word], findings: Findings) -> None:
    """Values given as `name=value`; `training.` before it and `++` are the launcher's spelling."""
    for word in words:
        name, equals, value = word.text.partition("=")
        name = name.lstrip("+~").removeprefix("training.")
        if not equals or name.startswith("--") or not name:
            if not name.startswith("--config") and not word.known:
                findings.leave(word.line, word.shown, "more overrides, known only while the script runs")
            continue
        inner = Word(value, word.line)
        if name == "exp_manager.create_checkpoint_callback":
            if inner.known and not truth(value):
                findings.take("training.save_interval", 0, word.line, f"{name}=False")
        elif (option := READ.get(name)) and option.read:
            parts = re.split(r",\s*", value.strip("[]")) if len(option.keys) > 1 else [value]
            for key, part in zip(option.keys, parts, strict=False):
                findings.read(key, Word(part, word.line), name, option.read)
        elif _NEMO.match(name):
            findings.does(word.line, f"{name}={inner.shown[:60]}", "the site's file and the run's own folders give it")
        elif name != "training":
            findings.leave_to_site(word.line, f"{name}={inner.shown[:60]}", "frameworks.nemo.options")


_GIVEN = {
    "train_batch_size": "training.global_batch",
    "train_micro_batch_size_per_gpu": "training.micro_batch",
    "gradient_clipping": "training.clip_gradient",
}
_WRITTEN = ("steps_per_print", "wall_clock_breakdown", "prescale_gradients", "gradient_accumulation_steps", "bf16")
_SECTION = "frameworks.megatron-deepspeed.deepspeed"
Number = int | float


def _documents(commands: Sequence[StartedProgram]) -> list[dict[str, Any]]:
    """The JSON files that a training was started with; numbers that nothing sets become null."""
    found = []
    for text in (text for command in commands for text in command.files.values()):
        with contextlib.suppress(ValueError):
            found.append(json.loads(re.sub(r"__NOT_SET_\w+?__", "null", text)))
    return [content for content in found if isinstance(content, dict)]


def take_documents(script: Script, findings: Findings) -> None:
    """Values of DeepSpeed's configuration; options of the training program win over it."""
    for content in _documents(script.commands)[-1:]:
        if not {"train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "train_batch_size"} & content.keys():
            continue
        for name, value in content.items():
            line, text = _line(script, name), f"DeepSpeed's {name}"
            if name in _GIVEN:
                _number(_GIVEN[name], value, line, text, findings)
            elif name == "zero_optimization" and isinstance(value, Mapping):
                _zero(value, line, script, findings)
            elif name == "fp16" and isinstance(value, Mapping):
                _scale(value, line, findings)
            elif name in _WRITTEN:
                findings.does(line, text, "written from the run file")
            else:
                findings.leave_to_site(line, text, _SECTION)


def _number(key: str, value: Any, line: int, text: str, findings: Findings) -> None:
    if not isinstance(value, Number) or isinstance(value, bool):
        return
    there = findings.carried.get(key)
    if there and there.line and there.value != value:
        findings.leave(line, f"{text} {value}", f"the training's option says {there.value}")
    findings.take(key, value, line, text, over=False)


def _zero(value: Mapping[str, Any], line: int, script: Script, findings: Findings) -> None:
    stage = value.get("stage")
    if isinstance(stage, int):
        findings.take("parallel.zero_stage", stage, line, "DeepSpeed's zero stage", over=False)
    device = value.get("offload_optimizer", {})
    if isinstance(device, Mapping) and device.get("device") == "cpu":
        findings.take("training.offload", True, _line(script, "offload_optimizer"), "DeepSpeed's offload_optimizer")
    if isinstance(overlap := value.get("overlap_comm"), bool):
        findings.take("training.overlap_gradients", overlap, _line(script, "overlap_comm"), "DeepSpeed's overlap_comm")
    if rest := sorted(value.keys() - {"stage", "offload_optimizer", "overlap_comm"}):
        text = f"DeepSpeed's zero_optimization: {', '.join(rest)}"
        findings.leave(line, text, f"write them under {_SECTION} of {findings.site_file}")


def _scale(value: Mapping[str, Any], line: int, findings: Findings) -> None:
    if value.get("enabled"):
        findings.take("training.precision", "fp16", line, "DeepSpeed's fp16", over=False)
    for name, key, kind in (
        ("loss_scale_window", "loss_scale_window", int),
        ("hysteresis", "loss_scale_hysteresis", int),
        ("min_loss_scale", "min_loss_scale", Number),
    ):
        if isinstance(value.get(name), kind):
            number = float(value[name]) if kind is Number else value[name]
            findings.take(f"training.{key}", number, line, f"DeepSpeed's {name}")
    static = findings.carried.get("training.static_loss_scale")
    if value.get("loss_scale") == 0 and static:  # two scales: DeepSpeed's is the one that works
        findings.drop("training.static_loss_scale")
        findings.leave(static.line, f"--loss-scale {static.value:g}", "DeepSpeed's dynamic scale is the one in use")
    power = value.get("initial_scale_power")
    if isinstance(power, int) and 0 <= power <= 64:
        findings.take("training.initial_loss_scale", float(2**power), line, f"DeepSpeed's 2^{power}")


def _line(script: Script, name: str) -> int:
    return next((line for line, _ in script.matching(rf'"{re.escape(name)}"')), 0)
