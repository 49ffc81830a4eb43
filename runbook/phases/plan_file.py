"""run.yaml and plan.json in a run's folder: what was asked and what was computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from runbook.data.tokenizer import encode
from runbook.errors import RecordError
from runbook.params import Settings
from runbook.plan import Plan
from runbook.records.files import write_text

FREE = ("training.smoke.waived_by",)
"""Keys that say who decided something, not what is done: they may change in a folder that exists."""


def plan_file(settings: Settings, plan: Plan) -> dict[str, Any]:
    """The content of plan.json: the plan, with the sample's prompt as token ids (the plan itself cannot tokenize)."""
    content = json.loads(json.dumps(plan.as_dict()))
    for spec in content["phases"].values():
        prompt = spec["sampling"]["prompt"]
        spec["sampling"]["prompt_ids"] = encode(prompt, settings.run.data.tokenizer) if prompt else []
    result: dict[str, Any] = content
    return result


def write_plan_file(settings: Settings, plan: Plan, folder: Path) -> None:
    """Write run.yaml and plan.json where they are absent or say something else; unchanged files keep their date."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        "run.yaml": settings.as_yaml(),
        "plan.json": json.dumps(plan_file(settings, plan), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            write_text(path, text)


def read_plan_file(folder: Path) -> dict[str, Any]:
    """What plan.json says; refused by name where it is missing or broken."""
    path = folder / "plan.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist: run 00-plan first.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON ({error}); delete it and run 00-plan again.") from error
    return content


def difference(folder: Path, settings: Settings) -> list[tuple[str, Any, Any]]:
    """Dotted keys whose values in the folder's run.yaml differ from those given now: (key, there, now).

    A key that run.yaml lacks because it is older than the key counts only where somebody chose its value.
    """
    path = folder / "run.yaml"
    if not path.exists():
        return []
    try:
        there = _leaves(yaml.safe_load(path.read_text()))
    except (ValueError, yaml.YAMLError) as error:
        raise RecordError(f"{path} cannot be read ({error}); it was written by runbook and changed later.") from error
    now = _leaves(yaml.safe_load(settings.as_yaml()))
    return [
        (key, there.get(key, "(absent)"), now.get(key, "(absent)"))
        for key in sorted(there.keys() | now.keys())
        if key not in FREE and there.get(key) != now.get(key) and (key in there or _is_chosen(settings, key))
    ]


def _is_chosen(settings: Settings, key: str) -> bool:
    chain = settings.origins.get(key, ())
    return not chain or chain[-1].layer != "built-in"


def _leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: leaf for name, value in tree.items() for key, leaf in _leaves(value, f"{prefix}.{name}".strip(".")).items()
    }
