"""Ranks and devices: which process in the job this is, and the device it computes on.

This module does not import torch.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.node_lists import first_name
from runbook.training.messages import TrainingMessage


@dataclass(frozen=True)
class Ranks:
    """This process among all processes in the job."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str
    master_address: str
    master_port: int

    @property
    def is_last(self) -> bool:
        """Return whether this rank writes the log.

        The last rank writes it, since it is in the last pipeline stage.
        """
        return self.rank == self.world_size - 1


_LAUNCHERS = {
    "torchrun": (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",)),
    "srun": (("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS",), ("SLURM_LOCALID",)),
    "mpiexec": (
        ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID"),
        ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
    ),
}


def ranks_from(environment: Mapping[str, str]) -> Ranks:
    """Return the rank and world size from variables set by the launcher.

    Without a launcher there is only one rank. SLURM_PROCID alone does not prove that there is a
    launcher, because a batch script, which is not a task in a step, has this variable too.

    >>> ranks_from({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_ADDR": "n1",
    ... "MASTER_PORT": "29500"})
    Ranks(rank=3, world_size=8, local_rank=3, launcher='torchrun', master_address='n1', master_port=29500)
    >>> ranks_from({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}).launcher
    'alone'
    """
    for launcher, names in _LAUNCHERS.items():
        rank, world_size, local_rank = (_first(environment, group) for group in names)
        if rank is not None and world_size is not None:
            address, port = _master(environment, launcher, world_size)
            return Ranks(
                rank,
                world_size,
                local_rank or 0,
                launcher,
                address,
                port,
            )

    return Ranks(
        0,
        1,
        0,
        "alone",
        "",
        0,
    )


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if environment.get(name):
            try:
                return int(environment[name])
            except ValueError:
                raise RefusedError(
                    TrainingMessage.NOT_A_RANK, name=name, environment=environment[name]
                ) from None

    return None


def _master(environment: Mapping[str, str], launcher: str, world_size: int) -> tuple[str, int]:
    if world_size == 1:
        return "", 0
    address = environment.get("MASTER_ADDR", "")
    port = environment.get("MASTER_PORT", "")
    if launcher == "srun":
        address = address or first_name(environment.get("SLURM_STEP_NODELIST", ""))
        port = port or str(20000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000)

    if not address or not port.isdigit():
        raise RefusedError(
            TrainingMessage.NO_MEETING_PLACE,
            launcher=launcher,
            world_size=world_size,
            address=address,
            port=port,
        )

    return address, int(port)


def die_with_launcher(ranks: Ranks) -> None:
    """Ask Linux to kill this process when the launcher dies.

    Otherwise ranks would continue computing after the job has ended.

    A process started alone keeps running when its shell ends, to let people detach it.
    """
    if ranks.launcher == "alone" or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    # PR_SET_PDEATHSIG, <sys/prctl.h>
    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(
        set_parent_death_signal,
        signal.SIGKILL,
        0,
        0,
        0,
    )
    # The launcher died before prctl was called
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


# The device in plans for a site without accelerators. Every other value names an accelerator
CPU = "cpu"

HIDDEN_BY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables for CUDA and ROCm, which can be set to an empty value to hide every GPU from torch."""

SHOWN_BY = (*HIDDEN_BY, "ROCR_VISIBLE_DEVICES")
"""Variables a launcher uses to show each rank only its own GPU."""


def use_planned_device(device: str) -> None:
    """Use the device the plan names: the GPUs that torch finds, or a CPU.

    Call this before torch first searches for a GPU.
    """
    if device == CPU:
        hide_gpus()
        if on_gpu():
            raise RefusedError(
                TrainingMessage.GPUS_SEEN_BEFORE, cpu=CPU, hidden_by=" and ".join(HIDDEN_BY)
            )
    elif not on_gpu():
        import torch

        if torch.version.cuda:
            built_for = "CUDA"
        elif torch.version.hip:
            built_for = "ROCm"
        else:
            built_for = "the CPU alone"

        raise RefusedError(
            TrainingMessage.NO_GPU, device=device, version=torch.__version__, built_for=built_for
        )


def hide_gpus() -> None:
    """Hide all GPUs from this process and its children.

    Call this before torch uses a GPU for the first time.
    """
    os.environ.update(dict.fromkeys(HIDDEN_BY, ""))


def on_gpu() -> bool:
    """Return whether this rank computes on a GPU.

    This requires that the plan names a GPU and that `use_planned_device` has been called.
    """
    import torch

    return torch.cuda.is_available()


def cores_of_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many cores this rank can use.

    Ranks that torchrun has started on this machine share the cores given to the process.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1

    return max(1, cores // int(environment.get("LOCAL_WORLD_SIZE") or 1))


def own_gpu(local_rank: int, visible: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return the index of the GPU for this rank among the visible GPUs.

    The index is the local rank, or 0 if the launcher shows each rank only one GPU.

    >>> own_gpu(1, 2, {}), own_gpu(3, 1, {"CUDA_VISIBLE_DEVICES": "3"})
    (1, 0)
    """
    if local_rank < visible:
        return local_rank
    visible_lists = []
    for name in SHOWN_BY:
        if environment.get(name):
            visible_lists.append(environment[name])

    if visible == 1 and visible_lists and all("," not in value for value in visible_lists):
        return 0
    raise RefusedError(TrainingMessage.NO_GPU_OF_ITS_OWN, local_rank=local_rank, visible=visible)


def claim_gpu(store: Any, rank: int, number: int) -> None:
    """Refuse to train if two ranks use the same GPU.

    All ranks share `store`. NCCL would report the conflict only at the first collective, and not
    name the ranks. Two ranks that each see a single GPU as number 0 cannot notice the conflict on
    their own. A GPU without an identity (older torch versions) is not checked.
    """
    import torch

    gpu = torch.cuda.get_device_properties(number)
    host = socket.gethostname()
    identity = f"{getattr(gpu, 'uuid', '')} {getattr(gpu, 'pci_bus_id', '')}".strip()
    if identity and store.add(f"runbook GPU {host} {identity}", 1) > 1:
        raise RefusedError(TrainingMessage.GPU_SHARED, rank=rank, identity=identity, host=host)
