"""The watchdog on one rank.

It writes the rank heartbeat, counts collectives, and works with the other watchdogs to find and
kill a hung rank.
"""

import contextlib
import functools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from runbook.plan_file.hang_limits import HANG_SHARE, UNMEASURED_SHARE, HangLimits
from runbook.plan_file.heartbeat_files import RANKS_FOLDER, remove_leftovers
from runbook.plan_file.json_records import append_line
from runbook.plan_file.schema import PhasePlan
from runbook.training.health.heartbeat import (
    FOLDER_VARIABLE,
    HEARTBEAT_SECONDS,
    Heartbeat,
    HeartbeatFile,
    HeartbeatWriter,
    process_fields,
    process_start_ticks,
)
from runbook.training.health.stacks import ask_for_stacks, read_stacks, send_signals
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import Ranks, on_gpu

# How often per second all machines together check the store during the search for a hung rank
CHECKS_PER_SECOND = 100.0


@dataclass(frozen=True)
class Hang:
    """A hung rank for which other ranks are waiting."""

    beat: Heartbeat
    seconds: float
    why: str


def silent_ranks(beats: Sequence[Heartbeat]) -> list[Hang]:
    """Return the ranks on this machine without a recent heartbeat.

    Such a rank is stopped or swapped out, or a thread in it is holding the GIL.
    """
    return [
        Hang(beat, beat.age, TrainingMessage.NO_SIGN_OF_LIFE.fill())
        for beat in beats
        if beat.age > beat.limit
    ]


def find_hangs(beats: Sequence[Heartbeat]) -> list[Hang]:
    """Return the hung ranks, or no ranks while any rank makes progress.

    A rank waits for a rank in one of its groups if that rank has entered fewer collectives or has
    not sent a message. A rank is hung if others wait for it and it waits for no one. It does not
    matter where a waiting rank blocks. On a GPU, it blocks at the first copy or `.item()` after the
    wait began. If all ranks have entered the same number of collectives, the hung ranks are the
    ones still inside the last collective. If no rank or every rank is still inside, the
    process-group timeout ends the job.
    """
    if not all(beat.stuck for beat in beats):
        return []
    waiting, awaited = _waiting({beat.rank: beat.entered for beat in beats})
    culprits = awaited - waiting
    if not waiting:
        inside = {beat.rank for beat in beats if beat.inside}
        culprits = inside if len(inside) < len(beats) else set()

    found_hangs: list[Hang] = []
    for beat in beats:
        if beat.rank in culprits:
            found_hangs.append(Hang(beat, beat.still, f"in {beat.where}"))

    return found_hangs


def _waiting(counts: Mapping[int, Mapping[str, int]]) -> tuple[set[int], set[int]]:
    """Return the ranks that wait for other ranks, and the ranks they wait for."""
    groups: dict[str, list[tuple[int, int]]] = {}
    waiting = set[int]()
    awaited = set[int]()
    for rank, own_counts in counts.items():
        for key, count in own_counts.items():
            if key.startswith("recv "):
                sender = _late_sender(key, count, counts)
                if sender is not None:
                    waiting.add(rank)
                    awaited.add(sender)
            elif not key.startswith("send "):
                # A rank that has sent more messages than were received is not necessarily waiting
                groups.setdefault(key, []).append((count, rank))

    for members in groups.values():
        fewest = min(count for count, _ in members)
        ahead = {rank for count, rank in members if count > fewest}
        if ahead:
            waiting |= ahead
            awaited |= {rank for _, rank in members} - ahead

    return waiting, awaited


def _late_sender(key: str, count: int, counts: Mapping[int, Mapping[str, int]]) -> int | None:
    """Return the sender if it has sent fewer messages than a rank has begun to receive, or None."""
    route = key.removeprefix("recv ")
    sender = int(route.rpartition(" ")[2].partition(">")[0])
    if sender not in counts or counts[sender].get(f"send {route}", 0) >= count:
        return None
    return sender


