"""Properties that a run and its site expect of each node."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.params import Settings
from runbook.params.schema.value_types import Framework
from runbook.params.variable_groups import switched_on
from runbook.plan_file.phase_names import FULL
from runbook.planning import Plan
from runbook.planning.cost.accelerators import ACCELERATORS, Accelerator

CPU = "cpu"


@dataclass(frozen=True)
class Expectations:
    """The properties that a node must have for this run."""

    device: str
    """The accelerator name, or cpu."""
    accelerator: Accelerator | None
    """The accelerator's datasheet, or None for a CPU or a device that is not in the table."""
    devices_per_node: int
    cores_per_node: int
    """0 if the site file does not state the number of cores."""
    node_memory: int
    """Bytes of main memory per node, or 0 if the site file does not state it."""
    fabric: str
    """Name of the fast network; empty if there is none or if its name is not known."""
    network_bytes: float
    """Network bytes per second per node, or 0 if the site file does not state the speed."""
    checkpoint_bytes: int
    """Bytes of one checkpoint, according to the plan."""
    walltime: int
    """Seconds that the preflight job requested; 0 if the preflight runs on this machine."""
    has_queue: bool
    environment: Mapping[str, Mapping[str, str | None]]
    framework: Framework
    hides_home: bool = False
    """Whether the job's programs run in a container without the home folder."""
    shell: Mapping[str, str] = field(default_factory=dict)
    """The variables of the shell that submits the job."""

    @property
    def on_cpu(self) -> bool:
        """Return whether the ranks compute on the CPU."""
        return self.device == CPU


def expectations_of(settings: Settings, plan: Plan, walltime: int) -> Expectations:
    """Return the properties that the run expects of its nodes."""
    site = settings.site
    hardware = site.hardware
    device = plan.phases[FULL].device
    return Expectations(
        device=device,
        accelerator=ACCELERATORS.get(hardware.device),
        devices_per_node=settings.job(FULL).devices_per_node,
        cores_per_node=hardware.cores_per_node,
        node_memory=int(hardware.node_memory),
        fabric=hardware.fabric,
        network_bytes=hardware.network * 1e9,
        checkpoint_bytes=int(plan.checkpoint[FULL].checkpoint_bytes),
        walltime=walltime,
        has_queue=site.scheduler != "local",
        environment=switched_on(settings),
        framework=settings.run.training.framework,
        shell=dict(os.environ),
        hides_home=site.container.kind != "none" and not site.container.home,
    )
