"""Messages about adopted scripts and configurations, one per row; `{name}` is a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class AdoptMessage(Message):
    """Messages about scripts and configurations that are adopted."""

    CONFIGURATION_READABLE = " Its configuration can be read: runbook adopt {files}"
    EVALUATION_STARTED = (
        "{file_name} starts {script} to evaluate or to convert, not to train ({place}: {word}). "
        "adopt writes run files for training runs; 06-evaluation evaluates a finished run. No run "
        "file was written."
    )
    FILE_OF_FINE_TUNING = (
        "{name} configures fine-tuning ({value} in line {line}), which the runbook does not "
        "support. No run file was written."
    )
    FINE_TUNING = (
        "{name}: {function} (line {line}) configures fine-tuning, which the runbook does not "
        "support. --launch N selects another configuration. No run file was written."
    )
    KERNEL_THREAD = "--pid {number} is a kernel thread, which has no command line."
    KEY_TOO_LONG = "{file_name}: the key {shown_name}... has more than {most_letters} characters."
    LAUNCH_OUT_OF_RANGE = (
        "--launch {number}: {file_name} starts {number_of_launches} training runs. Give a number "
        "from 1 to {number_of_launches}."
    )
    LAYERS_WITHOUT_ATTENTION = (
        "{name} trains a model of {kind} layers (line {line}), which is not a GPT of attention "
        "layers. No run file was written."
    )
    LIST_AS_KEY = "{file_name}:{line}: a list or a section cannot be the key of a configuration."
    MOSTLY_UNKNOWN_KEYS = (
        "{name} looks like {program}'s, but {number_of_unknown} of its {num_keys} keys are "
        "unknown ({unknown}, ...), so it configures something other than GPT pre-training. No run "
        "file was written."
    )
    NESTED_TOO_DEEP = "{file_name} is nested more than {most_depth} levels deep."
    NOT_A_CONFIGURATION = (
        "{files} is YAML, but not a configuration that adopt reads (nanotron, GPT-NeoX, NeMo 2 or "
        "Megatron Bridge)."
    )
    NOT_ITS_CONFIGURATION = (
        "{files} configures {program}, whose files adopt does not read. It reads those of "
        "nanotron, GPT-NeoX, NeMo 2, Megatron Bridge and Megatron-LM. Give the job script that "
        "starts the training, or a log that it wrote."
    )
    NOT_A_DENSE_GPT = (
        "{name} trains with the recipe {recipe} (line {line}), which is not a dense GPT. No run "
        "file was written."
    )
    NOT_A_GPT = (
        "{file_name} {does} {whose} ({place}: {shown}). adopt reads GPTs of Megatron-LM, "
        "Megatron-DeepSpeed and NeMo (pretrain_gpt.py, megatron_gpt_pretraining.py, or a program "
        "with Megatron's options). No run file was written.{config}"
    )
    NOT_A_SCRIPT = "{path} is not a job script: it is larger than 256 KiB, or not text."
    NOT_A_YAML_NAME = "--out {path}: the name of a run file must be NAME.yaml."
    NOT_TOML = "{file_name} is not TOML: {reason}."
    NOT_TORCHTITAN = "{name} is TOML, but not a configuration of torchtitan."
    NO_BUBBLEWRAP = "{absent} is not installed here. {install}"
    NO_KEYS = "{file_name} is not a configuration: it has no `key: value` lines."
    NO_RECIPE = (
        "{name} calls no recipe of NeMo 2 or Megatron Bridge (`llama3_8b.pretrain_recipe(...)`), "
        "returns no `Trainer.Config` of torchtitan, and builds no `Config` of nanotron. Give the "
        "job script that starts it, or a log that it wrote."
    )
    NO_SANDBOX = "No sandbox can be created here: {reason}. {install}"
    NO_SUCH_PROCESS = "--pid {number}: there is no such process on this machine."
    NO_TRAINING_STARTED = (
        "{file_name} starts no training, and sets no variable that the five documents' scripts "
        "read. Give the script that is submitted (and the one it starts, if any), or the block of "
        "exports before it.{starts}{notes}"
    )
    NUMBER_TOO_LARGE = "{key} would be {carried} ({where}), but at most {most:,} is possible."
    ONE_TRAINING = (
        "--launch {launch_number}: {names} is the configuration of a single training run. Leave "
        "--launch out."
    )
    PROCESS_OF_ANOTHER_USER = (
        "--pid {number} belongs to another user: run adopt as that user, on the process's own node."
    )
    OPTIONS_ALONE = (
        "{file_name} sets training options (line {line}) but starts no training. Give the script "
        "that starts it and, after it, this file.{notes}"
    )
    OTHER_MODE = (
        "{name} is a test case of the mode {mode} (line {line}), not of pre-training. No run file "
        "was written."
    )
    RECIPE_OUT_OF_RANGE = (
        "--launch {launch_number}: {name} calls {number_of_calls} recipes. Give a number from 1 to "
        "{number_of_calls}."
    )
    RUN_FILE_EXISTS = (
        "{path} exists with other content. Name another file with --out, or use --replace."
    )
    SCRIPTS_OF_ONE_NAME = (
        "Two of the scripts are named {name}, but the sandbox puts them into a single folder. "
        "Rename one of them, or leave out the script that the other does not start."
    )
    SCRIPT_NOT_READABLE = "{path} cannot be read: {reason}."
    TOML_NOT_READABLE = "{file_name} cannot be read as TOML: {name}."
    TOO_MANY_KEYS = (
        "{file_name} has more than {most_values:,} keys, so it is not a training configuration."
    )
    TOO_MANY_VALUES = (
        "{file_name} has more than {most_nodes:,} values, so it is not a training configuration."
    )
    TWO_CONFIGURATIONS = (
        "{name} and {others}: only YAML files can form one configuration together. Give one file."
    )
    YAML_ERROR = "{file_name}:{line}: {name}: {error}."

    ANOTHER_MODEL = "another model is trained, not the script's ({model})"
    ARGUMENT_CHOSEN = "{job} needs an argument: {choice} is used, the first branch of its `case`"
    ARGUMENTS_NOT_GIVEN = "{job} needs {number} arguments, which were not given"
    ATTENTION_DROPOUT = "the attention dropout is {dropout}, the program's default"
    FILE_MAY_SAY_IT = "; {files} may set it, but adopt does not read it here"
    FILE_NOT_READABLE = "it cannot be read ({reason})"
    FURTHER_TRAININGS = (
        "{name} has options for further training runs, which are not read: {sections}"
    )
    FOR_ANOTHER_QUEUE = "this is a request to {queue}, but the site's scheduler is {scheduler}"
    GAVE_UP = (
        "{job} ended with exit code {exit_code} before it started a training run; its `exit` was "
        "ignored"
    )
    GIVEN_TWICE = (
        "{name} gives {argument} as {earlier} in line {earlier_line} and {last} in line {line}: "
        "the last value is used"
    )
    GOES_WITH_EXPERTS = "configures experts, which our models lack"
    LOOKS_LIKE_A_SECRET = "it looks like a secret"
    MANY_BRANCHES = (
        "line {line}: over {most} branches or early returns around one statement. Give a file that "
        "builds its recipe with fewer."
    )
    MANY_CALLS_OF_RECIPES = "more than {most} calls of recipes: give a file with a single call."
    MANY_LETTERS_OF_A_KEY = "line {line}: a key of more than {most} characters."
    MANY_RECIPES_IN_A_STATEMENT = (
        "line {line}: a single statement with over {most} recipes and their parts. Give a file "
        "with one recipe."
    )
    MANY_RECIPES_OF_A_NAME = "over {most} recipes with the name {name}. Give a file with only one."
    MANY_VALUES_OF_A_RECIPE = "line {line}: the recipe has over {most:,} values, too many to read."
    MODEL_PROPERTY = "the model's {field}={value}"
    NO_LENGTH = "the script does not set the length, so the value is a placeholder"
    NO_CONTEXT_RANKS = "NeMo's command here has no context parallelism"
    NO_SUCH_PART = (
        "our models have no such part ({part}): the run file trains another model, a dense GPT"
    )
    SECTION_LEFT_OUT = "the file leaves this section out, so the program's defaults apply"
    SEVERAL_SUBMITTED = "{job} submits {number} jobs; the run file describes the last one"
    STRAY_OPTION = (
        "{option} ({place}) does not reach the training program, because the previous line does "
        "not end with a backslash"
    )
    NO_VALUE = "it received no value: set {key}"
    ONE_EXPERT_IS_DENSE = "a model with one expert is dense"
    OPTION_IS_FALSE = "{option} (line {line}) is false, so it is not passed to the program"
    OPTIONS_LOST = "{number} options of the script are not accounted for: {options}"
    OTHER_PROGRAM = "Differences because our trainer is not {framework}"
    OUTSIDE_SANDBOX = "{name} is not copied into the sandbox: {reason}"
    OTHER_POSITIONS = "position embeddings of type {positions}"
    PART_IS_OFF = "this value switches it off ({part})"
    PROGRAM_OF_FOLDER = (
        "{name} does not name its program: {program} is used, as the folder suggests"
    )
    RECIPES_OF_OTHER_FILES = (
        "{name} names recipes, but calls none that can be read: they come from other files, or "
        "are chosen while the program runs. Give the file that calls a recipe, or a log of the "
        "training run."
    )
    ROTARY_WITHOUT_TABLE = "rotary embeddings have no table of positions"
    UNSET_ARGUMENTS = (
        "{variables} may contain more options, but nothing sets them{files}: give the file that "
        "sets them after the script"
    )
    UNSET_BECAUSE_OF_FILES = " ({files} is sourced, but not available here)"
    VOCABULARY_OF_MODEL = "model {model} has {vocabulary}: paste the entry, and set model"
