"""Files in a run folder: run.yaml, overrides.yaml and plan.json."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from runbook.core.errors import RecordError
from runbook.core.files import write_text
from runbook.params import Settings
from runbook.params.layers import GIVEN
from runbook.params.project import find_run_file
from runbook.params.schema.keys import EXCLUSIVE, all_keys
from runbook.params.settings import tokenizer_path
from runbook.params.yaml12 import dotted, nest, read_file, write_tree
from runbook.planning.make_plan import Plan, parse_plan
from runbook.records.manifest import note_files
from runbook.runs.messages import RunMessage
from runbook.tokens.tokenizer import load_tokenizer

FREE_KEYS = ("training.smoke.waived_by", "training.rehearsal_waived_by")
"""Keys used to name the person who waived a check. They may change in an existing folder."""
ALARM_KEYS = (
    *("training.alarm_webhook", "training.alarm_command"),
    *("training.trackers", "training.tracker_project"),
)
"""Keys that determine where alarms and metrics are sent.

These keys, too, may change in an existing folder.
"""
OVERRIDES = "overrides.yaml"
"""File with values to override the run file, from a parameters cell or from --set."""


def with_prompt_ids(settings: Settings, plan: Plan) -> Plan:
    """Return the plan with the sample prompt converted to token ids, as in plan.json.

    The planner itself has no tokenizer.
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
    """Write run.yaml and plan.json if they are missing or have changed.

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
    """Save the values set by the user, so nobody has to repeat them to reopen the run."""
    values = given_by_hand(settings, GIVEN)
    if values:
        head = RunMessage.OVERRIDES_HEAD.fill(run=settings.run.run)
        _write_if_changed(folder / OVERRIDES, head + write_tree(nest(values)))
        note_files(folder, [folder / OVERRIDES])


def given_by_hand(settings: Settings, layers: Collection[str]) -> dict[str, object]:
    """Return the values that these layers set, as written.

    Zeros that only clear an alternative key, such as a different unit of length, are left out.
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
    """Return whether an alternative to `key` is set, so that a zero only clears `key`."""
    groups = [group for group in EXCLUSIVE.values() if key in group]
    return any(settings.value(alternative) for group in groups for alternative in group)


def read_plan_file(folder: Path) -> Plan:
    """Return the plan in plan.json.

    Raise `RecordError` with the file and the remedy if the file is missing or broken.
    """
    path = folder / "plan.json"
    if not path.exists():
        raise RecordError(RunMessage.NO_PLAN_YET, path=path)
    return parse_plan(path.read_text(), path)


def tokenizer_of(folder: Path) -> str:
    """Return the tokenizer name or path from run.yaml."""
    project = find_run_file(str(folder / "run.yaml")).project
    return tokenizer_path(str(recorded_value(folder, "data.tokenizer")), project)


def recorded_value(folder: Path, key: str) -> Any:
    """Return a value in run.yaml by dotted key.

    Unlike `params.load`, this needs no file in params/, from which an old run's dataset, model or
    site may have been removed.
    """
    path = folder / "run.yaml"
    values = dotted(read_file(path, str(path)).values)
    return values.get(key, all_keys()[key].default)


def changed_values(folder: Path, settings: Settings) -> list[tuple[str, Any, Any]]:
    """Return the keys whose values in run.yaml differ from the current ones.

    Each row is (dotted key, value in the folder, current value).

    A key that an older run.yaml lacks is included only if somebody chose its value.
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
