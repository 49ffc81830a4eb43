"""Messages about a training run that cannot start or continue; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class TrainingMessage(Message):
    """Messages about a training run that cannot start or continue."""

    AFTER_COLLECTIVE = "after {collective}"
    ALARM = "ALARM {kind} at iteration {iteration}: {evidence}"
    ALARM_NOT_SENT = "training.{key} could not send an alarm; training continues: {error} {detail}"
    ALIAS_DIFFERS = "{path} has two values for {name}: {value}, and {value_of_alias} as {alias}"
    ANOTHER_MODEL = "{path} belongs to a different model: {wrong}"
    BAD_VALUE = (
        "{fault} is {bad} at iteration {iteration} (samples {first_sample} to {last_sample}); this "
        "step was not saved. {reason}. Lower the learning rate or lengthen the warm-up and "
        "continue from the last checkpoint with training.resume_changed, or check these samples"
    )
    BIAS_NOT_ZERO = "{folder}: {name} is not zero, but the plan's model has no such bias"
    BIN_SIZE = (
        "{binary} has {bytes_there} bytes, but its index states {tokens} tokens x {itemsize} bytes "
        "= {bytes_expected}"
    )
    BLEND_NOT_USABLE = "the blend of token files cannot be used:\n  {problems}"
    CACHE_NOT_MADE = "data.cache {folder} cannot be created: {error}"
    CHECKPOINTS_GONE = (
        "no checkpoint: {events} lists saved checkpoints (iterations {steps}), but none is left. "
        "Restore the folder from a copy, or train again: runbook run {run} --redo {phase}"
    )
    CHECKPOINT_DOES_NOT_FIT = "{folder} does not match this model: {key} {fault}"
    CHECKPOINT_FOLDER = (
        "checkpoint.folder {folder}: {parent} {why}, so no checkpoint could be saved"
    )
    CHECKPOINT_NOT_READABLE = "{folder} cannot be read: {name}: {error}"
    CHECKPOINT_NOT_WRITTEN = (
        "checkpoint {checkpoint} of {needed:,} bytes could not be written: {error}. The incomplete "
        "files were removed, and earlier checkpoints are unchanged. Free disk space or raise the "
        "quota, then run again"
    )
    CHECKPOINT_OF_ANOTHER_MODEL = (
        "{folder} belongs to a different model: {difference}. Use the plan it was trained with, or "
        "another checkpoint folder"
    )
    CHECKPOINT_PASSED_OVER = "checkpoint skipped: {problem}"
    CHECKPOINT_VERSION = (
        "{path} has checkpoint_version {version}, but only 3 is supported: older versions order "
        "weights differently"
    )
    COLLECTIVE = "{name} {number} of group {group} ({purpose})"
    COMMAND_NOT_ALLOWED = (
        "training.{key} is not started; training continues. The command is in the run file, "
        "but not in your own {allowed}. If you wrote it yourself, or have read it and trust it: "
        "{error}"
    )
    COMMON_STATE_TOO_LARGE = (
        "{path} has a {common_state} of {length:,} bytes, which is too large for plain data"
    )
    COMPRESSED_PART = (
        "{path} has a compressed entry, {filename!r}, which torch.save does not write, so it is "
        "not read. Use another checkpoint, and find out where this checkpoint comes from"
    )
    CONFIG_NOT_JSON = "{path} cannot be read as JSON: {error}"
    COPY_NOT_EXCHANGED = "{path}: {fault}"
    COPY_NOT_LOADED = (
        "a copy in node memory could not be loaded completely, and there is no checkpoint. Start "
        "again: this copy is not tried a second time"
    )
    DEEPSPEED_MISSING = (
        "training.engine deepspeed: the package deepspeed is not installed. Install "
        "gpt3-runbook[train], or set training.engine to {other_engine}"
    )
    DEEPSPEED_TOO_OLD = (
        "training.engine deepspeed: deepspeed {version} is installed, but the engine needs "
        "{oldest} or newer. Update it, or set training.engine to {other_engine}"
    )
    DISK_FULL = "only {free:,} bytes are free on its disk"
    DOCUMENTS_OUT_OF_ORDER = (
        "{index} has documents that do not cover sequences 0 to {sequences} in order: it was "
        "overwritten"
    )
    EMPTY_PROMPT = "a prompt needs at least one token"
    ENTRY_MORE_THAN_DATA = (
        "{key!r} in the checkpoint contains more than data and is not read: {error}"
    )
    FEWER_REPLICAS_TRAIN = (
        "from iteration {iteration} on, {replicas} of {planned_replicas} data-parallel replicas "
        "train, with {num_microbatches} micro-batches each; the global batch stays the same"
    )
    FILE_CHANGED = "{path} has sha256 {actual}..., expected {expected}... ({size} bytes)"
    FILE_MISSING = "{path} is missing"
    FILE_NOT_WRITABLE = "{path} cannot be written; training continues without it: {error}"
    FILE_OUTSIDE_FOLDER = (
        "{folder} lists the file {name!r}, which is outside the folder, so it is not read. Use "
        "another checkpoint, and find out where this one comes from"
    )
    FINGERPRINT_DIFFERS = "a fingerprint of {fingerprint} (plan: {planned_fingerprint})"
    FOLDER_NOT_EMPTY = (
        "{folder} is not empty, and its files are never overwritten. Choose another folder"
    )
    FOLDER_NOT_MADE = "the folder {folder} cannot be created: {error}"
    FOLDER_OF_SOMEBODY_ELSE = "{top} belongs to another user"
    FP8_NOT_POSSIBLE = "training.fp8 tensorwise without Transformer Engine: {fault}"
    GOING_ON_WITH_THE_PLAN = "{folder} was trained with {change}; continuing with the plan's values"
    GPUS_SEEN_BEFORE = (
        "plan.json has device {cpu}, but torch saw GPUs before they were hidden. Set {hidden_by} "
        "to an empty value before the trainer starts"
    )
    GPU_SHARED = (
        "rank {rank} and another rank both have GPU {identity} of {host}. Start one rank per GPU, "
        "or let the launcher show each rank only its own GPU"
    )
    GRADIENT_NORM = "the gradient norm"
    GRADIENT_OVERFLOWS = "the gradient overflows at the smallest loss scale: the scale"
    HAS_CHECKPOINTS = (
        "{root} already has checkpoints: weights can be imported only before the first step"
    )
    INDEX_CUT_SHORT = (
        "{index} has {bytes_there} bytes, but {sequences} sequences and {documents} documents need "
        "{expected}: it was truncated or overwritten"
    )
    INDEX_NOT_READABLE = "{path} cannot be read as an index of weights: {error}"
    INDEX_TOO_SHORT = "{index} has {bytes_there} bytes, but an index header alone has {size}"
    IN_COLLECTIVE = "in {collective} ({state})"
    IN_NO_COLLECTIVE = "in no collective"
    KERNELS_NOT_COMPILED = "training.kernels compiled: {fault}. Set it to auto or plain"
    KEY_OF_ANOTHER_MODEL = "{path} belongs to a different model: {key} {value}"
    LAYERS_IN_ONE_PIECE = (
        "{folder} has {key} for {length} layers in one tensor; only one layer per tensor is "
        "supported"
    )
    LAYER_TYPES = "{path} belongs to a different model: layer_types {layer_types}"
    LOSS = "the loss"
    LOSS_JUMPED = "the loss jumped: it"
    METADATA_NOT_READABLE = "the checkpoint's .metadata cannot be read: {name}: {error}"
    METADATA_RUNS_CODE = (
        "the checkpoint's .metadata refers to {module}.{name}, which does not describe a tensor. "
        "It may be meant to run code, so it is not read. Use another checkpoint, and find out "
        "where this one comes from"
    )
    METADATA_UNUSABLE = "{path} cannot be used: {error}"
    MODEL_TYPE = (
        "{path} has model_type {model_type}, but the plan's model {model_name} ({needed}) can only "
        "be read from {reads}. Choose or add a model of that kind"
    )
    MORE_THAN_DATA = (
        "{path} contains more than data, so it is not read: {reason}. Use another checkpoint, and "
        "find out where this one comes from"
    )
    NEAR_FOLDER_NOT_MADE = "{top}: {error}"
    NOTHING_LEFT_TO_TRAIN = (
        "The plan ends at iteration {iterations}, and the checkpoint {folder} is at {iteration}. "
        "Increase training.iterations, or use another folder to start over"
    )
    NOTHING_SAVED_YET = "no checkpoint: the training has not saved one yet"
    NOTHING_TO_GO_BACK_TO = "there is no checkpoint to roll back to"
    NOT_AN_INDEX = "{index} is not a Megatron index: it begins with {magic!r} and version {version}"
    NOT_A_MAPPING = "{path} is not a mapping of names to values"
    NOT_A_PLAIN_FILE = "{source} is not a regular file but a pipe, a device or a folder"
    NOT_A_RANK = "{name}={environment!r} is not the number of a rank"
    NOT_A_SPLIT = "data.split {split!r} is not three shares such as 949,50,1"
    NOT_MEGATRONS_STATE = "{path} contains {name}, not Megatron-LM's state"
    NOT_MEGATRON_LM = (
        "{folder} contains neither Megatron-LM's common.pt nor its mp_rank_00/model_optim_rng.pt"
    )
    NOT_PINNED = "memory for saves could not be pinned, so the training waits longer for each save"
    NOT_SAFETENSORS = "{path} is not a safetensors file, or it is truncated: {error}"
    NOT_TORCHS_METADATA = (
        "the checkpoint's .metadata contains {name}, not torch's description of a checkpoint"
    )
    NO_CHECKSUM = (
        "{folder} has no checksum in the checkpoint's metadata.json, so its content is unverified "
        "and it is not read"
    )
    NO_COMMON_STATE = "{folder} has neither {common_file} nor a {common_state} in its shards"
    NO_GPU = (
        "plan.json has device {device}, but torch {version}, built for {built_for}, sees no GPU "
        "here. Install torch for this GPU (`make setup GPU=1`, or the site's image), check that "
        "nvidia-smi or rocm-smi works, or train on a site whose hardware.device is cpu"
    )
    NO_GPU_OF_ITS_OWN = (
        "local rank {local_rank} has no GPU of its own: torch sees {visible} on this node. Start "
        "one rank per GPU (jobs.<phase>.devices_per_node), or plan for the available GPUs"
    )
    NO_HTTP_ADDRESS = "{reference} does not contain an http:// or https:// address"
    NO_MEETING_PLACE = (
        "{launcher} started {world_size} ranks, but MASTER_ADDR={address!r} and "
        "MASTER_PORT={port!r} do not tell them where to connect: export both in the job script "
        "(the first node's name, a free port)"
    )
    NO_MODEL_OF_TRANSFORMERS = (
        "transformers has no architecture that matches model {model}: {reasons}"
    )
    NO_MORE_ROLLBACKS = (
        "all {rollbacks} rollbacks that training.nan_limit {limit} allows have been used"
    )
    NO_SAFETENSORS = (
        "{folder} has no .safetensors file; other formats may contain code and are not read"
    )
    NO_SIGN_OF_LIFE = "no sign of life"
    NO_STORAGE_NAMED = "{folder} does not list the file of each tensor"
    NO_TENSORBOARD = (
        "tensorboard is not installed, so there are no TensorBoard events; metrics.jsonl has the "
        "same numbers"
    )
    NO_TRAINING_FILE = "data.train lists no file: tokenize a dataset first, or set data.mock true"
    NO_VALIDATION_FILE = (
        "evaluation.interval is set and data.test is given, but data.validation lists no file"
    )
    NO_WHOLE_CHECKPOINT = (
        "{root} contains checkpoints, but none of them is complete:\n  "
        "{problems}\n"
        "Training does not silently start over: restore a checkpoint, or move the folder away to "
        "start over"
    )
    NUMBER_FORMAT = (
        "{folder}: {name} has format {number_format}, but only F32, F16 and BF16 are supported: "
        "convert it first"
    )
    OF_ANOTHER_REPLICA = "the result of the same rank in another replica"
    OF_ITS_OWN_REPEATS = "most of its own repeats"
    OPTION_OUT_OF_RANGE = "{name} {value} is not between 0 and {highest:g}"
    ORDER_CHANGED = (
        "the cached sample order in {cache} has changed since the checkpoint at iteration "
        "{iteration} was saved: {other_order}. Training would continue with other samples. "
        "Delete {cache}: it is rebuilt from the token files. If they were changed on purpose, set "
        "training.resume_changed true to continue with the new ones"
    )
    OTHER_NUMBERS = (
        "rank {rank} on {host} recomputed a micro-batch and got different numbers, first in "
        "{place}: {num_wrong} of {num_computed} computations differ from {judge}"
    )
    OTHER_TENSORS = "{path} has different tensors from this rank's"
    PADDING_KEPT = (
        "the vocabulary of {vocabulary:,} stays padded to {padded:,}, as in the checkpoint (plan: "
        "{planned:,})"
    )
    PART_MISSING = "{folder} does not match this model: a part of {key} is missing"
    PLAIN_FILE_NEEDED = "it is not a regular file but a pipe, a device or a folder"
    POLICY_STOPS = (
        "training.{key} is {policy}; skip would leave out a bad step, and rollback would return "
        "to the last save"
    )
    PROMPT_OUTSIDE_VOCABULARY = (
        "the prompts contain token {token}, but the vocabulary is {vocabulary}"
    )
    RANKS_DO_NOT_DIVIDE = (
        "{world_size} ranks do not divide into groups of parallel.tensor {tensor} x pipeline "
        "{pipeline}"
    )
    RANK_GONE = "another rank has ended, or did not answer in time: {error}"
    RANK_IS_IN = "rank {rank} is {collectives}: {path}"
    RANK_SILENT = "rank 0 did not report for {silence_seconds:.0f} s while it was {description}"
    RENDEZVOUS_FAILED = "{text}: {reason}. Cause: {cause}"
    ROPE_TYPE = "{path} belongs to a different model: {key} has rope_type {rotary} (plan: default)"
    ROTARY_KEYS = "{path} belongs to a different model: {key} has {unknown}"
    ROTARY_NOT_A_MAPPING = "{path}: {key} is {rotary}, but must be a mapping"
    ROTARY_TWICE = "{path} has several values for {name}: {values}"
    SAFETENSORS_MISSING = "the package safetensors is not installed: install gpt3-runbook[train]"
    SAME_FILE_IN_BLEND = (
        "data.{use}[{index}] ({prefix}) is the same file as {earlier}: list it once, with the sum "
        "of the weights"
    )
    SAMPLE_OUTSIDE_VOCABULARY = (
        "samples {start} to {stop} contain token {highest}, but the model's vocabulary is "
        "{vocabulary}: the data was tokenized with another vocabulary"
    )
    SCORES_NOT_NUMBERS = "{folder}: its weights give scores that are NaN or infinite"
    SEAL_BROKEN = "its seal does not match: it was changed after it was written"
    SEED_OUT_OF_RANGE = "seed {seed} is not between 0 and {highest}"
    SEQUENCE_PLACE = (
        "{index} states that sequence {sequence} has {tokens} tokens and begins at byte {byte} of "
        "the .bin, but after the sequences before it, it must begin at byte {right_byte}: the "
        "index was overwritten"
    )
    SHAPE_OF_ANOTHER_MODEL = "{folder} belongs to a different model: {key} has shape {shape}"
    SHARD_CUT_SHORT = "{path} is missing or truncated: {key} ends at byte {end:,}"
    SHARE_TOO_SHORT = (
        "{prefix}.bin has {sequences} documents; the {use} share of split {split} is {documents} "
        "of them with {tokens} tokens, but one sample needs {sample_tokens}: use more documents "
        "(shares are cut between them), another data.split, or {remedy}"
    )
    SOFTWARE_OF_REHEARSAL = "megatron-core and torch 2.10 or newer (a CPU build is enough)"
    SOFTWARE_TOO_OLD = "a rehearsal needs {needed}: {error}\n"
    STATE_FILE_CUT_SHORT = "a file in node memory is shorter than its tensors"
    STATE_FILE_UNUSABLE = "{path} cannot be used: {error}"
    STATE_NOT_READABLE = "{path} cannot be read: {name}: {error}"
    STATE_WITHOUT_ARGS = "{path} has no args, so the model of its weights is unknown"
    STORED_SHAPE = "{folder}: {name} has shape {stored}, but the plan's model has {shape}"
    TENSOR_DESCRIPTION = "{folder} describes {name!r} as {problem}"
    TENSOR_MISSING = "{folder} does not match this model: {key} is missing"
    TENSOR_NOT_READABLE = "{path} contains a tensor that cannot be read: {key}: {reason}"
    TENSOR_OUTSIDE_FILE = (
        "{path} contains a tensor that cannot be read: .metadata places it at byte {offset!r}, "
        "with {length!r} bytes, but the file has {size} bytes"
    )
    TOKENS_OF_ANOTHER_TYPE = (
        "{index} states token type {name}; token ids must be uint16 (type 8) or int32 (type 4)"
    )
    TOKEN_FILE_MISSING = (
        "{path} does not exist: run the data phase, or correct data.train in the plan"
    )
    TOKEN_OUTSIDE_VOCABULARY = (
        "{prefix}.bin contains token {token}, but the model's vocabulary is {vocabulary} (ids 0 to "
        "{highest}): it was tokenized with another tokenizer, or overwritten (token number "
        "{position:,} of {tokens:,})"
    )
    TOO_MANY_BAD_STEPS = "{in_a_row} bad steps in a row exceed training.nan_limit {limit}"
    TRACKER_FOLLOWS = "training.trackers: {tracker} follows metrics.jsonl; its log is {log}"
    TRACKER_NAMES_ANOTHER = "{tracker} names {named!r}, but {newest} is another checkpoint"
    TRACKER_NAMES_NOTHING = "{tracker} names an iteration that is missing"
    TRACKER_NEVER_TOOK = (
        "{unsent} of {size} bytes of {file} were not sent; the next job or `runbook logs RUN --to` "
        "sends them"
    )
    TRACKER_STILL_SENDS = "training.trackers: {tracker} is still sending its last numbers."
    TRAINED_WITH_OTHER_VALUES = (
        "{folder} was trained with values that differ from this plan's: {changes}. To continue, "
        "use the old values or another checkpoint folder, or set training.resume_changed true to "
        "continue with the plan's values, which makes it a different training run"
    )
    TRAINING_FAILED = "the training failed: {message}"
    TUNING_MISSING = (
        "{keys}: this needs {missing}, which is missing here. Install it, or leave the key out"
    )
    UNKNOWN_CONFIG_KEY = (
        "{path} has the unknown key {key} ({value}), which may change the model: remove it if the "
        "model is the same without it"
    )
    UNKNOWN_PARTS = "{parts_variable}: {unknown} is not one of {parts}"
    UNPLANNED_WEIGHTS = "{folder} has weights that the plan's model does not have: {unplanned}"
    VARIABLE_NOT_SET = "training.near_folder {near_folder} contains a variable that is not set"
    WEIGHTS_ALONE = (
        "the engine {engine} (plan: {planned_engine}), whose optimizer state has a different "
        "format, so only the weights are loaded and Adam starts over"
    )
    WEIGHT_IN_ANOTHER_FILE = "{path} lists {name} in {named_file!r}, but it is in {place}"
    WEIGHT_MISSING = "{folder} has no weight {name}"
    WEIGHT_NOT_FINITE = "{folder}: {name} has values that are not finite floating-point numbers"
    WEIGHT_NOT_POSITIVE = (
        "data.{use}[{index}] ({prefix}): its weight {weight:g} is not a number above 0"
    )
    WEIGHT_NUMBER_FORMAT = (
        "{folder}: {name} has format {number_format}, but only float32, float16 and bfloat16 are "
        "supported: convert it first"
    )
    WEIGHT_OF_ANOTHER_MODEL = (
        "{folder} has no weight {name}: the checkpoint is for a different model"
    )
    WEIGHT_SHAPE = "{name} has shape {shape}, but the plan's model has {planned_shape}"
    WEIGHT_TWICE = (
        "{folder} has the weight {name} twice, the second time as {stored_name} in {file}. It is "
        "unclear which of them is meant. Keep only one"
    )
