"""Rules for layouts: divisibility, and which kinds of parallelism can be combined."""

from collections.abc import Iterator

from runbook.plan_file.diagnostics import RuleResult, Value
from runbook.plan_file.rules.codes import RuleCode
from runbook.plan_file.rules.phase_keys import DEEPSPEED, FULL_KEYS, Keys
from runbook.plan_file.schema import Layout, ModelShape

_UNEVEN = ("first_stage_layers", "last_stage_layers")


def shape_rules(
    shape: ModelShape,
    parallel: Layout,
    model: str,
    keys: Keys = FULL_KEYS,
) -> Iterator[RuleResult]:
    """Yield what a layout requires from the model; `model` is the model name in messages."""
    tensor = parallel.tensor
    over_tensor: dict[str, Value] = {"tensor": tensor, "tensor_key": keys.tensor}
    yield RuleResult(
        code=RuleCode.HEADS_BY_TENSOR,
        holds=shape.heads % tensor == 0,
        values={"heads": shape.heads, **over_tensor},
        keys=(keys.tensor,),
    )
    if shape.kv_heads != shape.heads:
        groups_divide = shape.heads % shape.kv_heads == 0
        yield RuleResult(
            code=RuleCode.KEY_VALUE_HEADS,
            holds=groups_divide and shape.kv_heads % tensor == 0,
            values={
                "kv_heads": shape.kv_heads,
                "heads": shape.heads,
                "model": model,
                **over_tensor,
            },
            keys=(keys.tensor,),
        )

    if tensor > 1:
        yield RuleResult(
            code=RuleCode.FEED_FORWARD_BY_TENSOR,
            holds=shape.ffn_hidden % tensor == 0,
            values={"ffn_hidden": shape.ffn_hidden, **over_tensor},
            keys=(keys.tensor,),
        )

    yield _stages_rule(shape, parallel, keys)
    yield RuleResult(
        code=RuleCode.POSITIONS,
        holds=shape.sequence_length <= shape.positions,
        values={
            "sequence_length": shape.sequence_length,
            "positions": shape.positions,
            "embedding": shape.position_embedding,
            "length_key": keys.sequence_length,
            "model": model,
        },
        keys=(keys.sequence_length,),
    )


def _stages_rule(shape: ModelShape, parallel: Layout, keys: Keys) -> RuleResult:
    stages = f"{keys.pipeline}={parallel.pipeline}"
    named_keys = [keys.pipeline]
    if parallel.virtual_pipeline > 1:
        stages += f" x parallel.virtual_pipeline={parallel.virtual_pipeline}"
        named_keys.append("parallel.virtual_pipeline")

    uneven = {f"parallel.{name}": getattr(parallel, name) for name in _UNEVEN}
    uneven = {key: layers for key, layers in uneven.items() if layers}
    return RuleResult(
        code=RuleCode.LAYERS_OF_UNEVEN_STAGES if uneven else RuleCode.LAYERS_BY_PIPELINE,
        holds=bool(parallel.stage_layers(shape.layers)),
        values={
            "layers": shape.layers,
            "stages": stages,
            "uneven": ", ".join(f"{key}={layers}" for key, layers in uneven.items()),
        },
        keys=(*named_keys, *uneven),
    )


def sharing_rules(
    shape: ModelShape,
    parallel: Layout,
    program: str,
    keys: Keys = FULL_KEYS,
) -> Iterator[RuleResult]:
    """Yield the rules for combining kinds of parallelism.

    `program` is the training program: an engine of our own trainer, or a framework.
    """
    if parallel.zero_stage >= 2 and program in DEEPSPEED:
        yield RuleResult(
            code=RuleCode.ZERO_STAGE_WITH_PIPELINE,
            holds=parallel.pipeline == 1,
            values={
                "zero_stage": parallel.zero_stage,
                "pipeline": parallel.pipeline,
                "pipeline_key": keys.pipeline,
            },
            keys=("parallel.zero_stage", keys.pipeline),
        )

    if parallel.sequence:
        yield _sequence_rule(shape, parallel, program, keys)
    if parallel.context > 1:
        yield _context_rule(shape, parallel, program)


