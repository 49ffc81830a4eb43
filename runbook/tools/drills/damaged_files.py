"""Drills on damaged checkpoints and token files, and on NaN losses."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from runbook.core.files import sha256_of
from runbook.jobs.job_folder import JobState
from runbook.phases.job_control.continuation import note_start
from runbook.phases.p01_environment.doctor import space_checks
from runbook.phases.phase_steps import train_step
from runbook.plan_file.checkpoint_folder import (
    METADATA,
    SHARDS,
    checkpoint_folders,
    folder_name,
)
from runbook.plan_file.errors import REFUSED
from runbook.plan_file.job_ends import EndCause
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.token_index import INDEX_HEADER
from runbook.tools.drills.bench import Bench, DrillEnding, DrillRun, write_tokens
from runbook.tools.drills.process_drills import end_well


class TrainerCode(StrEnum):
    """Error codes that the trainer writes to events.jsonl. Only the trainer can import their messages."""

    BAD_VALUE = "bad-value"
    CHECKPOINT_NOT_WRITTEN = "checkpoint-not-written"
    CHECKPOINT_OF_ANOTHER_MODEL = "checkpoint-of-another-model"
    NO_WHOLE_CHECKPOINT = "no-whole-checkpoint"


SHOWN_DIGITS = 16
"""How many checksum digits the trainer shows."""
BOUNDARIES = ("begin", "shards", "metadata", "rename", "tracker", "pruning")


def kill_in_save(bench: Bench) -> DrillEnding:
    """Send SIGKILL at every boundary of a save, each time in a separate job."""
    set_words = ("training.save_interval=2",)
    case = DrillRun(bench, "kill-in-save", *set_words)
    ending = DrillEnding(f"SIGKILL in a save: {', '.join(BOUNDARIES)}")
    resumed = []
    for number, boundary in enumerate(BOUNDARIES, start=1):
        job = FULL if number == 1 else f"{FULL}-{number}"
        status = case.one_job(f"save:at={boundary},rank=0,number=2,job={job}")
        ending.rule(status.state is JobState.FAILED, f"{boundary}: the job ended with its rank")
        folders = checkpoint_folders(case.tracker().parent)
        whole = [folder for folder in folders if (folder / METADATA).exists()]
        named = ""
        if case.tracker().exists():
            named = case.tracker().read_text().strip()
        ending.rule(
            len(whole) == len(case.checkpoints()),
            f"{boundary}: every checkpoint folder has its metadata",
        )
        ending.rule(
            named.isdigit() and int(named) in case.checkpoints(),
            f"{boundary}: the tracker names an existing checkpoint",
        )
        resumed.append(case.checkpoints()[-1])

    failure = case.train()
    resumed_from = [event["iteration"] for event in case.events("resumed")]
    ending.rule(
        resumed_from == resumed,
        f"each job resumed from the newest complete checkpoint: {resumed_from}",
    )
    ending.rule(not case.events("checkpoint_broken"), "no partial checkpoint was ever loaded")
    ending.action = (
        "resumed from the newest complete checkpoint and removed the unfinished checkpoint"
    )
    return end_well(bench, case, ending, failure)


def damaged_checkpoints(bench: Bench) -> DrillEnding:
    """Flip a bit, truncate a shard or delete one, until no checkpoint is intact."""
    case = DrillRun(bench, "damaged")
    ending = DrillEnding("one bit flipped, one shard truncated, one deleted")
    case.one_job("kill:rank=1,step=13")
    backup = shutil.copytree(case.tracker().parent, bench.root / "kept-checkpoints")
    for iteration, damage in ((12, _flip_bit), (8, _cut_shard)):
        shard = _largest_shard(case, iteration)
        checksum = sha256_of(shard)
        damage(shard)
        case.one_job("kill:rank=1,step=10; kill:rank=1,step=6")
        values = (str(shard), checksum[:SHOWN_DIGITS], sha256_of(shard)[:SHOWN_DIGITS])
        reported = [event["message"] for event in case.events("checkpoint_broken")]
        is_named = any(all(value in message for value in values) for message in reported)
        ending.rule(is_named, f"{shard.name} named, with both checksums")

    resumed = case.events("resumed")
    resumed_from = [event["iteration"] for event in resumed]
    ending.rule(resumed_from == [8, 4], f"fell back to {resumed_from}")
    ending.rule(resumed[0]["lost_iterations"] == 4, "the steps lost are an event")
    shard = _largest_shard(case, 4)
    shard.unlink()
    status = case.one_job()
    refusal = case.failure()
    ending.rule(
        status.exit_code == REFUSED and refusal.code == TrainerCode.NO_WHOLE_CHECKPOINT,
        "no complete checkpoint is left: refused with exit code 2",
    )
    ending.rule(str(shard) in refusal.message, f"{shard.name} named")
    shutil.rmtree(case.tracker().parent)
    shutil.copytree(backup, case.tracker().parent)
    ending.action = (
        "fell back to the newest complete checkpoint; refused to start when none was left"
    )
    ending.extra["lost_when_falling_back"] = [
        event["lost_iterations"] for event in case.events("resumed")
    ]
    text = case.train()
    # The last two checkpoints before the newest
    end_well(
        bench,
        case,
        ending,
        text,
        most_lost=8,
    )
    ending.rule(True, "with its checkpoints restored it resumed")
    return ending


def lost_tracker(bench: Bench) -> DrillEnding:
    """Empty the tracker, overwrite it with garbage, and delete it."""
    case = DrillRun(bench, "tracker")
    ending = DrillEnding("the tracker is emptied, overwritten with garbage, deleted")
    case.one_job("kill:rank=1,step=9")
    for content in (b"", b"\xff\x00garbage", None):
        case.tracker().unlink()
        if content is not None:
            case.tracker().write_bytes(content)
        status = case.one_job("kill:rank=1,step=10")
        ending.rule(status.exit_code not in (0, None), "the exit code is not 0")
        ending.rule(case.tracker().read_text() == "8\n", "the tracker was rewritten")

    resumed_from = [event["iteration"] for event in case.events("resumed")]
    ending.rule(resumed_from == [8, 8, 8], f"it resumed from {resumed_from}")
    ending.rule(len(case.events("tracker_rebuilt")) == 3, "each rebuild is an event")
    ending.action = "rebuilt from the checkpoints' own metadata, with a warning"
    return end_well(bench, case, ending, case.train())


def disk_full(bench: Bench) -> DrillEnding:
    """Limit file size to 200 kB from step 9 on."""
    case = DrillRun(bench, "disk-full")
    ending = DrillEnding("no file can grow beyond 200 kB from step 9 on (RLIMIT_FSIZE)")
    case.train(f"full:bytes=200000,step=9,job={FULL}")
    ending.rule(
        case.failure().code == TrainerCode.CHECKPOINT_NOT_WRITTEN,
        "the error says that the checkpoint could not be written",
    )
    ending.rule(case.end_cause() is EndCause.DISK_FULL, "not restarted until there is room")
    ending.rule(
        case.checkpoints() == [4, 8] and not case.parts(),
        "earlier checkpoints are untouched and the partial one is gone",
    )
    plan = case.open_phase.plan
    with patch(
        "shutil.disk_usage",
        return_value=SimpleNamespace(free=plan.checkpoint[FULL].disk_bytes - 1),
    ):
        checks = space_checks(case.open_phase.settings, plan, case.folder)

    ending.rule(
        "fail" in [check.verdict for check in checks],
        "the plan predicts it when the free space is known",
    )
    ending.action = "stopped and said how to free space; resumed once there was room"
    return end_well(bench, case, ending, case.train())


def other_layout(bench: Bench) -> DrillEnding:
    """Save with two replicas; resume with two stages, two tensor ranks, and a different model."""
    first = DrillRun(bench, "reshape-from")
    first.one_job("kill:rank=1,step=9")
    ending = DrillEnding(
        "pipeline x data 1 x 2 becomes 2 x 1 between save and load, then tensor 2; then a wider "
        "model"
    )
    calm = DrillRun(bench, "reshape-calm")
    calm.train()
    for name, word in (
        ("reshape-to", "parallel.pipeline=2"),
        ("reshape-tensor", "parallel.tensor=2"),
    ):
        case = DrillRun(bench, name, word)
        _take_over(first, case)
        failure = case.train()
        ending.rule(not failure and case.done(), f"{word}: the other layout resumed", failure[:300])
        ending.rule(
            [event["iteration"] for event in case.events("resumed")] == [8],
            "from the other layout's checkpoint",
        )
        samples = case.samples()
        ending.rule(
            all(samples[n] == 4 * n for n in samples) and min(samples, default=0) == 9,
            "no sample skipped or repeated",
        )
        far = max(abs(case.losses()[n] - loss) for n, loss in calm.losses().items() if n > 8)
        ending.rule(far < 1e-3, f"losses within {far:.1e} of those with a single layout")

    wider = DrillRun(bench, "reshape-wrong", "model=wide")
    _take_over(first, wider)
    status = wider.one_job()
    refusal = wider.failure()
    is_of_another_model = refusal.code == TrainerCode.CHECKPOINT_OF_ANOTHER_MODEL
    width = PlanFileMessage.VALUE_DIFFERS.fill(key="hidden", value=16, whose="plan", planned=32)
    ending.rule(
        status.exit_code == REFUSED and is_of_another_model and width in refusal.message,
        "model=wide: refused, with the reason",
    )
    ending.rule(first.checkpoints() == wider.checkpoints(), "its checkpoints are untouched")
    ending.action = "resharded the checkpoint; refused another model's, naming both shapes"
    return ending


def _take_over(source: DrillRun, case: DrillRun) -> None:
    """Move one run's checkpoints to where another run looks for its own.

    The same happens if somebody changes the layout of a run.
    """
    shutil.copytree(source.tracker().parent, case.tracker().parent)
    note_start(case.open_phase.training, train_step(case.open_phase.run, FULL))


def _largest_shard(case: DrillRun, iteration: int) -> Path:
    shards = (case.tracker().parent / folder_name(iteration) / SHARDS).glob("__*.distcp")
    return max(shards, key=lambda path: path.stat().st_size)


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut_shard(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def bad_numbers(bench: Bench) -> DrillEnding:
    """Inject a NaN loss under each policy, a spike that recovers, and fp16 overflows."""
    ending = DrillEnding(
        "the loss of step 9 is NaN (policies stop, skip, rollback); 3 times too high; fp16 "
        "overflows"
    )
    case = DrillRun(bench, "nan-stop")
    case.train(f"nan:step=9,job={FULL}")
    ending.rule(
        case.failure().code == TrainerCode.BAD_VALUE and _names_step_9(case),
        "stop: step and samples named",
    )
    ending.rule(
        case.end_cause() is EndCause.NOT_FINITE and len(case.job_names()) == 1,
        "stop: not restarted",
    )
    ending.rule(case.checkpoints() == [4, 8], "stop: that step was not saved")
    for policy in ("skip", "rollback"):
        tolerant = DrillRun(bench, f"nan-{policy}", f"training.nan_policy={policy}")
        failure = tolerant.train("nan:step=9")
        ending.rule(_names_step_9(tolerant), f"{policy}: the samples are in events.jsonl")
        ending.rule(
            not failure and tolerant.done(), f"{policy}: the training finished", failure[:300]
        )
        finite = all(loss is not None for step, loss in tolerant.losses().items() if step != 9)
        ending.rule(finite, f"{policy}: every other loss is finite")

    spike = DrillRun(bench, "spike")
    failure = spike.train("spike:step=9,factor=3")
    ending.rule(not failure and spike.done(), "a spike that recovers does not stop the training")
    # The plan rejects fp16 on a CPU, where it would only be slow.
    fp16 = DrillRun(bench, "overflow")
    fp16.change_plan(
        lambda content: content["precision"].update(format="fp16", initial_loss_scale=2.0**40)
    )
    failure = fp16.train("fp16")
    skipped = [row["iteration"] for row in fp16.rows() if row["skipped"]]
    ending.rule(
        not failure and bool(skipped), f"fp16: {len(skipped)} overflows counted as skipped steps"
    )
    ending.action = (
        "stopped, skipped or rolled back, as the policy says; skipped and counted overflows"
    )
    return end_well(bench, case, ending, case.train())


def _names_step_9(case: DrillRun) -> bool:
    """Return whether the first bad step in events.jsonl is step 9, with its samples."""
    bad_steps = case.events("bad_step")
    if not bad_steps:
        return False
    first = bad_steps[0]
    return (first["iteration"], first["first_sample"], first["last_sample"]) == (9, 32, 35)


def bad_data(bench: Bench) -> DrillEnding:
    """Train on token files that are damaged, empty, missing, or of the wrong type or vocabulary."""
    ending = DrillEnding(f"token files: {', '.join(DAMAGES)}")
    for number, (name, damage) in enumerate(DAMAGES.items()):
        case = DrillRun(bench, f"data-{number}")
        prefix = case.folder / case.open_phase.phase_plan.data.train[0].prefix
        damage(prefix)
        status = case.one_job()
        log_text = case.said()
        ending.rule(
            status.exit_code in (1, 2) and not case.rows(), f"{name}: refused before the first step"
        )
        ending.rule(
            prefix.name in log_text and "Traceback" not in log_text, f"{name}: the file is named"
        )
        write_tokens(prefix)
        ending.rule(case.one_job().exit_code == 0, f"{name}: it trains on intact files")

    ending.action = "refused before the first step; the error names the file and what is wrong"
    return ending


def _file_of(suffix: str, prefix: Path) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _cut_tokens(prefix: Path) -> None:
    path = _file_of(".bin", prefix)
    os.truncate(path, path.stat().st_size // 2)


def _other_type(prefix: Path) -> None:
    """Make the index state four bytes per token, although each token has two."""
    path = _file_of(".idx", prefix)
    content = bytearray(path.read_bytes())
    magic, version, _, sequences, documents = INDEX_HEADER.unpack_from(content)
    INDEX_HEADER.pack_into(
        content,
        0,
        magic,
        version,
        4,
        sequences,
        documents,
    )
    path.write_bytes(content)


def _unknown_ids(prefix: Path) -> None:
    path = _file_of(".bin", prefix)
    size = path.stat().st_size
    path.write_bytes(struct.pack("<H", 60_000) * (size // 2))


def _empty(prefix: Path) -> None:
    _file_of(".bin", prefix).write_bytes(b"")


def _gone(prefix: Path) -> None:
    _file_of(".bin", prefix).unlink()


def _garbage(prefix: Path) -> None:
    _file_of(".idx", prefix).write_bytes(b"not an index" * 10)


DAMAGES: dict[str, Callable[[Path], None]] = {
    ".bin cut short": _cut_tokens,
    ".idx of another type": _other_type,
    "ids beyond the vocabulary": _unknown_ids,
    "empty .bin": _empty,
    ".bin gone": _gone,
    ".idx is garbage": _garbage,
}
