"""Hung ranks: which one the others wait for, on one machine or on all together."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runbook.training.health.heartbeat import Heartbeat

CHECKS_PER_SECOND = 100.0  # of all machines together, while they look for a hung rank


@dataclass(frozen=True)
class Hang:
    """A rank that keeps the others waiting."""

    beat: Heartbeat
    seconds: float
    why: str


def silent_ranks(beats: Sequence[Heartbeat]) -> list[Hang]:
    """Ranks of this machine without a heartbeat: stopped, swapped out, or something holds Python's lock."""
    return [Hang(beat, beat.age, "no sign of life") for beat in beats if beat.age > beat.limit]


def find_hangs(beats: Sequence[Heartbeat]) -> list[Hang]:
    """The ranks that the others wait for, among the heartbeats of all ranks; nobody while one of them gets on.

    A rank waits for another one of its groups that has entered fewer collectives, or for a message that was not sent.
    Who is waited for and waits for nobody hangs. How a rank waits is not asked: on a GPU it is in whatever copy or
    `.item()` comes first. Where all have entered as many, it is the rank that is still inside of the last one; else it
    is nobody here, and the process groups' time-out ends the job.
    """
    if not all(beat.stuck for beat in beats):
        return []
    waiting, awaited = _waiting({beat.rank: beat.entered for beat in beats})
    culprits = awaited - waiting
    if not waiting:
        inside = {beat.rank for beat in beats if beat.inside}
        culprits = inside if len(inside) < len(beats) else set()
    return [Hang(beat, beat.still, f"in {beat.where}") for beat in beats if beat.rank in culprits]


def _waiting(counts: Mapping[int, Mapping[str, int]]) -> tuple[set[int], set[int]]:
    """Ranks that wait for another one by these counts, and ranks that one waits for."""
    groups: dict[str, list[tuple[int, int]]] = {}
    waiting, awaited = set[int](), set[int]()
    for rank, own in counts.items():
        for key, count in own.items():
            if key.startswith("recv "):
                sender = int(key.rpartition(" ")[2].partition(">")[0])
                if sender in counts and counts[sender].get(f"send {key[5:]}", 0) < count:
                    waiting.add(rank)
                    awaited.add(sender)
            elif not key.startswith("send "):  # who has sent more than was received need not wait
                groups.setdefault(key, []).append((count, rank))
    for members in groups.values():
        fewest = min(count for count, _ in members)
        ahead = {rank for count, rank in members if count > fewest}
        waiting |= ahead
        awaited.update(rank for _, rank in members if ahead and rank not in ahead)
    return waiting, awaited


@dataclass
class HangReports:
    """What the machines tell one another once nothing moves any more, at the ranks' store; no file is touched.

    The first rank of a machine that is well reports the heartbeats of all its ranks, the first machine reads all
    reports and names the rank that the others wait for, and the machine of that rank ends it.
    """

    world_size: int
    local: range
    clone_store: Callable[[], Any]  # a connection of its own: the main thread may wait on its one
    _store: Any = None
    _next_look: float = 0.0

    def find(self, beats: Sequence[Heartbeat], now: float) -> list[Hang]:
        """The hung ranks of this machine; call it again and again."""
        machines, machine = self.world_size // len(self.local), self.local.start // len(self.local)
        if len(beats) < len(self.local) or not all(beat.stuck for beat in beats):
            if self._next_look:  # something moves again: what was reported does not hold any more
                for key in (f"hang {machine}", *(["hung"] if machine == 0 else [])):
                    self._store.delete_key(key)
                self._next_look = 0.0
            return []
        if machines == 1:
            return find_hangs(beats)
        self._store = self._store or self.clone_store()
        if not self._next_look:
            self._store.set(f"hang {machine}", json.dumps([asdict(beat) for beat in beats]))
        if now < self._next_look:
            return []
        self._next_look = now + max(1.0, machines / CHECKS_PER_SECOND)
        if machine == 0 and self._store.check(keys := [f"hang {number}" for number in range(machines)]):
            everyone = [Heartbeat(**one) for report in self._store.multi_get(keys) for one in json.loads(report)]
            self._store.set("hung", json.dumps({hang.beat.rank: hang.why for hang in find_hangs(everyone)}))
        hung = json.loads(self._store.get("hung")) if self._store.check(["hung"]) else {}
        return [Hang(beat, beat.still, hung[str(beat.rank)]) for beat in beats if str(beat.rank) in hung]
