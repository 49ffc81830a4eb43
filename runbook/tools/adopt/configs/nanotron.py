"""YAML files for nanotron. The batch, the devices and the schedule each depend on several keys."""

from runbook.tools.adopt.configs.config_format import (
    ConfigFormat,
    OtherProgram,
    Values,
    line_of,
    text,
    whole_number,
)
from runbook.tools.adopt.configs.nanotron_keys import DEFAULTS, ROWS
from runbook.tools.adopt.configs.shared_steps import (
    leave_schedule,
    take_nodes_of,
    take_tokenizer_file,
    turn_evaluation_off,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

_SCHEDULE = "optimizer.learning_rate_scheduler"
_KIND: ModelKind = {
    "activation": "swiglu",
    "tied_embeddings": False,
    "biases": False,
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "norm_epsilon": 1e-6,
}
_DIFFERENCES = (
    OtherProgram(
        topic="text",
        theirs="Nanosets or a dataset of the hub, shuffled by nanotron",
        ours="token files that 02-data writes, in the order of Megatron's index",
    ),
    OtherProgram(
        topic="gradients",
        theirs="accumulated over micro-batches of each replica",
        ours="the same number of sequences per step, summed in another order",
    ),
    OtherProgram(
        topic="initial weights",
        theirs="model.init_method",
        ours=(
            "a normal distribution with training.init_std; smaller for output matrices, depending "
            "on the number of layers"
        ),
    ),
    OtherProgram(
        topic="last steps of the schedule",
        theirs="after lr_decay_steps the rate stays at min_decay_lr",
        ours="the same, counted from the first step",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute the values that depend on several keys."""
    _take_nodes(values, findings)
    _take_global_batch(values, findings)
    _take_schedule(values, findings)
    take_tokenizer_file(values, "tokenizer.tokenizer_name_or_path", findings=findings)
    _leave_later_stages(values, findings)
    if not findings.number("training.eval_iterations"):
        turn_evaluation_off(findings, line_of(values, "tokens.limit_val_batches"))


def _take_nodes(values: Values, findings: Findings) -> None:
    """Compute the number of nodes from dp x tp x pp x context."""
    replicas = whole_number(values, "parallelism.dp", 1)
    context = findings.number("parallel.context", 1)
    world = replicas * findings.model_parallel * context
    line = line_of(values, "parallelism.dp")
    source = f"dp {replicas} x tp x pp = {world} devices"
    take_nodes_of(world, findings, line=line, source=source)


def _take_global_batch(values: Values, findings: Findings) -> None:
    """Compute the global batch: micro-batch x dp x accumulation."""
    replicas = whole_number(values, "parallelism.dp", 1)
    steps = whole_number(values, "tokens.batch_accumulation_per_replica", 1)
    micro_batch = findings.number("training.micro_batch", 1)
    global_batch = micro_batch * replicas * steps
    line = line_of(values, "tokens.batch_accumulation_per_replica")
    source = f"{micro_batch} micro x {replicas} replicas x {steps} steps"
    findings.take("training.global_batch", global_batch, line, source)


def _take_schedule(values: Values, findings: Findings) -> None:
    """Adopt the nanotron schedule, in which decay follows the warm-up or a constant phase."""
    style = text(values, f"{_SCHEDULE}.lr_decay_style") or "linear"
    line = line_of(values, f"{_SCHEDULE}.lr_decay_style")
    if style == "1-sqrt":
        leave_schedule(findings, line, "lr_decay_style 1-sqrt")
        style = "linear"

    warmup = whole_number(values, f"{_SCHEDULE}.lr_warmup_steps")
    start = whole_number(values, f"{_SCHEDULE}.lr_decay_starting_step", warmup)
    iterations = whole_number(values, "tokens.train_steps")
    length = whole_number(values, f"{_SCHEDULE}.lr_decay_steps", max(0, iterations - start))
    if start > warmup and length > 0:
        _take_stable_schedule(findings, style, start, length, line)
        return

    findings.take("training.schedule", style, line, "lr_decay_style")
    if length > 0:
        source = "lr_decay_steps, and the warm-up before them"
        findings.take("training.decay_iterations", warmup + length, line, source)
    if f"{_SCHEDULE}.min_decay_lr" not in values:
        peak = findings.value("training.learning_rate", 0.0)
        source = "nanotron's default, which is the peak"
        findings.take("training.min_learning_rate", peak, 0, source)


def _take_stable_schedule(
    findings: Findings, style: str, start: int, length: int, line: int
) -> None:
    """Adopt a decay over `length` steps that starts at step `start`, after a constant phase."""
    end = start + length
    is_wsd = "lr_decay_starting_step after the warm-up"
    findings.take("training.schedule", "wsd", line, is_wsd)
    findings.take("training.wsd_decay_style", style, line, "lr_decay_style")

    share = "lr_decay_steps / its last step"
    findings.take("training.wsd_decay_fraction", length / end, line, share)

    last_step = "lr_decay_starting_step + lr_decay_steps"
    findings.take("training.decay_iterations", end, line, last_step)


def _leave_later_stages(values: Values, findings: Findings) -> None:
    """Note that a run reads one dataset, but the file has several data stages."""
    stages = {name.split(".")[1] for name in values if name.startswith("data_stages.")}
    if len(stages) > 1:
        line = line_of(values, "data_stages.1.name", "data_stages.1.start_training_step")
        why = "a run has one dataset. Train the stages one after the other, or set data.blend"
        findings.leave(line, f"data_stages: {len(stages)} stages", why)


NANOTRON = ConfigFormat(
    program="nanotron",
    rows=ROWS,
    defaults=DEFAULTS,
    kind=_KIND,
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "general.",
            "data_stages.",
            "parallelism.",
            "tokens.",
            "model.model_config.",
            "optimizer.learning_rate_scheduler.",
        }
    ),
)
