"""Compares a job's queue requests, variables, modules, containers and mounts with the site's."""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from runbook.core.units import clock_seconds, show_clock
from runbook.frameworks.options import truth, whole
from runbook.jobs.script_directives import Directive
from runbook.params.schema.keys import all_keys
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.launches import Launch, option
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.program_arguments import MODELS, dataset_of
from runbook.tools.adopt.script import Script, StartedProgram, Word, is_count, not_set

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
    """Take the job's variables, and report those that the site file should set."""
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

    Return whether the site's variable group sets a variable to the same value.
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
    """Report each `module load` and each activation of an environment."""
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
    """Return the modules that a command loads, or none if it is not `module load`."""
    if command_words[:2] == ["module", "load"]:
        return command_words[2:]
    if command_words[0] == "ml":
        return command_words[1:]
    return []


def _take_activation(command: StartedProgram, findings: Findings) -> None:
    """Report an activation: either the site's setup already does it, or the site file can do it."""
    text = " ".join([command.name, *(word.shown for word in command.words[1:])])
    file = text.rpartition(" ")[2].lstrip("./")
    setup = findings.site.setup
    sources_file = any(line.startswith("source ") and line.endswith(file) for line in setup)
    if text in setup or sources_file:
        findings.does(command.line, text, f"setup of {findings.site_file} does it")
    else:
        findings.leave(command.line, text, f"add it under setup of {findings.site_file}")
        findings.for_site("setup", text, text)


_LAUNCHERS = ("deepspeed", "torchrun", "mpiexec", "mpirun", "aprun", "srun")
"""Launchers by precedence: if several of them start a training, the first in this list applies."""
_OUR_NAME = {"mpirun": "mpiexec", "aprun": "mpiexec"}
_COUNTS = (
    (("torchrun",), ("nnodes",), "jobs.training.nodes"),
    (("torchrun",), ("nproc-per-node",), "jobs.training.devices_per_node"),
    (("deepspeed",), ("num-gpus",), "jobs.training.devices_per_node"),
    (("deepspeed",), ("num-nodes",), "jobs.training.nodes"),
    (("srun",), ("nodes", "N"), "jobs.training.nodes"),
)
"""For each program, its options for a number of nodes or devices, and the key that the number sets."""
_STARTERS = ("torchrun", "deepspeed")
"""Programs that start one process per device on a node, whichever launcher started them."""
_COUNTS_OF_RANKS = ((("mpiexec", "mpirun"), ("ppn", "npernode"), "jobs.training.devices_per_node"),)
"""Options that count devices, unless one of `_STARTERS` runs between the launcher and the training."""


def take_launch(script: Script, launch: Launch, findings: Findings) -> None:
    """Take the launcher, container image, mounts, nodes and devices of a launch."""
    outermost = next((name for name in _LAUNCHERS if name in launch.programs), "")
    launcher = _OUR_NAME.get(outermost, outermost)
    if launcher and launcher != findings.site.launcher:
        findings.take("jobs.launcher", launcher, launch.command.line, " ".join(launch.programs))
    has_starter = any(name in launch.programs for name in _STARTERS)
    for programs, names, key in _COUNTS if has_starter else (*_COUNTS, *_COUNTS_OF_RANKS):
        value = option(launch.part(*programs), *names)
        if value and _is_count(value.text) and not script.assumed(value, key):
            findings.take(
                key,
                int(value.text),
                value.line,
                f"--{names[0]}",
                over=False,
            )

    _take_resource_sets(launch.part("jsrun"), findings)
    _take_srun_container(launch.part("srun"), findings)
    _take_singularity(launch.part("singularity"), findings)


def _take_resource_sets(jsrun: Sequence[Word], findings: Findings) -> None:
    """Take the devices per node from jsrun (LSF): resource sets per host x devices per set."""
    sets_per_host = option(jsrun, "rs-per-host", "r")
    devices_per_set = option(jsrun, "gpu-per-rs", "g")
    if sets_per_host is None or devices_per_set is None:
        return
    if _is_count(sets_per_host.text) and _is_count(devices_per_set.text):
        devices = int(sets_per_host.text) * int(devices_per_set.text)
        source = "--rs_per_host x --gpu_per_rs"
        findings.take(
            "jobs.training.devices_per_node", devices, sets_per_host.line, source, over=False
        )


