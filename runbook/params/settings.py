"""Everything one run was asked to be: the values, the catalogue entries they name, and where each came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from runbook.errors import ParamsError
from runbook.params.catalogue import Launcher, Model, Site
from runbook.params.dataset import Dataset, Text
from runbook.params.keys import all_keys, sections
from runbook.params.layers import Origin
from runbook.params.rehearsal import LAYER
from runbook.params.schema import JOB_SECTIONS, Job, Run


@dataclass(frozen=True)
class Settings:
    """A run, bound to its site, model and dataset."""

    run: Run
    site: Site
    model: Model
    smoke_model: Model
    smoke_model_name: str
    dataset: Dataset
    origins: Mapping[str, tuple[Origin, ...]]
    """By dotted key: every layer's word, the winning one last."""

    project: Path
    variant: str = ""
    blend: tuple[Text, ...] = ()
    """The texts of data.blend, where it names some."""

    @property
    def name(self) -> str:
        """Name of the run's folder: `lumi-13b`, or `lumi-13b--2n-zero2` for a variant."""
        return f"{self.run.run}--{self.variant}" if self.variant else self.run.run

    @property
    def texts(self) -> tuple[Text, ...]:
        """Every text of the training: those of data.blend, or data.dataset alone."""
        data = self.run.data
        return self.blend or (Text(data.dataset, 1.0, self.dataset, data.folder),)

    def value(self, key: str) -> Any:
        """The value of a dotted key, as plain text or number."""
        value: Any = self.run
        for part in key.split("."):
            value = getattr(value, part)
        return str(value) if isinstance(value, StrEnum) else value

    def values(self) -> dict[str, Any]:
        """Every value by its dotted key, in the schema's order."""
        return {key: self.value(key) for key in all_keys()}

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Every value beside its origin, as the twin keeps it."""
        return {key: {"value": value, "origin": str(self.origins[key][-1])} for key, value in self.values().items()}

    def rehearsed(self) -> dict[str, str]:
        """What the site changed of another site's run file, and why; empty where the run is at home."""
        return {key: chain[-1].where for key, chain in self.origins.items() if chain and chain[-1].layer == LAYER}

    def subset(self, prefixes: Iterable[str]) -> dict[str, Any]:
        """The values at or below dotted prefixes, for a step's fingerprint.

        A prefix that is no key is our own bug, so it is not passed over.
        """
        wanted = list(prefixes)
        for prefix in wanted:
            assert prefix in all_keys() or prefix in sections(), f"{prefix} is neither a key nor a section"
        return {
            key: value
            for key, value in self.values().items()
            if any(key == prefix or key.startswith(f"{prefix}.") for prefix in wanted)
        }

    def job(self, phase: str) -> Job:
        """What a phase asks of the scheduler, with what it leaves open filled in from the site."""
        if phase not in JOB_SECTIONS:
            raise ParamsError(f"{phase} submits no job; these do: {', '.join(JOB_SECTIONS)}.")
        job: Job = getattr(self.run.jobs, JOB_SECTIONS[phase])
        devices = job.devices_per_node or self.site.hardware.devices_per_node
        one_task = self.site.launcher in (Launcher.TORCHRUN, Launcher.DEEPSPEED)
        tasks = job.tasks_per_node or (1 if one_task else devices)
        cores = self.site.hardware.cores_per_node // tasks
        return job.model_copy(
            update={
                "devices_per_node": devices,
                "tasks_per_node": tasks,
                "cpus_per_task": job.cpus_per_task or cores,
                "account": job.account or self.run.jobs.account,
            }
        )

    def as_yaml(self) -> str:
        """The text of run.yaml: every resolved value in the schema's order; reading it gives the same run."""
        from runbook.params.writing import write_run

        return write_run(self)
