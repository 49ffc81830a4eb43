"""Known errors of the five documents in a script: in its text, in what it sets and starts, and in its numbers."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from operator import attrgetter
from pathlib import Path

from runbook.core.units import show_count
from runbook.params.schema.entries import Model, with_shape
from runbook.params.schema.run_file import SHAPE_FIELDS
from runbook.planning.cost.memory import state_bytes
from runbook.planning.sizes import label_count, label_fits, shape_of, whole
from runbook.tools.adopt.findings import Findings, KnownError
from runbook.tools.adopt.job_environment import is_local_tag
from runbook.tools.adopt.launches import DocumentCall, Launch, option
from runbook.tools.adopt.script import Script


@dataclass(frozen=True)
class TextPattern:
    """A pattern that gives an error away, wherever the text has it."""

    number: int
    pattern: str
    problem: str
    remedy: str
    only_with: str = ""
    """Another pattern that the text must have somewhere."""
    never_with: str = ""
    """A pattern that clears the text."""


_ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TEXT_PATTERNS = tuple(TextPattern(**row) for row in _ROWS)


@dataclass(frozen=True)
class Evidence:
    """What a script says and did, and the run file that it becomes."""

    script: Script
    launches: Sequence[Launch]
    calls: Sequence[DocumentCall]
    findings: Findings
    models: Mapping[str, Model]

    def called(self, run: str) -> list[DocumentCall]:
        """Starts of the scripts that this run was made from."""
        return [call for call in self.calls if call.run == run]

    @property
    def model(self) -> Model | None:
        """The model of the run file, with the script's own shape."""
        model = self.models.get(str(self.findings.value("model", "")))
        shape = {name: self.findings.number(f"training.shape.{name}") for name in SHAPE_FIELDS}
        return with_shape(model, shape) if model else None


def errors_in(evidence: Evidence) -> list[KnownError]:
    """All of them by number and line, each reported once a line."""
    once = {}
    for detect in DETECTORS:
        for error in detect(evidence):
            once[
                error.number, error.line, error.problem if error.number in (15, 19, 27) else ""
            ] = error
    return sorted(once.values(), key=attrgetter("number", "line"))


def _texts(evidence: Evidence) -> Iterator[KnownError]:
    """Each pattern at the first three lines that have it."""
    script = evidence.script
    for entry in TEXT_PATTERNS:
        if entry.never_with and re.search(entry.never_with, script.text):
            continue
        if re.search(entry.only_with, script.text):
            for line, _ in script.matching(entry.pattern)[:3]:
                yield KnownError(entry.number, line, entry.problem, entry.remedy)


_MISLABELLED = {(12, 512): (1, "375M"), (24, 1024): (2, "857M")}


def _labels(evidence: Evidence) -> Iterator[KnownError]:
    """1 and 2: a size in words that the shape does not have."""
    script = evidence.script
    model = evidence.model
    if model is None:
        return
    parameters = whole(shape_of(model)).total
    remedy = f"the plan shows {show_count(parameters)} next to the label"
    number, label = _MISLABELLED.get((model.layers, model.hidden), (1, ""))
    if label:
        mentions = script.matching(rf"(?i)\b{label[:-1]}\s*M")
        model_line = evidence.findings.carried["model"].line
        sets_shape = not evidence.launches and any(
            setting.name == "NUM_LAYERS" for setting in script.settings
        )
        if mentions or (model_line and (evidence.calls or sets_shape)):
            problem = f'{model.layers} x {model.hidden} is called "{label}"; it has {show_count(parameters)} parameters'
            yield KnownError(number, mentions[0][0] if mentions else model_line, problem, remedy)
    names = [
        (entry.line, entry.value) for entry in script.directives if entry.name in ("job-name", "N")
    ]
    found = ((line, re.search(r"\d+(?:\.\d+)?[mMbB](?![A-Za-z])", name)) for line, name in names)
    sizes = [(line, match[0]) for line, match in found if match and label_count(match[0])]
    if (billions := script.value("model_size")) and re.fullmatch(r"\d+(\.\d+)?", billions.text):
        sizes.append((billions.line, f"{billions.text}B"))
    for line, size in sizes:
        if not label_fits(size, parameters):
            yield KnownError(
                number,
                line,
                f"the name says {size}; the shape has {show_count(parameters)}",
                remedy,
            )