def _is_count(text: str) -> bool:
    """Return whether a text is a whole number above zero."""
    return is_count(text) and int(text) > 0


def _take_srun_container(srun: Sequence[Word], findings: Findings) -> None:
    """Take the container that srun starts through its plugin pyxis."""
    image = option(srun, "container-image")
    if image:
        take_image(image, findings, "--container-image")
    for name in ("container-mounts", "container-env", "container-workdir", "container-name"):
        value = option(srun, name)
        if value:
            why = f"{findings.site_file} has the mounts; the run's folder is always mounted"
            findings.does(value.line, f"--{name} {value.shown[:60]}", why)


def _take_singularity(singularity_words: Sequence[Word], findings: Findings) -> None:
    """Take the image of `singularity exec`: a file, or a variable that the site's module sets."""
    for word in reversed(singularity_words):
        is_file = word.text.endswith((".sif", ".simg"))
        if is_file or word.shown.startswith("$"):
            variable = findings.site.container.variable
            if word.known:
                take_image(word, findings, "singularity exec")
            elif variable and variable in word.shown:
                findings.does(word.line, word.shown, f"{findings.site_file}: its module sets it")

            return


def take_image(image: Word, findings: Findings, source: str = "image") -> None:
    """Take an image that a queue can start; a docker tag of one machine cannot be pulled."""
    name = image.shown
    site_image = findings.site.container.image
    on_stage = re.escape(site_image).replace(re.escape("{stage}"), "(?P<stage>/.+)")
    match = re.fullmatch(on_stage, name) if "{stage}" in site_image else None
    if match and not match["stage"].startswith("/GIVE_"):
        findings.take(
            "jobs.stage",
            match["stage"],
            image.line,
            f"the folder of {source}",
            over=False,
        )

    if match or name in (site_image, site_image.replace("{stage}", "$STAGE_PATH")):
        findings.does(image.line, f"{source} {name}", f"{findings.site_file} names it")
    elif not image.known:
        on_stage = Word(image.text.replace(not_set("STAGE_PATH"), "{stage}"), 0).shown
        why = "its value is known only while the script runs: set jobs.image"
        findings.leave(image.line, f"{source} {on_stage}", why)
    elif is_local_tag(name):
        remedy = "set jobs.image to registry#name:tag or a .sqsh"
        why = f"a docker tag of one machine, which other nodes cannot pull: {remedy}"
        findings.leave(image.line, f"{source} {name}", why)
    else:
        findings.take("jobs.image", name, image.line, source)


def is_local_tag(image: str) -> bool:
    """Return whether an image is neither a file nor in a registry.

    >>> is_local_tag("pytorch:22.02-deepspeed"), is_local_tag("nvcr.io#nvidia/pytorch:25.03-py3")
    (True, False)
    """
    return "/" not in image and "#" not in image and not image.endswith((".sqsh", ".sif"))


