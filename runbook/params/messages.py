"""Messages about parameters and their files: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ParamsMessage(Message):
    """Messages about parameters and their files."""

    ALIAS = (
        "{where}: *{anchor} repeats another value. Parameter files have no aliases: write the "
        "value out."
    )
    AUTO_ASKS_THIS_MACHINE = (
        "hardware.device {auto} asks this machine, and scheduler {scheduler} runs the jobs on "
        "others. Name their accelerator."
    )
    BLEND_WITHOUT_DATASET = (
        "must name data.dataset ({main}) among its texts: add it, or set data.dataset to one of "
        "them."
    )
    BROKEN_RULE = "{text}."
    CELL_CHANGED_BY_HAND = (
        '{notebook}, cell "parameters": {shown_edits} was written there by hand, and would '
        "change every run that is executed from this notebook. Headless, values come from the "
        "run file and from what is given. To use these: runbook run RUN {option_words}. To drop "
        "them, put the cell back: git checkout {notebook}. To try values by hand, step through "
        "copies: runbook lab RUN."
    )
    DIFFERENT_GPUS = (
        "site {site} computes on the GPUs of this machine, and {program} lists different ones: "
        "{names}. Choose those of one kind: export CUDA_VISIBLE_DEVICES with their numbers "
        "(HIP_VISIBLE_DEVICES for AMD)."
    )
    DOT_IN_KEY = (
        "is one key with a dot in it. Write `{last}:` in a line of its own below `{section}:`."
    )
    FILE_EMPTY = "{where}: is empty. Write `key: value` lines, beginning with `run:` in a run file."
    FILE_NOT_A_MAPPING = "{where}: is {kind}, not a mapping of `key: value` lines."
    FILE_NOT_READABLE = "{where}: cannot be read: {reason}."
    FILE_TOO_LARGE = (
        "{where}: {size} bytes; a parameter file has at most {limit}. Is it the right file?"
    )
    GIVEN_INSTEAD = "{where}, where {key} is given instead"
    GPUS_OF_THIS_MACHINE = "{program} on this machine: {number} x {name}, {memory} each"
    HEAD_OF_RUN_YAML = (
        "# What was asked of run {name}: every value, those taken by default too.{variant}"
    )
    HIDDEN_CHARACTER = (
        "holds {character}, which is not seen and makes the line read differently. Take it out."
    )
    INVALID_PARAMS = "{title}: {head} Nothing was written.{rows}"
    IN_THE_DOCUMENTS = "  in the documents: {documents}"
    IS_A_SECTION = "is a section: write its keys below it ({name})."
    KEY_IS_A_SECTION = "{name} is a section. Ask for one of its keys: {inside}."
    KEY_NOT_A_WORD = "{where}: a key must be one word, not a list or a mapping."
    KEY_NOT_ON_ITS_OWN_LINE = "{path}: {key} is not written one key a line."
    KEY_NOT_READABLE = "{key}: {error}."
    KEY_OF_ANOTHER_PHASE = "there is no such key: each phase has its own. Did you mean {right_key}?"
    KEY_TWICE = "{where}: {key} is given twice; first in line {line}. Keep one of them."
    LINES_NOT_EDITABLE = "{where}: its lines cannot be edited one by one."
    LOOKS_LIKE_A_SECRET = (
        "looks like a real secret; it would end up in records. Take it out (and revoke it if "
        "this was shared), and write env:NAME or file:PATH."
    )
    MADE_UP_IN_BLEND = "{name} is made-up ids, which cannot be blended with text."
    MANY_THINGS = "{number} things cannot be used."
    MODEL_MISSING = "is missing: name one of params/models.yaml."
    NAME_OF_THE_DOCUMENTS = "{word} is a name of the documents. {meaning}"
    NAME_OUTSIDE_RUN_FILE = (
        "only the run file says its name. Leave this out; --as NAME names a set of overrides."
    )
    NEARLY_A_WORD = "{text}. Did you mean {near}?"
    NESTED_TOO_DEEP = "{where}: is nested more than {max_depth} deep."
    NOTEBOOK_TYPE = "must be {kind}, such as {name} = {example}."
    NOT_A_DEFAULT = "cannot be a site's default; only a run file says it. Take the line out."
    NOT_A_FILE = "{where}: is not a file."
    NOT_A_MAPPING = "must be a mapping of keys to values."
    NOT_A_MODEL_NAME = "is not the name of a model."
    NOT_A_PHASE = "{word!r} is not a phase; the phases are {phases}"
    NOT_A_SECRET_REFERENCE = (
        "{reference!r} is not a reference to a secret. Write env:NAME or file:PATH; the value "
        "itself belongs in the environment or in a file only you can read."
    )
    NOT_A_SET_NAME = "must be letters, digits, '.', '_' and '-', at most 80."
    NOT_A_TRUTH_VALUE = "must be true or false."
    NOT_IN_A_PROJECT = (
        "{where} is not inside a project: neither it nor a folder above it holds "
        "params/models.yaml. Go to the clone, set {project_variable} to its folder, name the run "
        "file by its path, or make a project with: runbook init DIR"
    )
    NOT_KEY_AND_VALUE = "is not key=value, such as training.iterations=10."
    NOT_OF_ITS_TYPE = "{where}: is not {name}: {error}."
    NOT_SHELL_WORDS = "cannot be split into words as a shell does: {error}."
    NOT_TEXT = 'must be text; put it in quotes: "{value}".'
    NOT_THE_FILES_NAME = "must be {name}, the file's own name."
    NOT_THIS_FORM = "must look like {example}."
    NOT_UTF8 = "{where}:{line}:{column}: byte 0x{byte:02x} is not UTF-8. Save the file as UTF-8."
    NOT_YAML = "{position}: is not YAML: {reason}.{hint}"
    NOT_YAML_AT_THE_END = "{where}:{line}:{column}: is not YAML: {reason}."
    NO_DEVICES_PER_NODE = (
        "devices_per_node is 0, which only device {auto} allows. Write how many a node has."
    )
    NO_LENGTH = "the length of the training is missing: give one of {duration}."
    NO_RUN_NAMED = "run: no run is named. Write the name of a file in params/, or a path to one."
    NO_SUCH_FILE = "{where}: there is no such file."
    NO_SUCH_KEY = "There is no key {key}. {hint}"
    NO_SUCH_NAME = "{where} has no {name}. {suggestion}"
    NO_SUCH_RUN = "There is no run {word!r}: {path} does not exist. {hint}"
    NO_SUCH_RUN_FILE = "{word}: there is no such run file.{suggestion}"
    NO_TRACKER = (
        "{name} is no tracker that the trainer feeds. Name some of {trackers}. Addresses and keys "
        "belong into the tracker's own environment variables (docs/trackers.md)."
    )
    NO_VALUE = "has no value. Give one, or leave the line out to take the default."
    ONE_OF_A_GROUP = "these are {number_of_stated} {meaning}. Give one of them."
    ONE_VALUE = "takes one value, not a list or a mapping."
    OTHER_NAME_OF_THE_DOCUMENTS = "{word} is a name of the documents; here it is {ours}."
    PHASE_WITHOUT_JOB = "{phase} submits no job; these do: {job_sections}."
    PLAIN_TEXT = "{text}"
    READINGS = "takes {word} for {old}; YAML 1.2 for {new}"
    READ_AS_NUMBER = "{value} (a number)"
    READ_AS_TEXT = 'the text "{text}"'
    READ_AS_TRUTH_VALUE = "{value} (a truth value)"
    REQUIRED_BY = "required by params/sites/{site}.yaml"
    REQUIRED_VALUE = "is not given: {meaning}. {remedy}"
    RUN_NOT_FIRST = "must be the first key of a run file."
    RUN_WITHOUT_VARIANTS = "there is no such file, so the run has no variants."
    SAME_MEANING = "means the same as {written}, which is given too. Keep one of them."
    SCALED_DOWN = "{value} does not fit site {site}: {reason}"
    SECRET_FILE_EMPTY = "{reference}: the file is empty."
    SECRET_FILE_NOT_READABLE = "{reference}: the file cannot be read: {reason}."
    SECRET_FILE_NOT_TEXT = "{reference}: the file is not UTF-8 text."
    SITE_WITHOUT_KEYS = "The site file has no keys."
    SOURCE_OF_VALUE = "  source: {source}{date}"
    TAG = "{where}: the tag {tag} is not used here. Write a plain value."
    TEXT_NOT_A_NUMBER = "{value!r} is text, not a number{hint}."
    THIS_ONE = "  <- this one"
    TO_BE_FILLED_IN = "must still be filled in: {comment}."
    TO_BE_FILLED_IN_WITHOUT_COMMENT = "must still be filled in."
    TWO_RUNS_MIXED = (
        "Two runs are mixed: run is {run}, but {foreign} {verb} of {where}. Name one: -p run "
        "{stem}, or -f {where}, but not both. Nothing was written."
    )
    UNKNOWN_KEY = "there is no such key. Did you mean {near}?"
    UNKNOWN_KEY_ALONE = "there is no such key."
    UNKNOWN_KEY_OF_SECTION = "there is no such key. {section} has {parent}."
    UNKNOWN_PARAMETER = "a notebook has no such parameter. {hint}"
    UNKNOWN_SWITCH = (
        "jobs.switch: {word!r} is not + or - and a group of site {site}'s environment. Its "
        "groups are {groups}."
    )
    VALUE_MISSING = "is missing."
    VARIABLE_NOT_SET = (
        "{reference}: the environment variable {variable} is not set. Set it: export {variable}=..."
    )
    WITHOUT_DEFAULT = "is missing; it has no default."
    WORD_OR_TRUTH_VALUE = '"{word}" for the word, or {truth_value} for the truth value'
    YAML_VERSIONS_DIFFER = "YAML 1.1, as papermill -f reads, {readings}. Write {remedy}."


class ScaleDownReason(Message):
    """Why a value of another site's run file does not fit a smaller site."""

    BELONGS_TO_THE_QUEUE = "it belongs to the other site's queue"
    BELONGS_TO_THE_SITE = "it belongs to the other site"
    CORPUS_HAS_FEW_FILES = "the corpus has too few files; data.split cuts each"
    CORPUS_IS_CLEAN = "the shipped corpus has nothing to repair"
    CORPUS_IS_HERE = "the text is not here; the shipped corpus is"
    CORPUS_IS_READ = "the shipped corpus is read"
    CORPUS_NEEDS_VALIDATION = "the corpus is small, and needs text to validate with"
    DIVIDES_BY = "it divides by {step}"
    FEWER_CHUNKS = "its layers are not cut that often"
    MODEL_OVER_DEVICES = "the model goes over {devices} devices"
    MODEL_POSITIONS = "the model has {positions} positions"
    NOTHING_COPIED = "nothing is copied"
    NO_CONTEXT_PARALLELISM = "our own trainer has no context parallelism"
    NO_FP16_ON_A_CPU = "torch has no fp16 training on a CPU"
    NO_MORE_DEVICES = "a node has no more devices"
    NO_MORE_NODES = "it has no more nodes"
    NO_OFFLOAD = "our own trainer keeps its states where it computes"
    NO_QUEUE = "it has no queue"
    NO_SEQUENCE_UNDER_DEEPSPEED = "our own trainer cuts no sequence under DeepSpeed"
    NO_SUCH_FRAMEWORK = "it has no {framework}; our own trainer runs"
    ONE_TENSOR_RANK = "one tensor rank has the whole sequence"
    SHARES_STAGE_1 = "our own trainer shares stage 1"
    SOME_TEXTS_MISSING = "some of its texts are not here"
    SOURCES_OF_THE_OTHER_TEXT = "the sources are those of the other text"
    TEXT_MISSING = "the text is not here"
