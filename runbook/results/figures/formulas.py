"""Formulas with values from a plan filled in, as LaTeX and as plain text for terminals and logs."""

from runbook.core.units import show_bytes, show_count, show_duration
from runbook.planning.make_plan import Plan
from runbook.results.messages import ResultMessage


def first_loss(plan: Plan, phase: str) -> tuple[str, str]:
    """Return the formula for the loss before training, when all tokens are equally likely."""
    vocabulary = plan.phases[phase].model.shape.vocabulary
    loss = plan.parameters[phase].first_loss
    latex = (
        rf"L_0 = -\ln \frac{{1}}{{V}} = \ln {_number(vocabulary)} = {loss:.2f} \text{{ nat per "
        rf"token}}"
    )
    return latex, f"first loss = ln V = ln {vocabulary:,} = {loss:.2f} nat per token"


def parameters(plan: Plan, phase: str) -> tuple[str, str]:
    """Return the formula for the number of parameters, summed over layers and embeddings."""
    whole = plan.parameters[phase].whole
    layers = plan.phases[phase].model.shape.layers
    others = whole.token_embedding + whole.position_embedding + whole.final_norm + whole.output
    per_layer = whole.layers // layers
    latex = (
        rf"N = {layers} \cdot \underbrace{{{_number(per_layer)}}}_{{\text{{one layer}}}}"
        rf" + \underbrace{{{_number(others)}}}_{{\text{{embeddings, last norm}}}} = "
        rf"{_number(whole.total)}"
    )
    text = ResultMessage.PARAMETERS_SUM.fill(
        layers=layers, per_layer=per_layer, others=others, total=whole.total
    )
    return latex, text


def batch(plan: Plan, phase: str) -> tuple[str, str]:
    """Return the formulas for the sequences per step and the pipeline bubble."""
    planned = plan.phases[phase]
    micro = planned.batch.micro
    copies = planned.parallel.data
    count = planned.batch.num_microbatches
    stages = planned.parallel.pipeline
    chunks = planned.parallel.virtual_pipeline
    latex = (
        rf"B = b \cdot d \cdot m = {micro} \cdot {copies} \cdot {count} = "
        rf"{_number(planned.batch.global_)}"
    )
    text = (
        f"batch = {micro} sequences x {copies} replicas x {count} micro-batches = "
        f"{planned.batch.global_:,} sequences"
    )
    if stages > 1:
        share = f"{100 * (stages - 1) / (count * chunks):.3g}"
        latex += r"\qquad \frac{t_\text{wait}}{t_\text{work}} = \frac{p-1}{m \cdot v} = "
        latex += rf"\frac{{{stages}-1}}{{{count} \cdot {chunks}}} = {share} \%"
        text += f"; stages wait ({stages} - 1) / ({count} x {chunks}) = {share} % of their work"

    return latex, text


def memory(plan: Plan, phase: str) -> tuple[str, str]:
    """Return the formula for the memory on the fullest rank: parameters, and what a step adds."""
    stage = plan.memory[phase].fullest_stage
    count = plan.parameters[phase].per_rank_by_stage[stage.stage]
    bytes_per_parameter = []
    for size in (stage.weights, stage.gradients, stage.optimizer):
        bytes_per_parameter.append(size / count)

    stays = stage.weights + stage.gradients + stage.optimizer
    added = stage.activations + stage.logits
    latex = (
        rf"{_number(count)} \cdot (\underbrace{{{bytes_per_parameter[0]:.3g}}}_\text{{weights}} + "
        rf"\underbrace{{{bytes_per_parameter[1]:.3g}}}_\text{{gradients}} + "
        rf"\underbrace{{{bytes_per_parameter[2]:.3g}}}_\text{{Adam}})\,\text{{B}} "
        rf"= \text{{{show_bytes(stays)}}} \qquad + \text{{{show_bytes(added)} of activations and "
        rf"logits}}"
    )
    sums = " + ".join(f"{size:.3g}" for size in bytes_per_parameter)
    text = (
        f"{show_count(count)} parameters x ({sums}) B (weights, gradients, Adam) = "
        f"{show_bytes(stays)}"
    )
    return latex, f"{text}, and {show_bytes(added)} of activations and logits"


def step_time(plan: Plan, phase: str) -> tuple[str, str] | None:
    """Return the formula for the step time: operations divided by device speed.

    Return None if the step time is unknown.
    """
    time = plan.time[phase]
    flops = plan.flops[phase]
    world = plan.phases[phase].parallel.world_size
    if not (time.seconds_per_iteration and time.tflops_per_device and time.mfu):
        return None
    work = flops.per_iteration[flops.convention]
    peak = time.tflops_per_device / time.mfu
    seconds = show_duration(time.seconds_per_iteration)
    latex = (
        r"t = \frac{F}{n \cdot P \cdot \text{MFU}} = "
        rf"\frac{{{_operations(work)}}}"
        rf"{{{world} \cdot {peak:.4g}\text{{ TFLOP/s}} \cdot {time.mfu:.3g}}} = \text{{{seconds}}}"
    )
    return (
        latex,
        f"step = {work:.3e} FLOP / ({world} devices x {peak:.4g} TFLOP/s x {time.mfu:.3g}) = "
        f"{seconds}",
    )


def reached_speed(plan: Plan, phase: str, seconds: float) -> tuple[str, str]:
    """Return the formula for the speed reached: operations in a step divided by device time."""
    flops = plan.flops[phase]
    world = plan.phases[phase].parallel.world_size
    work = flops.per_iteration[flops.convention]
    speed = f"{work / seconds / world / 1e12:.4g} TFLOP/s per device"
    done = _operations(work)
    time = rf"{seconds:.4g}\text{{ s}}"
    latex = rf"\frac{{F}}{{n \cdot t}} = \frac{{{done}}}{{{world} \cdot {time}}} = \text{{{speed}}}"
    return latex, f"{work:.3e} FLOP / ({world} devices x {seconds:.4g} s) = {speed}"


def epochs(plan: Plan, phase: str, tokens: int) -> tuple[str, str]:
    """Return the formula for how many times each token is read in training."""
    needed = plan.phases[phase].duration.tokens
    times = f"{needed / tokens:.3g}"
    latex = (
        rf"E = \frac{{B \cdot s \cdot K}}{{D}} = \frac{{{_number(needed)}}}{{{_number(tokens)}}} = "
        rf"{times}"
    )
    return latex, f"epochs = {needed:,} tokens read / {tokens:,} tokens in the files = {times}"


def _operations(count: float) -> str:
    mantissa, _, exponent = f"{count:.3e}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}\text{{ FLOP}}"


def _number(count: int) -> str:
    """Return a number in LaTeX, where a plain comma would be followed by a space.

    >>> _number(50257)
    '50{,}257'
    """
    return f"{count:,}".replace(",", "{,}")
