"""Searches a script for known errors from the five documents.

An error may be in the text, in variables and commands, or in numbers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from operator import attrgetter
from pathlib import Path

from runbook.core.units import show_count
from runbook.params.schema.entries import Model, with_shape
from runbook.planning.cost.memory import state_bytes
from runbook.planning.sizes import label_count, label_fits, shape_of, whole
from runbook.tools.adopt.container_images import is_local_tag
from runbook.tools.adopt.findings import Findings, KnownError
from runbook.tools.adopt.launches import DocumentCall, Launch, option
from runbook.tools.adopt.script import Script, Word


@dataclass(frozen=True)
class TextPattern:
    """An error that a pattern can detect anywhere in a script."""

    number: int
    pattern: str
    problem: str
    remedy: str
    only_with: str = ""
    """Second pattern, which must also match somewhere in the text."""
    never_with: str = ""
    """Pattern used to rule the error out."""


_ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TEXT_PATTERNS = tuple(TextPattern(**row) for row in _ROWS)


@dataclass(frozen=True)
class Evidence:
    """The evidence to search for errors: the script, what it did, and the run file."""

    script: Script
    launches: Sequence[Launch]
    calls: Sequence[DocumentCall]
    findings: Findings
    models: Mapping[str, Model]

    def called(self, run: str) -> list[DocumentCall]:
        """Return the calls to scripts from the document that a run was derived from."""
        return [call for call in self.calls if call.run == run]

    @property
    def model(self) -> Model | None:
        """Return the model in the run file with the shape from the script."""
        model = self.models.get(str(self.findings.value("model", "")))
        shape = self.findings.shape
        return with_shape(model, shape) if model else None


def errors_in(evidence: Evidence) -> list[KnownError]:
    """Return all errors, sorted by number and line, each at most once per line.

    If an error number covers more than one problem, each problem is returned once per line.
    """
    errors = {}
    for detect in DETECTORS:
        for error in detect(evidence):
            if error.number in _SEVERAL_PROBLEMS:
                problem = error.problem
            else:
                problem = ""

            errors[error.number, error.line, problem] = error

    return sorted(errors.values(), key=attrgetter("number", "line"))


_SEVERAL_PROBLEMS = (15, 19, 27)
"""Numbers of those errors that cover more than one problem.

