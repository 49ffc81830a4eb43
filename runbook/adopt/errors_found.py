"""Which of the documents' 31 errors a script has: from what it sets and starts, and from its words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runbook.adopt import errors_values
from runbook.adopt.errors_table import table_errors
from runbook.adopt.errors_text import text_errors
from runbook.adopt.findings import Findings, Found
from runbook.adopt.guess import Call
from runbook.adopt.launches import Launch
from runbook.adopt.marks import Word
from runbook.adopt.script import Script
from runbook.adopt.surroundings import is_local_tag, personal_paths
from runbook.params.catalogue import Model, Site


@dataclass(frozen=True)
class Read:
    """Everything that is known of a script when its errors are looked for."""

    script: Script
    launches: Sequence[Launch]
    calls: Sequence[Call]
    findings: Findings
    site: Site
    models: Mapping[str, Model]

    def called(self, run: str) -> list[Call]:
        """Starts of the scripts that this run was made from."""
        return [call for call in self.calls if call.run == run]


def errors_in(
    script: Script,
    launches: Sequence[Launch],
    calls: Sequence[Call],
    findings: Findings,
    site: Site,
    models: Mapping[str, Model],
) -> list[Found]:
    """All of them by number and line, each told once a line."""
    read = Read(script, launches, calls, findings, site, models)
    found = [*text_errors(script), *table_errors(script, models)]
    for detect in (*DETECTORS, *errors_values.DETECTORS):
        found += detect(read)
    once = {(one.number, one.line, one.what if one.number in (15, 19, 27) else ""): one for one in found}
    return sorted(once.values(), key=lambda one: (one.number, one.line))


def _intervals(read: Read) -> Iterator[Found]:
    """4: a variable that is set, and a number beside the option all the same."""
    remedy = "training.save_interval and training.eval_interval reach the program"
    for variable, option in (("SAVE_INTERVAL", "--save-interval"), ("EVAL_INTERVAL", "--eval-interval")):
        setting = read.script.value(variable)
        if setting is None:
            continue
        for launch in read.launches:
            for word, value in zip(launch.arguments, launch.arguments[1:], strict=False):
                line = read.script.lines[word.line - 1] if word.line else ""
                if word.text == option and value.line == word.line and variable not in line:
                    what = f"{option} {value.shown} is written out: {variable} (line {setting.line}) does nothing"
                    yield Found(4, word.line, what, remedy)
        if read.called("azure-175b") and not read.launches:
            what = f"at the document's commit 04-gpt175B.sh ignores {variable}={setting.shown} and saves every 100"
            yield Found(4, setting.line, what, remedy)


def _squashed_images(read: Read) -> Iterator[Found]:
    """6: an image that is set from outside is overwritten."""
    remedy = "jobs.image is used wherever it is set"
    for one in read.script.settings:
        if not re.fullmatch(r"SQUASHED_(PYTORCH|NEMO)_IMAGE", one.name) or one.default:
            continue
        if read.called("azure-175b") or not (read.launches or _imports(read)):
            yield Found(6, one.line, f"the document's scripts overwrite {one.name}: setting it does nothing", remedy)
        else:
            yield Found(6, one.line, f"{one.name} is overwritten here, whatever is set from outside", remedy)
    for line, _ in read.script.matching(r"[Ss]et the `?SQUASHED_(PYTORCH|NEMO)_IMAGE"):
        yield Found(6, line, "the scripts overwrite this variable: setting it does nothing", remedy)


def _imports(read: Read) -> bool:
    return any("enroot" in [word.text for word in command.words] for command in read.script.commands)


def _partitions(read: Read) -> Iterator[Found]:
    """8: several names for the same nodes."""
    remedy = "each phase has one partition, in the site's file or jobs.<phase>.partition"
    htc, hpc = read.script.matching(r"\bhtc\b"), read.script.matching(r"\bhpc\b")
    if htc and hpc:
        what = f"the CPU nodes are called htc here and hpc in line {hpc[0][0]}"
        yield Found(8, htc[0][0], what, remedy)
    for one in read.script.settings:
        prepares = re.search(r"data_preparation|extract|preprocess", read.script.text)
        if one.name == "PARTITION" and one.value.strip('"') == "gpu" and prepares and not read.launches:
            yield Found(8, one.line, "text is prepared on the GPU partition unless somebody says another", remedy)


def _held_out(read: Read) -> Iterator[Found]:
    """10: CHUNKS counts twice."""
    value = read.script.value("CHUNKS")
    if value is not None and value.text.isdigit():
        what = f"CHUNKS={value.text} takes {value.text} files to validate and {value.text} more to test"
        remedy = f"data.held_out: {value.text} says so, and wants more than {2 * int(value.text)} files"
        yield Found(10, value.line, what, remedy)


def _tokenizer(read: Read) -> Iterator[Found]:
    """13: the vocabulary as merges; one variable with two meanings."""
    from runbook.adopt.launches import option

    pairs: list[tuple[Word, Word]] = []
    for launch in read.launches:
        vocabulary, merges = option(launch.arguments, "vocab-file"), option(launch.arguments, "merge-file")
        if vocabulary and merges:
            pairs.append((vocabulary, merges))
    vocabulary, merges = read.script.value("VOCAB_FILE"), read.script.value("MERGE_FILE")
    if merges and not pairs:
        pairs.append((vocabulary or merges, merges))
    for vocabulary, merges in pairs:
        name = merges.shown.rpartition("/")[2]
        if "vocab" in name or (merges.shown == vocabulary.shown and merges.line != vocabulary.line):
            what = f"the merges are read from {name}, which is the vocabulary"
            yield Found(13, merges.line, what, "vocab.json and merges.txt are two files; a check refuses one for both")
    values = {one.value: one.line for one in read.script.settings if one.name == "DATASET_FOLDER_NAME"}
    both = re.search(r"0[23]-\w+\.sh", read.script.text) and re.search(r"04-gpt175B\.sh", read.script.text)
    if values and (len(values) > 1 or both):
        what = "DATASET_FOLDER_NAME means the raw text's folder in steps 02 and 03, the token files' in 04"
        yield Found(13, next(iter(values.values())), what, "places have one name each: paths in the site's file")


def _steps(read: Read) -> Iterator[Found]:
    """19: more than one training step in a job, and folders of a person."""
    starts = [
        call.command.line
        for call in read.calls
        if call.command.certain and call.command.words[0].text.rpartition("/")[2] not in ("sbatch", "qsub")
    ]
    starts = sorted(set(starts) or {launch.line for launch in read.launches if launch.command.certain})
    if len(starts) > 1 and read.script.directives:
        what = f"lines {', '.join(map(str, starts))} each start a training: the job runs them one after another"
        yield Found(19, starts[1], what, "one training step in a job")
    for line, path in personal_paths(read.script):
        yield Found(
            19, line, f"{path} is one person's folder", "jobs.stage names the shared folder, no default has one"
        )


def _conda(read: Read) -> Iterator[Found]:
    """24: one conda module here, another there."""
    dates = {
        match[1]: line
        for line, match in reversed(read.script.matching(r"(?:conda/|venvs/\S*?)(20\d\d-\d\d-\d\d[\w-]*)"))
    }
    remedy = "params/sites/polaris.yaml names the module and the virtual environment once"
    if len(dates) > 1:
        yield Found(24, max(dates.values()), f"conda and virtual environment of {' and '.join(sorted(dates))}", remedy)
    elif dates and (calls := read.called("polaris-25b")):
        loaded = f"{calls[-1].script} sources setup.sh, which loads conda 2023-09-29-unstable, not {next(iter(dates))}"
        yield Found(24, next(iter(dates.values())), loaded, remedy)


def _unsaved(read: Read) -> Iterator[Found]:
    """27: saving to no place, two loss scales, an image that is not pinned, no GPUs asked for."""
    for launch in read.launches:
        options = {word.text.partition("=")[0]: word for word in launch.arguments if word.text.startswith("--")}
        if "--save-interval" in options and "--save" not in options:
            line = options["--save-interval"].line
            yield Found(27, line, "--save-interval without --save: nothing is saved", "--save is always given")
        scale = options.get("--loss-scale")
        if scale and re.search(r'"loss_scale"\s*:\s*0\b', read.script.text):
            what = "Megatron's loss scale is static, DeepSpeed's dynamic (loss_scale 0)"
            yield Found(27, scale.line, what, "one dynamic scale: training.initial_loss_scale")
        yield from _image(launch)
        if launch.part("srun") is not None and read.script.directives and not _asks_for_devices(read):
            yield Found(27, launch.line, "no GPUs are asked for", "devices are always asked for: devices_per_node")


def _image(launch: Launch) -> Iterator[Found]:
    from runbook.adopt.launches import option

    image = option(launch.part("srun") or (), "container-image")
    if image and image.known and is_local_tag(image.text):
        what = f"{image.text} is a tag of one machine's docker, which other nodes cannot pull"
        yield Found(27, image.line, what, "jobs.image: registry#name:tag, or a .sqsh file")


def _asks_for_devices(read: Read) -> bool:
    names = {"gpus", "gpus-per-node", "gres", "gpus-per-task", "gpus-per-socket"}
    asked = any(one.name in names or "gpu" in one.value for one in read.script.directives)
    words = [word.text for launch in read.launches for word in launch.part("srun") or ()]
    return asked or any(re.match(r"--(gpus|gres)", word) for word in words)


DETECTORS = (
    _intervals,
    _squashed_images,
    _partitions,
    _held_out,
    _tokenizer,
    _steps,
    _conda,
    _unsaved,
)