def _intervals(evidence: Evidence) -> Iterator[KnownError]:
    """4: a variable that is set, and a number next to the option all the same."""
    remedy = "training.save_interval and training.eval_interval reach the program"
    script = evidence.script
    for variable, name in (
        ("SAVE_INTERVAL", "--save-interval"),
        ("EVAL_INTERVAL", "--eval-interval"),
    ):
        setting = script.value(variable)
        if setting is None:
            continue
        for word, value in (
            pair for launch in evidence.launches for pair in pairwise(launch.arguments)
        ):
            line = script.lines[word.line - 1] if word.line else ""
            if word.text == name and value.line == word.line and variable not in line:
                problem = f"{name} {value.shown} is written out: {variable} (line {setting.line}) does nothing"
                yield KnownError(4, word.line, problem, remedy)
        if evidence.called("azure-175b") and not evidence.launches:
            problem = f"at the document's commit 04-gpt175B.sh ignores {variable}={setting.shown} and saves every 100"
            yield KnownError(4, setting.line, problem, remedy)


def _squashed_images(evidence: Evidence) -> Iterator[KnownError]:
    """6: an image that is set from outside is overwritten."""
    imports = any(
        word.text == "enroot" for command in evidence.script.commands for word in command.words
    )
    for setting in evidence.script.settings:
        if setting.name not in ("SQUASHED_PYTORCH_IMAGE", "SQUASHED_NEMO_IMAGE") or setting.default:
            continue
        if evidence.called("azure-175b") or not (evidence.launches or imports):
            problem = f"the document's scripts overwrite {setting.name}: setting it does nothing"
        else:
            problem = f"{setting.name} is overwritten here, whatever is set from outside"
        yield KnownError(6, setting.line, problem, "jobs.image is used wherever it is set")


def _partitions(evidence: Evidence) -> Iterator[KnownError]:
    """8: text prepared on the nodes with GPUs."""
    prepares = re.search(r"data_preparation|extract|preprocess", evidence.script.text)
    for setting in evidence.script.settings:
        if (
            setting.name == "PARTITION"
            and setting.value.strip('"') == "gpu"
            and prepares
            and not evidence.launches
        ):
            problem = "text is prepared on the GPU partition unless another one is given"
            remedy = "each phase has one partition, in the site's file or jobs.<phase>.partition"
            yield KnownError(8, setting.line, problem, remedy)


def _held_out(evidence: Evidence) -> Iterator[KnownError]:
    """10: CHUNKS counts twice."""
    value = evidence.script.value("CHUNKS")
    if value and value.text.isdigit():
        problem = f"CHUNKS={value.text} takes {value.text} files to validate and {value.text} more to test"
        remedy = (
            f"data.held_out: {value.text} says so, and needs more than {2 * int(value.text)} files"
        )
        yield KnownError(10, value.line, problem, remedy)


def _tokenizer(evidence: Evidence) -> Iterator[KnownError]:
    """13: the vocabulary as merges; one variable with two meanings."""
    script = evidence.script
    arguments = [launch.arguments for launch in evidence.launches]
    given = [(option(words, "vocab-file"), option(words, "merge-file")) for words in arguments]
    pairs = [(vocabulary, merges) for vocabulary, merges in given if vocabulary and merges]
    vocabulary = script.value("VOCAB_FILE")
    merges = script.value("MERGE_FILE")
    if merges and not pairs:
        pairs.append((vocabulary or merges, merges))
    for vocabulary, merges in pairs:
        name = merges.shown.rpartition("/")[2]
        if "vocab" in name or (merges.shown == vocabulary.shown and merges.line != vocabulary.line):
            problem = f"the merges are read from {name}, which is the vocabulary"
            remedy = "vocab.json and merges.txt are two files; a check refuses one for both"
            yield KnownError(13, merges.line, problem, remedy)
    folders = {
        setting.value: setting.line
        for setting in script.settings
        if setting.name == "DATASET_FOLDER_NAME"
    }
    both = re.search(r"0[23]-\w+\.sh", script.text) and re.search(r"04-gpt175B\.sh", script.text)
    if folders and (len(folders) > 1 or both):
        problem = "DATASET_FOLDER_NAME means the raw text's folder in steps 02 and 03, the token files' in 04"
        line = next(iter(folders.values()))
        yield KnownError(13, line, problem, "places have one name each: paths in the site's file")


def _shared_checkpoints(evidence: Evidence) -> Iterator[KnownError]:
    """14: the small model's checkpoint where the large one looks for its own."""
    remedy = (
        "the smoke test and the training have folders of their own; a check refuses a shared one"
    )
    starts = []
    for call in evidence.called("azure-175b"):
        words = [
            call.command.environment.get(name)
            for name in ("NUM_LAYERS", "HIDDEN_SIZE", "CHECKPOINT_PATH")
        ]
        layers, hidden, folder = (word.text if word else "" for word in words)
        starts.append((call.command.line, (layers, hidden), folder))
    for (line, shape, folder), (_, other_shape, other_folder) in combinations(starts, 2):
        if shape != other_shape and folder == other_folder:
            problem = "another size is started with the same CHECKPOINT_PATH, from which it loads"
            yield KnownError(14, line, problem, remedy)
            return
    if len(starts) == 1 and starts[0][1][0] and not starts[0][2] and not evidence.launches:
        problem = "a smaller model saves into the folder from which the full run then loads"
        yield KnownError(14, starts[0][0], problem, remedy)
        return
    yield from _checkpoints_of_launches(evidence, remedy)


