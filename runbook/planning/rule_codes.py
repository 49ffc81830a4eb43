"""Codes for the rules only planning applies, and the text for each."""

from runbook.plan_file.diagnostics import Code, RuleText


class PlanCode(Code):
    """A rule about the devices, batch, length or learning rate in a training run."""

    WORLD_SIZE = "devices.world-size"
    PROCESSES_ON_NODE = "devices.processes-on-node"
    DEVICES_ON_NODE = "devices.devices-on-node"
    NODES_OF_SITE = "devices.nodes-of-site"
    NO_GPU_SEEN = "devices.no-gpu-seen"
    TENSOR_INSIDE_NODE = "devices.tensor-inside-node"
    HEAD_SIZE = "model.head-size"
    SAMPLE_FITS = "model.sample-fits"
    PRECISION_OF_CPU = "precision.cpu"
    TRANSFORMER_ENGINE = "precision.transformer-engine"
    SUMS_IN_BF16 = "precision.sums-in-bf16"
    LOSS_SCALE = "precision.loss-scale"
    ZERO_3_AT_START = "memory.zero-3-at-start"
    BATCH_DIVIDES = "batch.divides"
    PIPELINE_FILLED = "batch.pipeline-filled"
    LEARNING_RATES = "schedule.learning-rates"
    FRAMEWORK_IGNORES_KEYS = "schedule.framework-ignores-keys"
    GIVEN_ONCE = "schedule.given-once"
    LENGTH = "schedule.length"
    WARMUP_WITHIN_DECAY = "schedule.warmup-within-decay"
    WARMUP_WITHIN_RUN = "schedule.warmup-within-run"
    DECAY_WITHIN_RUN = "schedule.decay-within-run"
    STEPS_SKIPPED = "schedule.steps-skipped"
    PLANNED_STOP = "schedule.planned-stop"
    REPLAY_COST = "schedule.replay-cost"
    NEAR_ROOM = "memory.near-room"
    MEMORY_FITS = "memory.fits"
    TIME_LIMIT = "job.time-limit"
    STORAGE_TIER = "storage.tier"
    VOLUME_FITS = "storage.volume-fits"

    @property
    def message(self) -> RuleText:
        """Return the text templates for this rule."""
        return _MESSAGES[self]


