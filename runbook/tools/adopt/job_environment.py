"""What a job asks of its queue, its variables, modules, containers and mounts, compared with the site's own."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook.core.units import clock_seconds, show_clock
from runbook.frameworks.options import truth, whole
from runbook.jobs.directives import Directive
from runbook.params.schema.keys import all_keys
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.launches import Launch, option
from runbook.tools.adopt.options import MODELS, dataset_of
from runbook.tools.adopt.script import Script, Word, not_set

_OF_A_JOB = re.compile(
    r"(NCCL|RCCL|FI|UCX|OMPI|CUDA|MIOPEN|CXI|SHARP|TORCH|HSA|ROCR|HIP|MPICH|PMIX?|PALS|HF|TRANSFORMERS|GLOO|OMP|MKL|"
    r"RDMAV|EFA|WANDB|SINGULARITYENV|SINGULARITY|APPTAINER|PYTORCH_CUDA|PYTORCH_HIP|NVTE|XLA|TRITON)_\w+|CXX|CC|TMPDIR|LD_PRELOAD|"
    r"LD_LIBRARY_PATH|PYTHONPATH|(http|https|ftp|no)_proxy|HTTPS?_PROXY|HYDRA_FULL_ERROR|LOGLEVEL"
)
_OURS = {
    "MASTER_ADDR": "the first host of the queue's own list",
    "MASTER_PORT": "made from the job's number, so that two jobs on a node do not meet",
    "RANK": "from the launcher",
    "LOCAL_RANK": "from the launcher",
    "WORLD_SIZE": "from the launcher",
    "OMP_NUM_THREADS": "the cores of a task over its ranks",
    "PYTHONUNBUFFERED": "always set",
    "DLTS_HOSTFILE": "not used: there is no ssh between nodes",
}


def take_variables(script: Script, findings: Findings) -> None:
    """Variables for the job: the site sets some of them already, the others belong in its file."""
    groups = {
        name: (group, value)
        for group, values in findings.site.environment.items()
        for name, value in values.items()
    }
    switched: set[str] = set()
    for setting in {
        setting.name: setting for setting in script.settings
    }.values():  # the last of each name
        name = setting.name
        value = Word(setting.value, setting.line)
        if name in _OURS:
            findings.does(setting.line, f"{name}={value.shown}", _OURS[name])
        elif _OF_A_JOB.fullmatch(name):
            group, own = groups.get(name, ("", None))
            if _variable(name, value, group, own, findings) and group in findings.site.switched_off:
                switched.add(group)
    for line, unset in script.matching(r"^\s*unset\s+(\w+)"):
        if unset[1] in groups and groups[unset[1]][1] is None:
            findings.does(line, f"unset {unset[1]}", f"{findings.site_file} unsets it")
    if words := " ".join(f"+{group}" for group in sorted(switched - {"debug"})):
        findings.take("jobs.switch", words, 0, "the variables of these groups are set")


def _variable(name: str, value: Word, group: str, own: str | None, findings: Findings) -> bool:
    """Report a variable; whether the site's group sets it to the same value."""
    text = f"{name}={value.shown}"
    if own is None:
        findings.leave_to_site(value.line, text, "environment")
        return False
    if not (own == value.text or "{" in own or (name.endswith("PATH") and own in value.shown)):
        findings.leave(value.line, text, f"{findings.site_file} sets it to {own}")
        return False
    does = f"; jobs.switch: +{group}" if group in findings.site.switched_off else " sets it"
    findings.does(value.line, text, f"group {group} of {findings.site_file}{does}")
    return True


def take_modules(script: Script, findings: Findings) -> None:
    """`module load` and activations."""
    for command in script.commands:
        name = command.name
        line = command.line
        words = [name, *(word.text for word in command.words[1:])]
        if words[:2] == ["module", "load"]:
            loads = words[2:]
        elif name == "ml":
            loads = words[1:]
        else:
            loads = []
        for module in loads:
            if module in findings.site.modules:
                findings.does(line, f"module load {module}", f"{findings.site_file} loads it")
            else:
                findings.leave_to_site(
                    line, f"module load {module}", "modules", "the site loads others"
                )
        if words[:2] == ["conda", "activate"] or (
            name in ("source", ".") and words[-1].endswith("activate")
        ):
            text = " ".join([name, *(word.shown for word in command.words[1:])])
            file = text.rpartition(" ")[2].lstrip("./")
            sources = [setup for setup in findings.site.setup if setup.startswith("source ")]
            if text in findings.site.setup or any(setup.endswith(file) for setup in sources):
                findings.does(line, text, f"setup of {findings.site_file} does it")
            else:
                findings.leave(line, text, f"write it under setup of {findings.site_file}")


