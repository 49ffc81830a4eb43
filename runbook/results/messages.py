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
    NO_DIFFERENCE = "they do not differ"
    CHANGED_FROM = "{value:.4g}, {base:.4g} before ({change})"
    NOT_LOWER = "not more than {allowed:.0%} lower than in {base}"
    NOT_HIGHER = "not more than {allowed:.0%} higher than in {base}"
    STEPS_ON_DEVICES = "{steps} on {devices}"
    ONE_STEP = "step {step}"
    STEPS = "steps {first} to {last}"
    NO_POINT = "no point was given"
    NO_PRICE = "no price is known: set jobs.price_per_device_hour"
    PRICE = "{price:g} a device-hour"
    BEST_CASE = "without evaluation, checkpoints and restarts: the best case"
    WITH_GOODPUT = "with a goodput of {goodput:.1%}"
    NO_RANK_TIMES = "one rank, or no time of each rank was written"
    NO_PARTS = "this trainer told no parts but the waiting for data: the rest is other"
    SOME_COMMUNICATION_APART = (
        "communication that the engine does not measure apart is in computing"
    )
    CONTEXT_ONLY = "no: this run used a CPU, shown as context only"
    OTHER_DEVICE = "no: another device ({published_device} there, {device} here)"
    OTHER_SIZE = "no: another size; tokens/s depend on it"
    NO_PEAK = (
        "no datasheet peak is known for {device} in {precision}: no MFU is given, none is guessed"
    )
    PEAK = "peak of {device} in {precision}: {peak:g} TFLOP/s, dense"
    REPLACED_LOSS = "replaced by a restart"
    SHARE_AXIS = "share of the device's dense peak (%); hatched: HFU, recomputed work counted"
    RUN_WITHOUT_PEAK = "this run: no peak is known for its device, so it has no MFU"
    TRAINING_LOSS = "training loss"
    VALIDATION_LOSS = "validation loss"
    FIRST_LOSS_OF_VOCABULARY = "ln {vocabulary} = {loss:.2f}"
    NO_LOSS = "no loss (skipped or NaN)"
    ELAPSED_AXIS = "time since the first step began ({unit})"
    PUBLISHED_AXIS = "tokens per second and device (log scale); hollow: context, not comparable"
    PLANNED_LINE = "planned: {value}"
    RULE_NOT_CHECKABLE = "the rule of {pattern} needs an example and a source"
    STEP_TIME_AXIS = "time in steps ({unit})"
    COMPARED = "Verdict: {verdict} (each compared with {base})"
    LAYERS_OF_STAGE = "stage {stage}: layers {first}-{last}"
    FIRST_COPIES_DRAWN = "The first {drawn} of {replicas:,} copies are drawn."
    PLANNED_SECONDS = "the plan's seconds, every stage alike"
