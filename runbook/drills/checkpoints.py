"""Drills on checkpoints: killed in a save, damaged, without tracker, on a full disk, taken up in another layout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from runbook.drills.bench import Bench
from runbook.drills.case import PHASE, Case
from runbook.drills.ranks import end_well
from runbook.drills.verdict import Ending
from runbook.phases import begun
from runbook.phases.campaign import phase_fingerprint
from runbook.plan import Machine
from runbook.plan.booking import check_disk
from runbook.schedulers.base import State

BOUNDARIES = ("begin", "shards", "metadata", "rename", "tracker", "pruning")


def kill_in_save(bench: Bench) -> Ending:
    """SIGKILL at every boundary of a save, each in a job of its own."""
    words = ("training.save_interval=2",)
    case, ending = Case(bench, "kill-in-save", *words), Ending(f"SIGKILL in a save: {', '.join(BOUNDARIES)}")
    resumed = []
    for number, boundary in enumerate(BOUNDARIES, start=1):
        job = PHASE if number == 1 else f"{PHASE}-{number}"
        status = case.one_job(f"save:at={boundary},rank=0,number=2,job={job}")
        ending.rule(status.state is State.FAILED, f"{boundary}: the job ended with its rank")
        whole = [path.parent for path in case.tracker().parent.glob("iter_*[0-9]/metadata.json")]
        named = case.tracker().read_text().strip() if case.tracker().exists() else ""
        ending.rule(len(whole) == len(case.checkpoints()), f"{boundary}: no folder without its metadata")
        ending.rule(named.isdigit() and int(named) in case.checkpoints(), f"{boundary}: the tracker names one that is")
        resumed.append(case.checkpoints()[-1])
    told = case.train()
    found = [one["iteration"] for one in case.events("resumed")]
    ending.rule(found == resumed, f"each job went on from the newest whole one: {found}")
    ending.rule(not case.events("checkpoint_broken"), "no partial one was ever taken up")
    ending.action = "resumed from the newest whole checkpoint, the unfinished one removed"
    return end_well(bench, case, ending, told)


def damaged(bench: Bench) -> Ending:
    """A bit flipped, a shard cut short, a shard gone: one checkpoint after the other, until none is whole."""
    case, ending = Case(bench, "damaged"), Ending("one bit flipped, one shard truncated, one deleted")
    case.one_job("kill:rank=1,step=13")
    kept = shutil.copytree(case.tracker().parent, bench.root / "kept-checkpoints")
    told = {}
    for iteration, damage, words in ((12, _flip, "has sha256"), (8, _truncate, "has sha256"), (4, Path.unlink, "miss")):
        shard = _largest_shard(case, iteration)
        damage(shard)
        status = case.one_job("kill:rank=1,step=10; kill:rank=1,step=6")
        told[iteration] = case.said()
        ending.rule(
            f"{shard} {words}" in told[iteration] or f"{shard} is miss" in told[iteration], f"{shard.name} named"
        )
    ending.rule(
        "expected" in told[12] and "4 iterations are lost" in told[12], "expected and actual sum, steps lost told"
    )
    found = [one["iteration"] for one in case.events("resumed")]
    ending.rule(found == [8, 4], f"fell back to {found}")
    ending.rule(status.exit_code == 2 and "does not silently start again" in told[4], "none left: refused, exit code 2")
    shutil.rmtree(case.tracker().parent)
    shutil.copytree(kept, case.tracker().parent)
    ending.action = "fell back to the newest whole one; refused where none was left"
    ending.extra["lost_when_falling_back"] = [one["lost_iterations"] for one in case.events("resumed")]
    text = case.train()
    end_well(bench, case, ending, text, most_lost=8)  # two checkpoints back
    ending.rule(True, "brought back, it went on")
    return ending


def tracker(bench: Bench) -> Ending:
    """A tracker that is empty, holds garbage, or is gone."""
    case, ending = Case(bench, "tracker"), Ending("the tracker is emptied, overwritten with garbage, deleted")
    case.one_job("kill:rank=1,step=9")
    for content in (b"", b"\xff\x00garbage", None):
        case.tracker().unlink()
        if content is not None:
            case.tracker().write_bytes(content)
        status = case.one_job("kill:rank=1,step=10")
        ending.rule(status.exit_code not in (0, None), "it does not end with 0 for that")
        ending.rule(case.tracker().read_text() == "8\n", "the tracker was written anew")
    found = [one["iteration"] for one in case.events("resumed")]
    ending.rule(found == [8, 8, 8], f"it went on from {found}")
    ending.rule(len(case.events("tracker_rebuilt")) == 3, "told each time")
    ending.action = "rebuilt from the checkpoints' own metadata, with a warning"
    return end_well(bench, case, ending, case.train())


def disk_full(bench: Bench) -> Ending:
    """No file can grow beyond 200 kB from step 9 on."""
    case, ending = Case(bench, "disk-full"), Ending("no file can grow beyond 200 kB from step 9 on (RLIMIT_FSIZE)")
    told = case.train(f"full:bytes=200000,step=9,job={PHASE}")
    ending.rule("could not be written" in told and " bytes " in told, "told with the bytes that were needed")
    ending.rule("disk full: it would happen again" in told, "not started again until there is room")
    ending.rule(
        case.checkpoints() == [4, 8] and not case.parts(), "earlier checkpoints untouched, the partial one gone"
    )
    needed = sum(one["disk_bytes"] for one in case.campaign.plan.as_dict()["checkpoint"].values())
    checks = check_disk(needed, Machine(cores=1, flags=frozenset(), memory_bytes=2**33, free_disk_bytes=needed - 1))
    ending.rule([one.verdict for one in checks] == ["fail"], "the plan foresees it where the free space is known")
    ending.action = "stopped with the remedy; with room again it went on"
    return end_well(bench, case, ending, case.train())


def reshape(bench: Bench) -> Ending:
    """Saved by two data-parallel ranks, taken up by two stages and by two tensor ranks; and by another model."""
    first = Case(bench, "reshape-from")
    first.one_job("kill:rank=1,step=9")
    ending = Ending("pipeline x data 1 x 2 becomes 2 x 1 between save and load, then tensor 2; then a wider model")
    calm = Case(bench, "reshape-calm")
    calm.train()
    for name, word in (("reshape-to", "parallel.pipeline=2"), ("reshape-tensor", "parallel.tensor=2")):
        case = Case(bench, name, word)
        _take_over(first, case)
        told = case.train()
        ending.rule(not told and case.done(), f"{word}: another layout went on" if not told else told[:300])
        ending.rule([one["iteration"] for one in case.events("resumed")] == [8], "from the other layout's checkpoint")
        samples = case.samples()
        ending.rule(
            all(samples[n] == 4 * n for n in samples) and min(samples, default=0) == 9, "no sample skipped or twice"
        )
        far = max(abs(case.losses()[n] - loss) for n, loss in calm.losses().items() if n > 8)
        ending.rule(far < 1e-3, f"losses within {far:.1e} of one layout's")
    other = Case(bench, "reshape-wrong", "model=wide")
    _take_over(first, other)
    status = other.one_job()
    refused = status.exit_code == 2 and "is of another model: ffn_hidden 64 (plan: 128), hidden 16" in other.said()
    ending.rule(refused, "model=wide: refused with the reason")
    ending.rule(first.checkpoints() == other.checkpoints(), "and left as it is")
    ending.action = "resharded; refused with both shapes where it is another model"
    return ending


def _take_over(source: Case, case: Case) -> None:
    """Put one run's checkpoints where another looks for its own, as somebody who changes the layout does."""
    shutil.copytree(source.tracker().parent, case.tracker().parent)
    begun.note(case.campaign, phase_fingerprint(case.campaign.settings, case.campaign.plan, case.folder, PHASE))


def _largest_shard(case: Case, iteration: int) -> Path:
    shards = (case.tracker().parent / f"iter_{iteration:07d}" / "torch_dist").glob("__*.distcp")
    return max(shards, key=lambda path: path.stat().st_size)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