_NOT_HERE = ("jobs.environment.", "jobs.data.", "jobs.smoke.", "training.smoke.")
_HANDLED_ELSEWHERE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "USE_SEQUENCE_PARALLEL": ("parallel.sequence", truth),
    # Micro-batches per step on each replica; the global batch is computed once all values are known
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
    """Take every variable that a script of the site's document reads.

    With `over` off, options of the script take precedence.
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
"""The reader of a value, by the type of its key; other types are read as text."""


def key_of(name: str) -> str:
    """Return the key that a document's variable sets, or an empty text if it sets none.

    >>> key_of("TENSOR_MODEL_PARALLEL_SIZE"), key_of("mp_size"), key_of("NNODES"), key_of("PATH")
    ('parallel.tensor', 'parallel.tensor', 'jobs.training.nodes', '')
    """
    for key in all_keys().values():
        if name in key.documents and not key.name.startswith(_NOT_HERE):
            return key.name

    return ""


def leave_unknown(script: Script, values: Mapping[str, Word], findings: Findings) -> None:
    """Report the exports among `values` that no document's script reads."""
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
    """Take the model from the document's MODEL_SIZE_KEY (in capitals) or from NeMo's size."""
    # LUMI's model_size is the number of billions, as a model's name
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
    """Take a folder on the shared file system.

    For a mount written as source:target (AWS), take the target.
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
        does = "params/sites: paths.data; another place: data.folder"
        findings.does(value.line, f"DATA_PATH={value.text}", does)


def _dataset(text: str, line: int, findings: Findings) -> None:
    """Take the dataset that a text names, and drop the remarks about token files."""
    dataset = dataset_of(text)
    if not dataset:
        return
    findings.take("data.dataset", dataset, line, "DATASET_FOLDER_NAME")
    findings.leftovers[:] = [
        remark for remark in findings.leftovers if not remark.text.startswith("token files")
    ]


def _sequence_type(value: Word, findings: Findings) -> None:
    """Take SP_TYPE: `megatron` is sequence parallelism over the tensor ranks, `ds` is Ulysses."""
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


JOB = "jobs.training"


def clock(text: str) -> str:
    """Return one of Slurm's time limits in the run file's format.

    A plain number means minutes. Raise `ValueError` if the text is not a time limit.

    >>> clock("30"), clock("1-00:00:00"), clock("01:00:00"), clock('"45:00"')
    ('00:30:00', '24:00:00', '01:00:00', '00:45:00')
    """
    seconds = clock_seconds(text.strip('"'))
    if not seconds:
        raise ValueError(text)
    return show_clock(seconds)


def _devices(text: str) -> int:
    """Return the device count, which is the last number in a text such as gpu:a100:4.

    Raise `ValueError` if there is none.
    """
    numbers = re.findall(r"\d+", text)
    if not numbers:
        raise ValueError(text)
    return int(numbers[-1])


def lsf_clock(text: str) -> str:
    """Return an LSF time limit, [hours:]minutes, in the run file's format.

    >>> lsf_clock("2:00"), lsf_clock("90")
    ('02:00:00', '01:30:00')
    """
    hours, _, minutes = text.rpartition(":")
    return show_clock((int(hours or 0) * 60 + int(minutes)) * 60)


def _devices_of_lsf(text: str) -> int:
    """Return the devices of `-gpu "num=4:mode=shared"`.

    Raise `ValueError` if the text has no number.
    """
    match = re.search(r"num=(\d+)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1])


def grid_clock(text: str) -> str:
    """Return a time limit of Grid Engine or Fujitsu's queue in the run file's format.

    It is [[days:]hours:]minutes:seconds, or only seconds.

    >>> grid_clock("10:00:00:00"), grid_clock("75:40:00"), grid_clock("3600")
    ('240:00:00', '75:40:00', '01:00:00')
    """
    seconds = 0
    for part, unit in zip(reversed(text.split(":")), _SECONDS_OF, strict=False):
        seconds += int(part) * unit
    if not seconds:
        raise ValueError(text)
    return show_clock(seconds)


_SECONDS_OF = (1, 60, 3600, 86_400)
"""Seconds in each part of a time limit, beginning with its last part: seconds, minutes, hours,
days."""


def _nodes_of_shape(text: str) -> int:
    """Return the number of nodes in Fujitsu's `node=4x4x3`, or in a plain number."""
    return math.prod(int(edge) for edge in text.partition(":")[0].split("x"))


def oar_clock(text: str) -> str:
    """Return an OAR time limit, hours[:minutes[:seconds]], in the run file's format.

    >>> oar_clock("2"), oar_clock("1:30"), oar_clock("0:45:00")
    ('02:00:00', '01:30:00', '00:45:00')
    """
    parts = [int(part) for part in text.strip('"').split(":")]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return show_clock((hours * 60 + minutes) * 60 + seconds)


def flux_clock(text: str) -> str:
    """Return a Flux time limit in the run file's format.

    It is a number with a unit, or else minutes.

    >>> flux_clock("2h"), flux_clock("90m"), flux_clock("30")
    ('02:00:00', '01:30:00', '00:30:00')
    """
    match = re.fullmatch(r"(\d+)([smhd]?)", text)
    if match is None:
        raise ValueError(text)
    return show_clock(int(match[1]) * _SECONDS_OF_UNIT[match[2]])


_SECONDS_OF_UNIT = {"s": 1, "": 60, "m": 60, "h": 3600, "d": 86_400}


OptionTable: TypeAlias = dict[str, tuple[str, Callable[[str], object]]]
"""For each option of a queue, our key and the function that reads the option's value."""

