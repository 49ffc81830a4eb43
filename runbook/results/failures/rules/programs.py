"""Rules for errors in the training program itself: diverging values and conflicting settings."""

from runbook.results.failures.kinds import CONFIGURATION, LOSS_SCALE, NAN
from runbook.results.failures.rule import Level, Rule

PROGRAM_RULES = (
    Rule(
        kind=LOSS_SCALE,
        patterns=(
            r"loss scale already at minimum",
            r"[Mm]inimum loss scale (?:reached|exceeded)",
            r"overflows at the smallest loss scale",
            r"FloatingPointError.{0,60}scale",
        ),
        error_patterns=(
            r"loss scale .{0,30}(?:below|minimum)",
            r"Cannot (?:decrease|reduce) .{0,20}scale",
        ),
        example=(
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. "
            "Exiting run."
        ),
        source="deepspeedai/DeepSpeedExamples#418",
    ),
    # The loss scale cannot become smaller, or it is so small that the gradients underflow.
    Rule(
        kind=LOSS_SCALE,
        patterns=(
            r"[Rr]educing (?:dynamic )?loss scale from (?P<floor>[\d.]+) to (?P=floor)(?![\d.])",
            r"[Aa]ttempted loss scale: (?P<least>[\d.]+), reducing to (?P=least)(?![\d.])",
            r"[Rr]educing loss scale to (?:\d(?:\.\d+)?e-\d+|0(?:\.0+)?)(?![\d.])",
        ),
        example="Skipping step, loss scaler 0 reducing loss scale to 1.1392e-305",
        counterexample="Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
        source="NVIDIA/apex#715",
        level=Level.SYMPTOM,
        in_warnings=True,
    ),
    Rule(
        kind=NAN,
        patterns=(
            r"found (?:NaN|Inf|nan|inf)\b.{0,40}(?:loss|grad|norm|forward|backward)",
            r"[Ll]oss (?:is|was|became|=|:) ?(?:nan|NaN|[+-]?inf|Inf)",
            # Table columns, without a sign between name and value
            r"\b[Ll]oss\s+(?:nan|NaN)\b",
            r"Unexpected result nan",
            r"number of nan iterations: +[1-9]",
            r"(?:[Gg]radient|[Gg]rad).{0,30}(?:is|are|contains?|has) (?:nan|NaN|inf|non-?finite)",
            r"non-?finite (?:loss|grad|norm)",
            r"NaN(?:s|/Inf)? (?:detected|encountered|found|in|loss)",
            r"nan (?:detected|encountered|found|loss)",
            r"returned nan values",
            r"contains? (?:nan|NaN|inf|Inf)\b",
            r"probability tensor contains either",
            r"[Tt]raining (?:has )?diverged",
            r"loss exploded",
            r"skipped \d+ (?:consecutive )?(?:iterations|steps).{0,20}nan",
            r"Unexpected (?:NaN|inf|loss)",
            r"isnan\(\)\)",
            r"Input contains NaN",
            r"The total norm .{0,60}non-finite",
            r"lm loss: (?:nan|NaN|inf)",
            r"""[\"']?loss[\"']?: (?:nan|NaN|inf)""",
            r"""grad_norm[\"']?: nan\b""",
        ),
        unless=r"number of nan iterations: +0|nan_to_num|skip_?nan.*=",
        example=(
            "RuntimeError: Rank 5: found NaN in local forward loss calculation. Device: 1, node: n1"
        ),
        source="NVIDIA/Megatron-LM#780",
        in_warnings=True,
    ),
    # torch.distributions checks parameters; the next lines show a tensor of NaN.
    Rule(
        kind=NAN,
        patterns=(r"to satisfy the constraint .{0,120}but found invalid values",),
        example=(
            "ValueError: Expected parameter logits (Tensor of shape (4, 7)) of distribution "
            "Categorical to satisfy the constraint IndependentConstraint(Real(), 1), but found "
            "invalid values:"
        ),
        counterexample="AssertionError: the batch size has to satisfy the constraint b % 8 == 0",
        source="PyTorch, a message of torch/distributions/distribution.py",
        level=Level.SYMPTOM,
    ),
    # A process group for GPUs was given a tensor in host memory, or vice versa.
    Rule(
        kind=CONFIGURATION,
        patterns=(
            r"Tensors must be CUDA and dense",
            r"No backend type associated with device type",
            # DistributedDataParallel; the message names the missing option
            r"Expected to (?:have finished reduction in the prior iteration|mark a variable ready)",
        ),
        example="RuntimeError: Tensors must be CUDA and dense",
        source="Lightning-AI/pytorch-lightning#10378",
    ),
    # Messages from argparse. The names of programs and options may contain words another rule looks
    # for.
    Rule(
        kind=CONFIGURATION,
        patterns=(
            r"error: (?:unrecognized arguments|argument |the following arguments are required)",
            r"Assertion failed: .{0,60}(?:==|<|>|%)",
        ),
        # A line not marked as an error recommends a setting, and the training continues.
        error_patterns=(r"\bonly supports? .{0,60}(?:dimension|size|head|dtype|length)",),
        example="convert_checkpoint.py: error: unrecognized arguments: --world_size 2",
        counterexample="Flash Attention 2.0 only supports torch.float16 and torch.bfloat16 dtypes",
        source="NVIDIA/TensorRT-LLM#1110",
    ),
    # Megatron checks arguments with assertions, some of them without a message.
    Rule(
        kind=CONFIGURATION,
        patterns=(r"\bAssertionError\b",),
        after=r", in (?:core_\w+)?validate_\w*(?:args|config)|, in __post_init__",
        example_before='  File "megatron/training/arguments.py", line 282, in validate_args',
        example="AssertionError",
        source="fwyc0573/Megatron-LM, log/GPT",
    ),
    Rule(
        kind=CONFIGURATION,
        patterns=(
            r"Check batch related parameters",
            r"Unrecognized or misspelled options",
            r"(?:Config|Args|Arguments)(?:\.__init__)?\(\) got an unexpected keyword argument",
            r"still have inflight params",
            r"unrecognized arguments?",
            r"the following arguments are required",
            r"expected (?:one|at least one) argument",
            (
                r"AssertionError: (?!\{).{0,160}(?:parallel|batch|sequence|layers|heads|micro|hidden"
                r"|divisible|must|should|only|support|require[sd]?\b|enabled|argument|--\w"
                r"|(?:world|vocab\w*|group)[ _]size)"
            ),
            r"(?:parallel|process) group is not initialized",
            (
                r"(?:mutually exclusive|cannot be used (?:with|together)|is not supported (?:with"
                r"|when|for|by)|not compatible with|conflicts? with|incompatible with)"
            ),
            r"DeepSpeedConfigError",
            r"pydantic\S*ValidationError",
            r"Default process group has not been initialized",
            r"ConfigAttributeError",
            r"ConfigKeyError",
            r"MissingMandatoryValue",
            r"ValidationError",
            r"hydra\.errors",
            r"Could not override",
            r"Error: No such option",
            r"Got unexpected extra argument",
            r"error: argument",
            r"ParamsError",
            r"InvalidParams",
            (
                r"(?:tensor|pipeline|expert|context|data)[ _-](?:model[ "
                r"_-])?parallel.{0,80}(?:must|should|cannot|not|greater|exceed)"
            ),
            r"yaml\.(?:scanner|parser|constructor)\.\w+",
            r"NotImplementedError",
            r"ValueError: .{0,120}(?:must|should|expected|invalid|not supported|unknown|requires)",
        ),
        error_patterns=(
            r"(?:be|not) (?:evenly )?(?:divisible|(?:an? )?(?:integer )?multiple of)\b",
            r"must divide",
            r"not divisible",
            r"(?:invalid|unknown|unrecognized) (?:choice|option|argument|value|key|field)",
            r"validation errors? for \w+",
            r"Key '\S+' (?:is )?not in",
            r"omegaconf",
            r"world[_ ]size .{0,60}(?:not|must|divisible|!=|is less)",
            r"sequence parallel.{0,60}(?:requires?|must|cannot|without)",
            r"global[_ ]batch.{0,60}(?:must|not|should|divisible)",
            r"micro[_ ]?batch.{0,60}(?:must|not|should|divisible|!=)",
            r"requires? .{0,30}(?:to be|CUDA_DEVICE_MAX_CONNECTIONS)",
            r"CUDA_DEVICE_MAX_CONNECTIONS",
            r"(?:hidden|ffn|kv|num)_\w+ .{0,60}(?:must|divisible)",
            r"unsupported (?:optimizer|option|dtype|activation|combination)",
            r"(?:zero|ZeRO).{0,40}(?:stage|not).{0,40}(?:support|compatible|work)",
        ),
        unless=(
            r"NCCL WARN|nvidia-container|mpiexec|pyxis"
            r"|state_dict|checkpoint|NVIDIA driver|CUDA(?!_DEVICE_MAX_CONN)|view size"
            r"|size and stride|Index file|Torch not compiled|isnan|NaN"
            r"|world_size=\d+, worker_count|values to unpack|invalid literal"
        ),
        example="AssertionError: num_layers should be divisible by pipeline_model_parallel_size",
        counterexample="There may be multiple versions installed: error",
        source="NVIDIA-BioNeMo/bionemo-recipes#784",
        level=Level.CAUSE,
    ),
)
