"""Steps in each phase: names, versions and inputs.

Notebooks, `runbook run` and a resumed run all use these steps, so they agree on what is done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runbook.params import Settings
from runbook.phases import token_inputs
from runbook.phases.messages import PhaseMessage
from runbook.phases.training_outputs import training_outputs
from runbook.plan_file.checkpoint_folder import newest_checkpoint
from runbook.plan_file.identity import step_inputs
from runbook.plan_file.phase_names import (
    ANALYSIS,
    DATA,
    ENVIRONMENT,
    EVALUATION,
    FULL,
    PHASES,
    PLAN,
    SMOKE,
)
from runbook.planning.make_plan import Plan
from runbook.records.done_marks import (
    TOKENIZE_STEP,
    is_finished,
    output_checksums,
    train_name,
    training_checksums,
)
from runbook.runs import this_machine
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_files import with_prompt_ids
from runbook.runs.step import Reading, StepOfRun, StepStatus, step_status
from runbook.tokens.pipeline.tokenize_options import NEUTRAL_VALUES, TokenFiles

VERSIONS = dict.fromkeys(PHASES, 1)
"""Version for each phase. Increase it when the outputs of the phase change.

The fingerprint then changes too, so the phase runs again.
"""

YOUNGER_OPTIONS = ("keep_sources", "drop_sources", "source_key", "fix_text")
"""Tokenizer options with keys (data.keep_sources) that are newer than some existing runs."""

TOKENIZE = TOKENIZE_STEP
MEASURE = f"{EVALUATION}--built-in"

GATE = "smoke/gate.json"
"""The smoke-test verdict. Like all file names here, it is relative to the run folder."""
RESULTS = "results.csv"
VARIANTS = "variants.csv"
BUILT_IN = "evaluation/built-in.jsonl"

Inputs = Mapping[str, Any]
TokenGroups = Sequence[tuple[list[Path], Path]]
"""Text files, and the prefix of their token files."""


def plan_inputs(run: PlannedRun) -> Inputs:
    """Return the plan as it is written to plan.json."""
    return {"plan": with_prompt_ids(run.settings, run.plan).as_dict()}


def environment_inputs(run: PlannedRun) -> Inputs:
    """Return the site and the engine, because these determine what a node needs."""
    return {
        "site": run.settings.site.model_dump(mode="json"),
        "engine": run.settings.run.training.engine,
    }


def data_inputs(run: PlannedRun) -> Inputs:
    """Return the values that the token files depend on, and the identity of the text."""
    settings = run.settings
    neutral_values = _neutral_values()
    values = {}
    for key, value in settings.subset(["data"]).items():
        # A newer key with its neutral value leaves the fingerprints of older runs unchanged.
        if neutral_values.get(key, ...) != value:
            values[key] = value

    inputs = {
        "data": values,
        "dataset": settings.dataset.identity(),
        "vocabulary": settings.model.vocabulary,
        "text": token_inputs.text_identity(settings, run.folder),
    }
    # A run with a single text has the same fingerprint as before runs could have several texts.
    if settings.blend:
        inputs["texts"] = {text.name: text.dataset.identity() for text in settings.texts}
    return inputs


def _neutral_values() -> dict[str, str]:
    """Return the value that changes nothing for each data key newer than some runs."""
    values = {"data.blend": ""}
    for option in YOUNGER_OPTIONS:
        neutral = NEUTRAL_VALUES[option]
        # A run file contains a list of names as text.
        values[f"data.{option}"] = ", ".join(neutral) if isinstance(neutral, tuple) else neutral

    return values


def smoke_inputs(run: PlannedRun) -> Inputs:
    """Return the plan for the smoke test, and the checksums of the token files."""
    return _training_inputs(run, SMOKE)


def full_inputs(run: PlannedRun) -> Inputs:
    """Return the plan for training, and the checksums of the token files."""
    return _training_inputs(run, FULL)


def _training_inputs(run: PlannedRun, training: str) -> Inputs:
    return {
        "spec": step_inputs(run.plan.phases[training]),
        "data": output_checksums(run.folder, TOKENIZE),
    }


def analysis_inputs(run: PlannedRun) -> Inputs:
    """Return checksums for the outputs of both training runs."""
    return training_checksums(run.folder, ANALYSIS)


def evaluation_inputs(run: PlannedRun) -> Inputs:
    """Return checksums for the outputs of the training run.

    Until this training is finished, also return its newest checkpoint, because the next one has
    other scores.
    """
    return _inputs_of_scores(run.folder, run.plan)


def _inputs_of_scores(folder: Path, plan: Plan) -> Inputs:
    inputs = training_checksums(folder, EVALUATION)
    if is_finished(folder, FULL):
        return inputs
    newest = newest_checkpoint(folder / plan.phases[FULL].checkpoint.folder)
    if newest is not None:
        inputs["checkpoint"] = newest.name
    return inputs


def no_outputs(run: PlannedRun) -> Sequence[Path]:
    """Return no file, because no later phase depends on a file from this phase."""
    return ()


def plan_outputs(run: PlannedRun) -> Sequence[Path]:
    """Return the files with the requested and the computed values."""
    return [run.folder / "run.yaml", run.folder / "plan.json"]


def token_outputs(run: PlannedRun) -> Sequence[Path]:
    """Return the token files with their manifests, and links to token files created elsewhere."""
    groups = token_inputs.token_groups(run.settings, run.plan.data, run.folder)
    return token_outputs_of(run, groups)


def token_outputs_of(run: PlannedRun, groups: TokenGroups) -> Sequence[Path]:
    """Return the outputs for these text file groups, as `token_outputs` does for all groups."""
    paths = []
    for _, prefix in groups:
        files = TokenFiles(prefix)
        paths += [files.bin, files.idx, files.manifest]

    return [*paths, *token_inputs.linked_tokens(run.settings, run.plan.data, run.folder)]


def smoke_outputs(run: PlannedRun) -> Sequence[Path]:
    """Return the verdict and the measured step time, if the phase has written them."""
    paths = [run.folder / GATE, run.folder / this_machine.CALIBRATION_FILE]
    return [path for path in paths if path.exists()]


def analysis_outputs(run: PlannedRun) -> Sequence[Path]:
    """Return the tables about training runs and variants."""
    return [run.folder / RESULTS, run.folder / VARIANTS]


def built_in_scores(run: PlannedRun) -> Sequence[Path]:
    """Return the file with scores on the built-in set."""
    return [run.folder / BUILT_IN]


def all_scores(run: PlannedRun) -> Sequence[Path]:
    """Return the files with scores from every program that has scored the weights."""
    return sorted(run.folder.glob("evaluation/*.jsonl"))


@dataclass(frozen=True)
class StepWork:
    """Inputs and outputs for a step. Its done marker records the inputs used."""

    name: str
    """Name used for the done marker."""
    phase: str
    inputs: Callable[[PlannedRun], Inputs]
    outputs: Callable[[PlannedRun], Sequence[Path]]
    """Return the files that the marker records once they exist."""

    def of(self, run: PlannedRun) -> StepOfRun:
        """Return this work as a step in one run, with its current inputs."""
        return StepOfRun(
            run_folder=run.folder,
            name=self.name,
            version=VERSIONS[self.phase],
            inputs=self.inputs(run),
            outputs=partial(self.outputs, run),
            remedy=begin_again(run.settings, self.phase),
        )

    def status_of_outputs(self, run: PlannedRun) -> StepStatus:
        """Return the status of the work, judged only by its outputs, not by its current inputs."""
        return step_status(run.folder, self.name)

    def fingerprint(self, run: PlannedRun) -> str:
        """Return a hash over the version and the current inputs."""
        return self.of(run).fingerprint


def _train_work(training: str, inputs: Callable[[PlannedRun], Inputs]) -> StepWork:
    def outputs(run: PlannedRun) -> Sequence[Path]:
        return training_outputs(run.folder, run.plan.phases[training])

    return StepWork(train_name(training), training, inputs, outputs)


TOKENIZING = StepWork(TOKENIZE, DATA, data_inputs, token_outputs)
SMOKE_TRAINING = _train_work(SMOKE, smoke_inputs)
FULL_TRAINING = _train_work(FULL, full_inputs)
TRAININGS = (SMOKE_TRAINING, FULL_TRAINING)
MEASURING = StepWork(MEASURE, EVALUATION, evaluation_inputs, built_in_scores)

PHASE_ENDS = (
    StepWork(PLAN, PLAN, plan_inputs, plan_outputs),
    StepWork(ENVIRONMENT, ENVIRONMENT, environment_inputs, no_outputs),
    StepWork(DATA, DATA, data_inputs, no_outputs),
    StepWork(SMOKE, SMOKE, smoke_inputs, smoke_outputs),
    StepWork(FULL, FULL, full_inputs, no_outputs),
    StepWork(ANALYSIS, ANALYSIS, analysis_inputs, analysis_outputs),
    StepWork(EVALUATION, EVALUATION, evaluation_inputs, all_scores),
)
"""The step that ends each phase. Its marker records that the whole phase is done."""

WORKS = (TOKENIZING, *TRAININGS, MEASURING, *PHASE_ENDS)
"""All work that writes a done marker, except the set-up steps defined in the site file."""


def phase_end_work(phase: str) -> StepWork:
    """Return the work that marks the end of a phase."""
    (work,) = (work for work in PHASE_ENDS if work.phase == phase)
    return work


def work_within(phase: str) -> list[StepWork]:
    """Return those parts of a phase that have separate done markers."""
    return [work for work in WORKS if work.phase == phase and work not in PHASE_ENDS]


def measuring_step(folder: Path, plan: Plan) -> StepOfRun:
    """Return the step that scores a run's weights, only from files in the run folder.

    The run's model, dataset or site may have left params/ since the training.
    """
    return StepOfRun(
        run_folder=folder,
        name=MEASURE,
        version=VERSIONS[EVALUATION],
        inputs=_inputs_of_scores(folder, plan),
        outputs=lambda: [folder / BUILT_IN],
        remedy=PhaseMessage.DO_PHASE_AGAIN.fill(phase=EVALUATION, run=plan.run),
    )


def phase_step(run: PlannedRun, phase: str) -> StepOfRun:
    """Return the step that marks the end of a phase, with its current inputs."""
    return phase_end_work(phase).of(run)


def train_step(run: PlannedRun, training: str) -> StepOfRun:
    """Return the step whose done marker records that a training run is finished."""
    work = SMOKE_TRAINING if training == SMOKE else FULL_TRAINING
    return work.of(run)


def begin_again(settings: Settings, phase: str) -> str:
    """Return the last sentence for an error message, which says how to repeat a phase."""
    return PhaseMessage.DO_PHASE_AGAIN.fill(phase=phase, run=settings.run.run)


def refuse_changed_results(run: PlannedRun, phase: str) -> None:
    """Raise `ChangedOutputError` if results from a finished training run have changed.

    Only the results that this phase reads are checked. Call this before moving the phase record: if
    it raises an error, the record is still in place. Weights are not checked here: they may be
    deleted after an export, and `job_step.launch` compares them.
    """
    for training in (SMOKE, FULL):
        if PHASES.index(training) <= PHASES.index(phase):
            train_step(run, training).require_unchanged(Reading.LINE_FILES)
