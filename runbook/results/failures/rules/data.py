"""Rules for file failures: file systems, training data and checkpoints."""

from runbook.results.failures.kinds import (
    CHECKPOINT_DAMAGE,
    CHECKPOINT_FIT,
    DATA,
    DISK,
    FILE,
    STORAGE,
)
from runbook.results.failures.rule import Level, NextStep, Rule

COMMAND_RULES = (
    # A script without `set -e` continues, often without harm. This rule therefore has the weakest
    # level, to give an exception in the program precedence.
    Rule(
        kind=FILE,
        level=Level.CONSEQUENCE,
        patterns=(r"^(?:cat|ls|cp|mv|grep|sed|find|head|tail): .*No such file",),
        example="cp: cannot stat 'foo.sif': No such file or directory",
        source="GNU coreutils, a message of cp",
    ),
)
"""Rules for shell commands.

These rules precede all others, because other rules could match the file name.
"""

FILE_SYSTEM_RULES = (
    # Python appends a file name, so the access was denied by a file system, not by a network
    # connection.
    Rule(
        kind=STORAGE,
        patterns=(r"\[Errno (?:5|11|70|103|107|108|110|111|112|113|121)\] [^:]*: b?['\"]\S*/",),
        example="OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data/x.bin'",
        counterexample="OSError: [Errno 107] Transport endpoint is not connected",
        source="Python, the message of an OSError with a file name",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
    # An open file has no name in the message. The frames above show that a file was read or written.
    Rule(
        kind=STORAGE,
        patterns=(r"\bOSError: \[Errno (?:5|107|108|110|112|121)\]",),
        after=(
            r"fsspec/|torch/serialization\.py|safetensors/|h5py/|numpy/lib/"
            r"|/(?:shutil|zipfile|tarfile|gzip|pathlib|os|posixpath|genericpath)\.py"
            r"|, in (?:atomic_save|torch_save|_?save_\w+|copyfile\w*|makedirs)$"
        ),
        example_before='  File "fsspec/implementations/local.py", line 382, in write',
        example="OSError: [Errno 107] Transport endpoint is not connected",
        counterexample="ConnectionResetError: [Errno 104] Connection reset by peer",
        source="rhasspy/piper#311",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
)
"""Rules for errors with files.

They precede the rules for networks, which contain the same words.
"""

DATA_RULES = (
    Rule(
        kind=CHECKPOINT_DAMAGE,
        patterns=(
            r"PytorchStreamReader failed",
            r"failed finding central directory",
            r"Error while deserializing header",
            r"MetadataIncompleteBuffer",
            r"InvalidHeaderDeserialization",
            r"HeaderTooLarge",
            r"incomplete metadata",
            r"unexpected EOF, expected",
            r"storage has wrong (?:byte )?size",
            r"(?:pickle|unpickling).{0,60}(?:truncated|EOF|invalid load key)",
            r"UnpicklingError: (?:invalid load key|pickle data was truncated|unpickling stack)",
            r"BadZipFile",
            r"not a zip ?file",
            r"corrupt(?:ed)? (?:checkpoint|file|weights|zip)",
            r"checksum .{0,40}(?:mismatch|does not match|differs)",
            r"hash mismatch",
            r"invalid hash value",
            r"EOFError: Ran out of input",
            r"CRC.?(?:32)? (?:check )?(?:fail|mismatch|error)",
            r"Unexpected end of (?:file|data|ZIP)",
            r"cannot read .{0,40}central directory",
        ),
        error_patterns=(
            r"(?:[Cc]heckpoint|weights?|safetensors).{0,60}(?:corrupt|truncated|incomplete)",
            r"Unable to load weights from \w+ checkpoint file",
            r"file is not a database",
            r"invalid magic number",
            r"not enough bytes",
        ),
        unless=r"index|\.idx|[Pp]arquet|dataset|npy|\.mds\b",
        example=(
            "safetensors_rust.SafetensorError: Error while deserializing header: "
            "MetadataIncompleteBuffer"
        ),
        source="lyogavin/airllm#137",
    ),
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(
            r"[Gg]lobal shape mismatch",
            r"size mismatch for",
            r"[Ss](?:ize|hape) mismatch.{0,60}\b(?:saved|checkpoint|loaded)\b",
            r"Error\(s\) in loading state_dict",
            r"(?:Missing|Unexpected) key\(s\) in state_dict",
            r"used a DP world size",
            r"Automatic adjustment of ZeRO",
            r"ZeRORuntimeException",
            r"Checkpoint(?:ing)?Exception",
            r"Weights only load failed",
            r"WeightsUnpickler error",
            r"Unsupported (?:global|operand|class)",
            r"_pickle\.UnpicklingError: Weights",
            r"add_safe_globals",
            (
                r"KeyError: '?(?:model|optimizer|module|state_dict|lr_scheduler"
                r"|opt_param_scheduler|rng_state|checkpoint_version|args"
                r"|pytorch-lightning_version)'?"
            ),
            r"does not match (?:the )?(?:checkpoint|saved|loaded)",
            (
                r"checkpoint .{0,80}(?:not compatible|incompatible|different|does not|do not match"
                r"|shape|was (?:saved|trained|written) with)"
            ),
            r"loaded state dict (?:has|contains)",
            r"parameter group.{0,40}(?:doesn't|does not) match",
            r"KeyError: '[\w.]+\.(?:weight|bias|exp_avg\w*)'",
            r"different number of parameter groups",
            r"copying a param with shape",
            r"invalid access pattern",
            r"value from checkpoint .{0,60}not equal",
            r"is not equal to the input argument value",
            r"Missing key in checkpoint",
            r"set a tensor of shape .{0,200}which has shape",
            # Orbax
            r"Requested shape: .{0,80}not compatible with the stored shape",
        ),
        error_patterns=(
            r"(?:tensor|pipeline)[ _-](?:model[ _-])?parallel.{0,60}(?:checkpoint|from args)",
            r"world size .{0,60}checkpoint",
            r"checkpoint.{0,80}world size",
            r"(?:missing|unexpected) keys?.{0,40}(?:state|checkpoint|load)",
            r"shape .{0,60}(?:in|from) (?:the )?checkpoint",
            r"Unexpected keys? in",
            r"not found in (?:the )?checkpoint",
        ),
        example=(
            "Global shape mismatch for loaded ((1024, 768)) and expected ((512, 768)) tensor for "
            "key model.embedding.position_embeddings.weight"
        ),
        source="NVIDIA-NeMo/Speech#10715",
    ),
    # The ranks see different checkpoints. Megatron uses the largest iteration any rank reads, and
    # continues.
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(r"in the metadata while max iteration across the ranks is",),
        example="WARNING: on rank 11 found iteration 15 in the metadata while max iteration across the ranks is 4160813071",
        source="intelligent-machine-learning/dlrover#1233",
        in_warnings=True,
    ),
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(r"size of tensor a \(\d+\) must match the size of tensor b",),
        after=r"load_(?:sharded_)?state_dict|load_checkpoint|load_from_checkpoint",
        example_before='  File "nemo/collections/nlp/parts/nlp_overrides.py", line 1130, in load_state_dict',
        example="RuntimeError: The size of tensor a (18560) must match the size of tensor b (4640) at "
        "non-singleton dimension 0",
        source="NVIDIA-NeMo/Speech#10966",
    ),
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(r"KeyError: '\w+'",),
        after=r", in _?load_(?:\w+_)?checkpoint|loading checkpoint from",
        example_before='  File "megatron/checkpointing.py", line 529, in load_checkpoint',
        example="KeyError: 'total_iters'",
        source="intelligent-machine-learning/dlrover#977",
    ),
    # A checkpoint reader may report a missing entry only as a plain KeyError or a similar error.
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(r"^(?:Key|Assertion)Error\b",),
        after=(
            r", in (?:create_\w*load_plan|load_(?:sharded_)?state_dict|get_sd_loader"
            r"|check_ckpt_list|_?load_\w*checkpoint)|len\(self\.ckpt_list\)"
        ),
        example_before='  File "checkpoint/default_planner.py", line 131, in create_default_local_load_plan',
        example="KeyError: 'pos_embedding'",
        source="pytorch/pytorch#85949",
    ),
    # PyTorch distributed checkpoints have no specific message for a folder with no metadata.
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(r"^(?:Assertion|Key|Type|Attribute)Error\b",),
        after=r"torch/distributed/checkpoint/(?:state_dict_loader|default_planner|filesystem)\.py",
        example_before='  File "torch/distributed/checkpoint/state_dict_loader.py", line 250, in local_step',
        example="AssertionError",
        source="bghira/SimpleTuner#1880",
        also=CHECKPOINT_DAMAGE,
        check="If the folder has no .metadata, its save did not finish: resume from the previous checkpoint.",
    ),
    # Some programs wrap long lines, so the key is on the next line.
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(r"^'[\w.]+\.(?:weight|bias|exp_avg\w*)'$",),
        after=r"KeyError: *$",
        example_before="[rank6]: KeyError: ",
        example="'state.optimizers.DecoupledAdamW.state.model.model.embed_tokens.weight.exp_avg'",
        source="mosaicml/llm-foundry#1231",
    ),
    Rule(
        kind=STORAGE,
        patterns=(
            r"[Rr]ead-only file system",
            r"\[Errno (?:5|13|30|107|108|112|121)\]",
            r"Input/output error",
            r"Permission ?[Dd]enied",
            r"PermissionError",
            r"Transport endpoint is not connected",
            r"Remote I/O error",
            r"Cannot send after transport endpoint",
            r"EROFS",
            r"EACCES",
            r"EIO\b",
            r"Operation not permitted",
            r"Host is down",
            r"trying to write in your cache folder",
            r"is not a writable",
            r"NFS.{0,40}(?:not responding|timed out|error)",
            r"[Ll]ustre.{0,60}(?:error|evict|not responding)",
            r"LustreError",
            r"GPFS.{0,40}(?:error|stale|unmount)",
            r"(?:file ?system|mount).{0,40}(?:not mounted|unavailable|hang)",
            r"unable to open file .{0,60}(?:errno|denied)",
            r"cannot create (?:directory|regular file)",
            r"\[Errno 36\]",
            r"\[Errno 40\]",
            r"BlockingIOError",
            r"OSError: \[Errno (?:14|22|35|38|95|524)\]",
            r"Unable to (?:synchronously )?(?:open|create|lock) file",
            r"unable to f?lock (?:the )?file",
            r"file locking disabled on this file system",
            r"driver lock request failed",
            r"No locks available",
            r"\[Errno 37\]",
            # Object storage
            r"\(AccessDenied\) when calling",
            r"file signature not found",
        ),
        error_patterns=(
            r"(?:[Dd]irectory|[Ff]older|[Ff]ile|[Pp]ath|[Cc]ache|[Dd]isk|[Mm]ount)\b.{0,80}not writable",
            r"not have (?:write )?permission",
        ),
        unless=r"publickey|please try again|pyxis|enroot|docker|ImportError|\buc[pt]_\w+|UCX|pml_|mtl_",
        example="OSError: [Errno 30] Read-only file system",
        source="NVlabs/nvdiffrast#33",
        in_warnings=False,
    ),
    # Kernel messages about a disk in the node
    Rule(
        kind=STORAGE,
        patterns=(
            r"EXT4-fs error",
            r"XFS \(\S+\): .{0,60}(?:I/O error|[Cc]orruption)",
            r"I/O error, dev \S+ sector",
            r"Buffer I/O error on dev",
            r"Aborting journal on device",
        ),
        example=(
            "EXT4-fs error (device nvme19n1): ext4_wait_block_bitmap:517: comm etcd: Cannot read "
            "block bitmap - block_group = 34, block_bitmap = 1048578"
        ),
        counterexample="EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        source="gardenlinux/gardenlinux#263",
        decision=NextStep.RETRY_OTHER_NODE,
    ),
    # Lustre clients return these errors if a server for a striped file is gone.
    Rule(
        kind=STORAGE,
        patterns=(
            r"\[Errno 61\] No data available",
            r"\[Errno 70\] Communication error on send",
        ),
        example="OSError: [Errno 61] No data available: '/lustre/x/a.bin'",
        counterexample="OSError: [Errno 61] Connection refused",
        source="Linux, the messages of ENODATA and ECOMM",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
    # torch.save reports a failed write only in this way.
    Rule(
        kind=STORAGE,
        patterns=(r"basic_ios::clear: iostream error",),
        example="RuntimeError: basic_ios::clear: iostream error",
        counterexample="ostream: no error",
        source="libstdc++, a message of std::ios_base::failure",
        also=DISK,
        check="`df` and `df -i` of the folder show whether the disk is full.",
    ),
    # Slurm starts the job in a different folder, where the job cannot find its files.
    Rule(
        kind=STORAGE,
        patterns=(r"couldn't chdir to .*going to",),
        example="slurmstepd: error: couldn't chdir to `/fast/u': No such file or directory: going "
        "to /tmp instead",
        source="Slurm, a message of slurmstepd",
        level=Level.SYMPTOM,
        decision=NextStep.RETRY_OTHER_NODE,
    ),
    Rule(
        kind=STORAGE,
        patterns=(
            r"Input/output error",
            r"\[Errno 5\]",
        ),
        unless=r"\buc[pt]_\w+|UCX|pml_|mtl_",
        example="OSError: [Errno 5] Input/output error: '/opt/data/private/dataset/a'",
        source="whwu95/Text4Vis#6",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
    Rule(
        kind=STORAGE,
        patterns=(r"There was a problem when trying to write in your cache folder",),
        example=(
            "There was a problem when trying to write in your cache folder "
            "(/cache/huggingface/hub)."
        ),
        source="project-codeflare/codeflare-sdk#193",
        in_warnings=True,
    ),
    Rule(
        kind=DATA,
        patterns=(
            r"NonMatchingSplitsSizesError",
            r"NonMatchingChecksumError",
            r"Parquet magic bytes",
            r"ArrowInvalid",
            r"DatasetGenerationError",
            r"doesn't match expected format",
            r"^Dataset does not exist: ",
            (
                r"(?:Error|No such|not found|missing|cannot).{0,200}(?:doc|sample|shuffle|document)"
                r"_?(?:idx|index)\S*\.npy"
            ),
            (
                r"\.(?:bin|idx)\b.{0,60}(?:No such|not found|cannot be found|does not exist|missing"
                r"|corrupt|mismatch)"
            ),
            (
                r"(?:No such|not found|does not exist|missing).{0,200}\.(?:bin|idx|npy|jsonl?"
                r"|parquet|arrow|mds|tar|zst|gz|tfrecord|csv|txt)\b"
            ),
            r"[Mm]map(?:ped)? length",
            r"mmap length is greater than",
            r"offset must be non-negative and no greater than buffer length",
            r"cannot mmap an empty file",
            r"could not parse ModelProto",
            r"model_proto->ParseFrom",
            r"cannot reshape array of size",
            r"num_samples should be a positive",
            (
                r"(?:train|valid|test).{0,20}(?:data|files?).{0,30}(?:not found|missing|does not "
                r"exist)"
            ),
            r"JSONDecodeError",
            r"UnicodeDecodeError",
            r"gzip.{0,30}(?:CRC|not a gzip|truncated)",
            r"Not a gzipped file",
            r"Compressed file ended",
            r"zlib.error",
            r"LZMAError\b",
            r"image file is truncated",
            r"broken data stream when reading image file",
            r"zstd.{0,30}(?:error|corrupt|incomplete)",
            r"[Uu]nable to open (?:data|dataset)",
            r"last epoch number of samples exceeded",
            r"pyarrow\.lib\.\w+",
            r"\.mds\b.{0,60}(?:hash|checksum) mismatch",
            r"ReadError.{0,20}unexpected end of data",
            r"Invalid flatbuffers message",
            r"invalid (?:magic|index file)",
        ),
        error_patterns=(
            r"[Tt]oken.{0,40}out of (?:range|vocab)",
            r"[Ee]mpty (?:dataset|corpus|data)",
            r"[Dd]ata ?set.{0,60}(?:not found|is empty|missing|corrupt|does not exist)",
            r"vocab(?:ulary)? (?:file|size).{0,40}(?:not|does|mismatch)",
            r"Not enough (?:samples|tokens|documents)",
            r"not enough data",
            r"number of (?:samples|documents).{0,60}(?:mismatch|not)",
            r"[Dd]ata (?:prefix|path|file).{0,60}(?:not|does not)",
            r"webdataset.{0,60}(?:error|fail)",
            r"shard .{0,40}(?:missing|corrupt|truncated)",
        ),
        unless=r"config\.json|tokenizer_config|checkpoint|\.triton",
        example=(
            "FileNotFoundError: [Errno 2] No such file or directory: "
            "'/data/user/dataset/index-cache/43d5bc1477_doc_idx.npy'"
        ),
        source="deepspeedai/Megatron-DeepSpeed#356",
    ),
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(
            (
                r"(?:No such|not found|does not exist|FileNotFoundError).{0,200}(?:latest_checkpoi"
                r"nted_iteration|mp_rank_|iter_\d{7}|global_step\d+|\.distcp|zero_pp_rank"
                r"|checkpoint-\d+)"
            ),
        ),
        error_patterns=(
            r"Unable to find (?:latest|checkpoint)",
            r"no checkpoint (?:was )?found",
            r"checkpoint .{0,60}(?:not found|does not exist)",
        ),
        example=(
            "FileNotFoundError: [Errno 2] No such file or directory: "
            "'/ckpt/iter_0000500/mp_rank_00/model_optim_rng.pt'"
        ),
        source="Megatron-LM, load_checkpoint with a missing rank file",
    ),
    Rule(
        kind=FILE,
        patterns=(
            r"FileNotFoundError: ",
            r"NotADirectoryError: ",
            r"IsADirectoryError: ",
            r"Parent directory \S+ does not exist",
            r"can't open file",
            # Rust
            r"panicked at .{0,200}kind: NotFound",
        ),
        example="FileNotFoundError: [Errno 2] No such file or directory: 'corpus'",
        source="Python, the exception's name",
    ),
)
