"""Files of a run's folder: run.yaml, overrides.yaml, plan.json, and the steps' done-marks."""

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict

from runbook import params
from runbook.core.errors import RecordError
from runbook.core.files import read_json_record, sha256_of, write_text
from runbook.params import Settings
from runbook.params.layers import GIVEN
from runbook.params.schema.keys import EXCLUSIVE
from runbook.params.yaml12 import dotted, nest, write_tree
from runbook.planning.plan import Plan, parse_plan
from runbook.records.manifest import note_files
from runbook.runs.messages import RunMessage
from runbook.tokens.tokenizer import load_tokenizer

FREE_KEYS = ("training.smoke.waived_by", "training.rehearsal_waived_by")
"""Keys that say who decided something, not what is done: they may change in a folder that exists.
"""
ALARM_KEYS = (
    *("training.alarm_webhook", "training.alarm_command"),
    *("training.trackers", "training.tracker_project"),
)
"""Keys that say who is sent alarms and numbers: they may change in a folder that exists as well."""
OVERRIDES = "overrides.yaml"
"""What was given by hand, over the run file: in a parameters cell or by --set."""


def with_prompt_ids(settings: Settings, plan: Plan) -> Plan:
    """The plan with the sample's prompt as token ids, as plan.json has it.

    The planner itself cannot tokenize.
    """
    phases = {}
    for name, phase in plan.phases.items():
        prompt = phase.sampling.prompt
        if prompt:
            ids = tuple(load_tokenizer(settings.tokenizer).encode(prompt))
        else:
            ids = ()

        phases[name] = replace(phase, sampling=replace(phase.sampling, prompt_ids=ids))

    return replace(plan, phases=phases)


def write_plan_file(settings: Settings, plan: Plan, folder: Path) -> None:
    """Write run.yaml and plan.json where they are absent or say something else.

    Unchanged files keep their date.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = (
        json.dumps(with_prompt_ids(settings, plan).as_dict(), indent=1, ensure_ascii=False) + "\n"
    )
    _write_if_changed(folder / "run.yaml", settings.as_yaml())
    _write_if_changed(folder / "plan.json", content)
    note_files(folder, [folder / "run.yaml", folder / "plan.json"])


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_text(path, text)


def write_overrides(settings: Settings, folder: Path) -> None:
    """Keep what was given by hand, so that whoever opens the run again need not give it again."""
    values = given_by_hand(settings, GIVEN)
    if values:
        head = (
            f"# Given by hand, over the run file of {settings.run.run}; who opens this run again "
            "has it from here.\n"
        )
        _write_if_changed(folder / OVERRIDES, head + write_tree(nest(values)))
        note_files(folder, [folder / OVERRIDES])


def given_by_hand(settings: Settings, layers: Collection[str]) -> dict[str, object]:
    """Values from these layers, as they were written.

    Without those that only make room for another length.
    """
    values = {}
    for key in settings.values():
        origin = settings.origins[key][-1]
        if origin.layer not in layers or key in FREE_KEYS:
            continue
        if origin.value or not _has_chosen_alternative(settings, key):
            values[key] = origin.value

    return values


def _has_chosen_alternative(settings: Settings, key: str) -> bool:
    """Return whether `key` excludes others, one of which is set: its own zero only makes room."""
    groups = [group for group in EXCLUSIVE.values() if key in group]
    return any(settings.value(alternative) for group in groups for alternative in group)


def read_plan_file(folder: Path) -> Plan:
    """The plan in plan.json.

    `RecordError` names the file and the remedy where it is missing or broken.
    """
    path = folder / "plan.json"
    if not path.exists():
        raise RecordError(RunMessage.NO_PLAN_YET, path=path)
    return parse_plan(path.read_text(), path)


def tokenizer_of(folder: Path) -> str:
    """The name or path of a run's tokenizer, by its run.yaml."""
    return params.load(str(folder / "run.yaml")).tokenizer


def changed_values(folder: Path, settings: Settings) -> list[tuple[str, Any, Any]]:
    """Dotted keys whose values in the folder's run.yaml differ from those given now.

    Each row is (key, there, now).

    A key that run.yaml lacks because it is older than the key counts only where somebody chose its
    value.
    """
    path = folder / "run.yaml"
    if not path.exists():
        return []
    try:
        written = dotted(yaml.safe_load(path.read_text()))
    except (ValueError, yaml.YAMLError) as error:
        raise RecordError(RunMessage.FILE_CHANGED_LATER, path=path, error=error) from error

    current = dotted(yaml.safe_load(settings.as_yaml()))
    built_in = set()
    for key, chain in settings.origins.items():
        if chain and chain[-1].layer == "built-in":
            built_in.add(key)

    changes = []
    for key in sorted(written.keys() | current.keys()):
        may_change = key in FREE_KEYS or key in ALARM_KEYS
        is_newer_default = key not in written and key in built_in
        if may_change or is_newer_default or written.get(key) == current.get(key):
            continue
        changes.append((key, written.get(key, "(absent)"), current.get(key, "(absent)")))

    return changes