def _checkpoints_of_launches(evidence: Evidence, remedy: str) -> Iterator[KnownError]:
    shapes: dict[str, list[str]] = {}
    knobs = {setting.name: setting.line for setting in evidence.script.settings if setting.default}
    for launch in evidence.launches:
        save = option(launch.arguments, "save")
        if save is None:
            continue
        sizes = (option(launch.arguments, name) for name in ("num-layers", "hidden-size"))
        shape = [size.text if size else "" for size in sizes]
        if shapes.get(save.shown, shape) != shape:
            yield KnownError(14, save.line, f"two sizes of model save into {save.shown}", remedy)
        shapes[save.shown] = shape
        names_size = any(len(part) > 1 and part in save.shown for part in shape)
        if (
            {"NUM_LAYERS", "HIDDEN_SIZE"} & knobs.keys()
            and "CHECKPOINT_PATH" in knobs
            and not names_size
        ):
            problem = "the model's size is a knob, and every size saves into and loads from one CHECKPOINT_PATH"
            yield KnownError(14, knobs["CHECKPOINT_PATH"], problem, remedy)


def _devices(evidence: Evidence) -> Iterator[KnownError]:
    """15: devices that tensor, pipeline and copies do not make up."""
    findings = evidence.findings
    remedy = "devices that do not divide are refused by the plan"
    nodes = findings.carried.get("jobs.training.nodes")
    if nodes is None or not isinstance(nodes.value, int):
        return
    devices = findings.devices_per_node
    world = nodes.value * devices
    copy = findings.model_parallel * max(1, findings.number("parallel.context", 1))
    if world % copy:
        problem = f"{nodes.value} nodes x {devices} = {world} devices do not divide by tensor x pipeline = {copy}"
        yield KnownError(15, findings.carried.get("parallel.tensor", nodes).line, problem, remedy)
    for setting in (setting for setting in evidence.script.settings if setting.raw.isdigit()):
        name = setting.name.lower()
        number = int(setting.raw)
        if name in ("num_gpus", "ngpus", "total_gpus") and number not in (world, devices):
            problem = (
                f"{setting.name}={number}, but {nodes.value} nodes x {devices} are {world} devices"
            )
            yield KnownError(15, setting.line, problem, remedy)
        if name in ("dp_size", "dp", "dpsize") and number * copy != world:
            problem = f"{copy} devices a copy x DP {number} = {number * copy}, but there are {world} devices"
            yield KnownError(15, setting.line, problem, remedy)


def _state(evidence: Evidence) -> Iterator[KnownError]:
    """16: more state than a device holds."""
    model = evidence.model
    findings = evidence.findings
    memory = findings.site.hardware.device_memory
    if model is None or not memory or findings.value("training.offload"):
        return
    copies = (
        findings.number("jobs.training.nodes", 1)
        * findings.devices_per_node
        // findings.model_parallel
    )
    stage = min(3, max(0, findings.number("parallel.zero_stage", 1)))
    per_parameter = state_bytes("fp16", deepspeed=True, zero_stage=stage, data=max(1, copies)).total
    state = per_parameter * whole(shape_of(model)).total / findings.model_parallel
    if state > memory:
        line = findings.carried.get("parallel.zero_stage", findings.carried["model"]).line
        problem = f"{state / 2**30:.1f} GiB of weights, gradients and optimizer on a device of {memory / 2**30:.0f} GiB"
        yield KnownError(
            16,
            line,
            problem,
            "the plan refuses it and shows the sum; more tensor, pipeline or copies",
        )


def _nodes(evidence: Evidence) -> Iterator[KnownError]:
    """18: the queue is asked for other nodes than the program is given."""
    remedy = "nodes have one origin: jobs.training.nodes"
    script = evidence.script
    asked = [
        entry for entry in script.directives if entry.name == "nodes" and entry.value.isdigit()
    ]
    for directive in asked[-1:]:
        names = ("num_node", "num_nodes", "nnodes")
        given = [
            (entry.name, entry.raw, entry.line)
            for entry in script.settings
            if entry.name.lower() in names
        ]
        options = (option(launch.part("torchrun"), "nnodes") for launch in evidence.launches)
        given += [("--nnodes", word.text, word.line) for word in options if word]
        for name, number, line in given:
            if number.isdigit() and number != directive.value:
                problem = f"{name}={number}, but the queue is asked for {directive.value} nodes (line {directive.line})"
                yield KnownError(18, line, problem, remedy)
        called = evidence.called("lumi-13b")
        if called and directive.value != "2" and not evidence.launches:
            fixed = f"{called[0].script} has num_node=2 and num_gpus=16 written in"
            yield KnownError(
                18, directive.line, f"{directive.value} nodes are asked for; {fixed}", remedy
            )


