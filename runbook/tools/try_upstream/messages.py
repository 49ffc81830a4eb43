"""Messages about starting upstream programs, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class UpstreamMessage(Message):
    """Messages about starting upstream programs."""

    CHECKOUT_WITHOUT_SCRIPT = (
        "{checkout} has no {script}, the program that the job starts. Give a checkout of "
        "{framework}."
    )
    CHECKPOINT_NOT_LOADED = (
        "The program did not load its checkpoint. Its log shows what it found in the folder that "
        "--load names."
    )
    CHECK_OF_JOB = "job {number}: {check}"
    FIRST_STEP = "first step: {shown_step}"
    CHECK_OUT_PINNED = (
        "The following applies only to this checkout. For the job's version: git checkout --detach "
        "{commit}"
    )
    DOES_NOT_WORK = "{program} DOES NOT WORK here: {how}."
    IN_A_CHAIN = "in a chain of {jobs} jobs, "
    NOT_AT_PINNED_COMMIT = "at {head}, not at the pinned commit"
    NO_GIT_REPOSITORY = "not a git repository, so its commit is unknown"
    NO_UPSTREAM = (
        "{run} trains with {framework}: --upstream starts Megatron-LM and Megatron-DeepSpeed. "
        "Leave it out, or set training.framework to one of them."
    )
    PYTHON_MISSING = (
        "The site's program runs with Python {python}, but {name} is neither on PATH nor in "
        "{pyenv}. Install that version, or give --installed to start the program with the packages "
        "installed here."
    )
    STARTED_AS = (
        "as {run} starts it in {phase}, scaled down, {chain}on {ranks} rank(s), with {versions}"
    )
    WORKS = "{program} works here: {how}."
