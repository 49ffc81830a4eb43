"""Messages about a training that cannot start or continue, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class TrainingMessage(Message):
    """Messages about a training that cannot begin or continue."""

    AFTER_COLLECTIVE = "after {collective}"
    ALARM = "ALARM {kind} at iteration {iteration}: {evidence}"
    ALARM_NOT_SENT = (
        "training.{key} could not send an alarm, and the training goes on: {error} {detail}"
    )
    ALIAS_DIFFERS = "{path} gives {name} twice: {value}, and {value_of_alias} as {alias}"
    ANOTHER_MODEL = "{path} is of another model: {wrong}"
    BAD_VALUE = (
        "{fault} is {bad} at iteration {iteration} (samples {first_sample} to {last_sample}); "
        "nothing of this step was saved. {reason}. Lower the learning rate or lengthen the "
        "warm-up and go on from the last checkpoint with training.resume_changed, or look at "
        "these samples"
    )
    BIAS_NOT_ZERO = "{folder}: {name} is not zero, and the plan's model has no such bias"
    BIN_SIZE = (
        "{binary} has {bytes_there} bytes; its index says {tokens} tokens x {itemsize} bytes = "
        "{bytes_expected}"
    )
    BLEND_NOT_USABLE = "the blend of token files cannot be trained from:\n  {problems}"
    CACHE_NOT_MADE = "data.cache {folder} cannot be made: {error}"
    CHECKPOINT_DOES_NOT_FIT = "{folder} does not fit this model: {key} {fault}"
    CHECKPOINT_FOLDER = (
        "checkpoint.folder {folder}: {parent} {why}, so that no checkpoint could be saved"
    )
    CHECKPOINT_NOT_READABLE = "{folder} cannot be read: {name}: {error}"
    CHECKPOINT_NOT_WRITTEN = (
        "checkpoint {checkpoint} of {needed:,} bytes could not be written: {error}. Nothing of "
        "it is left, earlier checkpoints are untouched. Make room (the disk, the quota), then "
        "run again"
    )
    CHECKPOINT_OF_ANOTHER_MODEL = (
        "{folder} is of another model: {difference}. Use the plan it was trained with, or "
        "another checkpoint folder"
    )
    CHECKPOINT_PASSED_OVER = "checkpoint passed over: {problem}"
    CHECKPOINT_VERSION = (
        "{path}: checkpoint_version {version}, and 3 is read: older ones order weights otherwise"
    )
    COLLECTIVE = "{name} {number} of group {group} ({purpose})"
    COMMON_STATE_TOO_LARGE = "{path} holds {common_state} of {length:,} bytes: it is no plain state"
    COMPRESSED_PART = (
        "{path} has a compressed part, {filename!r}, which torch.save does not write: it is not "
        "read. Take another checkpoint, and ask where this one comes from"
    )
    CONFIG_NOT_JSON = "{path} cannot be read as JSON: {error}"
    COPY_NOT_EXCHANGED = "{path}: {fault}"
    COPY_NOT_LOADED = (
        "a copy in node memory could not be loaded to its end, and there is no checkpoint. Start "
        "again: the copy is not tried a second time"
    )
    DEEPSPEED_MISSING = (
        "training.engine deepspeed: the package deepspeed is not installed here. Install "
        "gpt3-runbook[train], or set training.engine to {other_engine}"
    )
    DEEPSPEED_TOO_OLD = (
        "training.engine deepspeed: deepspeed {version} is installed, and the engine needs "
        "{oldest} or newer. Update it, or set training.engine to {other_engine}"
    )
    DISK_FULL = "only {free:,} bytes are free on its disk"
    DOCUMENTS_OUT_OF_ORDER = (
        "{index} has documents that do not go from sequence 0 to {sequences} in order: it was "
        "overwritten"
    )
    EMPTY_PROMPT = "a prompt needs at least one token"
    ENTRY_MORE_THAN_DATA = "{key!r} in the checkpoint is more than data, and is not read: {error}"
    FEWER_REPLICAS_TRAIN = (
        "from iteration {iteration} on {replicas} of {planned_replicas} data-parallel replicas "
        "train, each with {num_microbatches} micro-batches: the global batch stays the same"
    )
    FILE_CHANGED = "{path} has sha256 {actual}..., expected {expected}... ({size} bytes)"
    FILE_MISSING = "{path} is missing"
    FILE_NOT_WRITABLE = "{path} cannot be written, training goes on without it: {error}"
    FILE_OUTSIDE_FOLDER = (
        "{folder} names the file {name!r}, which is not in its folder: it is not read. Take "
        "another checkpoint, and ask where this one comes from"
    )
    FINGERPRINT_DIFFERS = "a fingerprint of {fingerprint} (plan: {planned_fingerprint})"
    FOLDER_NOT_EMPTY = "{folder} is not empty, and nothing is written over: give another folder"
    FOLDER_NOT_MADE = "{folder} cannot be made a folder: {error}"
    FOLDER_OF_SOMEBODY_ELSE = "{top} belongs to somebody else"
    FP8_NOT_POSSIBLE = "training.fp8 tensorwise without Transformer Engine: {fault}"
    GOING_ON_WITH_THE_PLAN = "{folder} was trained with {change}; going on with the plan's"
    GPUS_SEEN_BEFORE = (
        "plan.json says device {cpu}, but torch saw GPUs before they were hidden from it. Set "
        "{hidden_by} to nothing before the trainer is started"
    )
    GPU_SHARED = (
        "rank {rank} has GPU {identity} of {host}, and so has another rank. Start one rank for "
        "each GPU, or let the launcher show each rank its own"
    )
    GRADIENT_NORM = "the gradient norm"
    GRADIENT_OVERFLOWS = "the gradient overflows at the smallest loss scale: the scale"
    HAS_CHECKPOINTS = (
        "{root} has checkpoints already: weights are imported only before the first step"
    )
    INDEX_CUT_SHORT = (
        "{index} has {bytes_there} bytes; {sequences} sequences and {documents} documents make "
        "{expected}: it was cut short or overwritten"
    )
    INDEX_NOT_READABLE = "{path} cannot be read as an index of weights: {error}"
    INDEX_TOO_SHORT = "{index} has {bytes_there} bytes, fewer than the {size} of an index header"
    IN_COLLECTIVE = "in {collective} ({state})"
    IN_NO_COLLECTIVE = "in no collective"
    KERNELS_NOT_COMPILED = "training.kernels compiled: {fault}. Set it to auto or plain"
    KEY_OF_ANOTHER_MODEL = "{path} is of another model: {key} {value}"
    LAYERS_IN_ONE_PIECE = "{folder} has {key} of {length} layers in one piece: only one is read"
    LAYER_TYPES = "{path} is of another model: layer_types {layer_types}"
    LOSS = "the loss"
    LOSS_JUMPED = "the loss jumped: it"
    METADATA_NOT_READABLE = "the checkpoint's .metadata cannot be read: {name}: {error}"
    METADATA_RUNS_CODE = (
        "the checkpoint's .metadata asks for {module}.{name}, which describes no tensor: it may "
        "be made to run code, and is not read. Take another checkpoint, and ask where this one "
        "comes from"
    )
    METADATA_UNUSABLE = "{path} cannot be used: {error}"
    MODEL_TYPE = (
        "{path} is of model_type {model_type}, and for the plan's model {model_name} ({needed}) "
        "only {reads} are read: choose or add a model of that kind"
    )
    MORE_THAN_DATA = (
        "{path} is more than data, and is not read: {reason}. Take another checkpoint, and ask "
        "where this one comes from"
    )
    NEAR_FOLDER_NOT_MADE = "{top}: {error}"
    NOTHING_LEFT_TO_TRAIN = (
        "The plan ends at iteration {iterations}, and the checkpoint {folder} is at {iteration}. "
        "Increase training.iterations, or use another folder to start over"
    )
    NOTHING_TO_GO_BACK_TO = "there is no checkpoint to go back to"
    NOT_AN_INDEX = "{index} is no Megatron index: it begins with {magic!r} and version {version}"
    NOT_A_MAPPING = "{path} is no mapping of names to values"
    NOT_A_PLAIN_FILE = "{source} is no plain file, but a pipe, a device or a folder"
    NOT_A_RANK = "{name}={environment!r} is not a number of a rank"
    NOT_A_SPLIT = "data.split {split!r} is not three shares such as 949,50,1"
    NOT_MEGATRONS_STATE = "{path} holds {name}, not Megatron-LM's state"
    NOT_MEGATRON_LM = (
        "{folder} has neither common.pt nor mp_rank_00/model_optim_rng.pt of Megatron-LM"
    )
    NOT_PINNED = "memory for saves could not be pinned: the training waits longer for each save"
    NOT_SAFETENSORS = "{path} is no safetensors file, or it is cut short: {error}"
    NOT_TORCHS_METADATA = "the checkpoint's .metadata holds {name}, not torch's description of one"
    NO_CHECKSUM = (
        "{folder} has no checksum in the checkpoint's metadata.json, so nobody can say whether "
        "it is whole: it is not read"
    )
    NO_COMMON_STATE = "{folder} has neither {common_file} nor {common_state} among its shards"
    NO_GPU = (
        "plan.json says device {device}, but torch {version}, built for {built_for}, sees no GPU "
        "here. Install torch for this GPU (`make setup GPU=1`, or the site's image), look "
        "whether nvidia-smi or rocm-smi answers, or train on a site whose hardware.device is cpu"
    )
    NO_GPU_OF_ITS_OWN = (
        "local rank {local_rank} has no GPU of its own: torch sees {visible} on this node. Start "
        "one rank for each GPU (jobs.<phase>.devices_per_node), or make a plan for the GPUs that "
        "are here"
    )
    NO_HTTP_ADDRESS = "{reference} holds no http:// or https:// address"
    NO_MEETING_PLACE = (
        "{launcher} started {world_size} ranks, but MASTER_ADDR={address!r} and "
        "MASTER_PORT={port!r} do not say where they meet: export both in the job script (the "
        "first node's name, a free port)"
    )
    NO_MODEL_OF_TRANSFORMERS = (
        "transformers has no architecture that matches model {model}: {reasons}"
    )
    NO_MORE_ROLLBACKS = "{rollbacks} rollbacks are all that training.nan_limit {limit} allows"
    NO_SAFETENSORS = (
        "{folder} has no .safetensors file; other formats may hold code and are not read"
    )
    NO_SIGN_OF_LIFE = "no sign of life"
    NO_STORAGE_NAMED = "{folder} does not say in which file each tensor is"
    NO_TENSORBOARD = (
        "tensorboard is not installed: no TensorBoard events; metrics.jsonl has the same numbers"
    )
    NO_TRAINING_FILE = "data.train names no file: tokenize a dataset first, or set data.mock true"
    NO_VALIDATION_FILE = (
        "evaluation.interval is set and data.test is given, but data.validation names no file"
    )
    NO_WHOLE_CHECKPOINT = (
        "{root} has held checkpoints, but none of them is whole:\n  {problems}\nTraining does not "
        "silently start again: bring one back, or move the folder away to start anew"
    )
    NUMBER_FORMAT = (
        "{folder}: {name} is of {number_format}, and F32, F16 and BF16 are read: convert it first"
    )
    OF_ANOTHER_REPLICA = "what the same rank of another replica computes"
    OF_ITS_OWN_REPEATS = "most of its own repeats"
    OPTION_OUT_OF_RANGE = "{name} {value} is not from 0 to {highest:g}"
    ORDER_CHANGED = (
        "the cached order of the text in {cache} is another than when the checkpoint of "
        "iteration {iteration} was saved: {other_order}. The training would go on with other "
        "samples. Delete {cache}: it is built again from the token files. If they were changed "
        "on purpose, training.resume_changed true goes on with the new ones"
    )
    OTHER_NUMBERS = (
        "rank {rank} on {host} computed a micro-batch again and got other numbers, first in "
        "{place}: {num_wrong} of {num_computed} computations differ from {judge}"
    )
    OTHER_TENSORS = "{path} has other tensors than this rank"
    PADDING_KEPT = (
        "the vocabulary of {vocabulary:,} stays padded to {padded:,} as in the checkpoint (plan: "
        "{planned:,})"
    )
    PART_MISSING = "{folder} does not fit this model: a part of {key} is missing"
    PLAIN_FILE_NEEDED = "it is no plain file, but a pipe, a device or a folder"
    POLICY_STOPS = (
        "training.{key} is {policy}; skip leaves such a step out, rollback goes back to the last "
        "save"
    )
    PROMPT_OUTSIDE_VOCABULARY = "the prompts have token {token}, and the vocabulary is {vocabulary}"
    RANKS_DO_NOT_DIVIDE = (
        "{world_size} ranks do not divide by parallel.tensor {tensor} x pipeline {pipeline}"
    )
    RANK_GONE = "another rank is gone, or has not answered in time: {error}"
    RANK_IS_IN = "rank {rank} is {collectives}: {path}"
    RANK_SILENT = (
        "rank 0 gave no sign of life for {silence_seconds:.0f} s while it was {description}"
    )
    RENDEZVOUS_FAILED = "{text}: {reason}. Cause: {cause}"
    ROPE_TYPE = "{path} is of another model: {key} has rope_type {rotary} (plan: default)"
    ROTARY_KEYS = "{path} is of another model: {key} has {unknown}"
    ROTARY_NOT_A_MAPPING = "{path}: {key} is {rotary}, and a mapping is needed"
    ROTARY_TWICE = "{path} gives {name} twice: {values}"
    SAFETENSORS_MISSING = (
        "the package safetensors is not installed here: install gpt3-runbook[train]"
    )
    SAME_FILE_IN_BLEND = (
        "data.{use}[{index}] ({prefix}): the same file as {earlier}; name it once, with the sum"
    )
    SAMPLE_OUTSIDE_VOCABULARY = (
        "samples {start} to {stop} hold token {highest}, but the model's vocabulary is "
        "{vocabulary}: the data was tokenized with another vocabulary"
    )
    SCORES_NOT_NUMBERS = "{folder}: its weights give scores that are no numbers (NaN or infinite)"
    SEAL_BROKEN = "its seal does not match: it was changed after it was written"
    SEED_OUT_OF_RANGE = "seed {seed} is not from 0 to {highest}"
    SEQUENCE_PLACE = (
        "{index} says sequence {sequence} has {tokens} tokens and begins at byte {byte} of the "
        ".bin; by the sequences before, it begins at byte {right_byte}: it was overwritten"
    )
    SHAPE_OF_ANOTHER_MODEL = "{folder}: {key} has shape {shape}: another model"
    SHARD_CUT_SHORT = "{path} is missing or cut short: {key} ends at byte {end:,}"
    SHARE_TOO_SHORT = (
        "{prefix}.bin has {sequences} documents; the {use} share of split {split} is {documents} "
        "of them with {tokens} tokens, and one sample needs {sample_tokens}: give more text, "
        "another data.split, or {remedy}"
    )
    SOFTWARE_OF_REHEARSAL = (
        "megatron-core and torch 2.10 or newer, of which a build for the CPU will do"
    )
    SOFTWARE_TOO_OLD = "a rehearsal needs {needed}: {error}\n"
    STATE_FILE_CUT_SHORT = "a file in node memory ends before its tensors do"
    STATE_FILE_UNUSABLE = "{path} cannot be used: {error}"
    STATE_NOT_READABLE = "{path} cannot be read: {name}: {error}"
    STATE_WITHOUT_ARGS = "{path} has no args, which would say what model its weights are of"
    STORED_SHAPE = "{folder}: {name} is {stored}, and the plan's model has {shape}"
    TENSOR_DESCRIPTION = "{folder} describes {name!r} as {problem}"
    TENSOR_MISSING = "{folder} does not fit this model: {key} is missing"
    TENSOR_NOT_READABLE = "{path} holds a tensor that cannot be read: {key}: {reason}"
    TENSOR_OUTSIDE_FILE = (
        "{path} holds a tensor that cannot be read: .metadata places it at byte {offset!r}, "
        "{length!r} bytes long, and the file has {size} bytes"
    )
    TOKENS_OF_ANOTHER_TYPE = (
        "{index} says its tokens are {name}; token ids are uint16 (type 8) or int32 (type 4)"
    )
    TOKEN_FILE_MISSING = "{path} does not exist: run the data phase, or fix data.train in the plan"
    TOKEN_OUTSIDE_VOCABULARY = (
        "{prefix}.bin holds token {token}, but the model's vocabulary is {vocabulary} (ids 0 to "
        "{highest}): it was tokenized with another tokenizer, or overwritten (token number "
        "{position:,} of {tokens:,})"
    )
    TOO_MANY_BAD_STEPS = "{in_a_row} such steps in a row are more than training.nan_limit {limit}"
    TRACKER_FOLLOWS = "training.trackers: {tracker} follows metrics.jsonl; its log is {log}"
    TRACKER_NAMES_ANOTHER = (
        "{tracker} names {named!r}, and {newest} is not the folder of that checkpoint"
    )
    TRACKER_NAMES_NOTHING = "{tracker} names one that is not there"
    TRACKER_NEVER_TOOK = (
        "{unsent} of {size} bytes of {file} were not sent; the next job sends them, or `runbook "
        "logs RUN --to`"
    )
    TRACKER_STILL_SENDS = "training.trackers: {tracker} is still sending its last numbers."
    TRAINED_WITH_OTHER_VALUES = (
        "{folder} was trained with other values than this plan has: {changes}. Going on would be "
        "another training than either; use the values it was trained with, another checkpoint "
        "folder, or set training.resume_changed true to go on with the plan's values"
    )
    TRAINING_FAILED = "the training failed: {message}"
    TUNING_MISSING = "{keys}: missing here: {missing}. Install it, or leave the key out"
    UNKNOWN_CONFIG_KEY = (
        "{path} has the key {key} ({value}), which may make another model and is not known here: "
        "remove it if the model is the same without it"
    )
    UNKNOWN_PARTS = "{parts_variable}: {unknown} is none of {parts}"
    UNPLANNED_WEIGHTS = "{folder} has weights that the plan's model lacks: {unplanned}"
    VARIABLE_NOT_SET = "training.near_folder {near_folder} has a variable that is not set"
    WEIGHTS_ALONE = (
        "the engine {engine} (plan: {planned_engine}), whose optimizer state is its own, so that "
        "the weights alone are taken up and Adam begins anew"
    )
    WEIGHT_IN_ANOTHER_FILE = "{path} says that {name} is in {named_file!r}, and it is in {place}"
    WEIGHT_MISSING = "{folder} has no weight {name}"
    WEIGHT_NOT_FINITE = "{folder}: {name} has values that are not finite floating-point numbers"
    WEIGHT_NOT_POSITIVE = (
        "data.{use}[{index}] ({prefix}): its weight {weight:g} is not a number above 0"
    )
    WEIGHT_NUMBER_FORMAT = (
        "{folder}: {name} is of {number_format}, and float32, float16 and bfloat16 are read: "
        "convert it first"
    )
    WEIGHT_OF_ANOTHER_MODEL = "{folder} lacks {name}: it is of another model"
    WEIGHT_SHAPE = "{name} is {shape}, and the plan's model has {planned_shape}"
    WEIGHT_TWICE = (
        "{folder} has the weight {name} twice, the second time as {stored_name} in {file}: which "
        "one is meant, nobody can say. Keep one"
    )
