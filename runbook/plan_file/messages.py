"""Messages about plan.json, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class PlanFileMessage(Message):
    """Messages about plan.json."""

    CANNOT_BE_TRAINED = "this plan cannot be trained:\n{problems}"
    CONFIGURED_OTHERWISE = (
        "deepspeed.{key}: {configured}, but the rest of the plan implies {planned}; make the plan "
        "again"
    )
    PLAN_MISSING = "{plan} does not exist; `runbook plan RUN` writes it"
    PLAN_NOT_JSON = "{plan} is not readable as JSON: {error}"
    PLAN_WITHOUT_PHASE = "{plan} has no phase {phase!r} under 'phases' (it has: {phase_names})"
    RANKS_STARTED = (
        "{world_size} ranks were started, but the plan is for {ranks} (tensor {tensor} x pipeline "
        "{pipeline} x data {data}): start {ranks}, or make a plan for {world_size}"
    )
    VALUE_DIFFERS = "{key} {value} ({whose}: {planned})"
    WRONG_TYPE = "{where}: {value} is not {type}"


class AlarmMessage(Message):
    """Texts that explain why an alarm was raised."""

    AFTER_RECORDS = (
        "{metric} {value:.4g}: {finding}; the {num_before} records before have median {usual:.4g} "
        "and spread {spread:.2g}"
    )
    JUMPED = "it jumped"
    JUMPED_WITH_GRADIENT = (
        "it jumped, and its gradient norm {grad_norm:.4g} is {factor:.3g} times the usual"
    )
    NOT_BACK = "{num_records} records after a spike, it has not recovered"
    MEDIAN_ROSE = "the median of {num_records} rose by {share:.1%}"
    FELL_LITTLE = (
        "it fell by {last_fall:.3g} over {last_records} records, and by {first_fall:.3g} over the "
        "{first_records} records before them"
    )
    RISES = (
        "{metric} {value:.4g}: it rose from {first:.4g} to {last:.4g} over {num_records} records; "
        "{rising_pairs:.0%} of all pairs of records rise"
    )
    GREW = (
        "{metric} grew steadily from {first} to {last} over {iterations} iterations, by {slope} "
        "each; the spread around that line is {spread}"
    )
    GREW_BY_SHARE = (
        "{metric} grew steadily from {first:.4g} to {last:.4g} over {iterations} iterations, by "
        "{share:.1%} each"
    )
    WAITS = "each of {num_steps} steps waits this long, {share:.0%} of its time"
    NORMS_LOST = "the gradient norm of {num_steps} steps in a row is not finite"
    LONG_SAVE = "the save took this long"
    MEMORY_LEFT = (
        "{growth}; {left} remain on {host}, enough for {hours:,.2f} hours if {growing} at this "
        "rate (until about iteration {iteration:.0f})"
    )
    IT_GROWS = "it grows"
    ALL_PROCESSES_GROW = "all {processes} processes grow"
    DISK_LOW = (
        "{free} of {total} are free on the disk of {folder}; a save takes {save}, {saves} are "
        "left, and {kept} are kept: {outlook}"
    )
    ALL_SAVES_FIT = "all saves fit"
    SAVE_DOES_NOT_FIT = (
        "the save of iteration {iteration}, in about {hours:,.2f} hours, does not fit"
    )