_LAUNCHERS = ("deepspeed", "torchrun", "mpiexec", "mpirun", "aprun", "srun")
"""Of several around a training the first one counts."""
_OUR_NAME = {"mpirun": "mpiexec", "aprun": "mpiexec"}
_COUNTS = (
    (("torchrun",), ("nnodes",), "jobs.training.nodes"),
    (("torchrun",), ("nproc-per-node",), "jobs.training.devices_per_node"),
    (("deepspeed",), ("num-gpus",), "jobs.training.devices_per_node"),
    (("deepspeed",), ("num-nodes",), "jobs.training.nodes"),
    (("srun",), ("nodes", "N"), "jobs.training.nodes"),
    (("mpiexec", "mpirun"), ("ppn", "npernode"), "jobs.training.devices_per_node"),
)
"""Programs with their options for a number of nodes or devices."""


def take_launch(script: Script, launch: Launch, findings: Findings) -> None:
    """Launcher, container image and mounts, nodes and devices that the launch names."""
    started = next(
        (_OUR_NAME.get(name, name) for name in _LAUNCHERS if name in launch.programs), None
    )
    if started and started != findings.site.launcher:
        findings.take("jobs.launcher", started, launch.command.line, " ".join(launch.programs))
    for programs, names, key in _COUNTS:
        value = option(launch.part(*programs), *names)
        if (
            value
            and value.text.isdigit()
            and int(value.text) > 0
            and not script.assumed(value, key)
        ):
            findings.take(key, int(value.text), value.line, f"--{names[0]}", over=False)
    site = findings.site
    srun = launch.part("srun")
    if image := option(srun, "container-image"):
        take_image(image, findings, "--container-image")
    for name in ("container-mounts", "container-env", "container-workdir", "container-name"):
        if value := option(srun, name):
            why = f"{findings.site_file} has the mounts; the run's folder is always one"
            findings.does(value.line, f"--{name} {value.shown[:60]}", why)
    for word in reversed(launch.part("singularity")):
        if word.text.endswith((".sif", ".simg")) or word.shown.startswith("$"):
            if word.known:
                take_image(word, findings, "singularity exec")
            elif site.container.variable and site.container.variable in word.shown:
                findings.does(word.line, word.shown, f"{findings.site_file}: its module sets it")
            break


def take_image(image: Word, findings: Findings, source: str = "image") -> None:
    """An image that a queue can start; a tag of one machine's docker cannot be pulled."""
    shown = image.shown
    own = findings.site.container.image
    if shown in (own, own.replace("{stage}", "$STAGE_PATH")):
        findings.does(image.line, f"{source} {shown}", f"{findings.site_file} names it")
    elif not image.known:
        stage = Word(image.text.replace(not_set("STAGE_PATH"), "{stage}"), 0).shown
        why = "its value is known only while the script runs: set jobs.image"
        findings.leave(image.line, f"{source} {stage}", why)
    elif is_local_tag(shown):
        remedy = "set jobs.image to registry#name:tag or a .sqsh"
        why = f"a docker tag of one machine, which other nodes cannot pull: {remedy}"
        findings.leave(image.line, f"{source} {shown}", why)
    else:
        findings.take("jobs.image", shown, image.line, source)


def is_local_tag(image: str) -> bool:
    """Whether an image is neither a file nor in a registry.

    >>> is_local_tag("pytorch:22.02-deepspeed"), is_local_tag("nvcr.io#nvidia/pytorch:25.03-py3")
    (True, False)
    """
    return "/" not in image and "#" not in image and not image.endswith((".sqsh", ".sif"))


