"""Settings for a run: values with their origins, site, model and datasets.

The module also finds the values that the site requires but the run does not set.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runbook.core.errors import ParamsError
from runbook.core.units import show_count, show_duration
from runbook.params.layers import SCALED_DOWN, Origin
from runbook.params.messages import ParamsMessage
from runbook.params.problems import InvalidParams, Problem, show
from runbook.params.schema.entries import Dataset, Model, TextShare
from runbook.params.schema.keys import all_keys, full_path, sections
from runbook.params.schema.run_file import JOB_SECTIONS, Job, Run
from runbook.params.schema.site import Checkout, Container, Site
from runbook.params.unknown_keys import right_name
from runbook.params.yaml12 import nest, write_tree


def tokenizer_path(name: str, project: Path) -> str:
    """Return `gpt2`, or the path of the tokenizer that data.tokenizer names.

    A relative path starts at the project's folder, like data.folder.
    """
    if name == "gpt2":
        return name
    return str(project / Path(name).expanduser())


@dataclass(frozen=True)
class Settings:
    """A run with its site, model and dataset."""

    run: Run
    site: Site
    model: Model
    smoke_model: Model
    smoke_model_name: str
    dataset: Dataset
    origins: Mapping[str, tuple[Origin, ...]]
    """The value from each layer, by dotted key; the last one applies."""
    project: Path
    variant: str = ""
    blend: tuple[TextShare, ...] = ()
    """The texts in data.blend, if it names any."""

    @property
    def name(self) -> str:
        """Return the folder name: `lumi-13b`, or `lumi-13b--2n-zero2` for a variant."""
        if self.variant:
            return f"{self.run.run}--{self.variant}"
        return self.run.run

    @property
    def texts(self) -> tuple[TextShare, ...]:
        """Return every text to train on: those in data.blend, or only data.dataset."""
        data = self.run.data
        return self.blend or (TextShare(data.dataset, 1.0, self.dataset, data.folder),)

    @property
    def tokenizer(self) -> str:
        """Return `gpt2`, or the path of the tokenizer."""
        return tokenizer_path(self.run.data.tokenizer, self.project)

    def value(self, key: str) -> Any:
        """Return the value for a dotted key, as plain text or number."""
        value: Any = self.run
        for part in key.split("."):
            value = getattr(value, part)
        return value

    def values(self) -> dict[str, object]:
        """Return every value by dotted key, in schema order."""
        return {key: self.value(key) for key in all_keys()}

    def parameters(self) -> dict[str, dict[str, object]]:
        """Return every value with its origin, as the record stores it."""
        parameters: dict[str, dict[str, object]] = {}
        for key, value in self.values().items():
            parameters[key] = {"value": value, "origin": str(self.origins[key][-1])}

        return parameters

    def scaled_down(self) -> dict[str, str]:
        """Return the values changed for this site, and why.

        The result is empty if the run file is for this site.
        """
        wheres = {}
        for key, chain in self.origins.items():
            if chain and chain[-1].layer == SCALED_DOWN:
                wheres[key] = chain[-1].where

        return wheres

    def subset(self, prefixes: Iterable[str]) -> dict[str, object]:
        """Return the values at or below dotted prefixes, needed to fingerprint a step.

        An unknown prefix is a bug in our own code.
        """
        dotted = tuple(f"{prefix}." for prefix in prefixes)
        for prefix in dotted:
            assert prefix[:-1] in all_keys() | sections(), (
                f"{prefix[:-1]} is neither a key nor a section"
            )

        values_below: dict[str, object] = {}
        for key, value in self.values().items():
            if f"{key}.".startswith(dotted):
                values_below[key] = value

        return values_below

    def job(self, phase: str) -> Job:
        """Return what a phase requests from the scheduler, completed with values from the site."""
        if phase not in JOB_SECTIONS:
            raise ParamsError(
                ParamsMessage.PHASE_WITHOUT_JOB, phase=phase, job_sections=", ".join(JOB_SECTIONS)
            )
        job: Job = getattr(self.run.jobs, JOB_SECTIONS[phase])
        devices = job.devices_per_node or self.site.hardware.devices_per_node
        one_task = self.site.launcher in ("torchrun", "deepspeed")
        tasks = job.tasks_per_node or (1 if one_task else devices)
        cores = job.cpus_per_task or self.site.hardware.cores_per_node // tasks
        account = job.account or self.run.jobs.account
        counts = {"devices_per_node": devices, "tasks_per_node": tasks, "cpus_per_task": cores}
        return job.model_copy(update={**counts, "account": account})

    def as_yaml(self) -> str:
        """Return the text for run.yaml: every resolved value in schema order.

        Loading this text gives the same run.
        """
        variant = f" Variant {self.variant}." if self.variant else ""
        # The wording must not change, because 00-plan in an older folder would then run again.
        head = ParamsMessage.HEAD_OF_RUN_YAML.fill(name=self.name, variant=variant)
        return (
            f"{head}\n"
            "# Written by runbook; `runbook why RUN KEY` tells where a value came from.\n"
            + write_tree(nest(self.values()), remark=_remark)
        )


def why(settings: Settings, name: str) -> str:
    """Return everything known about a value.

    This includes the value from each layer, starting with the one that applies, and what the
    documents call the key.
    """
    key = all_keys()[name]
    lines = [f"{name} = {show(settings.value(name))}", f"  {key.help}"]
    for origin in reversed(settings.origins[name]):
        lines.append(f"  {origin.layer:12s} {show(origin.value):20s} {origin.where}")
    lines[2] += ParamsMessage.THIS_ONE.fill()
    fact = settings.site.facts.get(f"defaults.{name}")
    if fact:
        date = f", {fact.date}" if fact.date else ""
        lines.append(ParamsMessage.SOURCE_OF_VALUE.fill(source=fact.source, date=date))

    if key.documents:
        lines.append(ParamsMessage.IN_THE_DOCUMENTS.fill(documents=", ".join(key.documents)))
    return "\n".join(lines)


def origin_facts(settings: Settings, name: str) -> dict[str, object]:
    """Return what `why` shows about a value as plain data. The layer that applies comes first."""
    key = all_keys()[name]
    layers = []
    for origin in reversed(settings.origins[name]):
        layers.append({"layer": origin.layer, "value": origin.value, "where": origin.where})

    return {
        "key": name,
        "value": settings.value(name),
        "meaning": key.help,
        "layers": layers,
        "names_in_documents": list(key.documents),
    }


def key_meant(key: str) -> str:
    """Return the key that the user means.

    A name from the documents is accepted if it corresponds to exactly one key.
    """
    try:
        path = full_path(key.strip().split("."))
    except ValueError as error:
        raise ParamsError(ParamsMessage.KEY_NOT_READABLE, key=key, error=error) from error

    name = ".".join(path)
    if name in all_keys():
        return name
    if name in sections():
        inside = [inner_key for inner_key in all_keys() if inner_key.startswith(f"{name}.")]
        raise ParamsError(ParamsMessage.KEY_IS_A_SECTION, name=name, inside=", ".join(inside))

    ours, near = right_name(path)
    if ours in all_keys():
        return ours
    if ours or near:
        hint = f"Did you mean {ours or near}?"
    else:
        hint = ParamsMessage.SECTIONS_OF_RUN_FILE.fill(sections=", ".join(sections()))

    raise ParamsError(ParamsMessage.NO_SUCH_KEY, key=key, hint=hint)


STAGE = "{stage}"
"""Placeholder in a site file for the folder that jobs.stage names."""


def with_shared_folder(site: Site, run: Run) -> Site:
    """Return the site, with the shared folder, image and launcher for this run filled in.

    {stage} stays if the run names no folder.
    """
    stage = run.jobs.stage.rstrip("/") if run.jobs.stage else STAGE
    chosen = run.jobs.launcher
    container = dict(site.container)

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(item) for key, item in value.items()}
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, str):
            return value.replace(STAGE, stage)
        return value

    update = {
        "paths": put(site.paths),
        "launcher": site.launcher if chosen == "site" else chosen,
        "container": Container(
            **put(container | {"image": run.jobs.image or site.container.image})
        ),
        "frameworks": {
            name: Checkout(**put(dict(checkout))) for name, checkout in site.frameworks.items()
        },
    }
    return site.model_copy(update=update)


def missing_values(settings: Settings) -> Mapping[str, str]:
    """Return the keys required by this site that have no value yet, with descriptions."""
    missing = {}
    for key, meaning in settings.site.required.items():
        if not settings.value(key):
            missing[key] = meaning

    return missing


def require_values(settings: Settings) -> None:
    """Raise `ParamsError`, which lists every required value that was not given."""
    site = settings.site.site
    problems = []
    for key, meaning in missing_values(settings).items():
        remedy = (
            f"Write it into the run file, or --set {key}=VALUE; --placeholders renders without it."
        )
        where = ParamsMessage.REQUIRED_BY.fill(site=site)
        problems.append(
            Problem(key, where, ParamsMessage.REQUIRED_VALUE.of(meaning=meaning, remedy=remedy))
        )

    if problems:
        raise InvalidParams(f"Run {settings.name} on site {site}", problems)


def with_placeholders(settings: Settings) -> Settings:
    """Return the same run with a placeholder in capitals for each missing required value.

    The placeholders are for text that is only read, not submitted.
    """
    values = settings.values() | {key: placeholder(key) for key in missing_values(settings)}
    run = Run.model_validate(nest(values))
    return replace(settings, run=run, site=with_shared_folder(settings.site, run))


def placeholder(key: str) -> str:
    """Return a placeholder for a value that is missing.

    >>> placeholder("jobs.account"), placeholder("jobs.stage")
    ('GIVE_JOBS_ACCOUNT', '/GIVE_JOBS_STAGE')
    """
    mark = "GIVE_" + key.replace(".", "_").upper()
    return f"/{mark}" if key.endswith((".stage", ".image")) else mark


_DURATIONS = ("walltime", "exit_duration", "process_group_timeout")
_COUNTS = ("tokens", "samples", "warmup_tokens", "warmup_samples", "decay_tokens", "decay_samples")


def _remark(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    if name in _DURATIONS and value:
        return f"  # {show_duration(value)}"
    if name in _COUNTS and value >= 10_000:
        return f"  # {show_count(value)}"
    return ""
