"""Types of plan.json as a whole: the plan of a run as frozen dataclasses."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.core.checks import Check
from runbook.core.errors import RecordError
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import as_json, from_json
from runbook.plan_file.schema import PhasePlan, Shape
from runbook.planning.cost.endurance import Endurance, Storage
from runbook.planning.cost.memory import PhaseMemory
from runbook.planning.cost.speed import Calibration, Speed
from runbook.planning.sizes import Parameters
from runbook.planning.token_files import DataPlan, PreparationCost

SCHEMA = 1


@dataclass(frozen=True)
class ComputesOn:
    """The devices of a node, and who says so: the site's file, or the program that listed this machine's GPUs."""

    device: str
    devices_per_node: int
    device_memory: int
    source: str


@dataclass(frozen=True, kw_only=True)
class CatalogueModel(Shape):
    """The model as the catalogue has it, where 0 stands for a default, with the numbers of the training."""

    name: str
    label: str
    parameters: int
    source: str
    note: str
    training: dict[str, Any]


@dataclass(frozen=True)
class Label:
    """What people call a model, compared with its count of parameters."""

    model: str
    label: str
    parameters: int
    fits: bool
    text: str


@dataclass(frozen=True)
class PhaseParameters:
    """Parameters of a phase's model by part and by rank, and the loss it begins with."""

    whole: Parameters
    per_rank_by_stage: tuple[int, ...]
    padded_vocabulary: int
    first_loss: float


@dataclass(frozen=True)
class PhaseFlops:
    """FLOPs of a phase by convention; `convention` is the one that trainer and plan report in."""

    convention: str
    per_iteration: dict[str, float]
    per_token: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """The content of plan.json; sections by phase are under the phase's name."""

    schema: int
    run: str
    site: str
    variant: str
    computes_on: ComputesOn
    model: CatalogueModel
    phases: dict[str, PhasePlan]
    data: DataPlan
    data_work: tuple[PreparationCost, ...]
    labels: tuple[Label, ...]
    parameters: dict[str, PhaseParameters]
    memory: dict[str, PhaseMemory]
    flops: dict[str, PhaseFlops]
    checkpoint: dict[str, Storage]
    time: dict[str, Speed]
    calibration: dict[str, Calibration | None]
    endurance: Endurance
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the caller's own copy."""
        content: dict[str, Any] = as_json(self)
        return content


def parse_plan(text: str, source: Path) -> Plan:
    """The plan in the text of a plan.json; `RecordError` names the file, every problem and the remedy."""
    try:
        return from_json(Plan, json.loads(text), name="plan.json", failure=f"{source} is not a plan of this version:")
    except RefusedError as error:
        raise RecordError(f"{error}\nDelete it and run 00-plan again.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not JSON ({error}); delete it and run 00-plan again.") from error