_SLURM: OptionTable = {
    "nodes": (f"{JOB}.nodes", whole),
    "partition": (f"{JOB}.partition", str),
    "qos": (f"{JOB}.qos", str),
    "reservation": (f"{JOB}.reservation", str),
    "time": (f"{JOB}.walltime", clock),
    "account": ("jobs.account", str),
    "gpus-per-node": (f"{JOB}.devices_per_node", _devices),
    "gres": (f"{JOB}.devices_per_node", _devices),
    "ntasks-per-node": (f"{JOB}.tasks_per_node", whole),
    "cpus-per-task": (f"{JOB}.cpus_per_task", whole),
    "mem": (f"{JOB}.memory", str),
}
_PBS: OptionTable = {
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
    "walltime": (f"{JOB}.walltime", clock),
}
_LSF: OptionTable = {
    "nnodes": (f"{JOB}.nodes", whole),
    "W": (f"{JOB}.walltime", lsf_clock),
    "q": (f"{JOB}.partition", str),
    "P": ("jobs.account", str),
    "gpu": (f"{JOB}.devices_per_node", _devices_of_lsf),
}
_SGE: OptionTable = {
    "nodes": (f"{JOB}.nodes", whole),
    "h_rt": (f"{JOB}.walltime", grid_clock),
    "q": (f"{JOB}.partition", str),
    "P": ("jobs.account", str),
    "g": ("jobs.account", str),
}
_PJM: OptionTable = {
    "nodes": (f"{JOB}.nodes", _nodes_of_shape),
    "elapse": (f"{JOB}.walltime", grid_clock),
    "rscgrp": (f"{JOB}.partition", str),
    "g": ("jobs.account", str),
}
_OAR: OptionTable = {
    "nodes": (f"{JOB}.nodes", whole),
    "host": (f"{JOB}.nodes", whole),
    "gpu": (f"{JOB}.devices_per_node", whole),
    "walltime": (f"{JOB}.walltime", oar_clock),
    "q": (f"{JOB}.partition", str),
    "project": ("jobs.account", str),
}
_COBALT: OptionTable = {
    "n": (f"{JOB}.nodes", whole),
    "nodecount": (f"{JOB}.nodes", whole),
    "t": (f"{JOB}.walltime", clock),
    "time": (f"{JOB}.walltime", clock),
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
}
_MSUB: OptionTable = {
    "N": (f"{JOB}.nodes", whole),
    "walltime": (f"{JOB}.walltime", grid_clock),
    "T": (f"{JOB}.walltime", grid_clock),
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
}
"""Options of Moab (-N is the job's name) and of CEA's Bridge (-N counts nodes, -T seconds)."""
_FLUX: OptionTable = {
    "N": (f"{JOB}.nodes", whole),
    "nodes": (f"{JOB}.nodes", whole),
    "t": (f"{JOB}.walltime", flux_clock),
    "time-limit": (f"{JOB}.walltime", flux_clock),
    "q": (f"{JOB}.partition", str),
    "queue": (f"{JOB}.partition", str),
    "B": ("jobs.account", str),
    "bank": ("jobs.account", str),
}
_DSUB: OptionTable = {
    "N": (f"{JOB}.nodes", whole),
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
}
_TABLES = {
    "slurm": _SLURM,
    "pbs": _PBS,
    "lsf": _LSF,
    "sge": _SGE,
    "pjm": _PJM,
    "oar": _OAR,
    "cobalt": _COBALT,
    "msub": _MSUB,
    "flux": _FLUX,
    "dsub": _DSUB,
}
_SIGNS = {
    "slurm": "#SBATCH --",
    "pbs": "#PBS ",
    "lsf": "#BSUB -",
    "sge": "#$ ",
    "pjm": "#PJM ",
    "oar": "#OAR -",
    "cobalt": "#COBALT -",
    "msub": "#MSUB -",
    "flux": "#flux: -",
    "dsub": "#DSUB -",
}
_OTHER_QUEUES = {
    "sge": "Grid Engine",
    "pjm": "Fujitsu's queue",
    "oar": "OAR",
    "cobalt": "Cobalt",
    "msub": "Moab or CEA's Bridge",
    "flux": "Flux",
    "dsub": "Donau",
}
"""Queues that no site here uses. Their requests are dropped, except for nodes and time."""
_OUR_DIRECTIVES = json.loads(
    Path(__file__).with_name("directives.json").read_text(encoding="utf-8")
)


