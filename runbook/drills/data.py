"""Drills on what is trained on: numbers that are none, and token files that are not what they say."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from runbook.data.indexed import HEADER
from runbook.drills.bench import Bench, write_tokens
from runbook.drills.case import PHASE, Case
from runbook.drills.ranks import end_well
from runbook.drills.verdict import Ending


def bad_numbers(bench: Bench) -> Ending:
    """A loss that is NaN under each policy, a spike that heals, and fp16 gradients that overflow."""
    ending = Ending("the loss of step 9 is NaN (policies stop, skip, rollback); 3 times too high; fp16 overflows")
    case = Case(bench, "nan-stop")
    told = case.train(f"nan:step=9,job={PHASE}")
    ending.rule("is nan at iteration 9 (samples 32 to 35)" in told, "stop: step and samples named")
    ending.rule("NaN in the loss: it would happen again" in told and len(case.job_names()) == 1, "not started again")
    ending.rule(case.checkpoints() == [4, 8], "nothing of that step was saved")
    for policy in ("skip", "rollback"):
        other = Case(bench, f"nan-{policy}", f"training.nan_policy={policy}")
        told = other.train("nan:step=9")
        bad = other.events("bad_step")
        named = bool(bad) and (bad[0]["iteration"], bad[0]["first_sample"], bad[0]["last_sample"]) == (9, 32, 35)
        ending.rule(named, f"{policy}: the samples are in events.jsonl")
        ending.rule(not told and other.done(), f"{policy}: it came to its end" if not told else told[:300])
        finite = all(loss is not None for step, loss in other.losses().items() if step != 9)
        ending.rule(finite, f"{policy}: every other loss is a number")
    spike = Case(bench, "spike")
    told = spike.train("spike:step=9,factor=3")
    ending.rule(not told and spike.done(), "a spike that heals is not aborted")
    fp16 = Case(bench, "overflow")  # the plan refuses fp16 on a CPU, where it is only slow
    fp16.change_plan(lambda spec: spec["precision"].update(format="fp16", initial_loss_scale=2.0**40))
    told = fp16.train("fp16")
    skipped = [row["iteration"] for row in fp16.rows() if row["skipped"]]
    ending.rule(not told and bool(skipped), f"fp16: {len(skipped)} overflows counted as skipped steps")
    ending.action = "stopped, left out or gone back by policy; overflows skipped and counted"
    return end_well(bench, case, ending, case.train())


def bad_data(bench: Bench) -> Ending:
    """Token files cut short, of another type, with ids the model does not know, empty, gone: refused at the start."""
    ending = Ending(f"token files: {', '.join(DAMAGES)}")
    for number, (name, damage) in enumerate(DAMAGES.items()):
        case = Case(bench, f"data-{number}")
        prefix = case.folder / case.campaign.spec["data"]["train"][0]["prefix"]
        damage(prefix)
        status = case.one_job()
        words = case.said()
        ending.rule(status.exit_code in (1, 2) and not case.rows(), f"{name}: refused before a step")
        ending.rule(prefix.name in words and "Traceback" not in words, f"{name}: the file is named")
        write_tokens(prefix)
        ending.rule(case.one_job().exit_code == 0, f"{name}: with whole files it trains")
    ending.action = "refused before the first step, with the file and what is wrong with it"
    return ending


def _with(suffix: str, prefix: Path) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _truncate(prefix: Path) -> None:
    path = _with(".bin", prefix)
    os.truncate(path, path.stat().st_size // 2)


def _other_type(prefix: Path) -> None:
    """The index says four bytes a token, the tokens have two."""
    path = _with(".idx", prefix)
    content = bytearray(path.read_bytes())
    magic, version, _, sequences, documents = HEADER.unpack_from(content)
    HEADER.pack_into(content, 0, magic, version, 4, sequences, documents)
    path.write_bytes(content)


def _unknown_ids(prefix: Path) -> None:
    path = _with(".bin", prefix)
    size = path.stat().st_size
    path.write_bytes(struct.pack("<H", 60_000) * (size // 2))


def _empty(prefix: Path) -> None:
    _with(".bin", prefix).write_bytes(b"")


def _gone(prefix: Path) -> None:
    _with(".bin", prefix).unlink()


def _garbage(prefix: Path) -> None:
    _with(".idx", prefix).write_bytes(b"not an index" * 10)


DAMAGES: dict[str, Callable[[Path], None]] = {
    ".bin cut short": _truncate,
    ".idx of another type": _other_type,
    "ids beyond the vocabulary": _unknown_ids,
    "empty .bin": _empty,
    ".bin gone": _gone,
    ".idx is garbage": _garbage,
}
