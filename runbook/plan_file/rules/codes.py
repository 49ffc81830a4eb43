"""Codes for the rules the planner and the trainer share, and the text for each."""

from runbook.plan_file.diagnostics import Code, RuleText


class RuleCode(Code):
    """A rule about a layout, a batch or how a step is computed."""

    HEADS_BY_TENSOR = "layout.heads-by-tensor"
    KEY_VALUE_HEADS = "layout.key-value-heads"
    FEED_FORWARD_BY_TENSOR = "layout.feed-forward-by-tensor"
    LAYERS_BY_PIPELINE = "layout.layers-by-pipeline"
    LAYERS_OF_UNEVEN_STAGES = "layout.layers-of-uneven-stages"
    POSITIONS = "layout.positions"
    ZERO_STAGE_WITH_PIPELINE = "layout.zero-stage-with-pipeline"
    SEQUENCE_WITH_DEEPSPEED = "layout.sequence-with-deepspeed"
    SEQUENCE_BY_TENSOR = "layout.sequence-by-tensor"
    CONTEXT_WITH_DEEPSPEED = "layout.context-with-deepspeed"
    CONTEXT_BY_HEADS = "layout.context-by-heads"
    CONTEXT_BY_PIECES = "layout.context-by-pieces"
    ZERO_STAGE_OF_MEGATRON = "engine.zero-stage-of-megatron"
    FP16_WITHOUT_ZERO = "engine.fp16-without-zero"
    VIRTUAL_PIPELINE_WITH_DEEPSPEED = "layout.virtual-pipeline-with-deepspeed"
    VIRTUAL_PIPELINE = "layout.virtual-pipeline"
    BATCH_RAMP = "batch.ramp"
    BATCH_RAMP_DIVIDES = "batch.ramp-divides"
    OVERLAP_WEIGHTS = "tuning.overlap-weights"
    OVERLAP_TENSOR_OR_GRAPHS = "tuning.overlap-tensor-or-graphs"
    RECOMPUTED_GROUPS = "tuning.recomputed-groups"
    TUNING_WITH_DEEPSPEED = "tuning.with-deepspeed"
    REPLAY_WITH_DEEPSPEED = "replay.with-deepspeed"
    REPLAY_REPEATABLE = "replay.repeatable"

    @property
    def message(self) -> RuleText:
        """Return the text templates for this rule."""
        return _MESSAGES[self]