@dataclass
class HangReports:
    """Reports that machines exchange through the shared store once no rank makes progress.

    No files are used. On each machine, the first healthy rank reports the heartbeats from all ranks
    there. The first machine reads all reports and names the rank the others are waiting for. The
    machine this rank runs on kills it.
    """

    world_size: int
    local: range
    # A separate connection is used, since the main thread may be waiting on its own
    clone_store: Callable[[], Any]
    _store: Any = None
    _next_look: float = 0.0

    def find(self, beats: Sequence[Heartbeat], now: float) -> list[Hang]:
        """Return the hung ranks on this machine. The watchdog calls this method repeatedly."""
        machines = self.world_size // len(self.local)
        machine = self.local.start // len(self.local)
        if len(beats) < len(self.local) or not all(beat.stuck for beat in beats):
            self._withdraw(machine)
            return []

        if machines == 1:
            return find_hangs(beats)
        self._store = self._store or self.clone_store()
        if not self._next_look:
            self._store.set(f"hang {machine}", json.dumps([asdict(beat) for beat in beats]))
        if now < self._next_look:
            return []
        self._next_look = now + max(1.0, machines / CHECKS_PER_SECOND)
        if machine == 0:
            self._judge_reports(machines)
        if not self._store.check(["hung"]):
            return []
        # In JSON, ranks are strings.
        reasons: dict[str, str] = json.loads(self._store.get("hung"))
        hangs = []
        for beat in beats:
            if str(beat.rank) in reasons:
                hangs.append(Hang(beat, beat.still, reasons[str(beat.rank)]))

        return hangs

    def _withdraw(self, machine: int) -> None:
        """Delete the report from this machine, since a rank is making progress again."""
        if not self._next_look:
            return
        self._store.delete_key(f"hang {machine}")
        if machine == 0:
            self._store.delete_key("hung")
        self._next_look = 0.0

    def _judge_reports(self, machines: int) -> None:
        """Publish the hung ranks on all machines, once each machine has reported."""
        keys = [f"hang {number}" for number in range(machines)]
        if not self._store.check(keys):
            return
        beats = []
        for report in self._store.multi_get(keys):
            beats += [Heartbeat(**fields) for fields in json.loads(report)]
        reasons = {hang.beat.rank: hang.why for hang in find_hangs(beats)}
        self._store.set("hung", json.dumps(reasons))


STACK_SECONDS = 6.0
"""Longest wait for stacks from a hung rank.

A rank is killed after 0.6 times a timeout that is at least 20 s, so at least 8 s remain until the
others time out.
"""
STACK_LINES = 40
HUNG_EXIT_CODE = 70
"""Exit code used when the watchdog ends its own rank because the main thread hung."""


