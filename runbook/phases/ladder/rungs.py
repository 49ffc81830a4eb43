"""Rungs of a ladder: smaller training runs, derived from the values of a run by one rule.

Every rung uses the same text, tokenizer, sequence length and schedule shape as the run. The number
of tokens is proportional to the size, with the same ratio as in the run. Learning rate and batch
scale with the size as in the ladders of Porian et al. (arXiv:2406.19146) and of OLMo
(arXiv:2412.04403): the rate with N^(-1/3), the batch with N^(2/3). If the batch is too small for
that, rungs keep the batch and rate of the run.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runbook.core.errors import ParamsError
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.schema import ModelShape
from runbook.planning.sizes import whole

FEWEST_RUNGS = 5
"""A scaling law in size and tokens has five parameters."""
MOST_RUNGS = 8
COMPUTE_BETWEEN_RUNGS = 2.0
"""With this factor, five rungs span a factor of 16 and together cost about twice as much as the
largest rung.

A smaller factor is used only if the smallest rung would be narrower than `NARROWEST`. The small
rungs may have few steps, because their weight in the forecast is small: the error is smallest if
the last rung is large, and much larger than the one before it. In benchmarks/forecast, the error
has a standard deviation of 1.0 % with a factor of about 2, and 1.35 % with factors of 1.5 to 1.7.
"""
LEAST_BETWEEN_RUNGS = 1.25
"""Rungs with a smaller factor between them would differ little more than two random seeds do."""
NARROWEST = 32
"""Width below which a model learns differently from wider models.

With a vocabulary of 50,000, a model with this width already has 1.6 M parameters.
"""
LARGEST_SHARE = 0.25
"""A rung that uses more than this share of the compute for the run is not a small training run."""
ON_ONE_LINE = 5
"""How many rungs have as many tokens per parameter as the run has.

Each further rung uses as much compute as one of these at a different size, so that the fit can
separate the effects of size and tokens.
"""
OTHER_SIZES = ((2, 2.0), (2, 0.5), (3, 2.0))
"""For each extra rung, the position of the rung with the same compute, and the size relative to it.

The small rungs are used, because they are cheap.
"""
RATE_EXPONENT = -1 / 3
BATCH_EXPONENT = 2 / 3
WORST_BATCH_ROUNDING = 0.06
"""Largest relative change in a batch due to rounding. Above it, every rung uses the run's own
batch.

A batch of only a few sequences cannot be scaled smoothly with the model: going from 5 to 6
sequences changes the number of steps so much that the losses would zigzag.
"""
USUAL_INIT_STD = 0.02
DECISIVE_SHARE = 1 / 3
"""Rungs with at least this share of the compute in the largest rung decide the forecast.

On a line with a factor of 2, these are the two largest. Each smaller rung weighs at most 1/64
(`forecast/ladder_line.py`).
"""
FEWEST_STEPS = 300
"""Fewest steps for a decisive rung. With fewer, the loss depends on steps, not on tokens.

On the shipped corpus, 95,000 tokens reach 7.60 nats in 46 steps, and 6.97 in 186 steps with a
quarter of the batch. A law through rungs with 186 to 811 steps missed by 3.8 % (docs/ladder.md).
"""
MOST_NOISE = 0.019
"""A run is nearly unstable if rate x width / sqrt(tokens in a batch) is larger than this.

The highest stable rate falls with the width (Yang et al., arXiv:2203.03466) and grows with the
square root of the batch (Malladi et al., arXiv:2205.10287). Rungs are narrower than the run, so
they do not show the instability. In benchmarks/forecast, runs at 0.021 to 0.034 ended 5 to 22 %
above their forecasts; runs at 0.0085 to 0.017 did not. GPT-3 with 175B parameters has 0.0004.
"""
HELD_OUT_TOKENS = 65_536
"""Number of tokens to evaluate at the end of a rung if the run has no evaluation.