_STEP = "how a step is carried out"
_MESSAGES = {
    RuleCode.HEADS_BY_TENSOR: RuleText(
        title="heads by tensor",
        value="{heads} heads over {tensor_key}={tensor}",
        rule="the attention heads are divisible by tensor",
        remedy="Choose a {tensor_key} that divides {heads}.",
    ),
    RuleCode.KEY_VALUE_HEADS: RuleText(
        title="key-value heads",
        value="{kv_heads} key-value heads for {heads} heads over {tensor_key}={tensor}",
        rule="the heads are divisible by the key-value heads, and those by tensor",
        remedy="Choose a {tensor_key} that divides {kv_heads}, or another kv_heads for {model}.",
    ),
    RuleCode.FEED_FORWARD_BY_TENSOR: RuleText(
        title="feed-forward by tensor",
        value="feed-forward width {ffn_hidden} over {tensor_key}={tensor}",
        rule="the feed-forward width is divisible by tensor",
        remedy="Choose a {tensor_key} that divides {ffn_hidden}.",
    ),
    RuleCode.LAYERS_BY_PIPELINE: RuleText(
        title="layers by pipeline",
        value="{layers} layers over {stages}",
        rule="the layers are divisible by pipeline x virtual pipeline",
        remedy="Choose stages so that their product divides {layers}.",
    ),
    RuleCode.LAYERS_OF_UNEVEN_STAGES: RuleText(
        title="layers by pipeline",
        value="{layers} layers over {stages}, {uneven}",
        rule="the other stages share the remaining layers equally, and the layers of each stage are "
        "divisible by virtual pipeline",
        remedy="Choose a pipeline, or a number of layers for the first or last stage, for which "
        "this holds.",
    ),
    RuleCode.POSITIONS: RuleText(
        title="positions",
        value="sequences of {sequence_length} tokens, {positions} {embedding} positions",
        rule="a sequence has at most as many tokens as the model has positions",
        remedy="Lower {length_key} to {positions}, or give model {model} more positions.",
    ),
    RuleCode.ZERO_STAGE_WITH_PIPELINE: RuleText(
        title="ZeRO stage",
        value="parallel.zero_stage={zero_stage} with {pipeline_key}={pipeline}",
        rule="ZeRO 2 and 3 partition gradients, but a pipeline accumulates them over "
        "micro-batches, so it allows only stages 0 and 1",
        remedy="Set parallel.zero_stage to 1, or {pipeline_key} to 1.",
    ),
    RuleCode.SEQUENCE_WITH_DEEPSPEED: RuleText(
        title="sequence parallel",
        value="parallel.sequence=true with training.engine=deepspeed",
        rule="the gradients of norms must be summed over the tensor ranks, "
        "which DeepSpeed does not do",
        remedy="Set parallel.sequence to false, or training.engine to megatron-core.",
    ),
    RuleCode.SEQUENCE_BY_TENSOR: RuleText(
        title="sequence parallel",
        value="parallel.sequence=true with {tensor_key}={tensor}, {sequence_length} tokens",
        rule="sequence parallelism splits the sequence over the tensor ranks, so tensor must be "
        "above 1 and divide the sequence length",
        remedy="Set parallel.sequence to false, or {tensor_key} to more than 1.",
    ),
    RuleCode.CONTEXT_WITH_DEEPSPEED: RuleText(
        title="context parallel",
        value="parallel.context={context} with training.engine=deepspeed",
        rule="the gradients of a sequence's parts must be summed, which DeepSpeed does not do here",
        remedy="Set parallel.context to 1, or training.engine to megatron-core.",
    ),
    RuleCode.CONTEXT_BY_HEADS: RuleText(
        title="context parallel",
        value="parallel.context={context}, {heads} heads, {sequence_length} tokens",
        rule="Ulysses exchanges sequence for heads: the heads of a tensor rank and the sequence "
        "length are divisible by context",
        remedy="Choose a parallel.context that divides {heads_of_rank}.",
    ),
    RuleCode.CONTEXT_BY_PIECES: RuleText(
        title="context parallel",
        value="parallel.context={context}, {sequence_length} tokens",
        rule=(
            "the sequence length is divisible by 2 x context (each rank takes an early and a late "
            "piece)"
        ),
        remedy="Choose a parallel.context so that 2 x context divides {sequence_length}.",
    ),
    RuleCode.ZERO_STAGE_OF_MEGATRON: RuleText(
        title="ZeRO stage",
        value="parallel.zero_stage={zero_stage} with {program_key}={program}",
        rule="Megatron's distributed optimizer partitions only optimizer states, which is stage 1",
        remedy="Set parallel.zero_stage to 1, or {program_key} to {deepspeed_program}.",
    ),
    RuleCode.FP16_WITHOUT_ZERO: RuleText(
        title="fp16 with ZeRO",
        value="training.precision=fp16 with parallel.zero_stage={zero_stage} "
        "and training.engine=deepspeed",
        rule="without ZeRO, DeepSpeed 0.19.8 divides gradients by a loss scale "
        "that it never applied to the loss",
        remedy="Set parallel.zero_stage to 1, training.precision to bf16, "
        "or training.engine to megatron-core.",
    ),
    RuleCode.VIRTUAL_PIPELINE_WITH_DEEPSPEED: RuleText(
        title="virtual pipeline",
        value="parallel.virtual_pipeline={virtual_pipeline} with {pipeline_key}={pipeline} "
        "under DeepSpeed",
        rule="DeepSpeed's pipeline has one chunk of layers per stage",
        remedy="Set parallel.virtual_pipeline to 1, or training.engine to megatron-core.",
    ),
    RuleCode.VIRTUAL_PIPELINE: RuleText(
        title="virtual pipeline",
        value="parallel.virtual_pipeline={virtual_pipeline} with {pipeline_key}={pipeline}, "
        "{num_microbatches} micro-batches per step",
        rule=(
            "interleaving needs more than one stage, and a number of micro-batches that is "
            "divisible by the number of stages"
        ),
        remedy="Set parallel.virtual_pipeline to 1, or choose a training.global_batch that gives "
        "each replica a multiple of {pipeline} micro-batches.",
    ),
    RuleCode.BATCH_RAMP: RuleText(
        title="batch ramp",
        value="from {start} by {increment} to {global_batch} sequences over {samples:,} samples",
        rule="rampup_start + a multiple of rampup_increment is global_batch, "
        "and all three ramp keys are given",
        remedy="Choose training.rampup_start, rampup_increment and rampup_samples so that this is "
        "true, or leave all three at 0.",
    ),
    RuleCode.BATCH_RAMP_DIVIDES: RuleText(
        title="batch ramp divides",
        value="from {start} by {increment} to {global_batch} sequences over {samples:,} samples; "
        "all replicas compute {group} at a time",
        rule="every batch of the ramp is divisible by micro_batch x data parallel",
        remedy="Make training.rampup_start and rampup_increment multiples of {group}.",
    ),
    RuleCode.OVERLAP_WEIGHTS: RuleText(
        title=_STEP,
        value="training.overlap_weights without overlap_gradients, "
        "or with parallel.zero_stage={zero_stage}",
        rule="gathering weights late requires a partitioned optimizer and gradients reduced early",
        remedy="Set training.overlap_gradients true and parallel.zero_stage 1, "
        "or training.overlap_weights false.",
    ),
    RuleCode.OVERLAP_TENSOR_OR_GRAPHS: RuleText(
        title=_STEP,
        value="training.overlap_tensor without parallel.sequence, "
        "or training.cuda_graphs with recompute full",
        rule="overlap_tensor sends parts of sequences while products are computed; "
        "a CUDA graph of a layer cannot recompute the layer",
        remedy="Set parallel.sequence true, or the key to false; "
        "training.recompute selective works with graphs.",
    ),
    RuleCode.RECOMPUTED_GROUPS: RuleText(
        title=_STEP,
        value="training.recompute_num_layers={group}, and the stages have {stage_layers}",
        rule="the size of uniform groups divides the number of layers of every stage",
        remedy="Choose a number that divides them, or training.recompute_method block.",
    ),
    RuleCode.TUNING_WITH_DEEPSPEED: RuleText(
        title=_STEP,
        value="overlap_weights, overlap_pipeline, fuse_gradients, recompute_* "
        "or uneven stages with engine deepspeed",
        rule="only megatron-core has these options; DeepSpeed has its own",
        remedy="Leave them out, or set training.engine to megatron-core.",
    ),
    RuleCode.REPLAY_WITH_DEEPSPEED: RuleText(
        title="replay",
        value="training.replay_interval={interval} with training.engine=deepspeed",
        rule="DeepSpeed reduces and frees gradients while it computes, so a micro-batch cannot be "
        "recomputed within its step",
        remedy="Set training.replay_interval to 0, or training.engine to megatron-core.",
    ),
    RuleCode.REPLAY_REPEATABLE: RuleText(
        title="replay",
        value="training.replay_interval={interval} with {reason}",
        rule="recomputing a pass requires access to its activations and no side effects: CUDA "
        "graphs hide activations, and delayed fp8 scales depend on earlier passes",
        remedy="Set training.replay_interval to 0, or leave out {reason}.",
    ),
}
