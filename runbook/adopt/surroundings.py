"""What surrounds a job: variables, modules, activations, container and mounts, held against the site's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.adopt.findings import Findings
from runbook.adopt.launches import Launch, option
from runbook.adopt.marks import Word
from runbook.adopt.script import Script
from runbook.params.catalogue import Launcher, Site

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
STAGE = "$STAGE_PATH"


def is_of_a_job(name: str) -> bool:
    """Whether a variable is one of the job's surroundings."""
    return name in _OURS or bool(_OF_A_JOB.fullmatch(name))


def take_variables(script: Script, findings: Findings, site: Site) -> None:
    """Variables for the job: those that the site sets alike need no key, the others belong into the site's file."""
    groups = {name: (group, value) for group, values in site.environment.items() for name, value in values.items()}
    switched: set[str] = set()
    seen: set[str] = set()
    for one in reversed(script.settings):
        if one.name in seen:
            continue
        if one.name in _OURS:
            findings.does(one.line, f"{one.name}={Word(one.value, 0).shown}", _OURS[one.name])
        elif _OF_A_JOB.fullmatch(one.name):
            _variable(one.name, Word(one.value, one.line), groups, switched, findings, site)
        else:
            continue
        seen.add(one.name)
    for name in script.followed.unsets:
        if name.text in groups and groups[name.text][1] is None:
            findings.does(name.line, f"unset {name.text}", f"params/sites/{site.site}.yaml unsets it")
    if switched:
        words = " ".join(f"+{group}" for group in sorted(switched))
        findings.take("jobs.switch", words, 0, "the variables of these groups are set")


def _variable(
    name: str,
    value: Word,
    groups: dict[str, tuple[str, str | None]],
    switched: set[str],
    findings: Findings,
    site: Site,
) -> None:
    text = f"{name}={value.shown}"
    group, own = groups.get(name, ("", None))
    same = own is not None and (own == value.text or "{" in own or (name.endswith("PATH") and own in value.shown))
    if same and group in site.switched_off:
        if group != "debug":
            switched.add(group)
        findings.does(value.line, text, f"group {group} of params/sites/{site.site}.yaml; jobs.switch: +{group}")
    elif same:
        findings.does(value.line, text, f"group {group} of params/sites/{site.site}.yaml sets it")
    elif own is not None:
        findings.leave(value.line, text, f"params/sites/{site.site}.yaml sets it to {own}")
    else:
        where = f"write it under environment of params/sites/{site.site}.yaml"
        findings.leave(value.line, text, f"no key of the run file has it: {where}")


def take_modules(script: Script, findings: Findings, site: Site) -> None:
    """`module load` and activations."""
    for command in script.commands:
        words = [word.text for word in command.words]
        name = words[0].rpartition("/")[2]
        loads = words[2:] if words[:2] == ["module", "load"] else words[1:] if name == "ml" else []
        for module in loads:
            if module in site.modules:
                findings.does(command.line, f"module load {module}", f"params/sites/{site.site}.yaml loads it")
            else:
                where = f"write it under modules of params/sites/{site.site}.yaml"
                findings.leave(command.line, f"module load {module}", f"the site loads others: {where}")
        activates = words[:2] == ["conda", "activate"] or (name in ("source", ".") and words[-1].endswith("activate"))
        if activates:
            text = " ".join(word.shown for word in command.words)
            if any(_same_activation(text, setup) for setup in site.setup):
                findings.does(command.line, text, f"setup of params/sites/{site.site}.yaml does it")
            else:
                findings.leave(command.line, text, f"write it under setup of params/sites/{site.site}.yaml")


def _same_activation(text: str, setup: str) -> bool:
    return text == setup or (setup.startswith("source ") and setup.endswith(text.rpartition(" ")[2].lstrip("./")))