_MESSAGES = {
    PlanCode.WORLD_SIZE: RuleText(
        title="world size",
        value="{world_size} devices ({nodes} x {devices_per_node}){groups} ({factors})",
        rule="world size = tensor x pipeline x context x data replicas",
        remedy=(
            "Change {job_key}.nodes to a multiple of {node_multiple}, or choose {tensor_key} x "
            "{pipeline_key} so that it divides {world_size}."
        ),
    ),
    PlanCode.PROCESSES_ON_NODE: RuleText(
        title="processes on a node",
        value="{devices_per_node} processes on {cores} cores",
        rule="each process has its own core",
        remedy="Lower {job_key}.devices_per_node to at most {cores}; more would only be slower.",
    ),
    PlanCode.DEVICES_ON_NODE: RuleText(
        title="devices on a node",
        value="{devices_per_node} devices per node; a node of {site} has {site_devices}",
        rule="a job requests no more devices than a node has",
        remedy="Set {job_key}.devices_per_node to at most {site_devices}, or to 0 for all of them.",
    ),
    PlanCode.NODES_OF_SITE: RuleText(
        title="nodes of the site",
        value="{nodes} of the {site_nodes} that {site} has",
        rule="a job requests no more nodes than the site has",
        remedy=(
            "Set {job_key}.nodes to at most {site_nodes}, or correct hardware.nodes in "
            "params/sites/{site}.yaml."
        ),
    ),
    PlanCode.NO_GPU_SEEN: RuleText(
        title="GPUs",
        value="site {site} computes on the GPUs of this machine, but none is visible",
        rule=(
            "nvidia-smi or rocm-smi lists a GPU, and CUDA_VISIBLE_DEVICES and similar variables do "
            "not hide it"
        ),
        remedy="Check what nvidia-smi or rocm-smi reports, or compute on the CPU: --set site=local.",
    ),
    PlanCode.TENSOR_INSIDE_NODE: RuleText(
        title="tensor inside a node",
        value="{tensor_key}={tensor} on nodes of {devices_per_node} devices",
        rule="the devices that share a matrix are in one node, where the links are fast",
        remedy="Choose a {tensor_key} that divides {devices_per_node}.",
    ),
    PlanCode.HEAD_SIZE: RuleText(
        title="head size",
        value="hidden {hidden} / {heads} heads {head_size}",
        rule="the head size is a multiple of 8 (flash attention and the matrix units need it)",
        remedy="Choose heads for model {model} so that hidden / heads is 64, 96 or 128.",
    ),
    PlanCode.SAMPLE_FITS: RuleText(
        title="sample",
        value="training.sample_tokens={sample_tokens} after the prompt, {positions} positions",
        rule="prompt and continuation fit into the model's positions",
        remedy="Lower training.sample_tokens to at most {most_tokens}.",
    ),
    PlanCode.PRECISION_OF_CPU: RuleText(
        title="precision",
        value="training.precision={precision} on a CPU",
        rule="torch trains in bf16 and fp32 on a CPU; fp16 needs an accelerator",
        remedy="Set training.precision to bf16 or fp32.",
    ),
    PlanCode.TRANSFORMER_ENGINE: RuleText(
        title="Transformer Engine",
        value="{wanted} with training.precision={precision} on {device}",
        rule=(
            "these need GPUs and the engine megatron-core, and fp8 requires bf16; Transformer "
            "Engine computes them, except for fp8 tensorwise, which training.kernels auto or "
            "compiled computes"
        ),
        remedy="Leave them out, or set training.precision to bf16 and training.engine to "
        "megatron-core on a site with GPUs.",
    ),
    PlanCode.SUMS_IN_BF16: RuleText(
        title="sums of gradients",
        value="training.reduce_in_bf16 with training.precision={precision}",
        rule="Megatron-LM sums and reduces gradients in bf16 only if it trains in bf16",
        remedy="Leave training.reduce_in_bf16 out, or set training.precision to bf16.",
    ),
    PlanCode.LOSS_SCALE: RuleText(
        title="loss scale",
        value="training.initial_loss_scale={initial:g}, training.min_loss_scale={least:g} with "
        "training.engine=deepspeed",
        rule=(
            "DeepSpeed accepts the initial scale as a power of two, and the smallest as a whole "
            "number"
        ),
        remedy="Set training.initial_loss_scale to {power_of_two}, training.min_loss_scale to 1.",
    ),
    PlanCode.ZERO_3_AT_START: RuleText(
        title="ZeRO 3 at the start",
        value="{needed} of weights on each device of {memory}",
        rule="our trainer builds the whole model of a device before ZeRO 3 shards it",
        remedy="Choose a larger {tensor_key}, or training.engine=megatron-core with "
        "{pipeline_key}.",
    ),
    PlanCode.BATCH_DIVIDES: RuleText(
        title="batch",
        value="{global_batch} sequences over {micro_batch} micro x {data} replicas = {step}",
        rule="the global batch is divisible by micro-batch x data replicas",
        remedy="Set {batch_key} to {nearest}.",
    ),
    PlanCode.PIPELINE_FILLED: RuleText(
        title="pipeline filled",
        value=(
            "{num_microbatches} micro-batches for {pipeline} stages: {bubble:.0%} idle time "
            "relative to the work"
        ),
        rule="there are at least as many micro-batches as stages",
        remedy="Raise {batch_key}, or lower {pipeline_key}.",
    ),
    PlanCode.LEARNING_RATES: RuleText(
        title="learning rates",
        value="peak {peak:g}, minimum {minimum:g}",
        rule="the minimum is not above the peak",
        remedy="Lower training.min_learning_rate (a tenth of the peak is usual).",
    ),
    PlanCode.FRAMEWORK_IGNORES_KEYS: RuleText(
        title="keys of our own trainer",
        value="{ignored} with training.framework={framework}",
        rule="these keys affect only our own trainer; another framework gets no option for them",
        remedy="Leave them out, or pass the framework's own option in the site's file.",
    ),
    PlanCode.GIVEN_ONCE: RuleText(
        title="{what} given once",
        value="{given}",
        rule="{number} one of {alternatives}",
        remedy="Set one of them and leave the others at 0.",
    ),
    PlanCode.LENGTH: RuleText(
        title="length",
        value="{iterations:,} steps x {batch} sequences = {samples:,} samples = "
        "{tokens:,} tokens{left_over}",
        rule="a training run has at least one whole step",
        remedy="Raise {iterations_key}, or lower {batch_key}.",
    ),
    PlanCode.WARMUP_WITHIN_DECAY: RuleText(
        title="warm-up",
        value="{warmup_samples:,} samples of {samples:,}, decay over {decay_samples:,}",
        rule="the warm-up is shorter than the decay",
        remedy="Lower {warmup_key}, or decay over more samples.",
    ),
    PlanCode.WARMUP_WITHIN_RUN: RuleText(
        title="warm-up",
        value="{warmup_samples:,} samples of {samples:,}",
        rule="the run reaches its peak learning rate",
        remedy="Lower {warmup_key} or train longer.",
    ),
    PlanCode.DECAY_WITHIN_RUN: RuleText(
        title="decay",
        value="decay over {decay_samples:,} samples, run of {samples:,}: it ends at a rate of "
        "{last_rate:.2e} (peak {peak:g})",
        rule="the decay is no longer than the run",
        remedy=(
            "This is right for the first part of a longer training run; otherwise leave the decay "
            "keys at 0, which means the run's length."
        ),
    ),
    PlanCode.STEPS_SKIPPED: RuleText(
        title="steps skipped under fp16",
        value=(
            "about {skipped} of {steps} steps are skipped while the loss scale halves from "
            "{initial:g}"
        ),
        rule="some steps are not skipped and change the weights",
        remedy="Lower training.initial_loss_scale (65536), raise {iterations_key}, "
        "or train in bf16.",
    ),
    PlanCode.REPLAY_COST: RuleText(
        title="replay",
        value=(
            "{again} of {num_microbatches} micro-batches are recomputed every {interval} steps: "
            "{share:.2%} more computing"
        ),
        rule="recomputing to find silent data corruption takes at most 5 % of the time",
        remedy="Set training.replay_interval to {enough} or more.",
    ),
    PlanCode.NEAR_ROOM: RuleText(
        title="near copies",
        value="{needed} in {folder} of each node ({partner}) every {interval} steps; a node {memory}",
        rule=(
            "two copies of each rank's state fit into node memory; /dev/shm has half of it by "
            "default"
        ),
        remedy=(
            "Set training.near_interval to 0, use more nodes, or name another folder of node "
            "memory in training.near_folder. Request the memory for the job too, if the queue "
            "limits it."
        ),
    ),
    PlanCode.PLANNED_STOP: RuleText(
        title="rehearsed stop",
        value="stop after step {stop} of {steps}",
        rule="steps must remain for the resume after a planned stop",
        remedy="There is no planned stop; to have one, set training.rehearse_stop below {steps}.",
    ),
    PlanCode.MEMORY_FITS: RuleText(
        title="memory",
        value="{processes} {needed}{with_scores}; states alone {states} per rank; {room}",
        rule="states, activations and logits fit into {memory}",
        remedy="{ways}",
    ),
    PlanCode.TIME_LIMIT: RuleText(
        title="time limit",
        value="{job_key}.walltime={walltime}; about {start_up} to start (assumed), {step} per step",
        rule="a job has the time to start and to complete a step",
        remedy=(
            "Raise {job_key}.walltime. A number without a unit is a time in seconds; write two "
            "hours as 2h or 02:00:00."
        ),
    ),
    PlanCode.STORAGE_TIER: RuleText(
        title="storage tier",
        value="jobs.storage={tier}",
        rule="the site has this tier",
        remedy="The tiers are: {tiers}.",
    ),
    PlanCode.VOLUME_FITS: RuleText(
        title="volume {volume}",
        value="{parts} on {size} ({place})",
        rule="text, token files, kept checkpoints and the one being written fit",
        remedy="Deploy at least {least}, or keep fewer checkpoints (training.keep_checkpoints, "
        "training.keep_every, training.save_interval).",
    ),
}
