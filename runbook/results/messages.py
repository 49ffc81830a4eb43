"""Messages about results and comparisons: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ResultMessage(Message):
    """Messages about results and comparisons."""

    BAD_GRADIENT_NORMS = "; not finite or zero at iteration {bad_iterations}"
    FIRST_LOSS_OFF = "{loss:.4g}{where}, off by {difference:+.3f}"
    FIRST_REPEATED = ", first {repeated}"
    FORECAST_CHANGED = (
        "{path} was changed after it was sealed on {sealed}: its checksum is {checksum_now}, and "
        "{checksum} was sealed. Forecasts that were changed are not scored. Restore it from a "
        "copy."
    )
    NEVER_LOADED = "it was never loaded"
    NOT_A_RUN_FOLDER = "{path} does not exist: is {folder} the folder of a run?"
    NOT_RECOVERED = ", not recovered from iteration {lasting} on"
    NO_METRICS = "{path} does not exist: {remedy}"
    NO_WHOLE_RECORD = (
        "{path} holds no whole record ({unread_lines} unread lines): no iteration was finished. "
        "The job's err file says why."
    )
    RECORD_NOT_AN_OBJECT = "{path} holds no JSON object."
    RECORD_NOT_JSON = "{path} is not JSON: {error}"
    RUN_WITHOUT_PHASE = "{path} has no phase {phase}: run `runbook run` on it first."
    SAVED_AT = "saved at {iterations}"
    SKIPPED_AND_NAN_STEPS = "{skipped} skipped, {nan} NaN"
    STEPS_MISSING = "missing: steps {missing}"
    TOO_FEW_EVALUATIONS = (
        "{folder_name} has {number_of_usable} evaluations of its training so far, and a forecast "
        "needs {fewest_points}. It evaluates every {interval} of {iterations} iterations "
        "(training.eval_interval)."
    )
    TOO_FEW_RUNS = "A comparison needs at least two runs; {number_of_runs} given."
    WORLD_SIZES = "world size {world_sizes}"
    SPIKES = "{count} spikes"
    STEPS_REPEATED = "{count} repeated"
    ITERATIONS_DONE = "{done} of {planned}"
