"""Messages about predicted step times, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class SpeedMessage(Message):
    """Messages about predicted step times."""

    BEST_CHANGE = "largest gain: --set {change}"
    BEHIND_THE_CAUSE = "   usually behind it: {behind}"
    CHECK = "check {number}, {cause}: {action}. It is the cause if {confirming}."
    COLUMNS_MISSING = (
        "the table has no column {missing} (its first line: {first_line}). A table of results "
        "begins with a line of column names as in published_results.csv: model, params_b, "
        "accelerator, n_accel, precision, seq_len, global_batch, tp, pp, dp, ... ; separated by "
        "commas, with at least these two."
    )
    CONTRADICTION = (
        "two figures contradict each other: according to {slowest}, a step takes "
        "{slowest_seconds:.4g} s, and according to {fastest}, {fastest_seconds:.4g} s "
        "({ratio:.3g} x). The model, number of devices, peak or convention must differ from what "
        "was given"
    )
    CORRECTED = ", corrected by {count} measured"
    EXPECTED = "expected ({source}): {seconds}"
    PLANNED = "planned: {seconds}, according to the plan's model of a step for this set-up"
    REACHED = "reached: {seconds}"
    REACHED_AS_PLANNED = (
        "reached: not stated, so the planned time is used. Add --set reached.seconds=5 (or .tflops, "
        ".mfu, .tokens_per_second)"
    )
    SECONDS_A_STEP = "{seconds:.4g} s per step"
    NOT_CORRECTED = (
        "{uncorrected} of {predicted} not corrected: no measured row has the same accelerator, "
        "precision and software, and between 1/{like:g} and {like:g} times as many operations per step."
    )
    NOT_KNOWN = "not known"
    NOT_A_FACT = "--set {word}: explain takes KEY=VALUE. Nearest: {near}."
    NOT_A_PLAIN_NUMBER = (
        "--set {word}: {name} must be a number without unit or sign. Write --set {name}=128."
    )
    NOTHING_SAYS = "not stated anywhere"
    NOTHING_FOUND = (
        "no cause found. Say what is slow, how slow it is, and compared with what; add the command "
        "line and 20 lines of the log."
    )
    NOTHING_MEASURED = (
        "no row of the measured table can be used: a row needs tokens_s_per_accel or "
        "tflops_per_accel, and a known accelerator and model."
    )
    NO_TEXT = (
        "{reason}, so there is nothing to explain. Give a training log or part of one, a command "
        "line, a YAML file, or a question in words."
    )
    NO_TIMES = "neither an expected nor a reached step time is known, so causes have no seconds"
    NOT_SAID = "not stated (add for costs in seconds; values are examples): {words}"
    PRINTED_CONVENTION = (
        "the log prints {printed:.0f} TFLOP/s, in another convention: {ours:.0f} in ours"
    )
    ROW_NOT_READABLE = "{path}, line {line_num}: {error}. Save the table as CSV with commas."
    SIMILAR_STORIES = "accepted in {count} of {nearest} similar public stories ({addresses})"
    TABLE_NOT_READABLE = "{path}: {reason}. Give the path of a CSV file."
    TABLE_NOT_UTF8 = "{path} is not UTF-8 text (byte {start}). Save the table as CSV in UTF-8."
    TABLE_TOO_LARGE = "{path} has more than {max_bytes} MiB, so it is not a table of results."
    UNKNOWN_ACCELERATOR = (
        "the accelerator {accelerator!r} is not in our table, and no peak is guessed"
    )
    OF_CATALOGUE = "{name} of the catalogue"
    OF_CATALOGUE_BY_SIZE = "{name} from the catalogue, chosen by size"
    OF_CATALOGUE_SCALED = "{name} of the catalogue, scaled to {billions:g} B"
    COLUMNS_OF_TABLE = "columns of the table"
    GCD = "a GCD, as PyTorch counts them, not a module with two GCDs"
    TAKEN_FOR = "planned as {planned}, which is used for {accelerator!r}"
    NOT_CALIBRATED = (
        "no training on {family} has been published: only matrix products were measured"
    )
    SEQUENCE = "sequence of {tokens}"
    LAYOUT = "tensor {tensor} x pipeline {pipeline}"
    DEVICES = "{devices} devices"
    GLOBAL_BATCH = "global batch of {sequences}"
    NO_MULTIPLE = (
        "{devices} devices are not a multiple of tensor x pipeline x context: {replicas} replicas"
    )