def _steps(evidence: Evidence) -> Iterator[KnownError]:
    """19: more than one training step in a job, and folders of a person."""
    outside_queue = [
        call.command for call in evidence.calls if call.command.name not in ("sbatch", "qsub")
    ]
    starts = sorted(
        {command.line for command in outside_queue}
        or {launch.command.line for launch in evidence.launches}
    )
    if len(starts) > 1 and evidence.script.directives:
        problem = f"lines {', '.join(map(str, starts))} each start a training: the job runs them one after another"
        yield KnownError(19, starts[1], problem, "one training step in a job")
    for line, folder in evidence.script.matching(
        r"(?<![\w/.])/(?:users|home|homes)/([A-Za-z][\w.-]*)"
    ):
        if not evidence.script.lines[line - 1].lstrip().startswith("#"):
            remedy = "jobs.stage names the shared folder, no default has one"
            yield KnownError(19, line, f"{folder[0]} is one person's folder", remedy)


def _conda(evidence: Evidence) -> Iterator[KnownError]:
    """24: one conda module here, another there."""
    matches = evidence.script.matching(r"(?:conda/|venvs/\S*?)(20\d\d-\d\d-\d\d[\w-]*)")
    dates = {match[1]: line for line, match in reversed(matches)}
    remedy = "params/sites/polaris.yaml names the module and the virtual environment once"
    if len(dates) > 1:
        problem = f"conda and virtual environment of {' and '.join(sorted(dates))}"
        yield KnownError(24, max(dates.values()), problem, remedy)
    elif dates and (calls := evidence.called("polaris-25b")):
        ((date, line),) = dates.items()
        problem = f"{calls[-1].script} sources setup.sh, which loads conda 2023-09-29-unstable, not {date}"
        yield KnownError(24, line, problem, remedy)


def _polaris(evidence: Evidence) -> Iterator[KnownError]:
    """25: tensor ranks outside a node."""
    tensor = evidence.findings.carried.get("parallel.tensor")
    devices = evidence.findings.devices_per_node
    if tensor and tensor.line and isinstance(tensor.value, int) and tensor.value > devices:
        problem = f"tensor parallel over {tensor.value} devices, on nodes of {devices}"
        remedy = "the plan warns of tensor ranks outside a node; variant tp4-pp8 keeps them inside"
        yield KnownError(25, tensor.line, problem, remedy)


def _unsaved(evidence: Evidence) -> Iterator[KnownError]:
    """27: saving to no place, two loss scales, an image that is not pinned, no GPUs asked for."""
    directives = evidence.script.directives
    asks = any(
        "gpu" in entry.value or entry.name.startswith(("gres", "gpus")) for entry in directives
    )
    words = [word.text for launch in evidence.launches for word in launch.part("srun")]
    asks = asks or any(word.startswith(("--gpus", "--gres")) for word in words)
    for launch in evidence.launches:
        options = {
            word.text.partition("=")[0]: word
            for word in launch.arguments
            if word.text.startswith("--")
        }
        if "--save-interval" in options and "--save" not in options:
            problem = "--save-interval without --save: nothing is saved"
            yield KnownError(
                27, options["--save-interval"].line, problem, "--save is given with every interval"
            )
        scale = options.get("--loss-scale")
        if scale and re.search(r'"loss_scale"\s*:\s*0\b', evidence.script.text):
            problem = "Megatron's loss scale is static, DeepSpeed's dynamic (loss_scale 0)"
            yield KnownError(
                27, scale.line, problem, "one dynamic scale: training.initial_loss_scale"
            )
        image = option(launch.part("srun"), "container-image")
        if image and image.known and is_local_tag(image.text):
            problem = (
                f"{image.text} is a tag of one machine's docker, which other nodes cannot pull"
            )
            yield KnownError(
                27, image.line, problem, "jobs.image: registry#name:tag, or a .sqsh file"
            )
        if "srun" in launch.programs and directives and not asks:
            remedy = "devices are always asked for: devices_per_node"
            yield KnownError(27, launch.command.line, "no GPUs are asked for", remedy)


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
