"""Compares variables and modules in a job with those on the site.

Some variables set an option in a script provided by a document.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook.frameworks.option_rows import truth, whole
from runbook.params.schema.keys import all_keys
from runbook.tools.adopt.container_images import take_image
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import MODELS, dataset_of
from runbook.tools.adopt.script import Script, StartedProgram, Word

_OF_A_JOB = re.compile(
    r"(NCCL|RCCL|FI|UCX|OMPI|CUDA|MIOPEN|CXI|SHARP|TORCH|HSA|ROCR|HIP|MPICH|PMIX?|PALS|HF|TRANSFORMERS|GLOO|OMP|MKL|"
    r"RDMAV|EFA|WANDB|SINGULARITYENV|SINGULARITY|APPTAINER|PYTORCH_CUDA|PYTORCH_HIP|NVTE|XLA|TRITON)_\w+|CXX|CC|TMPDIR|LD_PRELOAD|"
    r"LD_LIBRARY_PATH|PYTHONPATH|(http|https|ftp|no)_proxy|HTTPS?_PROXY|HYDRA_FULL_ERROR|LOGLEVEL"
)


def is_of_a_job(name: str) -> bool:
    """Return whether a variable configures part of a job, as NCCL_DEBUG does."""
    return _OF_A_JOB.fullmatch(name) is not None


_OURS = {
    "MASTER_ADDR": "the first host in the queue's own list",
    "MASTER_PORT": "derived from the job's number, so that two jobs on a node do not collide",
    "RANK": "from the launcher",
    "LOCAL_RANK": "from the launcher",
    "WORLD_SIZE": "from the launcher",
    "OMP_NUM_THREADS": "the cores of a task divided by its ranks",
    "PYTHONUNBUFFERED": "always set",
    "DLTS_HOSTFILE": "not used: there is no ssh between nodes",
}


def take_variables(script: Script, findings: Findings) -> None:
    """Adopt the job variables, and report variables that the site file should set."""
    site = findings.site
    group_of = {name: group for group, values in site.environment.items() for name in values}
    last_settings = {setting.name: setting for setting in script.settings}
    switched_on: set[str] = set()
    for name, setting in last_settings.items():
        value = Word(setting.value, setting.line)
        if name in _OURS:
            findings.does(setting.line, f"{name}={value.shown}", _OURS[name])
        elif _OF_A_JOB.fullmatch(name):
            group = group_of.get(name, "")
            if _take_variable(name, value, group, findings) and group in site.switched_off:
                switched_on.add(group)

    _take_unset(script, group_of, findings)
    switches = " ".join(f"+{group}" for group in sorted(switched_on - {"debug"}))
    if switches:
        findings.take("jobs.switch", switches, 0, "the variables of these groups are set")


def _take_unset(script: Script, group_of: Mapping[str, str], findings: Findings) -> None:
    """Report the variables that both the script and the site unset."""
    for line, match in script.matching(r"^\s*unset\s+(\w+)"):
        name = match[1]
        if name in group_of and findings.site.environment[group_of[name]][name] is None:
            findings.does(line, f"unset {name}", f"{findings.site_file} unsets it")


def _take_variable(
    name: str,
    value: Word,
    group: str,
    findings: Findings,
) -> bool:
    """Report a variable.

    Return whether a group in the site file sets the variable to the same value.
    """
    text = f"{name}={value.shown}"
    site_value = findings.site.environment[group][name] if group else None
    if site_value is None:
        findings.leave_to_site(value.line, text, "environment")
        if value.known:
            findings.for_site("environment.adopted", name, value.text)
        return False

    is_template = "{" in site_value
    is_longer_path = name.endswith("PATH") and site_value in value.shown
    if site_value != value.text and not is_template and not is_longer_path:
        findings.leave(value.line, text, f"{findings.site_file} sets it to {site_value}")
        return False

    is_off = group in findings.site.switched_off
    does = f"; jobs.switch: +{group}" if is_off else " sets it"
    findings.does(value.line, text, f"group {group} of {findings.site_file}{does}")
    return True


def take_modules(script: Script, findings: Findings) -> None:
    """Report each `module load` and each environment that is activated."""
    for command in script.commands:
        command_words = [command.name, *(word.text for word in command.words[1:])]
        for module in _loaded_modules(command_words):
            text = f"module load {module}"
            if module in findings.site.modules:
                findings.does(command.line, text, f"{findings.site_file} loads it")
            else:
                findings.leave_to_site(command.line, text, "modules", "the site loads others")
                findings.for_site("modules", module, module)

        is_script = command.name in ("source", ".") and command_words[-1].endswith("activate")
        if is_script or command_words[:2] == ["conda", "activate"]:
            _take_activation(command, findings)


def _loaded_modules(command_words: Sequence[str]) -> Sequence[str]:
    """Return the modules loaded by a command; empty unless the command is `module load`."""
    if command_words[:2] == ["module", "load"]:
        return command_words[2:]
    if command_words[0] == "ml":
        return command_words[1:]
    return []


def _take_activation(command: StartedProgram, findings: Findings) -> None:
    """Report that an environment is activated.

    The site setup may activate it already. If not, the site file can.
    """
    text = " ".join([command.name, *(word.shown for word in command.words[1:])])
    file = text.rpartition(" ")[2].lstrip("./")
    setup = findings.site.setup
    sources_file = any(line.startswith("source ") and line.endswith(file) for line in setup)
    if text in setup or sources_file:
        findings.does(command.line, text, f"setup of {findings.site_file} does it")
    else:
        findings.leave(command.line, text, f"add it under setup of {findings.site_file}")
        findings.for_site("setup", text, text)


_NOT_HERE = ("jobs.environment.", "jobs.data.", "jobs.smoke.", "training.smoke.")
_HANDLED_ELSEWHERE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "USE_SEQUENCE_PARALLEL": ("parallel.sequence", truth),
    # Micro-batches per step on each replica. The global batch is computed once all values are
    # known.
    "GAS": ("gas", whole),
    "PARTITION": ("jobs.data.partition", str),
}
_ATTENTION = {
    "USE_FLASH_ATTN1": "flash1",
    "USE_FLASH_ATTN_V1": "flash1",
    "USE_FLASH_ATTN2": "flash2",
    "USE_FLASH_ATTN_V2": "flash2",
    "USE_FLASH_ATTN_TRITON": "flash-triton",
}


def take_knobs(
    values: Mapping[str, Word],
    findings: Findings,
    models: Collection[str],
    *,
    over: bool,
) -> None:
    """Adopt every variable that is read by a script in the site's document.

    Options in the script take precedence unless `over` is set.
    """
    for name, value in values.items():
        if name in _READ:
            key, read = _READ[name]
            findings.read(key, value, name, read)
        elif name in _ATTENTION:
            kind = _ATTENTION[name]
            if value.text not in ("", "0"):
                findings.take("training.attention", kind, value.line, f"USE_FLASH_ATTN {kind}")
        elif name in ("MODEL_SIZE_KEY", "MODEL_SIZE", "model_size"):
            _model(value, findings, models)
        elif name == "NODES":
            findings.read(
                "jobs.training.nodes",
                value,
                "NNODES",
                whole,
                over=False,
            )
        elif name in _SPECIAL:
            _SPECIAL[name](value, findings)
        elif name in _HANDLED_ELSEWHERE:
            findings.does(value.line, f"{name}={value.shown}", _HANDLED_ELSEWHERE[name])
        elif key := key_of(name):
            read = _READERS.get(all_keys()[key].kind, str)
            findings.read(
                key,
                value,
                name,
                read,
                over=over,
            )


_READERS: dict[type[Any], Callable[[str], Any]] = {bool: truth, float: float, int: whole}
"""For each key type, the function used to convert the value. Other values stay strings."""


def key_of(name: str) -> str:
    """Return the key that a variable in a document sets, or an empty string if there is none.

    >>> key_of("TENSOR_MODEL_PARALLEL_SIZE"), key_of("mp_size"), key_of("NNODES"), key_of("PATH")
    ('parallel.tensor', 'parallel.tensor', 'jobs.training.nodes', '')
    """
    for key in all_keys().values():
        if name in key.documents and not key.name.startswith(_NOT_HERE):
            return key.name

    return ""


def leave_unknown(script: Script, values: Mapping[str, Word], findings: Findings) -> None:
    """Report the exported variables among `values` that no script in the documents reads."""
    read_names = {"NODES", *_READ, *_ATTENTION, *_SPECIAL, *_HANDLED_ELSEWHERE, *_OURS}
    for key in all_keys().values():
        read_names.update(key.documents)
    for setting in script.settings:
        name = setting.name
        is_known = name in read_names or _OF_A_JOB.fullmatch(name)
        if setting.exported and name in values and not is_known:
            text = f"{name}={Word(setting.value, 0).shown}"
            findings.leave(setting.line, text, "no document's script reads it")


def _model(value: Word, findings: Findings, models: Collection[str]) -> None:
    """Adopt the model named by a variable in a document: a catalogue name, or a size in NeMo."""
    # On LUMI, model_size is the number before "b" in a model name
    if re.fullmatch(r"[\d.]+", value.text):
        return
    size = value.text.lower()
    name = MODELS.get(size, "") if findings.site.site == "aws" else ""
    if not name:
        name = next((model for model in models if model.lower() == size), "")
    if name and value.known:
        findings.take("model", name, value.line, value.text)
        findings.drop("training.shape.layers", "training.shape.hidden", "training.shape.heads")
    else:
        remedy = "params/models.yaml has no such model: add an entry"
        findings.leave(value.line, f"model size {value.shown}", remedy)


def _shared_folder(value: Word, findings: Findings) -> None:
    """Adopt a folder on the shared file system.

    For a mount written as source:target (AWS), use the target.
    """
    text = value.text.rpartition(":")[2]
    placeholder = not text.startswith("/") or "username" in text or "your-" in text
    if value.known and not placeholder:
        findings.take("jobs.stage", text.rstrip("/") or "/", value.line, "the shared folder")
    else:
        described = f"shared folder {value.shown}"
        findings.leave(value.line, described, "not a folder yet: set jobs.stage")


def _dataset_folder(value: Word, findings: Findings) -> None:
    if dataset_of(value.text):
        _dataset(value.text, value.line, findings)
    else:
        text = f"DATASET_FOLDER_NAME={value.shown}"
        findings.leave(value.line, text, "set data.dataset, or data.folder")


def _data_path(value: Word, findings: Findings) -> None:
    _dataset(value.shown, value.line, findings)
    if value.known and value.text.startswith("/"):
        does = "paths.data in params/sites, or data.folder for another place"
        findings.does(value.line, f"DATA_PATH={value.text}", does)


def _dataset(text: str, line: int, findings: Findings) -> None:
    """Adopt the dataset named by a value, and drop the remarks about token files."""
    dataset = dataset_of(text)
    if not dataset:
        return
    findings.take("data.dataset", dataset, line, "DATASET_FOLDER_NAME")
    findings.leftovers[:] = [
        remark for remark in findings.leftovers if not remark.text.startswith("token files")
    ]


def _sequence_type(value: Word, findings: Findings) -> None:
    """Adopt SP_TYPE: `megatron` is sequence parallelism over the tensor ranks, `ds` is Ulysses."""
    if value.text == "megatron":
        findings.take("parallel.sequence", True, value.line, "SP_TYPE=megatron")
    elif value.text == "ds":
        findings.take("parallel.sequence", False, value.line, "SP_TYPE=ds")
        findings.take("parallel.tensor", 1, value.line, "SP_TYPE=ds")
        findings.take("parallel.context", 0, value.line, "SP_TYPE=ds: all devices")
    else:
        remedy = "megatron or ds: set parallel.sequence or parallel.context"
        findings.leave(value.line, f"SP_TYPE={value.shown}", remedy)


def _sharp(value: Word, findings: Findings) -> None:
    if value.text == "1" and "sharp" in findings.site.environment:
        findings.take("jobs.switch", "+sharp", value.line, "USE_SHARP=1")


def _num_devices(value: Word, findings: Findings) -> None:
    text = f"number of devices {value.shown}"
    findings.does(value.line, text, "computed: nodes x devices on a node")


_SPECIAL: dict[str, Callable[[Word, Findings], None]] = {
    "STAGE_PATH": _shared_folder,
    "FSX_MOUNT": _shared_folder,
    "SHARED_FS": _shared_folder,
    "home_dir": _shared_folder,
    "WORKSPACE": _shared_folder,
    "IMAGE": take_image,
    "CONTAINER_IMAGE": take_image,
    "SQUASHED_PYTORCH_IMAGE": take_image,
    "DATA_PATH": _data_path,
    "BASE_DATA_PATH": _data_path,
    "DATASET_FOLDER_NAME": _dataset_folder,
    "SP_TYPE": _sequence_type,
    "USE_SHARP": _sharp,
    "num_gpus": _num_devices,
}