_NOT_HERE = ("jobs.environment.", "jobs.data.", "jobs.smoke.", "training.smoke.")
_HANDLED_ELSEWHERE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "USE_SEQUENCE_PARALLEL": ("parallel.sequence", truth),
    "GAS": ("gas", whole),  # micro-batches a step of each copy; the batch follows when all is known
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
    values: Mapping[str, Word], findings: Findings, models: Collection[str], *, over: bool
) -> None:
    """Take every variable that a document's script would read; `over` off where options of the script say more."""
    readers: dict[type[Any], Callable[[str], Any]] = {bool: truth, float: float, int: whole}
    for name, value in values.items():
        if name in _READ:
            key, read = _READ[name]
            findings.read(key, value, name, read)
        elif name in _ATTENTION:
            if value.text not in ("", "0"):
                findings.take(
                    "training.attention",
                    _ATTENTION[name],
                    value.line,
                    f"USE_FLASH_ATTN {_ATTENTION[name]}",
                )
        elif name in ("MODEL_SIZE_KEY", "MODEL_SIZE", "model_size"):
            _model(value, findings, models)
        elif name == "NODES":
            findings.read("jobs.training.nodes", value, "NNODES", whole, over=False)
        elif name in _SPECIAL:
            _SPECIAL[name](value, findings)
        elif name in _HANDLED_ELSEWHERE:
            findings.does(value.line, f"{name}={value.shown}", _HANDLED_ELSEWHERE[name])
        elif key := key_of(name):
            findings.read(key, value, name, readers.get(all_keys()[key].kind, str), over=over)


def key_of(name: str) -> str:
    """The key that a document's variable means; empty where it means none.

    >>> key_of("TENSOR_MODEL_PARALLEL_SIZE"), key_of("mp_size"), key_of("NNODES"), key_of("PATH")
    ('parallel.tensor', 'parallel.tensor', 'jobs.training.nodes', '')
    """
    keys = (
        key
        for key in all_keys().values()
        if name in key.documents and not key.name.startswith(_NOT_HERE)
    )
    return next((key.name for key in keys), "")


def leave_unknown(script: Script, values: Mapping[str, Word], findings: Findings) -> None:
    """Exports among `values` that no document's script reads."""
    documents = {name for key in all_keys().values() for name in key.documents}
    known = documents | {"NODES", *_READ, *_ATTENTION, *_SPECIAL, *_HANDLED_ELSEWHERE, *_OURS}
    for setting in script.settings:
        name = setting.name
        if (
            setting.exported
            and name in values
            and name not in known
            and not _OF_A_JOB.fullmatch(name)
        ):
            findings.leave(
                setting.line,
                f"{name}={Word(setting.value, 0).shown}",
                "no document's script reads it",
            )


def _model(value: Word, findings: Findings, models: Collection[str]) -> None:
    """MODEL_SIZE_KEY in capitals, or NeMo's size."""
    if re.fullmatch(r"[\d.]+", value.text):  # LUMI's model_size is a number of billions, for a name
        return
    size = value.text.lower()
    name = MODELS.get(size, "") if findings.site.site == "aws" else ""
    name = name or next((model for model in models if model.lower() == size), "")
    if name and value.known:
        findings.take("model", name, value.line, value.text)
        findings.drop("training.shape.layers", "training.shape.hidden", "training.shape.heads")
    else:
        findings.leave(
            value.line,
            f"model size {value.shown}",
            "params/models.yaml has no such model: write an entry",
        )


def _shared_folder(value: Word, findings: Findings) -> None:
    """A folder on the shared file system; of AWS's source:target the target."""
    text = value.text.rpartition(":")[2]
    placeholder = not text.startswith("/") or "username" in text or "your-" in text
    if value.known and not placeholder:
        findings.take("jobs.stage", text.rstrip("/") or "/", value.line, "the shared folder")
    else:
        findings.leave(
            value.line, f"shared folder {value.shown}", "not a folder yet: set jobs.stage"
        )


def _dataset_folder(value: Word, findings: Findings) -> None:
    if dataset_of(value.text):
        _dataset(value.text, value.line, findings)
    else:
        findings.leave(
            value.line, f"DATASET_FOLDER_NAME={value.shown}", "set data.dataset, or data.folder"
        )


def _data_path(value: Word, findings: Findings) -> None:
    _dataset(value.shown, value.line, findings)
    if value.known and value.text.startswith("/"):
        findings.does(
            value.line,
            f"DATA_PATH={value.text}",
            "params/sites: paths.data; another place: data.folder",
        )


def _dataset(text: str, line: int, findings: Findings) -> None:
    if dataset := dataset_of(text):
        findings.take("data.dataset", dataset, line, "DATASET_FOLDER_NAME")
        findings.leftovers[:] = [
            item for item in findings.leftovers if not item.text.startswith("token files")
        ]


