"""What the run and its site let one expect of a node."""

from collections.abc import Mapping
from dataclasses import dataclass

from runbook.params import Settings
from runbook.params.environment import switched_on
from runbook.params.schema.value_types import Framework
from runbook.planning import FULL, Plan
from runbook.planning.cost.accelerators import ACCELERATORS, Accelerator

CPU = "cpu"


@dataclass(frozen=True)
class Expectations:
    """What a node is to have for this run."""

    device: str
    """The accelerator's name, or cpu."""
    accelerator: Accelerator | None
    """Its datasheet. None for a CPU, or a device that is not in the table."""
    devices_per_node: int
    cores_per_node: int
    """0: the site does not say."""
    fabric: str
    """The fast network's name; empty if there is none, or none is known."""
    network_bytes: float
    """Bytes a second that a node's network carries; 0: the site does not say."""
    checkpoint_bytes: int
    """What the plan writes for one checkpoint."""
    walltime: int
    """Seconds that the preflight job was asked for; 0 on this machine."""
    has_queue: bool
    environment: Mapping[str, Mapping[str, str | None]]
    framework: Framework

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks compute on the CPU."""
        return self.device == CPU


def expectations_of(settings: Settings, plan: Plan, walltime: int) -> Expectations:
    """Return what the run expects of its nodes."""
    site = settings.site
    hardware = site.hardware
    device = plan.phases[FULL].device
    return Expectations(
        device=device,
        accelerator=ACCELERATORS.get(hardware.device),
        devices_per_node=settings.job(FULL).devices_per_node,
        cores_per_node=hardware.cores_per_node,
        fabric=hardware.fabric,
        network_bytes=hardware.network * 1e9,
        checkpoint_bytes=int(plan.checkpoint[FULL].checkpoint_bytes),
        walltime=walltime,
        has_queue=site.scheduler != "local",
        environment=switched_on(settings),
        framework=settings.run.training.framework,
    )
