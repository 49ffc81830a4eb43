"""Messages about parameters and their files, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ParamsMessage(Message):
    """Messages about parameters and their files."""

    ALIAS = (
        "{where}: *{anchor} is a YAML alias, which parameter files do not allow. Write out the "
        "value."
    )
    AUTO_ASKS_THIS_MACHINE = (
        "hardware.device {auto} detects the GPUs of this machine, but scheduler {scheduler} runs "
        "the jobs on other machines. Name their accelerator."
    )
    BLEND_WITHOUT_DATASET = (
        "must include data.dataset ({main}): add it, or set data.dataset to one of the blend's "
        "texts."
    )
    BROKEN_RULE = "{text}."
    CELL_CHANGED_BY_HAND = (
        '{notebook}, cell "parameters": {shown_edits} was written there by hand and would change '
        "every run executed from this notebook. Without JupyterLab, values come from the run file and the "
        "command line. To use these values: runbook run RUN {option_words}. To drop them, restore "
        "the cell: git checkout {notebook}. To try values by hand, use your own copies: runbook "
        "lab RUN."
    )
    DATASET_IS_A_PATH = (
        "{value!r} is a path, and data.dataset is the name of an entry in params/datasets.yaml. Set "
        "data.folder={folder} to train on the files in that folder."
    )
    DIFFERENT_GPUS = (
        "site {site} uses the GPUs of this machine, but {program} lists different kinds: {names}. "
        "Select one kind: export CUDA_VISIBLE_DEVICES with their numbers (HIP_VISIBLE_DEVICES for "
        "AMD)."
    )
    DOT_IN_KEY = "is one key with a dot in it. Write `{last}:` on its own line below `{section}:`."
    FILE_EMPTY = "{where}: is empty. Write `key: value` lines, beginning with `run:` in a run file."
    FILE_NOT_A_MAPPING = "{where}: is {kind}, not a mapping of `key: value` lines."
    FILE_NOT_READABLE = "{where}: cannot be read: {reason}."
    FILE_TOO_LARGE = (
        "{where}: {size} bytes; a parameter file has at most {limit}. Is it the right file?"
    )
    GIVEN_INSTEAD = "{where}, which sets {key} instead"
    GPUS_OF_THIS_MACHINE = "{program} on this machine: {number} x {name}, {memory} each"
    HEAD_OF_RUN_YAML = "# The values of run {name}: every value, including the defaults.{variant}"
    HIDDEN_CHARACTER = (
        "contains {character}, which is invisible, so the line does not show its real content. "
        "Remove it."
    )
    INVALID_PARAMS = "{title}: {head} Nothing was written.{rows}"
    IN_THE_DOCUMENTS = "  in the documents: {documents}"
    IS_A_SECTION = "is a section: write its keys below it ({name})."
    KEY_IS_A_SECTION = "{name} is a section. Ask for one of its keys: {inside}."
    KEY_NOT_A_WORD = "{where}: a key must be one word, not a list or a mapping."
    KEY_NOT_ON_ITS_OWN_LINE = "{path}: {key} is not written with one key per line."
    KEY_NOT_READABLE = "{key}: {error}."
    KEY_OF_ANOTHER_PHASE = (
        "there is no such key: each phase has its own section. Did you mean {right_key}?"
    )
    KEY_TWICE = "{where}: {key} is given twice; first on line {line}. Keep one of them."
    LINES_NOT_EDITABLE = "{where}: its lines cannot be edited one by one."
    LOOKS_LIKE_A_SECRET = (
        "looks like a real secret, which would end up in records. Remove it (and revoke it if this "
        "file was shared), and write env:NAME or file:PATH."
    )
    MADE_UP_IN_BLEND = "{name} consists of synthetic tokens, which cannot be blended with text."
    MANY_THINGS = "{number} values cannot be used."
    MODEL_MISSING = "is missing: name a model in params/models.yaml."
    NAME_OF_THE_DOCUMENTS = "{word} is a name used in the documents. {meaning}"
    NAME_OUTSIDE_RUN_FILE = (
        "can only be set in the run file. Leave it out; --as NAME names a set of overrides."
    )
    NEARLY_A_WORD = "{text}. Did you mean {near}?"
    NESTED_TOO_DEEP = "{where}: nested more than {max_depth} levels deep."
    NOTEBOOK_TYPE = "must be {kind}, such as {name} = {example}."
    NOT_A_DEFAULT = "cannot be a site's default; only a run file can set it. Remove the line."
    NOT_A_FILE = "{where} is not a file."
    NOT_A_MAPPING = "must be a mapping of keys to values."
    NOT_A_MODEL_NAME = "is not the name of a model."
    NOT_A_PHASE = "{word!r} is not a phase; the phases are {phases}"
    NOT_A_RUN_FILE = (
        "{word} is a file, but not a run file, whose name ends with .yaml. Give the name of a file "
        "in params/ without its ending, or the path of a run file."
    )
    NOT_A_SECRET_REFERENCE = (
        "{reference!r} is not a reference to a secret. Write env:NAME or file:PATH; the value "
        "itself belongs in the environment or in a file that only you can read."
    )
    NOT_A_SET_NAME = "must be letters, digits, '.', '_' and '-', at most 80."
    NOT_A_TRUTH_VALUE = "must be true or false."
    NOT_IN_A_PROJECT = (
        "{where} is not inside a project: neither it nor a folder above it contains "
        "params/models.yaml. Go to the clone, set {project_variable} to its folder, give the path "
        "of the run file, or create a project with: runbook init DIR"
    )
    NOT_KEY_AND_VALUE = "is not key=value, such as training.iterations=10."
    NOT_OF_ITS_TYPE = "{where}: is not {name}: {error}."
    NOT_SHELL_WORDS = "cannot be split into words as a shell does: {error}."
    NOT_TEXT = 'must be text. Put it in quotes: "{value}".'
    NOT_A_FILE_NAME = (
        "the file's name must consist of letters (a to z), digits, '.', '_' and '-', at most 80. "
        "Rename {file} to {suggested}.yaml, and set {key}: {suggested}."
    )
    NOT_THE_FILES_NAME = "must be {name}, the name of the file."
    NOT_THIS_FORM = "must look like {example}."
    NOT_UTF8 = "{where}:{line}:{column}: byte 0x{byte:02x} is not UTF-8. Save the file as UTF-8."
    NOT_YAML = "{position}: is not YAML: {reason}.{hint}"
    NOT_YAML_AT_THE_END = "{where}:{line}:{column}: is not YAML: {reason}."
    NO_DEVICES_PER_NODE = (
        "devices_per_node is 0, which only device {auto} allows. Write the number of devices of a "
        "node."
    )
    NO_LENGTH = "the length of the training run is missing: give one of {duration}."
    NO_RUN_NAMED = "run: no run is named. Write the name of a file in params/, or a path to one."
    NO_SUCH_FILE = "{where}: there is no such file."
    NO_SUCH_KEY = "There is no key {key}. {hint}"
    NO_SUCH_NAME = "{where} has no {name}. {suggestion}"
    NO_SUCH_RUN = "There is no run {word!r}: {path} does not exist. {hint}"
    NO_SUCH_RUN_FILE = "{word}: there is no such run file.{suggestion}"
    NO_TRACKER = (
        "{name} is not a tracker that the trainer supports. Name one or more of {trackers}. "
        "Addresses and keys belong in the tracker's own environment variables (docs/trackers.md)."
    )
    NO_VALUE = "has no value. Give one, or remove the line to use the default."
    ONE_OF_A_GROUP = "{number_of_stated} {meaning} are given. Give only one of them."
    ONE_VALUE = "accepts one value, not a list or a mapping."
    OTHER_NAME_OF_THE_DOCUMENTS = (
        "{word} is a name used in the documents; here it is called {ours}."
    )
    PARAMETERS_CELL_NOT_RUN = (
        "the parameters cell was last executed with a syntax error in line {line}, so its values "
        "were not set. Correct the cell and run it again."
    )
    PARAMETERS_CELL_SKIPPED = (
        "is not set, because the parameters cell at the top of this notebook was not run. Run that "
        "cell first, then this one again."
    )
    PARAMETER_DELETED = (
        "was deleted from the parameters cell, but the kernel still has it. Write {name} = "
        "{default} there, or restart the kernel."
    )
    PERCENTAGE = "{value!r} is text, not a number: write {fraction} (a fraction of 1)."
    PHASE_WITHOUT_JOB = "{phase} submits no job; these do: {job_sections}."
    PLAIN_TEXT = "{text}"
    READINGS = "reads {word} as {old}; YAML 1.2 reads it as {new}"
    READ_AS_NUMBER = "{value} (a number)"
    READ_AS_TEXT = 'the text "{text}"'
    READ_AS_TRUTH_VALUE = "{value} (a truth value)"
    REQUIRED_BY = "required by params/sites/{site}.yaml"
    REQUIRED_VALUE = "is not set: {meaning}. {remedy}"
    RUN_NOT_FIRST = "must be the first key of a run file."
    RUN_WITHOUT_VARIANTS = "there is no such file, so the run has no variants."
    SAME_MEANING = "means the same as {written}, which is also given. Keep one of them."
    SCALED_DOWN = "{value} was replaced for site {site}: {reason}"
    SECRET_FILE_EMPTY = "{reference}: the file is empty."
    SECRET_FILE_NOT_READABLE = "{reference}: the file cannot be read: {reason}."
    SECRET_FILE_NOT_TEXT = "{reference}: the file is not UTF-8 text."
    SITE_FILE_NAMED = (
        "{where} describes a site, not a run. Name a file in params/ that begins with `run:`; a "
        "run file names its site with `site:`."
    )
    SECTIONS_OF_RUN_FILE = "The sections of a run file are {sections}; docs/keys.md also lists the keys of a site file."
    SITE_WITHOUT_KEYS = "The site file has no keys."
    SOURCE_OF_VALUE = "  source: {source}{date}"
    TAG = "{where}: the tag {tag} is not supported. Write a plain value."
    TEXT_NOT_A_NUMBER = "{value!r} is text, not a number{hint}."
    THIS_ONE = "  <- this one"
    TO_BE_FILLED_IN = "must still be filled in: {comment}."
    TO_BE_FILLED_IN_WITHOUT_COMMENT = "must still be filled in."
    TWO_RUNS_MIXED = (
        "Two runs are mixed: run is {run}, but {foreign} {verb} of {where}. Name only one: -p run "
        "{stem}, or -f {where}. Nothing was written."
    )
    UNKNOWN_KEY = "there is no such key. Did you mean {near}?"
    UNKNOWN_KEY_ALONE = "there is no such key."
    UNKNOWN_KEY_OF_SECTION = "there is no such key. {section} has the keys {parent}."
    UNKNOWN_PARAMETER = "notebooks have no such parameter. {hint}"
    UNKNOWN_SWITCH = (
        "jobs.switch: {word!r} is not + or - followed by a group of site {site}'s environment. Its "
        "groups are {groups}."
    )
    VALUE_MISSING = "is missing."
    VARIABLE_NOT_SET = (
        "{reference}: the environment variable {variable} is not set. Set it: export {variable}=..."
    )
    WITHOUT_DEFAULT = "is missing; it has no default."
    WITHOUT_QUOTES = "; write it without quotes"
    WITHOUT_SEPARATORS = "; write {number}"
    WORD_OR_TRUTH_VALUE = '"{word}" for the word, or {truth_value} for the truth value'
    YAML_VERSIONS_DIFFER = "YAML 1.1, which papermill -f uses, {readings}. Write {remedy}."


class ScaleDownReason(Message):
    """Why a value from a run file for another site is replaced on a smaller site."""

    BELONGS_TO_THE_QUEUE = "it applies to the other site's queue"
    BELONGS_TO_THE_SITE = "it applies to the other site"
    CORPUS_HAS_FEW_FILES = (
        "the shipped corpus has too few files to hold any out; data.split divides each file"
    )
    CORPUS_IS_CLEAN = "the shipped corpus has nothing to repair"
    CORPUS_IS_HERE = "the run's text is not available here; the shipped corpus is used"
    CORPUS_IS_READ = "the shipped corpus is used"
    CORPUS_NEEDS_VALIDATION = "the shipped corpus is small, and part of it is needed for validation"
    DIVIDES_BY = "it must be a multiple of {step}"
    FEWER_CHUNKS = "the model has too few layers for that many chunks"
    MODEL_OVER_DEVICES = "the model is divided over {devices} devices"
    MODEL_POSITIONS = "the model has {positions} positions"
    NOTHING_COPIED = "nothing is copied"
    NO_CONTEXT_PARALLELISM = "our own trainer has no context parallelism"
    NO_FP16_ON_A_CPU = "torch has no fp16 training on a CPU"
    NO_MORE_DEVICES = "a node has no more devices"
    NO_MORE_NODES = "it has no more nodes"
    NO_OFFLOAD = "our own trainer keeps optimizer states on the device"
    NO_QUEUE = "it has no queue"
    NO_SEQUENCE_UNDER_DEEPSPEED = "our own trainer has no sequence parallelism under DeepSpeed"
    NO_SUCH_FRAMEWORK = "{framework} is not installed here; our own trainer is used"
    ONE_TENSOR_RANK = "a single tensor rank has the whole sequence"
    SHARES_STAGE_1 = "our own trainer supports only stages 0 and 1"
    SOME_TEXTS_MISSING = "some of the run's texts are not available here"
    SOURCES_OF_THE_OTHER_TEXT = "these sources belong to a different text"
    TEXT_MISSING = "the run's text is not available here"
