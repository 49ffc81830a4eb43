"""Messages about results and comparisons: one row each, with `{name}` for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ResultMessage(Message):
    """Messages about results and comparisons."""

    FORECAST_CHANGED = (
        "{path} was changed after it was sealed on {sealed}: its checksum is {checksum_now}, and "
        "{checksum} was sealed. Forecasts that were changed are not scored. Restore it from a "
        "copy."
    )
    NOT_A_RUN_FOLDER = "{path} does not exist: is {folder} the folder of a run?"
    NO_METRICS = "{path} does not exist: {remedy}"
    NO_WHOLE_RECORD = (
        "{path} holds no whole record ({unread_lines} unread lines): no iteration was finished. "
        "The job's err file says why."
    )
    RECORD_NOT_AN_OBJECT = "{path} holds no JSON object."
    RECORD_NOT_JSON = "{path} is not JSON: {error}"
    RUN_WITHOUT_PHASE = "{path} has no phase {phase}: run `runbook run` on it first."
    TOO_FEW_EVALUATIONS = (
        "{folder_name} has {number_of_usable} evaluations of its training so far, and a forecast "
        "needs {fewest_points}. It evaluates every {interval} of {iterations} iterations "
        "(training.eval_interval)."
    )
    TOO_FEW_RUNS = "A comparison needs at least two runs; {number_of_runs} given."
