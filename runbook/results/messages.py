"""Messages about results and comparisons, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ResultMessage(Message):
    """Messages about results and comparisons."""

    BAD_GRADIENT_NORMS = "; not finite or zero at iteration {bad_iterations}"
    BEST_CASE = "without evaluations, checkpoints and restarts: the best case"
    CHANGED_FROM = "{value}, {base} before ({change})"
    COMPARED = "Verdict: {verdict} (each compared with {base})"
    CONTEXT_ONLY = "no: this run used a CPU, shown as context only"
    COPIES_LEFT_OUT = "; {number} skipped, because the previous ones were still being sent"
    COPIES_WRITTEN = (
        "{copies:,} written up to step {iteration}, {seconds:.2g} s each; {starts} used them"
    )
    ELAPSED_AXIS = "time since the first step began ({unit})"
    EXCEPTION = "{exception}: {message}"
    FIRST_COPIES_DRAWN = "The first {drawn} of {replicas:,} replicas are drawn."
    FIRST_LOSS_OFF = "{loss:.4g}{where}, off by {difference:+.3f}"
    FIRST_LOSS_OF_VOCABULARY = "ln {vocabulary} = {loss:.2f}"
    FIRST_REPEATED = ", first {repeated}"
    FORECASTS_HELD = "{hits} of {counted} outcomes were inside their {interval}s."
    FORECAST_CHANGED = (
        "{path} was changed after it was sealed on {sealed}: its checksum is {checksum_now}, not "
        "{checksum}. Changed forecasts are not scored. Restore it from a copy."
    )
    ITERATIONS_DONE = "{done} of {planned}"
    LAYERS_OF_STAGE = "stage {stage}: layers {first}-{last}"
    LATE_NOT_COUNTED = " Forecasts made after the first step are not counted: {late}."
    LOSS_BY_CURVE = "{loss:.3f} ({low:.3f} to {high:.3f}) from {share:.0%} of its curve"
    MADE_LATE = "{verdict}, made after the first step"
    NEVER_LOADED = "it was never loaded"
    NOT_A_RUN_FOLDER = "{path} does not exist: is {folder} the folder of a run?"
    NOT_FINISHED = "not finished: {progress}"
    NOT_HIGHER = "not more than {allowed:.0%} higher than in {base}"
    NOT_LOWER = "not more than {allowed:.0%} lower than in {base}"
    NOT_RECOVERED = ", not recovered from iteration {lasting} on"
    NO_DIFFERENCE = "they do not differ"
    NO_LOSS = "no loss (skipped or NaN)"
    NO_METRICS = "{path} does not exist: {remedy}"
    NO_PARTS = "this trainer reported only the wait for data: everything else is `other`"
    NO_PEAK = "no datasheet peak is known for {device} in {precision}, so no MFU is given"
    NO_POINT = "no run was given"
    NO_PRICE = "no price is known: set jobs.price_per_device_hour"
    NO_RANK_TIMES = "there is one rank, or no times of each rank were written"
    NO_WHOLE_RECORD = (
        "{path} has no complete record ({unread_lines} unread lines): no iteration was finished. "
        "See the job's err file for the reason."
    )
    ONE_STEP = "step {step}"
    OTHER_DEVICE = "no: another device ({published_device} there, {device} here)"
    OTHER_VALUE = "{key}={value}, {base_value} in {base}"
    OTHER_SIZE = "no: another size; tokens/s depend on the size"
    PARAMETERS_SUM = (
        "N = {layers} layers x {per_layer:,} + {others:,} (embeddings, last norm) = {total:,}"
    )
    PEAK = "peak of {device} in {precision}: {peak:g} TFLOP/s, dense"
    PLAN_VERSUS_ACTUAL = "Plan versus actual"
    PLANNED_LINE = "planned: {value}"
    PLANNED_SECONDS = "the plan's seconds, assuming equal stages"
    PRICE = "{price:g} a device-hour"
    PUBLISHED_AXIS = "tokens per second per device (log scale); hollow: context, not comparable"
    RAISED_AT = "{error} [{place}]"
    RECORD_NOT_AN_OBJECT = "{path} does not contain a JSON object."
    RECORD_NOT_JSON = "{path} is not JSON: {error}"
    REPLACED_LOSS = "replaced by a restart"
    RULE_NOT_CHECKABLE = "the rule of {pattern} needs an example and a source"
    RUN_WITHOUT_PEAK = "this run: no peak is known for its device, so it has no MFU"
    RUN_WITHOUT_PHASE = "{path} has no phase {phase}: run `runbook run` on it first."
    SAME_TEXT_RULE = "trained on the text and tokens of {base}, so that losses can be compared"
    SAVED_AT = "saved at {iterations}"
    SEALED_INTERVAL = "; sealed {low:.3f} to {high:.3f}"
    SHARE_AXIS = "share of the device's dense peak (%); hatched: HFU, which counts recomputed work"
    SKIPPED_AND_NAN_STEPS = "{skipped} skipped, {nan} NaN"
    SOME_COMMUNICATION_APART = (
        "communication that the engine does not measure separately counts as computing"
    )
    SPIKES = "{count} spikes"
    STARTS_FROM_PARTNERS = ", {number} with copies from another node"
    STEPS = "steps {first} to {last}"
    STEPS_MISSING = "missing: steps {missing}"
    STEPS_ON_DEVICES = "{steps} on {devices}"
    STEPS_REPEATED = "{count} repeated"
    STEP_TIME_AXIS = "time in steps ({unit})"
    TOO_FEW_EVALUATIONS = (
        "{folder_name} has {number_of_usable} evaluations so far, but a forecast needs "
        "{fewest_points}. The run evaluates once every {interval} iterations and has {iterations} "
        "in total (training.eval_interval)."
    )
    TOO_FEW_RUNS = "A comparison needs at least two runs, but {number_of_runs} was given."
    WITH_GOODPUT = "with a goodput of {goodput:.1%}"
    WORLD_SIZES = "world size {world_sizes}"
    WORSE_AFTER_TRAINING = "Worse after the training: {what}, {measure}, from {before} to {after}"
