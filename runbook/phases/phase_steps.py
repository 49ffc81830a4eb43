"""The steps of each phase: their names, versions, and what each of them depends on.

Notebooks, `runbook run` and a resumed run make the same steps here, so they agree on what is done.
"""

from collections.abc import Callable, Mapping
from typing import Any

from runbook.params import Settings
from runbook.phases import token_inputs
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.identity import step_inputs
from runbook.plan_file.phase_names import FULL, PHASES, SMOKE
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_files import with_prompt_ids
from runbook.runs.step import PhaseStep, Reading, read_mark

VERSIONS = dict.fromkeys(PHASES, 1)
"""A phase's version. Increase it when the phase's outputs change.

Its fingerprint then changes too, and the phase is done again.
"""

YOUNGER_KEYS = {
    "data.blend": "",
    "data.keep_sources": "",
    "data.drop_sources": "",
    "data.source_key": "auto",
    "data.fix_text": "none",
}
"""Data keys that are newer than the fingerprints of existing runs.

Each has the value at which those fingerprints stay the same.
"""

TOKENIZE = "02-data--tokenize"
MEASURE = "06-evaluation--built-in"

Inputs = Mapping[str, Any]


def plan_inputs(run: PlannedRun) -> Inputs:
    """Return the plan in the form of plan.json."""
    return {"plan": with_prompt_ids(run.settings, run.plan).as_dict()}


def environment_inputs(run: PlannedRun) -> Inputs:
    """Return the site and the engine, which determine the requirements of a node."""
    return {
        "site": run.settings.site.model_dump(mode="json"),
        "engine": run.settings.run.training.engine,
    }


def data_inputs(run: PlannedRun) -> Inputs:
    """Return the values on which the token files depend, and the identity of the text."""
    settings = run.settings
    values = {}
    for key, value in settings.subset(["data"]).items():
        # A newer key at its default leaves the fingerprints of older runs unchanged.
        if YOUNGER_KEYS.get(key, ...) != value:
            values[key] = value

    inputs = {
        "data": values,
        "dataset": settings.dataset.identity(),
        "vocabulary": settings.model.vocabulary,
        "text": token_inputs.text_identity(settings, run.folder),
    }
    # Runs with a single text got fingerprints before there could be several texts.
    if settings.blend:
        inputs["texts"] = {text.name: text.dataset.identity() for text in settings.texts}
    return inputs


def smoke_inputs(run: PlannedRun) -> Inputs:
    """The smoke test's part of the plan, and the tokens."""
    return _training_inputs(run, SMOKE)


def full_inputs(run: PlannedRun) -> Inputs:
    """The training's part of the plan, and the tokens."""
    return _training_inputs(run, FULL)


def _training_inputs(run: PlannedRun, training: str) -> Inputs:
    return {
        "spec": step_inputs(run.plan.phases[training]),
        "data": output_checksums(run, TOKENIZE),
    }


def analysis_inputs(run: PlannedRun) -> Inputs:
    """Return the outputs of both trainings."""
    return {training: output_checksums(run, train_name(training)) for training in (SMOKE, FULL)}


def evaluation_inputs(run: PlannedRun) -> Inputs:
    """Return the outputs of the training."""
    return {FULL: output_checksums(run, train_name(FULL))}


PHASE_INPUTS: Mapping[str, Callable[[PlannedRun], Inputs]] = {
    "00-plan": plan_inputs,
    "01-environment": environment_inputs,
    "02-data": data_inputs,
    SMOKE: smoke_inputs,
    FULL: full_inputs,
    "05-analysis": analysis_inputs,
    "06-evaluation": evaluation_inputs,
}
"""Inputs that each phase depends on.

Its steps that have their own done markers have the same inputs.
"""


def phase_step(run: PlannedRun, phase: str) -> PhaseStep:
    """Return the step that is done when a phase has ended, with its current inputs."""
    return _step(run, phase, phase)


def train_step(run: PlannedRun, training: str) -> PhaseStep:
    """Return the step whose done marker records that a training is finished."""
    return _step(run, training, train_name(training))


def tokenize_step(run: PlannedRun) -> PhaseStep:
    """Return the step that makes the token files."""
    return _step(run, "02-data", TOKENIZE)


def measure_step(run: PlannedRun) -> PhaseStep:
    """Return the step that scores the weights with the built-in set."""
    return _step(run, "06-evaluation", MEASURE)


def _step(run: PlannedRun, phase: str, name: str) -> PhaseStep:
    return PhaseStep(
        run_folder=run.folder,
        name=name,
        version=VERSIONS[phase],
        inputs=PHASE_INPUTS[phase](run),
        remedy=begin_again(run.settings, phase),
    )


def train_name(training: str) -> str:
    """Return the name of the step whose marker records that a training is done."""
    return f"{training}--train"


def begin_again(settings: Settings, phase: str) -> str:
    """Return the remedy that does a phase again, for the end of an error text."""
    return PhaseMessage.DO_PHASE_AGAIN.fill(phase=phase, run=settings.run.run)


def refuse_changed_results(run: PlannedRun, phase: str) -> None:
    """Raise `ChangedOutputError` if a finished training's results were changed.

    Only results that this phase reads count. The check runs before the phase's record is set aside,
    so that the record stays. Weights are left out: after an export they may be deleted, and
    `training_jobs.launch` compares them.
    """
    for training in (SMOKE, FULL):
        if PHASES.index(training) <= PHASES.index(phase):
            train_step(run, training).require_unchanged(Reading.LINE_FILES)


def output_checksums(run: PlannedRun, step: str) -> Any:
    """Return the checksums of an earlier step's outputs, or None if it is not done.

    Manifests are left out, because their times and speeds differ when the same tokens are made
    again.
    """
    mark = read_mark(run.folder, step)
    if not mark:
        return None
    checksums = []
    for file in mark.outputs:
        if not file.path.endswith(".manifest.json"):
            checksums.append(file.sha256)

    return checksums