The problems may occur together on one line.
"""


def _texts(evidence: Evidence) -> Iterator[KnownError]:
    """Yield the error for each pattern, at the first three lines that match it."""
    script = evidence.script
    for entry in TEXT_PATTERNS:
        if entry.never_with and re.search(entry.never_with, script.text):
            continue
        if re.search(entry.only_with, script.text):
            for line, _ in script.matching(entry.pattern)[:3]:
                yield KnownError(entry.number, line, entry.problem, entry.remedy)


_MISLABELLED = {(12, 512): (1, "375M"), (24, 1024): (2, "857M")}


def _labels(evidence: Evidence) -> Iterator[KnownError]:
    """Errors 1 and 2: a label states a size that does not match the shape."""
    model = evidence.model
    if model is None:
        return
    parameters = whole(shape_of(model)).total
    remedy = f"the plan shows {show_count(parameters)} next to the label"
    number, label = _MISLABELLED.get((model.layers, model.hidden), (1, ""))
    if label:
        line = _line_of_label(evidence, label)
        if line is not None:
            problem = (
                f'{model.layers} x {model.hidden} is called "{label}"; it has '
                f"{show_count(parameters)} parameters"
            )
            yield KnownError(number, line, problem, remedy)

    for line, size in _named_sizes(evidence.script):
        if not label_fits(size, parameters):
            problem = f"the name says {size}, but the shape has {show_count(parameters)}"
            yield KnownError(number, line, problem, remedy)


def _line_of_label(evidence: Evidence, label: str) -> int | None:
    """Return the line with the wrong label from the document, or else the line with the shape.

    Return None if the script does not set the shape.
    """
    mentions = evidence.script.matching(rf"(?i)\b{label[:-1]}\s*M")
    if mentions:
        return mentions[0][0]
    is_knob = any(setting.name == "NUM_LAYERS" for setting in evidence.script.settings)
    is_documents = bool(evidence.calls) or (is_knob and not evidence.launches)
    model_line = evidence.findings.carried["model"].line
    if model_line and is_documents:
        return model_line
    return None


def _named_sizes(script: Script) -> list[tuple[int, str]]:
    """Return the model sizes in the job name and in model_size (LUMI), each with its line."""
    sizes = []
    for directive in script.directives:
        if directive.name in ("job-name", "N"):
            match = re.search(r"\d+(?:\.\d+)?[mMbB](?![A-Za-z])", directive.value)
            if match and label_count(match[0]):
                sizes.append((directive.line, match[0]))

    billions = script.value("model_size")
    if billions and re.fullmatch(r"\d+(\.\d+)?", billions.text):
        sizes.append((billions.line, f"{billions.text}B"))
    return sizes


def _intervals(evidence: Evidence) -> Iterator[KnownError]:
    """Error 4: a variable is set, but the option is given as a literal number."""
    remedy = "training.save_interval and training.eval_interval reach the program"
    script = evidence.script
    for variable, name in (
        ("SAVE_INTERVAL", "--save-interval"),
        ("EVAL_INTERVAL", "--eval-interval"),
    ):
        setting = script.value(variable)
        if setting is None:
            continue
        for word, value in _written_out(evidence, variable, name):
            problem = (
                f"{name} has the literal value {value.shown}: {variable} (line {setting.line}) has "
                "no effect"
            )
            yield KnownError(4, word.line, problem, remedy)

        if evidence.called("azure-175b") and not evidence.launches:
            problem = (
                f"at the document's commit, 04-gpt175B.sh ignores {variable}={setting.shown} and "
                "saves every 100 steps"
            )
            yield KnownError(4, setting.line, problem, remedy)


def _written_out(evidence: Evidence, variable: str, name: str) -> Iterator[tuple[Word, Word]]:
    """Yield each option, with its value, whose line does not use the variable."""
    for launch in evidence.launches:
        for word, value in pairwise(launch.arguments):
            row = evidence.script.lines[word.line - 1] if word.line else ""
            if word.text == name and value.line == word.line and variable not in row:
                yield word, value


def _squashed_images(evidence: Evidence) -> Iterator[KnownError]:
    """Error 6: the script overwrites an image set by the caller."""
    commands = evidence.script.commands
    imports = any(word.text == "enroot" for command in commands for word in command.words)
    starts_document = evidence.called("azure-175b") or not (evidence.launches or imports)
    for setting in evidence.script.settings:
        if setting.name not in ("SQUASHED_PYTORCH_IMAGE", "SQUASHED_NEMO_IMAGE") or setting.default:
            continue
        if starts_document:
            problem = f"the document's scripts overwrite {setting.name}: setting it has no effect"
        else:
            problem = f"{setting.name} is overwritten here, so a value from the environment is lost"

        yield KnownError(6, setting.line, problem, "jobs.image is used wherever it is set")


def _partitions(evidence: Evidence) -> Iterator[KnownError]:
    """Error 8: GPU nodes are used to prepare text."""
    prepares = re.search(r"data_preparation|extract|preprocess", evidence.script.text)
    if not prepares or evidence.launches:
        return
    for setting in evidence.script.settings:
        if setting.name == "PARTITION" and setting.value.strip('"') == "gpu":
            problem = "text is prepared on the GPU partition unless PARTITION is set"
            remedy = "the site's file or jobs.<phase>.partition names the partition of each phase"
            yield KnownError(8, setting.line, problem, remedy)


def _held_out(evidence: Evidence) -> Iterator[KnownError]:
    """Error 10: the files that CHUNKS counts are held out twice."""
    chunks = evidence.script.value("CHUNKS")
    if chunks and chunks.text.isdigit():
        files = chunks.text
        problem = f"CHUNKS={files} uses {files} files for validation and {files} more for testing"
        remedy = f"data.held_out: {files} does the same, and needs more than {2 * int(files)} files"
        yield KnownError(10, chunks.line, problem, remedy)


def _tokenizer(evidence: Evidence) -> Iterator[KnownError]:
    """Error 13: the vocabulary file is used as merges, or a variable has two meanings."""
    for vocabulary, merges in _tokenizer_files(evidence):
        name = merges.shown.rpartition("/")[2]
        same_file = merges.shown == vocabulary.shown and merges.line != vocabulary.line
        if "vocab" in name or same_file:
            problem = f"the merges are read from {name}, which is the vocabulary"
            remedy = (
                "vocab.json and merges.txt are two files; a check refuses the same file for both"
            )
            yield KnownError(13, merges.line, problem, remedy)

    script = evidence.script
    folders = {}
    for setting in script.settings:
        if setting.name == "DATASET_FOLDER_NAME":
            folders[setting.value] = setting.line

    prepares = re.search(r"0[23]-\w+\.sh", script.text)
    trains = re.search(r"04-gpt175B\.sh", script.text)
    if len(folders) > 1 or (folders and prepares and trains):
        problem = (
            "DATASET_FOLDER_NAME means the folder of the raw text in steps 02 and 03, but the "
            "folder of the token files in 04"
        )
        line = next(iter(folders.values()))
        yield KnownError(13, line, problem, "each place has one name, under paths in the site file")


def _tokenizer_files(evidence: Evidence) -> list[tuple[Word, Word]]:
    """Return the vocabulary and merges files used in each launch.

    If no launch has both, return the files that variables name.
    """
    files = []
    for launch in evidence.launches:
        vocabulary = option(launch.arguments, "vocab-file")
        merges = option(launch.arguments, "merge-file")
        if vocabulary and merges:
            files.append((vocabulary, merges))

    merges = evidence.script.value("MERGE_FILE")
    if merges and not files:
        files.append((evidence.script.value("VOCAB_FILE") or merges, merges))
    return files


def _shared_checkpoints(evidence: Evidence) -> Iterator[KnownError]:
    """Error 14: the small model saves its checkpoint where the large model looks for one."""
    starts = [_start_of(call) for call in evidence.called("azure-175b")]
    for start, second_start in combinations(starts, 2):
        if start.shape != second_start.shape and start.folder == second_start.folder:
            problem = "a different size is started with the same CHECKPOINT_PATH, and loads from it"
            yield KnownError(14, start.line, problem, _OWN_FOLDERS)
            return

    if len(starts) == 1 and not evidence.launches:
        start = starts[0]
        layers, _ = start.shape
        if layers and not start.folder:
            problem = "a smaller model saves to the folder that the full run then loads from"
            yield KnownError(14, start.line, problem, _OWN_FOLDERS)
            return

    yield from _checkpoints_of_launches(evidence)


_OWN_FOLDERS = (
    "the smoke test and the training run have separate folders; a check refuses a shared folder"
)


@dataclass(frozen=True)
class DocumentStart:
    """The model size and the folder that a document passes to its script.

    Empty values mean defaults in the script.
    """

    line: int
    shape: tuple[str, str]
    """Layers and hidden size."""
    folder: str


def _start_of(call: DocumentCall) -> DocumentStart:
    """Read the model size and the folder for a call from its environment."""

    def value(name: str) -> str:
        word = call.command.environment.get(name)
        return word.text if word else ""

    shape = (value("NUM_LAYERS"), value("HIDDEN_SIZE"))
    return DocumentStart(call.command.line, shape, value("CHECKPOINT_PATH"))


def _checkpoints_of_launches(evidence: Evidence) -> Iterator[KnownError]:
    """Error 14: two model sizes save to the same folder, within a script or by default."""
    knobs = {}
    for setting in evidence.script.settings:
        if setting.default:
            knobs[setting.name] = setting.line

    size_is_knob = "NUM_LAYERS" in knobs or "HIDDEN_SIZE" in knobs
    shapes: dict[str, list[str]] = {}
    for launch in evidence.launches:
        save = option(launch.arguments, "save")
        if save is None:
            continue
        shape = [_value(launch, "num-layers"), _value(launch, "hidden-size")]
        if shapes.get(save.shown, shape) != shape:
            problem = f"two sizes of model save into {save.shown}"
            yield KnownError(14, save.line, problem, _OWN_FOLDERS)

        shapes[save.shown] = shape
        names_size = any(len(size) > 1 and size in save.shown for size in shape)
        if size_is_knob and "CHECKPOINT_PATH" in knobs and not names_size:
            problem = (
                "the model's size is variable, and every size saves into and loads from the same "
                "CHECKPOINT_PATH"
            )
            yield KnownError(14, knobs["CHECKPOINT_PATH"], problem, _OWN_FOLDERS)


def _value(launch: Launch, name: str) -> str:
    """Return the value that a launch gives an option, or an empty string."""
    word = option(launch.arguments, name)
    return word.text if word else ""


def _devices(evidence: Evidence) -> Iterator[KnownError]:
    """Error 15: the number of devices is not tensor x pipeline x replicas."""
    findings = evidence.findings
    remedy = "the plan refuses a number of devices that cannot be divided"
    nodes = findings.carried.get("jobs.training.nodes")
    if nodes is None or not isinstance(nodes.value, int):
        return
    devices = findings.devices_per_node
    world = nodes.value * devices
    copy = findings.model_parallel * max(1, findings.number("parallel.context", 1))
    on_nodes = f"{nodes.value} nodes x {devices}"
    if world % copy:
        problem = f"{on_nodes} = {world} devices are not divisible by tensor x pipeline = {copy}"
        yield KnownError(15, findings.carried.get("parallel.tensor", nodes).line, problem, remedy)

    for setting in evidence.script.settings:
        if not setting.raw.isdigit():
            continue
        name = setting.name.lower()
        number = int(setting.raw)
        if name in ("num_gpus", "ngpus", "total_gpus") and number not in (world, devices):
            problem = f"{setting.name}={number}, but {on_nodes} are {world} devices"
            yield KnownError(15, setting.line, problem, remedy)

        if name in ("dp_size", "dp", "dpsize") and number * copy != world:
            problem = (
                f"{copy} devices per replica x DP {number} = {number * copy}, but there are "
                f"{world} devices"
            )
            yield KnownError(15, setting.line, problem, remedy)


def _state(evidence: Evidence) -> Iterator[KnownError]:
    """Error 16: the training state is larger than device memory."""
    model = evidence.model
    findings = evidence.findings
    memory = findings.site.hardware.device_memory
    if model is None or not memory or findings.value("training.offload"):
        return
    world_size = findings.number("jobs.training.nodes", 1) * findings.devices_per_node
    copies = max(1, world_size // findings.model_parallel)
    stage = min(3, max(0, findings.number("parallel.zero_stage", 1)))
    bytes_per_parameter = state_bytes("fp16", deepspeed=True, zero_stage=stage, data=copies).total
    parameters = whole(shape_of(model)).total
    state = bytes_per_parameter * parameters / findings.model_parallel  # Bytes per device
    if state > memory:
        line = findings.carried.get("parallel.zero_stage", findings.carried["model"]).line
        problem = (
            f"{state / 2**30:.1f} GiB of weights, gradients and optimizer states on a device with "
            f"{memory / 2**30:.0f} GiB"
        )
        remedy = (
            "the plan refuses it and shows the sum; use more tensor or pipeline ranks, or more "
            "replicas"
        )
        yield KnownError(16, line, problem, remedy)


def _nodes(evidence: Evidence) -> Iterator[KnownError]:
    """Error 18: the queue and the program are given different node counts."""
    remedy = "the number of nodes is set in one place: jobs.training.nodes"
    directives = [entry for entry in evidence.script.directives if entry.name == "nodes"]
    numbers = [entry for entry in directives if entry.value.isdigit()]
    if not numbers:
        return
    num_nodes = numbers[-1]
    for name, number, line in _nodes_of_program(evidence):
        if number.isdigit() and number != num_nodes.value:
            problem = (
                f"{name}={number}, but the queue is asked for {num_nodes.value} nodes (line "
                f"{num_nodes.line})"
            )
            yield KnownError(18, line, problem, remedy)

    called = evidence.called("lumi-13b")
    if called and num_nodes.value != "2" and not evidence.launches:
        fixed = f"{called[0].script} has a fixed num_node=2 and num_gpus=16"
        problem = f"{num_nodes.value} nodes are requested, but {fixed}"
        yield KnownError(18, num_nodes.line, problem, remedy)


def _nodes_of_program(evidence: Evidence) -> list[tuple[str, str, int]]:
    """Return the node counts in variables and options to torchrun, each with name and line."""
    numbers = []
    for setting in evidence.script.settings:
        if setting.name.lower() in ("num_node", "num_nodes", "nnodes"):
            numbers.append((setting.name, setting.raw, setting.line))

    for launch in evidence.launches:
        nodes = option(launch.part("torchrun"), "nnodes")
        if nodes:
            numbers.append(("--nnodes", nodes.text, nodes.line))

    return numbers


def _steps(evidence: Evidence) -> Iterator[KnownError]:
    """Error 19: a job starts multiple training runs, or uses folders that belong to one person."""
    calls = [call.command for call in evidence.calls]
    in_job = set()
    for command in calls:
        if command.name not in ("sbatch", "qsub"):
            in_job.add(command.line)

    starts = sorted(in_job or {launch.command.line for launch in evidence.launches})
    if len(starts) > 1 and evidence.script.directives:
        lines = ", ".join(map(str, starts))
        problem = (
            f"lines {lines} each start a training run, and the job runs them one after another"
        )
        yield KnownError(19, starts[1], problem, "one training step per job")

    homes = evidence.script.matching(r"(?<![\w/.])/(?:users|home|homes)/([A-Za-z][\w.-]*)")
    for line, folder in homes:
        if not evidence.script.lines[line - 1].lstrip().startswith("#"):
            remedy = "jobs.stage names the shared folder; no default refers to a person"
            yield KnownError(19, line, f"{folder[0]} is one person's folder", remedy)


def _conda(evidence: Evidence) -> Iterator[KnownError]:
    """Error 24: different parts of a script load different conda modules."""
    matches = evidence.script.matching(r"(?:conda/|venvs/\S*?)(20\d\d-\d\d-\d\d[\w-]*)")
    first_lines = {match[1]: line for line, match in reversed(matches)}
    calls = evidence.called("polaris-25b")
    remedy = (
        "params/sites/polaris.yaml names the module and the virtual environment in a single place"
    )
    if len(first_lines) > 1:
        problem = f"conda and virtual environments of different dates: {' and '.join(sorted(first_lines))}"
        yield KnownError(24, max(first_lines.values()), problem, remedy)
    elif first_lines and calls:
        ((date, line),) = first_lines.items()
        problem = (
            f"{calls[-1].script} sources setup.sh, which loads conda 2023-09-29-unstable, not "
            f"{date}"
        )
        yield KnownError(24, line, problem, remedy)


def _polaris(evidence: Evidence) -> Iterator[KnownError]:
    """Error 25: tensor ranks span multiple nodes."""
    tensor = evidence.findings.carried.get("parallel.tensor")
    devices = evidence.findings.devices_per_node
    if tensor and tensor.line and isinstance(tensor.value, int) and tensor.value > devices:
        problem = f"tensor parallel over {tensor.value} devices, on nodes of {devices}"
        remedy = "the plan warns if tensor ranks span nodes; variant tp4-pp8 keeps them on one node"
        yield KnownError(25, tensor.line, problem, remedy)


def _unsaved(evidence: Evidence) -> Iterator[KnownError]:
    """Error 27: checkpoints off, two loss scales, an unpinned image, or no request for GPUs."""
    asks_for_devices = _asks_for_devices(evidence)
    dynamic_scale = re.search(r'"loss_scale"\s*:\s*0\b', evidence.script.text)
    for launch in evidence.launches:
        options = _options_by_name(launch)
        interval = options.get("--save-interval")
        if interval and "--save" not in options:
            problem = "--save-interval has no effect without --save: nothing is saved"
            remedy = "the run file always sets --save and the interval together"
            yield KnownError(27, interval.line, problem, remedy)

        scale = options.get("--loss-scale")
        if scale and dynamic_scale:
            problem = "Megatron's loss scale is static, DeepSpeed's dynamic (loss_scale 0)"
            remedy = "one dynamic scale: training.initial_loss_scale"
            yield KnownError(27, scale.line, problem, remedy)

        image = option(launch.part("srun"), "container-image")
        if image and image.known and is_local_tag(image.text):
            problem = f"{image.text} is a docker tag of one machine, which other nodes cannot pull"
            remedy = "jobs.image: registry#name:tag, or a .sqsh file"
            yield KnownError(27, image.line, problem, remedy)

        if "srun" in launch.programs and evidence.script.directives and not asks_for_devices:
            remedy = "devices are always requested: devices_per_node"
            yield KnownError(27, launch.command.line, "no GPUs are requested", remedy)


def _asks_for_devices(evidence: Evidence) -> bool:
    """Return whether a job directive or an option to srun requests GPUs."""
    for directive in evidence.script.directives:
        if "gpu" in directive.value or directive.name.startswith(("gres", "gpus")):
            return True

    arguments = []
    for launch in evidence.launches:
        for word in launch.part("srun"):
            arguments.append(word.text)

    return any(word.startswith(("--gpus", "--gres")) for word in arguments)


def _options_by_name(launch: Launch) -> dict[str, Word]:
    """Return the options in a launch, by name including the leading dashes."""
    by_name: dict[str, Word] = {}
    for word in launch.arguments:
        if word.text.startswith("--"):
            by_name[word.text.partition("=")[0]] = word

    return by_name


DETECTORS = (
    _texts,
    _labels,
    _intervals,
    _squashed_images,
    _partitions,
    _held_out,
    _tokenizer,
    _shared_checkpoints,
    _devices,
    _state,
    _nodes,
    _steps,
    _conda,
    _polaris,
    _unsaved,
)