@dataclass(frozen=True)
class StepOutput:
    """A file made by a step, with a checksum to detect changes."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DoneMark:
    """A finished step: its inputs and outputs."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    step: str
    version: int
    fingerprint: str
    finished: float
    outputs: tuple[StepOutput, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def fingerprint(version: int, inputs: Mapping[str, object]) -> str:
    """Sixteen hexadecimal digits that change when the step's version or one of its inputs does.

    >>> fingerprint(1, {"a": 1}) == fingerprint(1, {"a": 1}), fingerprint(1,
    ... {"a": 1}) == fingerprint(2, {"a": 1})
    (True, False)
    """
    text = json.dumps({"version": version, "inputs": inputs}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def mark_path(run_folder: Path, step: str) -> Path:
    """Return the path of a step's done-mark."""
    return run_folder / "steps" / f"{step}.json"


def read_mark(run_folder: Path, step: str) -> DoneMark | None:
    """Return the done-mark of a step, or None if there is none. Raise an error if it is broken."""
    remedy = "Delete it: the step then runs again and finds what is already there."
    return read_json_record(mark_path(run_folder, step), DoneMark, "a done-mark", remedy)


def write_mark(
    run_folder: Path,
    step: str,
    version: int,
    digest: str,
    outputs: Iterable[Path],
    **facts: Any,
) -> None:
    """Write the done-mark, last and by rename; each output is read once for its checksum."""
    step_outputs = tuple(
        StepOutput(str(path.relative_to(run_folder)), path.stat().st_size, sha256_of(path))
        for path in sorted(outputs)
    )
    mark = DoneMark(
        step,
        version,
        digest,
        time.time(),
        step_outputs,
        facts,
    )
    write_text(mark_path(run_folder, step), json.dumps(asdict(mark), indent=1) + "\n")


class StepState(StrEnum):
    """The state of a step, by its mark and its outputs."""

    DONE = "done"
    NOT_DONE = "not done yet"
    INPUTS_CHANGED = "its parameters or inputs changed"
    OUTPUT_MISSING = "an output is missing"
    OUTPUT_CHANGED = "an output was changed"


class Reading(StrEnum):
    """How much of a step's outputs is read to tell whether they are unchanged."""

    EVERYTHING = "everything"
    """Every byte. Terabytes of tokens or weights take hours."""
    LINE_FILES = "line files"
    """Every byte of the .jsonl files, which hold the results, and nothing of the others."""
    SIZES = "sizes"
    """No byte: the sizes of all files."""


@dataclass(frozen=True)
class StepStatus:
    """Where a step stands, and the file that says so."""

    state: StepState
    file: str = ""
    """Relative to the run's folder."""
    bytes: int | None = None
    """Its size now, where that is another than the step recorded."""
    recorded_bytes: int = 0

    @property
    def lost_an_output(self) -> bool:
        """Whether a file of the finished step is not what the step made."""
        return self.state in (StepState.OUTPUT_MISSING, StepState.OUTPUT_CHANGED)

    def as_text(self) -> str:
        """Why the step is not done; empty if it is."""
        if self.state is StepState.DONE:
            return ""
        if self.state is StepState.OUTPUT_MISSING:
            return f"{self.file} is missing"
        if self.state is StepState.OUTPUT_CHANGED and self.bytes is not None:
            return f"{self.file} has {self.bytes:,} bytes instead of {self.recorded_bytes:,}"
        if self.state is StepState.OUTPUT_CHANGED:
            return f"{self.file} was changed after it was made"
        return str(self.state)


def step_status(
    run_folder: Path,
    step: str,
    digest: str = "",
    reading: Reading = Reading.EVERYTHING,
) -> StepStatus:
    """Return where a step stands.

    Without a digest its inputs are not compared.
    """
    mark = read_mark(run_folder, step)
    if mark is None:
        return StepStatus(StepState.NOT_DONE)
    if digest and mark.fingerprint != digest:
        return StepStatus(StepState.INPUTS_CHANGED)
    return outputs_status(run_folder, mark, reading)


def outputs_status(
    run_folder: Path,
    mark: DoneMark,
    reading: Reading = Reading.EVERYTHING,
) -> StepStatus:
    """Return whether the files of a finished step are still what it made."""
    for output in mark.outputs:
        if reading is Reading.LINE_FILES and not output.path.endswith(".jsonl"):
            continue
        path = run_folder / output.path
        if not path.exists():
            return StepStatus(StepState.OUTPUT_MISSING, output.path)
        size = path.stat().st_size
        if size != output.bytes:
            return StepStatus(StepState.OUTPUT_CHANGED, output.path, size, output.bytes)
        if reading is not Reading.SIZES and sha256_of(path) != output.sha256:
            return StepStatus(StepState.OUTPUT_CHANGED, output.path)

    return StepStatus(StepState.DONE)


def what_is_missing(
    run_folder: Path,
    step: str,
    digest: str = "",
    *,
    by_content: bool = True,
) -> str:
    """Return why the step must run (again).

    The text is empty if the step is done and its outputs are still the same.

    Without a digest its inputs are not compared. Without `by_content` only the sizes of the outputs
    are: terabytes of tokens take hours to read.
    """
    reading = Reading.EVERYTHING if by_content else Reading.SIZES
    return step_status(run_folder, step, digest, reading).as_text()


class ChangedOutputError(RecordError):
    """A file of a finished step is not what the step made, so nothing is computed from it."""

    def __init__(
        self,
        step: str,
        status: StepStatus,
        remedy: str,
    ) -> None:
        self.step = step
        self.status = status
        super().__init__(
            f"{step} is finished, and {status.as_text()}. Nothing is computed from it: the "
            "records stay as they are, and nothing was started. Restore the file from a copy (its "
            f"checksum is in steps/{step}.json). {remedy}"
        )


def refuse_changed_output(step: str, status: StepStatus, remedy: str) -> None:
    """Raise `ChangedOutputError` if a file of the finished step is not what the step made."""
    if status.lost_an_output:
        raise ChangedOutputError(step, status, remedy)