class Watchdog:
    """A thread that writes the heartbeat for this rank, and kills a hung rank on this machine."""

    def __init__(
        self,
        spec: PhasePlan,
        ranks: Ranks,
        folder: Path,
        local: range,
    ) -> None:
        self.spec = spec
        self.ranks = ranks
        self.folder = folder
        self.local = local
        timeout = float(spec.limits.process_group_timeout_seconds)
        self._limits = HangLimits(timeout)
        self._file = HeartbeatFile(folder, local)
        self.heartbeat = HeartbeatWriter(ranks.rank, self._limits, self._file)
        # Set once this rank has joined the others
        self._reports: HangReports | None = None
        self._timeout = timeout
        self._rested_until = 0.0
        self._looked = time.monotonic()
        self._has_shown_stacks = False
        self._shown = ""
        self._killed = set[int]()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._watch,
            name="watch",
            daemon=True,
        )

    def start(self) -> None:
        """Start the thread."""
        if self.ranks.rank == self.local.start:
            remove_leftovers()
        if on_gpu():
            switch_recorder_on(self.folder.parent)
        self._file.open()
        self.heartbeat.open()
        self.heartbeat.write()
        self._thread.start()

    def join(self) -> None:
        """Start counting collectives.

        All ranks have just synchronized, so they all start counting at the same time.
        """
        from torch.distributed import distributed_c10d

        count_entries()
        self.heartbeat.entered, self.heartbeat.is_inside = entered, is_inside
        store: Any = distributed_c10d._get_default_store()
        self._reports = HangReports(self.ranks.world_size, self.local, store.clone)

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self.heartbeat.close()
        self._file.close(remove=self.ranks.rank == self.local.start)

    def _watch(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Write the heartbeat for this rank, and check those from other ranks on this machine."""
        if overslept(self._looked, now, HANG_SHARE * self._timeout):
            self._rested_until = now + HANG_SHARE * self._timeout / 2
        self._looked = now
        own_beat = self.heartbeat.current()
        # This must happen before other ranks notice that this rank is stuck, because they then kill
        # it
        self._show_stacks(own_beat)
        self._show_collectives(own_beat)
        self.heartbeat.write(own_beat)
        self._raise_timeouts(own_beat.limit)
        if now >= self._rested_until:
            others = [beat for beat in self._file.read() if beat.rank != own_beat.rank]
            self._end_hung([own_beat, *others], now)

    def _show_stacks(self, own_beat: Heartbeat) -> None:
        """Write the stacks when this rank gets stuck.

        No other rank can read them as safely, since only this thread holds the GIL.
        """
        if own_beat.stuck and not self._has_shown_stacks:
            self.heartbeat.write_stacks()
        self._has_shown_stacks = own_beat.stuck

    def _show_collectives(self, own_beat: Heartbeat) -> None:
        """Save the record of collectives when this rank gets stuck.

        The heartbeat contains a summary of it.
        """
        if not own_beat.stuck:
            self._shown = ""
        elif not self._shown and self._reports:
            self._shown = write_collectives(self.folder / f"{own_beat.rank}.collectives.json")

        own_beat.collectives = self._shown

    def _raise_timeouts(self, limit: float) -> None:
        """Raise the timeout for the process groups if steps take a long time.

        The groups must not abort a rank before the watchdog does.
        """
        unmeasured = UNMEASURED_SHARE * self._limits.timeout
        if self._reports and limit > HANG_SHARE * self._timeout and limit != unmeasured:
            self._timeout = limit / HANG_SHARE
            raise_timeouts(self._timeout)

    def _end_hung(self, beats: Sequence[Heartbeat], now: float) -> None:
        """Kill the hung ranks on this machine. Only the first rank with a heartbeat does this."""
        own_beat = beats[0]
        silent = silent_ranks(beats)
        silent_numbers = {hang.beat.rank for hang in silent}
        first_rank = min({beat.rank for beat in beats} - silent_numbers)
        if own_beat.rank != first_rank:
            return
        hangs = silent or self._find_stuck(beats, now)
        # The last heartbeat from a silent rank may be out of date
        step = max(beat.step for beat in beats)
        # This rank ends itself last.
        for hang in sorted(hangs, key=lambda hang: hang.beat.rank == own_beat.rank):
            if self._has_ended(hang.beat):
                continue
            # The hang is reported before the rank is killed, because its death ends this process
            # within milliseconds.
            stack = self._stacks(hang.beat, is_silent=hang.beat.rank in silent_numbers)
            self._report_hang(hang, own_beat, step, stack)
            if hang.beat.rank == own_beat.rank:
                os._exit(HUNG_EXIT_CODE)
            self._killed.add(hang.beat.pid)
            send_signals(hang.beat.pid, signal.SIGKILL)

    def _find_stuck(self, beats: Sequence[Heartbeat], now: float) -> list[Hang]:
        """Return the hung ranks on this machine, all of which still write heartbeats."""
        if self.ranks.world_size == 1:
            own_beat = beats[0]
            if own_beat.activity == "step" and own_beat.steps > 0 and own_beat.stuck:
                return [Hang(own_beat, own_beat.still, f"in {own_beat.where}")]
            return []

        if self._reports:
            # The store disappears when the process for rank 0 ends
            with contextlib.suppress(RuntimeError):
                return self._reports.find(beats, now)

        return []

    def _has_ended(self, beat: Heartbeat) -> bool:
        """Return whether the process for a rank has ended, even if it has not been reaped yet."""
        if beat.pid in self._killed:
            return True
        # A different start time means that the pid now belongs to a different process; -1 means
        # that the start time is unknown.
        return process_start_ticks(beat.pid) not in (beat.start, -1)

    def _stacks(self, beat: Heartbeat, *, is_silent: bool) -> list[str]:
        """Get and save the stacks from a rank. Only a silent rank has to be asked for them."""
        if is_silent:
            text = self._stacks_of_silent(beat)
        else:
            text = read_stacks(Path(beat.stacks), STACK_SECONDS)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._stack_file(beat.rank).write_text(text, encoding="utf-8")

        return text.splitlines()[:STACK_LINES]

    def _stacks_of_silent(self, beat: Heartbeat) -> str:
        """Ask a rank for its stacks. A stopped rank must run for a moment to write them."""
        stopped = process_fields(beat.pid)[:1] == ["T"]
        text = ask_for_stacks(beat.pid, Path(beat.stacks), STACK_SECONDS)
        # Otherwise the rank would continue to train, and the new steps would be lost when it is
        # killed
        if stopped:
            send_signals(beat.pid, signal.SIGSTOP)
        return text

    def _stack_file(self, rank: int) -> Path:
        return self.folder / f"{rank}.stack"

    def _report_hang(
        self,
        hang: Hang,
        own_beat: Heartbeat,
        step: int,
        stack: list[str],
    ) -> None:
        beat = hang.beat
        stacks = "it wrote none"
        if stack:
            stacks = str(self._stack_file(beat.rank))
        text = (
            f"rank {beat.rank} (process {beat.pid} on {beat.host}) hangs at step {step}: "
            f"{hang.why} for {hang.seconds:.0f} s "
            f"(limit {beat.limit:.0f} s, {beat.activity}); it is ended. Its stacks: {stacks}"
        )
        # Save the collectives from the hung rank, and from one rank waiting for it.
        collectives = {}
        lines = []
        for recorded in (beat, own_beat):
            if recorded.collectives and recorded.rank not in collectives:
                collectives[recorded.rank] = recorded.collectives
                path = self.folder / f"{recorded.rank}.collectives.json"
                lines.append(
                    TrainingMessage.RANK_IS_IN.fill(
                        rank=recorded.rank, collectives=recorded.collectives, path=path
                    )
                )

        record = {
            "time": time.time(),
            "event": "hang",
            "phase": self.spec.phase,
            "rank": beat.rank,
            "host": beat.host,
            "step": step,
            "activity": beat.activity,
            "seconds": round(hang.seconds, 1),
            "where": beat.where,
            "stacks": stacks,
            "collectives": collectives,
        }
        with contextlib.suppress(OSError):
            append_line(self.spec.path(self.spec.log.events), record)
        with contextlib.suppress(OSError):
            sys.stderr.write("\n".join([text, *lines, *stack]) + "\n")
            sys.stderr.flush()


def overslept(looked: float, now: float, limit: float) -> bool:
    """Return whether this process was stopped or starved for at least half the limit.

    If so, the other ranks may not have run either.
    """
    return now - looked > limit / 2


def make_watchdog(spec: PhasePlan, ranks: Ranks, environment: Mapping[str, str]) -> Watchdog | None:
    """Return the watchdog for this rank, or None if the job has no folder."""
    folder = environment.get(FOLDER_VARIABLE, "")
    if not folder:
        return None
    size = environment.get("LOCAL_WORLD_SIZE", "")
    if size.isdigit() and ranks.local_rank < int(size) <= ranks.world_size:
        count = int(size)
    else:
        count = 1

    first = ranks.rank - ranks.local_rank if count > 1 else ranks.rank
    return Watchdog(spec, ranks, Path(folder) / RANKS_FOLDER, range(first, first + count))


_COLLECTIVES = re.compile("gather|reduce|scatter|broadcast|barrier|all_?to_?all")
"""Methods of the torch ProcessGroup.

All communication in megatron-core and DeepSpeed goes through these methods.
"""

_entered: dict[str, int] = {}
_inside: list[str] = []
_keys: dict[tuple[str, str, int], str] = {}


def count_entries() -> None:
    """Start counting collectives for every backend. A second call has no effect."""
    from torch.distributed import ProcessGroup

    if hasattr(ProcessGroup.allreduce, "__wrapped__"):
        return
    for name in filter(_COLLECTIVES.search, dir(ProcessGroup)):
        setattr(ProcessGroup, name, _counting(getattr(ProcessGroup, name)))
    for name in ("send", "recv"):
        setattr(ProcessGroup, name, _counting_messages(getattr(ProcessGroup, name), name))


def _counting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(group: Any, *arguments: Any, **options: Any) -> Any:
        name = group.group_name
        _entered[name] = _entered.get(name, 0) + 1
        _inside.append(name)
        try:
            return method(group, *arguments, **options)
        finally:
            _inside.pop()

    return counted


def _counting_messages(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(
        group: Any,
        tensors: Any,
        peer: int,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        message = (group.group_name, name, peer)
        if message not in _keys:
            from torch.distributed import get_global_rank, get_rank

            global_peer = get_global_rank(group, peer)
            _keys[message] = message_key(group.group_name, name, get_rank(), global_peer)

        key = _keys[message]
        _entered[key] = _entered.get(key, 0) + 1
        return method(
            group,
            tensors,
            peer,
            *arguments,
            **options,
        )

    return counted


def message_key(
    group: str,
    name: str,
    own_rank: int,
    peer: int,
) -> str:
    """Return the name a rank uses to count messages to or from `peer`.

    The receiver counts messages under `recv`, and the sender counts them under `send`.

    >>> message_key("3", "send", 0, 4), message_key("3", "recv", 4, 0)
    ('send 3 0>4', 'recv 3 0>4')
    """
    if name == "send":
        return f"{name} {group} {own_rank}>{peer}"
    return f"{name} {group} {peer}>{own_rank}"


def is_inside() -> bool:
    """Return whether this rank has begun a collective that has not accepted its tensors.

    This state should last microseconds.
    """
    return bool(_inside)


def entered() -> dict[str, int]:
    """Return the number of collectives per group, and the number of messages per direction.

    A group this rank has not used has a count of 0.
    """
    from torch.distributed import distributed_c10d

    counts = dict[str, int]()
    # This fails if a group is being created at this moment
    with contextlib.suppress(RuntimeError):
        counts = dict.fromkeys(distributed_c10d._world.pg_names.values(), 0)
    counts.update(list(_entered.items()))
    return counts


KEEPS_ITS_TIMEOUT = "near copies"
"""Description used for the process group that only a background thread waits on.

That thread notices by itself when the partner is lost.
"""


def raise_timeouts(seconds: float) -> None:
    """Set the timeout for all groups on this rank, except for groups with their own."""
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_names):
        if group.group_desc == KEEPS_ITS_TIMEOUT:
            continue
        with contextlib.suppress(ValueError, RuntimeError):
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


ENTRIES_KEPT = 100
"""Number of recent collectives in a file, in addition to all unfinished ones.

A file takes up about 50 kB. With all collectives, it would take up a megabyte.
"""


def switch_recorder_on(folder: Path) -> None:
    """Turn on the NCCL flight recorder, with a dump when a group times out.

    The environment variables are valid for torch 2.10 to 2.13. Call this before the groups are
    created. Variables the job has set are kept.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "torch-collectives-"))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def write_collectives(path: Path) -> str:
    """Write the record of collectives on this rank as JSON, and return a summary.

    The summary is empty if torch has no readable record. An unknown format must not raise an error,
    because that would end the thread that finds hung ranks.
    """
    from torch._C import _distributed_c10d

    name = "_dump_nccl_trace_json" if on_gpu() else "_dump_fr_trace_json"
    dump = getattr(_distributed_c10d, name, lambda: "{}")
    with contextlib.suppress(
        OSError, RuntimeError, AttributeError, KeyError, TypeError, ValueError
    ):
        record = json.loads(dump())
        entries = record.get("entries") or []
        old_under_way = [entry for entry in entries[:-ENTRIES_KEPT] if _is_under_way(entry)]
        record["entries"] = old_under_way + entries[-ENTRIES_KEPT:]
        # The summary is returned even if the file cannot be written
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record), "utf-8")

        return describe_collectives(entries)

    return ""


def describe_collectives(entries: list[Any]) -> str:
    """Return a summary naming the oldest unfinished collective and the newest finished one."""
    if not entries:
        return ""
    oldest_under_way = ""
    newest_done = ""
    for entry in entries:
        if not _is_under_way(entry):
            newest_done = TrainingMessage.AFTER_COLLECTIVE.fill(collective=_named(entry))
        elif not oldest_under_way:
            oldest_under_way = TrainingMessage.IN_COLLECTIVE.fill(
                collective=_named(entry), state=entry["state"]
            )

    texts = [oldest_under_way or TrainingMessage.IN_NO_COLLECTIVE.fill()]
    if newest_done:
        texts.append(newest_done)
    return ", ".join(texts)


def _is_under_way(entry: Any) -> bool:
    return not entry["retired"] and entry["state"] != "completed"


def _named(entry: Any) -> str:
    if entry["is_p2p"]:
        number = entry["p2p_seq_id"]
    else:
        number = entry["collective_seq_id"]

    group, purpose = entry["process_group"]
    return TrainingMessage.COLLECTIVE.fill(
        name=entry["profiling_name"], number=number, group=group, purpose=purpose
    )