def _sequence_type(value: Word, findings: Findings) -> None:
    """SP_TYPE: megatron cuts along the tensor ranks, ds exchanges heads for sequence (Ulysses)."""
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
    findings.does(
        value.line, f"number of devices {value.shown}", "computed: nodes x devices on a node"
    )


_SPECIAL: dict[str, Callable[[Word, Findings], None]] = {
    **dict.fromkeys(
        ("STAGE_PATH", "FSX_MOUNT", "SHARED_FS", "home_dir", "WORKSPACE"), _shared_folder
    ),
    **dict.fromkeys(("IMAGE", "CONTAINER_IMAGE", "SQUASHED_PYTORCH_IMAGE"), take_image),
    **dict.fromkeys(("DATA_PATH", "BASE_DATA_PATH"), _data_path),
    "DATASET_FOLDER_NAME": _dataset_folder,
    "SP_TYPE": _sequence_type,
    "USE_SHARP": _sharp,
    "num_gpus": _num_devices,
}


JOB = "jobs.training"


def clock(text: str) -> str:
    """A time limit as the run file has it; Slurm's bare number is minutes.

    >>> clock("30"), clock("1-00:00:00"), clock("01:00:00"), clock('"45:00"')
    ('00:30:00', '24:00:00', '01:00:00', '00:45:00')
    """
    if not (seconds := clock_seconds(text.strip('"'))):
        raise ValueError(text)
    return show_clock(seconds)


def _devices(text: str) -> int:
    return int(re.findall(r"\d+", text)[-1]) if re.search(r"\d", text) else whole("")


_SLURM: dict[str, tuple[str, Callable[[str], object]]] = {
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
_PBS: dict[str, tuple[str, Callable[[str], object]]] = {
    "q": (f"{JOB}.partition", str),
    "A": ("jobs.account", str),
    "walltime": (f"{JOB}.walltime", clock),
}
_OUR_DIRECTIVES = json.loads(
    Path(__file__).with_name("directives.json").read_text(encoding="utf-8")
)


def take_directives(directives: Sequence[Directive], findings: Findings) -> None:
    """Values of #SBATCH and #PBS lines; what the site asks for already, or the runbook always gives, needs no key."""
    for directive in directives:
        name = directive.name
        line = directive.line
        sign = f"{'#SBATCH --' if directive.queue == 'slurm' else '#PBS '}{name}"
        table = _SLURM if directive.queue == "slurm" else _PBS
        text = f"{sign}={directive.value}" if directive.value else sign
        if directive.queue == "pbs" and name == "select":
            nodes, _, rest = directive.value.partition(":")
            findings.read(f"{JOB}.nodes", Word(nodes, line), "#PBS -l select", whole)
            if rest and rest != findings.site.directives.get("select"):
                findings.leave_to_site(
                    line, f"#PBS -l select={directive.value}", "directives.select", rest
                )
        elif name in table:
            key, read = table[name]
            findings.read(key, Word(directive.value, line), sign, read)
        elif findings.site.directives.get(name) == directive.value:
            findings.does(line, text, f"{findings.site_file} asks for it")
        elif name in _OUR_DIRECTIVES:
            findings.does(line, text, _OUR_DIRECTIVES[name])
        else:
            findings.leave_to_site(line, text, "directives")


def drop_defaults(findings: Findings, one_task: bool) -> None:
    """Leave out what a job gets anyway, so that the run file says what is special."""
    hardware = findings.site.hardware
    devices = findings.devices_per_node
    usual_tasks = 1 if one_task else devices
    cores = hardware.cores_per_node // max(
        1, findings.number(f"{JOB}.tasks_per_node") or usual_tasks
    )
    for key, usual in (
        ("tasks_per_node", usual_tasks),
        ("devices_per_node", hardware.devices_per_node),
        ("memory", findings.site.directives.get("mem")),
        ("cpus_per_task", cores),
    ):
        if findings.value(f"{JOB}.{key}") == usual:
            findings.drop(f"{JOB}.{key}")


def drop_ssh(findings: Findings) -> None:
    """DeepSpeed's own launcher reaches other nodes by ssh, which a queue's nodes rarely allow: torchrun instead."""
    if findings.value("jobs.launcher") == "deepspeed" and findings.number(f"{JOB}.nodes", 1) > 1:
        line = findings.carried["jobs.launcher"].line
        findings.take(
            "jobs.launcher",
            "torchrun",
            line,
            "deepspeed over several nodes, which needs ssh between them",
        )
