"""Finds the GPUs in this machine, for sites with `hardware.device: auto`.

nvidia-smi or rocm-smi lists the GPUs.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from runbook.core import shell
from runbook.core.errors import ParamsError, ProgramError
from runbook.core.units import show_bytes
from runbook.params.messages import ParamsMessage
from runbook.params.schema.site import AUTO, Fact, Site

NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits")
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--json")
VISIBLE = {
    NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Variables that restrict torch to some GPUs. nvidia-smi and rocm-smi ignore them, and list all
GPUs.
"""

PATIENCE_SECONDS = 30.0
"""Timeout for nvidia-smi, which must first wake each GPU if no persistence daemon is running."""


@dataclass(frozen=True)
class Gpu:
    """A device, as PyTorch will see it."""

    name: str
    memory_bytes: int
    uuid: str = ""


def with_visible_gpus(site: Site, environment: Mapping[str, str] = os.environ) -> Site:
    """Replace `device: auto` in a site by the GPUs in this machine.

    Other sites are returned unchanged. If no GPU is visible, the device stays `auto`, which no plan
    accepts. Different GPU models on one machine are refused.
    """
    hardware = site.hardware
    if hardware.device != AUTO:
        return site
    variables = sorted({name for names in VISIBLE.values() for name in names} & environment.keys())
    program, gpus = visible_gpus(
        environment.get("PATH", ""), tuple((name, environment[name]) for name in variables)
    )
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        raise ParamsError(
            ParamsMessage.DIFFERENT_GPUS, site=site.site, program=program, names=", ".join(names)
        )

    if not gpus:
        return site.model_copy(
            update={"hardware": hardware.model_copy(update={"devices_per_node": 1})}
        )

    number = min(len(gpus), hardware.devices_per_node or len(gpus))
    memory = min(gpu.memory_bytes for gpu in gpus)
    local_hardware = hardware.model_copy(
        update={"device": names[0], "devices_per_node": number, "device_memory": memory}
    )
    source = ParamsMessage.GPUS_OF_THIS_MACHINE.fill(
        program=program, number=len(gpus), name=names[0], memory=show_bytes(memory)
    )
    facts = {**site.facts, "hardware.device": Fact(source=source)}
    return site.model_copy(update={"hardware": local_hardware, "facts": facts})


@cache
def visible_gpus(path: str, visibility: tuple[tuple[str, str], ...]) -> tuple[str, tuple[Gpu, ...]]:
    """Return the program that answered, and the GPUs visible to torch.

    The result is cached for the process, because the form computes a plan on each key press. The
    result depends only on `path`, the PATH variable, and on `visibility`, the variables listed in
    `VISIBLE`.
    """
    visible_variables = dict(visibility)
    for command, parse in ((NVIDIA, parse_nvidia), (AMD, parse_amd)):
        if shutil.which(command[0], path=path) is None:
            continue
        try:
            gpus = parse(shell.run(command, timeout=PATIENCE_SECONDS, env={"PATH": path}).out)
        except (
            ProgramError
            # For example "couldn't communicate with the NVIDIA driver": nvidia-smi is installed,
            # but lists no GPU
        ):
            continue

        for name in VISIBLE[command]:
            if name in visible_variables:
                gpus = choose_visible(gpus, visible_variables[name])

        if gpus:
            return command[0], tuple(gpus)

    return "", ()


def parse_nvidia(text: str) -> list[Gpu]:
    r"""Parse the GPUs from the output of the command `NVIDIA`.

    >>> parse_nvidia("NVIDIA H100 80GB HBM3, 81559, GPU-5a1e\n")
    [Gpu(name='NVIDIA H100 80GB HBM3', memory_bytes=85520809984, uuid='GPU-5a1e')]
    >>> parse_nvidia("No devices were found\n"), parse_nvidia("NVIDIA GB10, [N/A], GPU-1\n")[0].memory_bytes
    ([], 0)
    """
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.rsplit(",", 2)]
        if len(cells) != 3:
            continue
        name, mebibytes, uuid = cells
        memory_bytes = int(mebibytes) * 2**20 if mebibytes.isdigit() else 0
        gpus.append(Gpu(name, memory_bytes, uuid))

    return gpus


def parse_amd(text: str) -> list[Gpu]:
    """Parse the GPUs from the output of the command `AMD`, one per card.

    Each GCD in an MI250X counts as a card.

    The keys in the output changed between versions.

    >>> card = '"Card Series": "AMD Instinct MI300X OAM", "VRAM Total Memory (B)": "206141652992", "Unique ID": "0x9f"'
    >>> parse_amd('{"card0": {' + card + '}, "system": {"Driver version": "6.12.12"}}')
    [Gpu(name='AMD Instinct MI300X OAM', memory_bytes=206141652992, uuid='GPU-9f')]
    >>> parse_amd("WARNING: No AMD GPUs specified")
    []
    """
    try:
        cards = json.loads(text[text.index("{") :])
    except ValueError:
        return []

    gpus = []
    keys = [key for key in cards if re.fullmatch(r"card\d+", key)]
    for key in sorted(keys, key=lambda key: int(key[4:])):
        gpu = _amd_gpu(cards[key])
        if gpu.name:
            gpus.append(gpu)

    return gpus


def _amd_gpu(card: Mapping[str, object]) -> Gpu:
    """Return the GPU for a card that rocm-smi lists.

    Its name is empty if no key contains it.
    """
    values = {str(key).lower(): str(value) for key, value in card.items()}
    name = values.get("card series") or values.get("device name") or values.get("card model", "")
    memory = values.get("vram total memory (b)", "")
    memory_bytes = int(memory) if memory.isdigit() else 0
    uuid = values.get("unique id", "").removeprefix("0x")
    return Gpu(name, memory_bytes, f"GPU-{uuid}" if uuid else "")


def choose_visible(gpus: Sequence[Gpu], variable: str) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES or a similar variable names.

    As in CUDA, the list ends at the first word that does not name a GPU.

    >>> both = [Gpu("a", 1, "GPU-7f"), Gpu("b", 1, "GPU-80")]
    >>> [gpu.name for gpu in choose_visible(both, "1,0")], choose_visible(both, ""), choose_visible(both, "-1,0")
    (['b', 'a'], [], [])
    >>> [gpu.name for gpu in choose_visible(both, "GPU-80,9,0")]
    ['b']
    """
    chosen: list[Gpu] = []
    for word in (part.strip() for part in variable.split(",")):
        named = []
        for gpu in gpus:
            if word.startswith("GPU-") and gpu.uuid.startswith(word):
                named.append(gpu)

        if word.isdigit() and int(word) < len(gpus):
            named = [gpus[int(word)]]
        if len(named) != 1:
            break
        chosen += named

    return chosen