Otherwise, rungs are evaluated on the same sequences as the run, as far as their cost allows,
because texts differ more than models do. For one run on the shipped corpus, each of 16 parts of
65,536 held-out tokens was used once for its evaluation. If the rungs are evaluated on that part
too, the forecast errors have a standard deviation of 2.5 %; if they are evaluated on all
tokens, 15 % (2026-11-28).
"""
MOST_EVALUATED = 0.25
"""Limit on tokens to evaluate a rung on, as a share of the training tokens in the largest rung.

All rungs evaluate on the same tokens. A forward pass costs a third of a training step, so this adds
about a tenth to the cost of the ladder.
"""
WIDE = 1024
"""If the run is at least this wide, rungs get widths and head sizes that suit GPUs."""
WIDE_UNIT = 64
HEAD_UNIT = 8
WIDTH_UNIT = 8
SMALL_HEAD_UNIT = 4
"""Widths and head sizes are multiples of these units."""


@dataclass(frozen=True)
class Family:
    """The run that the rungs are derived from."""

    shape: ModelShape
    samples: int
    global_batch: int
    micro_batch: int
    rate: LearningRate
    init_std: float
    devices: int
    """Number of devices in one node, because every rung runs on a single node."""
    evaluated_samples: int = 0
    """Sequences in an evaluation during the run; 0 if it has none."""

    @property
    def parameters(self) -> int:
        """Parameters, including embeddings."""
        return whole(self.shape).total

    @property
    def tokens(self) -> int:
        """Return how many tokens the run trains on."""
        return self.samples * self.shape.sequence_length

    @property
    def flops(self) -> float:
        """Return the compute for the run, counted as in the plan."""
        return self.samples * self.shape.flops_per_sequence()

    @property
    def batch_tokens(self) -> int:
        """Return how many tokens a batch has."""
        return self.global_batch * self.shape.sequence_length

    def rung_evaluation(self, largest_tokens: float) -> int:
        """Return how many sequences to evaluate every rung on.

        `largest_tokens` is how many tokens the largest rung trains on.
        """
        length = self.shape.sequence_length
        usual = math.ceil(HELD_OUT_TOKENS / length)
        if not self.evaluated_samples:
            return usual
        affordable = math.ceil(MOST_EVALUATED * largest_tokens / length)
        return min(self.evaluated_samples, max(usual, affordable))

    @property
    def is_nearly_unstable(self) -> bool:
        """Return whether the learning rate is high for this width and batch; see `MOST_NOISE`."""
        return gradient_noise(self.rate.peak, self.shape.hidden, self.batch_tokens) > MOST_NOISE


def gradient_noise(rate: float, width: int, batch_tokens: float) -> float:
    """Return how strongly noise moves the weights, relative to what the width can tolerate.

    >>> round(gradient_noise(1.5e-3, 256, 1024), 4)
    0.012
    """
    return rate * width / math.sqrt(batch_tokens)


@dataclass(frozen=True)
class LadderRung:
    """A small training run: its shape, length, batch and learning rates."""

    number: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    parameters: int
    parameters_no_embed: int
    tokens: int
    flops: float
    iterations: int
    global_batch: int
    micro_batch: int
    learning_rate: float
    min_learning_rate: float
    warmup_iterations: int
    decay_iterations: int
    init_std: float
    eval_iterations: int

    @property
    def evaluated_samples(self) -> int:
        """Return how many sequences to evaluate after the last step."""
        return self.eval_iterations * self.global_batch

    def words(self) -> list[str]:
        """Return the `--set` arguments that turn the run file into this rung."""
        training = {
            "shape.layers": self.layers,
            "shape.hidden": self.hidden,
            "shape.heads": self.heads,
            "shape.kv_heads": self.kv_heads,
            "shape.ffn_hidden": self.ffn_hidden,
            "iterations": self.iterations,
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
            "rampup_start": 0,
            "rampup_increment": 0,
            "rampup_samples": 0,
            "learning_rate": f"{self.learning_rate:.6g}",
            "min_learning_rate": f"{self.min_learning_rate:.6g}",
            "warmup_iterations": self.warmup_iterations,
            "decay_iterations": self.decay_iterations,
            "init_std": f"{self.init_std:.6g}",
            "eval_interval": self.iterations,
            "eval_iterations": self.eval_iterations,
            "save_interval": 0,
            "recompute": "none",
            "rehearse_stop": 0,
            "sample_prompt": "",
            "smoke.waived_by": "runbook-ladder",
        }
        layout = {
            "tensor": 1,
            "pipeline": 1,
            "virtual_pipeline": 1,
            "context": 1,
            "first_stage_layers": 0,
            "last_stage_layers": 0,
        }
        set_words = [f"training.{key}={value}" for key, value in training.items()]
        set_words += [f"parallel.{key}={value}" for key, value in layout.items()]
        alone = ["parallel.sequence=false", "training.replay_interval=0", "jobs.training.nodes=1"]
        alone += ["training.near_interval=0"]
        return [
            *set_words,
            *alone,
            "jobs.training.chain=1",
            "jobs.training.spares=0",
            "jobs.training.min_nodes=0",
        ]


def design_rungs(family: Family, count: int, largest_flops: float) -> list[LadderRung]:
    """Return the rungs, smallest first; the largest one has `largest_flops`.

    Raise `ParamsError` if the count is not between 5 and 8, or if the run is too small for so many
    rungs.
    """
    if not FEWEST_RUNGS <= count <= MOST_RUNGS:
        raise ParamsError(
            PhaseMessage.NUMBER_OF_RUNGS,
            fewest_rungs=FEWEST_RUNGS,
            most_rungs=MOST_RUNGS,
            count=count,
        )

    rungs = []
    for parameters, flops in _wanted_sizes(family, count, largest_flops):
        rungs.append(_rung(family, parameters, flops))

    largest_tokens = max(rung.tokens for rung in rungs)
    family = replace(family, evaluated_samples=family.rung_evaluation(largest_tokens))
    rungs = _with_batches(family, rungs)
    rungs.sort(key=lambda rung: (rung.flops, rung.parameters))
    return [replace(rung, number=number) for number, rung in enumerate(rungs, start=1)]


def _wanted_sizes(
    family: Family,
    count: int,
    largest_flops: float,
) -> Iterator[tuple[float, float]]:
    """Yield parameter count and compute for each rung."""
    factor = _compute_factor(family, largest_flops)
    line = []
    for below in reversed(range(ON_ONE_LINE)):
        flops = largest_flops / factor**below
        # Tokens per parameter stay constant, so tokens and parameters grow with the square root of
        # compute.
        line.append((family.parameters * math.sqrt(flops / family.flops), flops))

    yield from line
    for position, ratio in OTHER_SIZES[: count - ON_ONE_LINE]:
        parameters, flops = line[position]
        yield parameters * ratio, flops


def _compute_factor(family: Family, largest_flops: float) -> float:
    """Return the compute ratio between rungs.

    Raise `ParamsError` if embeddings leave no room for five rungs.
    """
    narrowest = whole(_scaled(family.shape, 1, NARROWEST)).total
    largest = family.parameters * math.sqrt(largest_flops / family.flops)
    room = (largest / narrowest) ** 2
    gaps = ON_ONE_LINE - 1
    widest: float = min(COMPUTE_BETWEEN_RUNGS, room ** (1 / gaps))
    if widest < LEAST_BETWEEN_RUNGS:
        raise ParamsError(
            PhaseMessage.BUDGET_TOO_SMALL_FOR_RUNGS,
            largest=largest,
            width=NARROWEST,
            narrowest=narrowest,
            rungs=ON_ONE_LINE,
        )
    return widest


def rungs_above(
    family: Family,
    trained: Sequence[LadderRung],
    count: int,
    factor: float,
) -> list[LadderRung] | None:
    """Return larger rungs that continue the line through the trained rungs.

    Each needs `factor` times as much compute as the previous one. They keep the trained rungs' rule
    for batch and learning rate, and their evaluation. Return None if that rule rounds a batch too
    much.
    """
    last = trained[-1]
    family = replace(family, evaluated_samples=last.evaluated_samples)
    rungs = []
    for step in range(1, count + 1):
        flops = last.flops * factor**step
        parameters = family.parameters * math.sqrt(flops / family.flops)
        rung = replace(_rung(family, parameters, flops), number=last.number + step)
        rungs.append(rung)

    own_batch = _own_batch(family)
    if last.global_batch == own_batch and math.isclose(last.learning_rate, family.rate.peak):
        return [_with_batch(family, _with_own_rate(family, rung), own_batch) for rung in rungs]

    ideal_batches = _batches_by_size(family, rungs)
    batches = [_whole_batch(family, batch) for batch in ideal_batches]
    if _worst_rounding(batches, ideal_batches) > WORST_BATCH_ROUNDING:
        return None
    return [_with_batch(family, rung, batch) for rung, batch in zip(rungs, batches, strict=True)]


def _rung(family: Family, parameters: float, flops: float) -> LadderRung:
    """Return a rung of about this size. Its batch and steps are set later.

    The number of tokens is chosen so that the compute is exact.
    """
    shape = _nearest_shape(family.shape, parameters)
    counted = whole(shape)
    samples = flops / shape.flops_per_sequence()
    ratio = counted.total / family.parameters
    init_std = family.init_std * math.sqrt(family.shape.hidden / shape.hidden)
    rate = family.rate.peak * ratio**RATE_EXPONENT
    return LadderRung(
        number=0,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn_hidden=shape.ffn_hidden,
        parameters=counted.total,
        parameters_no_embed=counted.layers + counted.final_norm,
        tokens=round(samples * shape.sequence_length),
        flops=flops,
        iterations=0,
        global_batch=0,
        micro_batch=0,
        learning_rate=rate,
        min_learning_rate=rate * family.rate.minimum / family.rate.peak,
        warmup_iterations=0,
        decay_iterations=0,
        init_std=max(family.init_std, min(USUAL_INIT_STD, init_std)),
        eval_iterations=0,
    )


def _nearest_shape(shape: ModelShape, parameters: float) -> ModelShape:
    """Return the shape with about this many parameters that is most similar to the run.

    Its width-to-depth ratio and its head size are closest to those of the run.
    """
    ratio = shape.hidden / shape.layers
    candidates = []
    for layers in range(1, shape.layers + 1):
        smaller = _of_width(shape, layers, parameters)
        off_size = abs(math.log(whole(smaller).total / parameters))
        off_ratio = abs(math.log(smaller.hidden / layers / ratio))
        off_heads = abs(math.log(smaller.head_size / shape.head_size))
        candidates.append((4 * off_size + off_ratio + off_heads, layers, smaller))

    return min(candidates, key=lambda candidate: candidate[:2])[2]


def _of_width(shape: ModelShape, layers: int, parameters: float) -> ModelShape:
    """Return the shape with this many layers whose width gives the closest parameter count."""
    unit = WIDE_UNIT if shape.hidden >= WIDE else WIDTH_UNIT
    widths = range(max(unit, NARROWEST), shape.hidden + unit, unit)
    shapes = [_scaled(shape, layers, hidden) for hidden in widths]

    def distance(smaller: ModelShape) -> float:
        off_size = abs(math.log(whole(smaller).total / parameters))
        return 4 * off_size + abs(math.log(smaller.head_size / shape.head_size))

    return min(shapes, key=distance)


def _scaled(shape: ModelShape, layers: int, hidden: int) -> ModelShape:
    """Return the shape scaled to the given depth and width.

    Heads keep roughly their size, and the feed-forward block keeps its ratio.
    """
    heads = _heads(shape, hidden)
    per_group = shape.heads // shape.kv_heads
    kv_heads = heads // per_group if heads % per_group == 0 else heads
    ffn_hidden = WIDTH_UNIT * round(shape.ffn_hidden / shape.hidden * hidden / WIDTH_UNIT)
    return replace(
        shape,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn_hidden=ffn_hidden,
    )


def _heads(shape: ModelShape, hidden: int) -> int:
    """Return how many heads make each head about as large as in the run."""
    unit = HEAD_UNIT if shape.hidden >= WIDE else SMALL_HEAD_UNIT
    possible = [heads for heads in range(1, shape.heads + 1) if hidden % (unit * heads) == 0]
    return min(
        possible, key=lambda heads: abs(math.log(hidden / heads / shape.head_size)), default=1
    )


def _with_batches(family: Family, rungs: list[LadderRung]) -> list[LadderRung]:
    """Return the rungs with batches scaled to their size.

    If rounding would change scaled batches too much, all rungs get the batch and learning rate of
    the run.
    """
    ideal_batches = _batches_by_size(family, rungs)
    batches = [_whole_batch(family, ideal) for ideal in ideal_batches]
    if _worst_rounding(batches, ideal_batches) > WORST_BATCH_ROUNDING:
        # A higher learning rate than in the run requires the other half of the rule, a smaller
        # batch. Otherwise rungs with 512-token batches became unstable, and a forecast missed
        # by 39 % (docs/ladder.md).
        rungs = [_with_own_rate(family, rung) for rung in rungs]
        batches = [_own_batch(family) for _ in rungs]

    return [_with_batch(family, rung, batch) for rung, batch in zip(rungs, batches, strict=True)]


def _batches_by_size(family: Family, rungs: Sequence[LadderRung]) -> list[float]:
    """Return the ideal batch for each rung, before it is rounded to whole sequences."""
    batches = []
    for rung in rungs:
        ratio = rung.parameters / family.parameters
        batches.append(family.global_batch * ratio**BATCH_EXPONENT)
    return batches


def _worst_rounding(batches: Sequence[int], ideal_batches: Sequence[float]) -> float:
    """Return the largest relative change in a batch due to rounding."""
    pairs = zip(batches, ideal_batches, strict=True)
    return max(abs(batch / ideal - 1) for batch, ideal in pairs)


def _own_batch(family: Family) -> int:
    """Return the batch of the run, rounded to a multiple of the devices in a node."""
    return _whole_batch(family, family.global_batch)


def _whole_batch(family: Family, batch: float) -> int:
    """Return the nearest batch that gives each device in a node the same number of sequences."""
    return max(1, round(batch / family.devices)) * family.devices


def _with_own_rate(family: Family, rung: LadderRung) -> LadderRung:
    """Return the rung with the same learning rates as the run."""
    return replace(
        rung,
        learning_rate=family.rate.peak,
        min_learning_rate=family.rate.minimum,
    )


def _with_batch(family: Family, rung: LadderRung, batch: int) -> LadderRung:
    """Return the rung with this batch and a whole number of steps.

    Warm-up and decay take the same share of steps as in the run. The rung is evaluated on
    `family.evaluated_samples`, or a few sequences more or less if they are not whole batches.
    """
    length = family.shape.sequence_length
    iterations = max(1, round(rung.tokens / (batch * length)))
    tokens = iterations * batch * length
    decay = max(2, round(iterations * family.rate.decay_samples / family.samples))
    warmup = round(iterations * family.rate.warmup_samples / family.samples)
    if family.rate.warmup_samples:
        warmup = max(1, warmup)
    return replace(
        rung,
        iterations=iterations,
        tokens=tokens,
        flops=rung.flops * tokens / rung.tokens,
        global_batch=batch,
        micro_batch=_micro_batch(family, batch),
        decay_iterations=decay,
        warmup_iterations=min(warmup, decay - 1),
        eval_iterations=max(1, round(family.evaluated_samples / batch)),
    )


def _micro_batch(family: Family, batch: int) -> int:
    """Return the largest micro-batch that evenly divides the batch share on a device.

    It is at most as large as in the run.
    """
    on_device = batch // family.devices
    sizes = range(1, min(family.micro_batch, on_device) + 1)
    return max(size for size in sizes if on_device % size == 0)


def short_rungs(rungs: list[LadderRung]) -> list[LadderRung]:
    """Return the decisive rungs that have too few steps to predict a longer training run."""
    largest = max((rung.flops for rung in rungs), default=0.0)
    short = []
    for rung in rungs:
        is_decisive = rung.flops >= DECISIVE_SHARE * largest
        if is_decisive and rung.iterations < FEWEST_STEPS:
            short.append(rung)
    return short