def take_directives(directives: Sequence[Directive], findings: Findings) -> None:
    """Take the values of a script's directives.

    Values that the site file already has, or that the runbook always sets, are not taken.
    """
    for directive in directives:
        name = directive.name
        line = directive.line
        sign = f"{_SIGNS[directive.queue]}{name}"
        table = _TABLES[directive.queue]
        text = f"{sign}={directive.value}" if directive.value else sign
        if name == "select" and directive.queue == "pbs":
            _take_select(directive, findings)
        elif name == "nodes" and directive.queue in _TORQUE:
            _take_torque_nodes(directive, findings)
        elif name in table:
            key, read = table[name]
            findings.read(key, Word(directive.value, line), sign, read)
        elif findings.site.directives.get(name) == directive.value:
            findings.does(line, text, f"{findings.site_file} asks for it")
        elif name in _OUR_DIRECTIVES:
            findings.does(line, text, _OUR_DIRECTIVES[name])
        elif directive.queue in _OTHER_QUEUES:
            queue = _OTHER_QUEUES[directive.queue]
            why = AdoptMessage.FOR_ANOTHER_QUEUE.fill(
                queue=queue, scheduler=findings.site.scheduler
            )
            findings.leave(line, text, why)
        else:
            findings.leave_to_site(line, text, "directives")
            findings.for_site("directives", name, directive.value)


def _take_select(directive: Directive, findings: Findings) -> None:
    """Take the nodes of PBS's `select`; its resources per node belong in the site file."""
    line = directive.line
    nodes, resources = _nodes_and_resources(directive.value)
    findings.read(f"{JOB}.nodes", Word(nodes, line), "#PBS -l select", whole)
    if resources and resources != findings.site.directives.get("select"):
        text = f"#PBS -l select={directive.value}"
        findings.leave_to_site(line, text, "directives.select", resources)


def _nodes_and_resources(request: str) -> tuple[str, str]:
    """Return the number of nodes in a PBS request, and the resources of each node.

    A request for several kinds of nodes is returned unchanged, because it has no single number.

    >>> _nodes_and_resources("4:ppn=8"), _nodes_and_resources("4:ppn=8+2:ppn=4")
    (('4', 'ppn=8'), ('4:ppn=8+2:ppn=4', ''))
    """
    if "+" in request:
        return request, ""
    nodes, _, resources = request.partition(":")
    return nodes, resources


_TORQUE = ("pbs", "msub")
"""Queues that accept Torque's `-l nodes=`."""


def _take_torque_nodes(directive: Directive, findings: Findings) -> None:
    """Take the nodes of `-l nodes=4:ppn=8`, and report the resources per node."""
    line = directive.line
    sign = f"{_SIGNS[directive.queue]}-l nodes".replace("--", "-")
    nodes, resources = _nodes_and_resources(directive.value)
    findings.read(f"{JOB}.nodes", Word(nodes, line), sign, whole)
    if resources:
        findings.leave_to_site(line, f"{sign}={directive.value}", "directives", resources)


def drop_defaults(findings: Findings, one_task: bool) -> None:
    """Drop values that a job gets by default, so that the run file holds only the others."""
    hardware = findings.site.hardware
    usual_tasks = 1 if one_task else findings.devices_per_node
    tasks_per_node = findings.number(f"{JOB}.tasks_per_node") or usual_tasks
    usual_values = {
        f"{JOB}.tasks_per_node": usual_tasks,
        f"{JOB}.devices_per_node": hardware.devices_per_node,
        f"{JOB}.memory": findings.site.directives.get("mem"),
        f"{JOB}.cpus_per_task": hardware.cores_per_node // max(1, tasks_per_node),
    }
    for key, usual in usual_values.items():
        if findings.value(key) == usual:
            findings.drop(key)


def drop_ssh(findings: Findings) -> None:
    """Replace DeepSpeed's launcher on several nodes with torchrun, or under PBS with mpiexec.

    DeepSpeed's launcher needs ssh, which compute nodes rarely allow.
    """
    carried = findings.carried.get("jobs.launcher")
    if carried is None:
        return
    if findings.site.scheduler == "pbs" and carried.value in ("deepspeed", "torchrun"):
        source = f"{carried.source}: PBS has no other way onto the nodes"
        findings.take("jobs.launcher", "mpiexec", carried.line, source)
    elif carried.value == "deepspeed" and findings.number(f"{JOB}.nodes", 1) > 1:
        source = "deepspeed on several nodes needs ssh between them"
        findings.take("jobs.launcher", "torchrun", carried.line, source)
