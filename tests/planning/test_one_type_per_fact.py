"""One type holds the sizes in a layout, and one those in a model shape. Others contain these two."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import runbook
from runbook.plan_file.json_records import as_json, value_at
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import parse
from runbook.planning import make_plan

from .conftest import build

LAYOUT = {"tensor", "pipeline", "virtual_pipeline", "zero_stage"}
SHAPE = {"layers", "hidden", "heads", "kv_heads", "ffn_hidden"}
MEMBER = re.compile(rf"^    ({'|'.join(sorted(LAYOUT | SHAPE))}): ", re.MULTILINE)
OWNERS = {
    "plan_file/schema.py: Layout",
    "plan_file/schema.py: ModelShape",
    # What a person writes, with the names, ranges and help of each key.
    "params/schema/run_file.py: Parallel",
    "params/schema/run_file.py: ShapeOverrides",
    "params/schema/run_file.py: Smoke",
    "params/schema/entries.py: Model",
    # A record on disk: the sizes that differ between a rung and its run.
    "phases/ladder/rungs.py: LadderRung",
    # Key names, seconds and error spreads, under the same names.
    "plan_file/rules/phase_keys.py: Keys",
    "planning/cost/iteration.py: StepTime",
    "planning/cost/measured_steps.py: Spreads",
}


def repeated_sizes() -> Iterator[str]:
    package = Path(runbook.__file__).parent
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not MEMBER.search(source):
            continue
        for node in ast.parse(source).body:
            if not isinstance(node, ast.ClassDef):
                continue
            names = set[str]()
            for member in node.body:
                if isinstance(member, ast.AnnAssign):
                    names.add(ast.unparse(member.target))

            if len(names & LAYOUT) > 1 or len(names & SHAPE) > 1:
                yield f"{path.relative_to(package).as_posix()}: {node.name}"


def test_no_other_type_repeats_the_sizes_of_a_layout_or_of_a_shape() -> None:
    assert set(repeated_sizes()) == OWNERS


def test_a_model_has_its_shape_flat_in_json_and_is_read_from_it() -> None:
    phase = make_plan(build()).phases[FULL]
    content = json.loads(json.dumps(as_json(phase)))
    assert "shape" not in content["model"]
    assert content["model"].items() >= as_json(phase.model.shape).items()
    assert [*content["model"]][-5:] == ["name", "label", "init_std", "dropout", "parameters"]
    assert replace(parse(content), root=phase.root) == phase


def test_a_path_of_json_leads_to_the_value() -> None:
    phase = make_plan(build()).phases[FULL]
    assert value_at(phase, "model.heads") == phase.model.shape.heads
    assert value_at(phase, "model.dropout") == phase.model.dropout
    assert value_at(phase, "model.head_size") == phase.model.shape.head_size
    assert value_at(phase, "batch.global") == phase.batch.global_
    assert value_at(phase, "learning_rate.falls_from") == phase.learning_rate.falls_from


def test_readers_of_a_plan_still_ask_a_model_for_its_sizes() -> None:
    """Users get these objects from `runbook.open(RUN).plan`. In version 0.1.0, the sizes were
    attributes of the model itself."""
    plan = make_plan(build({}))
    model = plan.phases[FULL].model
    assert (model.layers, model.hidden) == (model.shape.layers, model.shape.hidden)
    assert plan.model.heads == plan.model.shape.heads
    assert not hasattr(model, "no_such_size")