def take_launch(launch: Launch, findings: Findings, site: Site) -> None:
    """Launcher, container image and mounts, nodes and devices that the launch names."""
    started = _launcher(launch)
    if started and started is not site.launcher:
        findings.take("jobs.launcher", str(started), launch.line, " ".join(launch.programs))
    starter = launch.part("torchrun") or ()
    for words, names, key in (
        (starter, ("nnodes",), "jobs.training.nodes"),
        (starter, ("nproc-per-node",), "jobs.training.devices_per_node"),
        (launch.part("deepspeed") or (), ("num-gpus",), "jobs.training.devices_per_node"),
        (launch.part("deepspeed") or (), ("num-nodes",), "jobs.training.nodes"),
        (launch.part("srun") or (), ("nodes", "N"), "jobs.training.nodes"),
        (launch.part("mpiexec", "mpirun") or (), ("ppn", "npernode"), "jobs.training.devices_per_node"),
    ):
        value = option(words, *names)
        if value and value.known and value.text.isdigit() and int(value.text) > 0:
            findings.take(key, int(value.text), value.line, f"--{names[0]}", over=False)
    _container(launch, findings, site)


def _launcher(launch: Launch) -> Launcher | None:
    if launch.part("deepspeed") is not None:
        return Launcher.DEEPSPEED
    if launch.part("torchrun") is not None:
        return Launcher.TORCHRUN
    if launch.part("mpiexec", "mpirun", "aprun") is not None:
        return Launcher.MPIEXEC
    return Launcher.SRUN if launch.part("srun") is not None else None


def _container(launch: Launch, findings: Findings, site: Site) -> None:
    srun = launch.part("srun") or ()
    image = option(srun, "container-image")
    if image is not None:
        take_image(image, findings, site, "--container-image")
    for name in ("container-mounts", "container-env", "container-workdir", "container-name"):
        value = option(srun, name)
        if value is not None:
            text = f"--{name} {value.shown[:60]}"
            findings.does(
                value.line, text, f"params/sites/{site.site}.yaml has the mounts; the run's folder is always one"
            )
    words = launch.part("singularity")
    if words:
        images = [word for word in words if word.text.endswith((".sif", ".simg")) or word.shown.startswith("$")]
        if images and images[-1].known:
            take_image(images[-1], findings, site, "singularity exec")
        elif images and site.container.variable and site.container.variable in images[-1].shown:
            findings.does(images[-1].line, images[-1].shown, f"params/sites/{site.site}.yaml: its module sets it")


def take_image(image: Word, findings: Findings, site: Site, source: str) -> None:
    """An image that a queue can start; a tag of one machine's docker cannot be pulled."""
    text = image.shown
    own = site.container.image.replace("{stage}", STAGE)
    if text in (own, site.container.image):
        findings.does(image.line, f"{source} {text}", f"params/sites/{site.site}.yaml names it")
    elif not image.known:
        stage = image.text.replace("\ue002$STAGE_PATH\ue003", "{stage}")
        why = "its value is known only while the script runs: set jobs.image"
        findings.leave(image.line, f"{source} {Word(stage, 0).shown}", why)
    elif is_local_tag(text):
        why = (
            "a docker tag of one machine, which other nodes cannot pull: set jobs.image to registry#name:tag or a .sqsh"
        )
        findings.leave(image.line, f"{source} {text}", why)
    else:
        findings.take("jobs.image", text, image.line, source)


def is_local_tag(image: str) -> bool:
    """Whether an image is neither a file nor in a registry.

    >>> is_local_tag("pytorch:22.02-deepspeed"), is_local_tag("nvcr.io#nvidia/pytorch:25.03-py3")
    (True, False)
    """
    return "/" not in image and "#" not in image and not image.endswith((".sqsh", ".sif"))


def personal_paths(script: Script) -> Sequence[tuple[int, str]]:
    """Home folders of people that stand in commands, with their lines."""
    found = []
    for line, match in script.matching(r"(?<![\w/.])/(?:users|home|homes)/([A-Za-z][\w.-]*)"):
        text = script.lines[line - 1].lstrip()
        if not text.startswith("#"):
            found.append((line, match[0]))
    return found