def _sequence_rule(
    shape: ModelShape,
    parallel: Layout,
    program: str,
    keys: Keys,
) -> RuleResult:
    if program == "deepspeed":
        return RuleResult(
            code=RuleCode.SEQUENCE_WITH_DEEPSPEED,
            holds=False,
            values={},
            keys=("parallel.sequence", "training.engine"),
        )

    divides = shape.sequence_length % parallel.tensor == 0
    return RuleResult(
        code=RuleCode.SEQUENCE_BY_TENSOR,
        holds=parallel.tensor > 1 and divides,
        values={
            "tensor": parallel.tensor,
            "tensor_key": keys.tensor,
            "sequence_length": shape.sequence_length,
        },
        keys=("parallel.sequence", keys.tensor),
    )


def _context_rule(shape: ModelShape, parallel: Layout, program: str) -> RuleResult:
    context = parallel.context
    length = shape.sequence_length
    if program == "deepspeed":
        return RuleResult(
            code=RuleCode.CONTEXT_WITH_DEEPSPEED,
            holds=False,
            values={"context": context},
            keys=("parallel.context", "training.engine"),
        )

    if program == "megatron-deepspeed":
        heads_of_rank = shape.heads // parallel.tensor
        return RuleResult(
            code=RuleCode.CONTEXT_BY_HEADS,
            holds=heads_of_rank % context == 0 and length % context == 0,
            values={
                "context": context,
                "heads": shape.heads,
                "sequence_length": length,
                "heads_of_rank": max(1, heads_of_rank),
            },
            keys=("parallel.context",),
        )

    return RuleResult(
        code=RuleCode.CONTEXT_BY_PIECES,
        holds=length % (2 * context) == 0,
        values={"context": context, "sequence_length": length},
        keys=("parallel.context",),
    )


def engine_rules(program: str, zero_stage: int, precision: str) -> Iterator[RuleResult]:
    """Yield the rules for ZeRO stage and number format that a program applies to every layout."""
    if zero_stage >= 2 and program not in DEEPSPEED:
        if program == "megatron-core":
            program_key = "training.engine"
            deepspeed_program = "deepspeed"
        else:
            program_key = "training.framework"
            deepspeed_program = "megatron-deepspeed"

        yield RuleResult(
            code=RuleCode.ZERO_STAGE_OF_MEGATRON,
            holds=False,
            values={
                "zero_stage": zero_stage,
                "program": program,
                "program_key": program_key,
                "deepspeed_program": deepspeed_program,
            },
            keys=("parallel.zero_stage", program_key),
        )

    if program == "deepspeed" and precision == "fp16":
        yield RuleResult(
            code=RuleCode.FP16_WITHOUT_ZERO,
            holds=zero_stage > 0,
            values={"zero_stage": zero_stage},
            keys=("parallel.zero_stage", "training.precision", "training.engine"),
        )


def chunk_rules(
    parallel: Layout,
    num_microbatches: int,
    program: str,
    keys: Keys = FULL_KEYS,
) -> Iterator[RuleResult]:
    """Yield what interleaved stages require, if the layout has them."""
    if parallel.virtual_pipeline <= 1:
        return
    values: dict[str, Value] = {
        "virtual_pipeline": parallel.virtual_pipeline,
        "pipeline": parallel.pipeline,
        "pipeline_key": keys.pipeline,
        "num_microbatches": num_microbatches,
    }
    if program in DEEPSPEED:
        yield RuleResult(
            code=RuleCode.VIRTUAL_PIPELINE_WITH_DEEPSPEED,
            holds=False,
            values=values,
            keys=("parallel.virtual_pipeline", "training.engine", keys.pipeline),
        )
    else:
        divides = num_microbatches % parallel.pipeline == 0
        yield RuleResult(
            code=RuleCode.VIRTUAL_PIPELINE,
            holds=parallel.pipeline > 1 and divides,
            values=values,
            keys=("parallel.virtual_pipeline", "training.global_batch", keys.pipeline),
        )
