"""Messages about plans, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PlanningMessage(Message):
    """Messages about plans."""

    CORRECTED_BY_SMOKE_TEST = (
        "times {factor:.3g} as measured by the smoke test of {run} on {measured}"
    )
    CORRECTED_FOR_LAYOUT = (
        "times {factor:.3g} (80 % interval {low:.3g} to {high:.3g}; smoke tests: {count}, the last of "
        "{run} on {measured} with {smoke_test:.3g})"
    )
    OLD_PLAN = "{error}\nDelete it and run 00-plan again."
    PLAN_NOT_JSON = "{source} is not JSON ({error}); delete it and run 00-plan again."
    DID_YOU_MEAN = "Did you mean {name}?"
    THERE_ARE = "There are {names}."
    QUEUE_RULE = "nodes and walltime are within what the queue accepts"
    QUEUES_NOT_KNOWN = "the limits of {partition} on {site} are unknown"
    QUEUE_NOT_LISTED = "{queue} is not among the queues of params/sites/{site}.yaml"
    NAME_A_QUEUE = (
        "{suggestion} Change jobs.{section}.partition, or add the queue to `queues` in the site "
        "file."
    )
    JOB_IN_QUEUE = "{nodes} for {time_limit} in {partition} ({limits})"
    QUEUE_TIME = "the queue's default time"
    FEWEST_NODES = "at least {nodes}"
    MOST_NODES = "at most {nodes} nodes"
    LONGEST_JOB = "at most {walltime}"
    NO_LIMIT = "no limit known"
    CHANGE_KEYS = "Change {keys}."

    TOKENS_OF_MOCK = "mock data: random tokens, as many as needed"
    TOKENS_OF_CATALOGUE = "the catalogue's count of {counted}, and {ends:,} end-of-document tokens"
    TOKENS_OF_TEXT = "{text_bytes:,} bytes of text at {bytes_per_token:g} bytes per token"
    TOKENS_NOT_KNOWN = "unknown until the text is read"
    HELD_OUT_NOT_COUNTED = "02-data counts the files and applies the rule."
    HELD_OUT_FILES = (
        "data.held_out={held_out} for validation and the same number for test, of {files}"
    )
    SAMPLES_BY_TEXT = "{shares} of the samples"
    FILES_TWICE = "; {files} twice"
    TOKENS_READ = (
        "{tokens} tokens wanted, {available} available for training: read {epochs:.2f} times"
    )
    TOKENS_READ_BY_TEXT = "{tokens} tokens wanted: {repeats}"
    TEXT_READ = "{text} read {epochs:.2f} times"
    ESTIMATED_FROM_FILES = "{value} (an estimate from {size} of {files}; 02-data counts the tokens)"
    READ_ONCE_RULE = "a run reads its training text at most once"
    TAKE_MORE_TEXT = (
        "Use more text, or fewer iterations; repeating it a few times does little harm."
    )
    TAKE_MORE_OF_TEXT = (
        "Use more text, fewer iterations, or a smaller weight of {text}; repeating it a few times "
        "does little harm."
    )

    DEVICE_READ_AS = "{device} is treated as {name}"
    MEMORY_NOT_KNOWN = "memory not known"
    PEAK_OF_DEVICE = "{peak:g} TFLOP/s in {precision}"
    NO_PEAK_KNOWN = "no {precision} peak is known"
    WRITE_DEVICE = "set hardware.device to a name in the table ({names})"
    WRITE_MEMORY = "set hardware.device_memory (such as 40GiB)"
    WRITE_PEAK = (
        "set hardware.peak_tflops (such as {{{precision}: 312}}), or choose another "
        "training.precision"
    )

    WITH_SCORES = " ({needed} if attention scores are stored)"
    MEMORY_AVAILABLE = "{available} are available"
    LIKELY_MEMORY = "nine of ten such plans took {sizes}"
    MEMORY_UNKNOWN = "the size of the memory is not known"
    USABLE_SHARE = ", of which a plan may use {share:.0%}"
    LESS_MEMORY = (
        "Any of these changes reduces it: {ways}, or more nodes in {job_key}.nodes for the sharded "
        "states."
    )
    FLASH_ATTENTION = "Make sure that flash attention is used, or set training.recompute."
    OFFLOAD = (
        "{devices} devices offload {needed}; the planned time does not include the optimizer step "
        "on the host"
    )
    NODE_MEMORY = "; a node has {available}"
    NODE_MEMORY_NOT_KNOWN = "; the memory of a node is unknown"
    SHARE_TO_OFFLOAD = (
        "Set parallel.zero_stage to 1 or more with DeepSpeed, or training.offload to false."
    )

    CORES_NOT_KNOWN = "the number of cores of this machine is unknown"
    CPU_NOT_KNOWN = "it is unknown whether this CPU multiplies {precision} directly"
    CPU_BASIS = (
        "{cores} x {gflops:g} GFLOP/s ({path}, measured) for matrix products, {share:.0%} of the "
        "step"
    )
    CPU_PRECISION = "bf16 on this CPU"
    CPU_PRODUCTS = "{path}: matrix products {comparison}"
    TIMES_AS_LONG = "take about {times:.1f} times as long as in fp32"
    TIMES_AS_FAST = "are {times:.1f} times as fast as fp32"
    NO_PEAK_OF_DEVICE = "no {precision} peak is known for {device}"
    MODELLED = "modelled part by part for {device} ({peak:g} TFLOP/s, {precision})"
    ASSUMED_SHARE = "{share:.0%} of {peak:g} TFLOP/s ({device}, {precision}), assumed"

    CPU_HAS_NO_LINKS = "a CPU has no links between devices for a layout"
    DEVICE_NOT_IN_TABLE = (
        "the accelerator {device} is not in our table, and no peak is guessed: set hardware.device "
        "in params/sites/{site}.yaml to one of {names}"
    )
    NAME_WITHOUT_MEMORY = (
        "the name {device} does not determine its memory: set hardware.device_memory in {where}"
    )
    CONTEXT_DOES_NOT_DIVIDE = (
        "parallel.context={context} does not divide {devices} devices: change it or "
        "jobs.training.nodes"
    )
    NO_LAYOUT_DIVIDES = (
        "no division of {layers} layers and {heads} heads over {devices} devices fits a global "
        "batch of {global_batch}: change jobs.training.nodes or training.global_batch"
    )
    LAYOUTS_TOO_LARGE = (
        "{too_large} of {layouts} layouts do not fit into {share:.0%} of {memory}; the smallest "
        "needs {least_gib:.1f} GiB of each device: use more nodes, or an engine that shards more "
        "states (parallel.zero_stage with DeepSpeed)"
    )
    LAYOUTS_BREAK_RULE = (
        "{broken} of {layouts} layouts fit but break a rule; {count} of them break this one: {rule}"
    )

    MIN_NODES_OF_FRAMEWORK = (
        "{framework} takes its layout from its command line, which does not change while a job runs"
    )
    MIN_NODES_TOO_LARGE = "the job has only {nodes}, which is not more than {key}"
    NO_NUMBER_OF_NODES = (
        "{key}={min_nodes}: no number of nodes from {min_nodes} to {most} works{reason}"
    )
    FEWER_NODES = (
        "{nodes} of {planned_nodes} train: {replicas} with {num_microbatches} micro-batches each, "
        "not {planned_microbatches}; a step takes about {factor:.3g} x as long"
    )
    CHAIN_WITHOUT_FAILURE = "; training takes {jobs} without a failure"
    CHAIN_WITH_FAILURES = (
        "; training takes {without_failure} without a failure, and {jobs} with the expected "
        "failures"
    )
    SPEED_OF_SAVES = "saves at {gigabytes:g} GB/s (assumed; the site states no write_bandwidth)"
    NEAR_COPIES = (
        "a copy in node memory every {interval} steps at {speeds} (assumed), used if the same "
        "allocation continues"
    )

    LABEL = '"{label}" is {rounded}: {parameters:,} parameters by count'
    LABEL_TOO_LARGE = "; the label says {ratio:.1f} times as many"
    LABEL_TOO_SMALL = "; the label says {ratio:.0%} of that"
    POWER = "{watts:.0f} W per device (the datasheet's board power) all the time"
    POWER_NOT_KNOWN = "the power of {device} is unknown"
    SMOKE_TEST_TIME = "about {duration}"
    START_AND_STEPS = "{start_up} to start (assumed), {steps} of steps; queue not counted"

    DEVICES_PRODUCT = "{product} = {devices}{chunks}, ZeRO {zero_stage}"
    CHUNKS_OF_STAGE = ", {chunks} chunks a stage"
    BATCH_PRODUCT = (
        "{micro} micro x {replicas} x {steps} = {sequences:,} sequences = {tokens:,} tokens"
    )
    LENGTH_PRODUCT = (
        "{iterations:,} iterations x {sequences:,} = {samples:,} samples = {tokens} tokens"
    )
    FULLEST_STAGE = " (the fullest of {stages} stages)"
    FIRST_LOSS = "{loss:.2f} = ln({vocabulary:,})"
    PADDED_VOCABULARY = "{vocabulary:,}, padded to {padded:,}"
    RATE_PEAK = "peak {peak:g} by step {step:,.0f}, then {course}"
    RATE_COURSE = "{schedule} to {minimum:g} over {samples:,} samples"
    MODEL_SHAPE = (
        "{name}: {layers} layers x {hidden:,} hidden, {heads} heads, sequence {sequence_length:,}"
    )
    DATA_SIZE = "Data {names}: {tokens}, {size} ({source})."
    CHECKPOINT_SIZE = "{size} = {bytes_per_parameter} B per parameter"
    SAVES_AT_END = "only at the end"
    NOTHING_SAVED = "nothing is saved"
    GROUPS_OF_DEVICES = " do not divide into groups of {group}"
    REPLICAS_OF_DEVICES = " = {replicas} replicas of {group}"
    TIER_TABLE = "A checkpoint of {parameters} parameters by storage tier"
    BYTES_IN_TIME = "{size} in {time}"
    ADVISED_BATCH = "{per_device} x {devices} devices = {sequences:,} sequences"
    LIMIT_OF = "{size} a {unit}"
    OWN_CONVENTION = "{convention} (ours)"
    FLOPS_OF_TOKEN = "{gflop:.4g} GFLOP per token"
    COUNTS_RECOMPUTED = "recomputed work too"
    VERDICTS = "{passed} pass, {warned} warn, {unknown} unknown"
    LEFT_OVER = " ({samples} samples do not fill a step and are not used)"
    SET_FP32 = "Set training.precision to fp32."
    DEVICES_BY_KIND = "{tensor} tensor x {pipeline} pipeline{context} x {data} data replicas"
    CONTEXT_DEVICES = " x {context} context"

    TOKENIZER_AND_VOCABULARY = "{tokenizer} has {size:,} tokens; vocabulary: {rows}"
    UNUSED_ROWS = (
        "{vocabulary:,} rows in model {model}, {size:,} tokens in {tokenizer}: {spare:,} unused "
        "rows"
    )
    VOCABULARY_TOO_SMALL = (
        "Give the model in params/models.yaml a vocabulary of at least {size}, or set "
        "data.tokenizer to one that fits the model. For a smoke test, choose another model with "
        "training.smoke.model."
    )
    VOLUME_PART = "{size} of {kind}"
    VOLUME_SIZE_UNKNOWN = "{parts}; the size of {path} is not known"
    VOLUME_TEXT = "text {name}"
    TEXT_NOT_COUNTED = "02-data counts the text."
    MEMORY_OF_THE_NODE = "the node's memory"
