"""Decides whether the next job continues training or starts over."""

import json

from runbook.display import show_text
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import TOKENIZE
from runbook.phases.training_outputs import move_to_history, sealed_paths, training_paths
from runbook.plan_file.checkpoint_folder import METADATA, folder_name, saved_iterations
from runbook.plan_file.identity import same_training
from runbook.plan_file.json_records import as_json
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan, parse
from runbook.records.done_marks import output_checksums, read_start_facts
from runbook.runs.planned_run import PlannedTraining
from runbook.runs.step import StepOfRun


def continue_or_begin(training: PlannedTraining, step: StepOfRun) -> None:
    """Continue the training run whose outputs are in the folder, or start a new one.

    Outputs from a different training run are moved to the history.
    """
    if step.was_started():
        # Record the inputs again below, because an older version stored only their fingerprint.
        pass
    elif why := why_continued(training, step):
        show_text(why)
        training.append_event("replanned", why=why)
    else:
        paths = training_paths(training.folder, training.phase_plan)
        paths += sealed_paths(training.folder, training.phase)
        moved = move_to_history(training.folder, training.phase, paths)
        if moved:
            show_text(
                PhaseMessage.OUTPUTS_SET_ASIDE.fill(folder=moved.relative_to(training.folder))
            )

        # Everything before this event belongs to a different training run.
        training.append_event("begun")

    note_start(training, step)


def note_start(training: PlannedTraining, step: StepOfRun) -> None:
    """Record the inputs that training starts with, for later jobs."""
    facts = {"inputs": _identity(training, step), "phase": as_json(training.phase_plan)}
    step.note_start(facts)


def _identity(training: PlannedTraining, step: StepOfRun) -> dict[str, object]:
    """Return the values used to identify a training run, in addition to its plan.

    They are our code version for the phase, and the checksums of the token files.
    """
    return {
        "version": step.version,
        "data": output_checksums(training.folder, TOKENIZE),
    }


def _started_plan(training: PlannedTraining, step: StepOfRun) -> PhasePlan | None:
    """Return the plan for the training run that wrote the outputs in the folder.

    Return None if the recorded inputs are missing or differ from the current ones.
    """
    facts = read_start_facts(step.started_path)
    if facts.get("inputs") != _identity(training, step):
        return None
    return parse(facts["phase"])


def why_continued(training: PlannedTraining, step: StepOfRun) -> str:
    """Explain why the next job continues from the outputs in the folder although inputs changed.

    The text also explains the consequences. It is empty if the job starts from the beginning
    (because this is a different training run, or has no checkpoint) or if nothing is left to train.
    """
    # Only this phase can be extended, because the verdict on a smoke test covers all its steps from
    # the first.
    if training.phase != FULL or training.settings.run.training.framework != "runbook":
        return ""
    before = _started_plan(training, step)
    new_plan = training.phase_plan
    checkpoints = training.folder / new_plan.checkpoint.folder
    saved = max(saved_iterations(checkpoints), default=0)
    if (
        before is None
        or not same_training(before, new_plan)
        or not 0 < saved < new_plan.duration.iterations
    ):
        return ""

    old = _shown_values(before)
    new = _shown_values(new_plan)
    changed = ", ".join(
        f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    )
    sentences = [PhaseMessage.TRAINING_GOES_ON.fill(saved=saved, changes=changed or "replanned")]
    if before.duration.iterations != new_plan.duration.iterations:
        try:
            metadata = json.loads((checkpoints / folder_name(saved) / METADATA).read_text())
            consumed = int(metadata["consumed_samples"])
        except (OSError, ValueError, KeyError, TypeError):  # The trainer itself checks this
            consumed = saved * new_plan.batch.global_

        sentences.append(_rate_text(before, new_plan, consumed))

    if before.engine != new_plan.engine:
        sentences.append(PhaseMessage.OPTIMIZER_BEGINS_ANEW.fill())

    return " ".join([*sentences, PhaseMessage.BEGIN_TRAINING_ANEW.fill()])


def _shown_values(phase_plan: PhasePlan) -> dict[str, str]:
    parallel = phase_plan.parallel
    return {
        "iterations": f"{phase_plan.duration.iterations:,}",
        "engine": phase_plan.engine,
        "micro-batch": f"{phase_plan.batch.micro:,}",
        "tensor": f"{parallel.tensor:,}",
        "pipeline": f"{parallel.pipeline:,}",
        "virtual_pipeline": f"{parallel.virtual_pipeline:,}",
        "data": f"{parallel.data:,}",
        "zero_stage": f"{parallel.zero_stage:,}",
    }


def _rate_text(before: PhasePlan, new_plan: PhasePlan, consumed: int) -> str:
    if (
        before.learning_rate == new_plan.learning_rate
        or before.learning_rate.schedule == "constant"
    ):
        return PhaseMessage.RATE_INDEPENDENT_OF_LENGTH.fill()

    next_samples = consumed + new_plan.batch.global_
    old = before.learning_rate.at(next_samples)
    new = new_plan.learning_rate.at(next_samples)
    return PhaseMessage.RATE_FOLLOWS_NEW_LENGTH.fill(
        new=new,
        old=old,
        iterations=new_plan.duration.iterations,
        decay_samples=before.learning_rate.decay_samples,
    )
