"""Saves, chooses, loads and removes copies of the training state in node memory.

All ranks call every method together. No copy is essential. If a copy fails, the fault is reported
once, and training continues with checkpoints on the shared file system.
"""

import dataclasses
import io
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from runbook.plan_file.errors import TrainingError
from runbook.plan_file.kept_checkpoints import NEAR_COPIES
from runbook.plan_file.resume_sources import NEAR_OWN, near_partner
from runbook.plan_file.schema import PhasePlan
from runbook.training.checkpoints import state
from runbook.training.checkpoints.state import LoadedCheckpoint, TrainingProgress
from runbook.training.engines.engine import CommonState, OwnTensor, TrainingEngine
from runbook.training.job_output import say
from runbook.training.near import places, state_file
from runbook.training.near.exchange import Exchange
from runbook.training.near.partners import NodeMap, transfer_rounds
from runbook.training.near.places import NodePlace
from runbook.training.near.room import lack_of_room
from runbook.training.near.state_file import OpenState, StateHeader
from runbook.training.near.which_copy import (
    CopyKey,
    HeldCopy,
    LoadHistory,
    NearChoice,
    choose_copies,
    load_history,
)
from runbook.training.process_groups import reduce_number, share_value, wait_for_gpu
from runbook.training.ranks import cores_of_rank, on_gpu
from runbook.training.training_log import TrainingLog

T = TypeVar("T")

MOST_THREADS = 4
MOST_WAIT_SECONDS = 60.0
"""Longest wait for an answer from the partner, in seconds."""


class NearCopies:
    """Copies of the state of this rank and its partner, in memory on this node."""

    def __init__(
        self,
        spec: PhasePlan,
        engine: TrainingEngine,
        log: TrainingLog,
    ) -> None:
        self.spec = spec
        self.engine = engine
        self.log = log
        self.rank = torch.distributed.get_rank()
        self.lineage = share_value(secrets.token_hex(8))
        """Random name for this segment, which is stored in its copies."""
        # On a CPU the other cores are busy computing.
        self.threads = min(MOST_THREADS, cores_of_rank()) if on_gpu() else 1
        self.account = SaveAccount()
        self._identity = identity_of(spec)
        # Reset after the first step from loaded copies
        self._loaded: NearChoice | None = None
        self._pending: _PendingCopy | None = None
        # Newest iteration from which all ranks have copies
        self._complete = -1
        self._exchange: Exchange | None = None
        self._place: NodePlace | None = None
        self._bad: set[CopyKey] = set()
        self._listing: Listing | None = None
        self.is_spoiled = False
        """Whether a load has failed halfway and left the state unusable."""
        self.is_on = self._open()

    @property
    def place(self) -> NodePlace:
        """Return the folder for this training run on this node."""
        assert self._place is not None, "copies are off if there is no folder"
        return self._place

    # Methods used at the start

    def _open(self) -> bool:
        """Open the folder on this node, and find the partner and the ranks that share the folder.

        Return whether this run can use copies.
        """
        name = share_value(places.training_name(self.spec))
        place, faults = _attempt_together(
            lambda: places.open_place(self.spec.checkpoint.near_folder, name)
        )
        if faults or place is None:
            return self._turn_off(faults)
        self._place = place
        names: list[str] = [""] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(names, place.node)
        self.nodes = NodeMap.of(names)
        self.node = self.nodes.node_of_rank[self.rank]
        self.is_first_on_node = self.nodes.place(self.rank) == 0
        if self.nodes.num_nodes == 1:
            self._say("only one node: copies have no partner, and are lost with the node")
            return True

        if not self.nodes.is_even:
            self._say("copies have no partner: the nodes have different numbers of ranks")
            return True

        seconds = min(MOST_WAIT_SECONDS, self.spec.limits.process_group_timeout_seconds)
        exchange, faults = _attempt_together(lambda: Exchange(self.nodes, seconds))
        if faults:
            self._say(
                f"copies have no partner: {faults[0]}. GLOO_SOCKET_IFNAME names the interface "
                "of the nodes' network"
            )
            return True

        self._exchange = exchange
        return True

    def load_newer(self, newer_than: int, newest_shared: int) -> LoadedCheckpoint | None:
        """Load the newest copies that every rank can load and that are newer than `newer_than`.

        Each copy is tried only once. Return None if the shared checkpoint should be loaded instead.
        """
        if not self.is_on:
            return None
        listing = self._listing = self._listing or self._list()
        while True:
            choice = choose_copies(
                listing.held,
                self.nodes.node_of_rank,
                listing.history,
                newer_than=newer_than,
                newest_shared=newest_shared,
                bad=self._bad,
            )
            if choice is None:
                return None
            loaded = self._try(choice, listing.files)
            if loaded is not None:
                self._loaded = choice
                return loaded

    def _list(self) -> "Listing":
        """List the files on this node.

        Gather the copies on all nodes, and the copies that earlier starts tried.
        """
        history = share_value(load_history(self.log.earlier_events()) if self.rank == 0 else None)
        assert history is not None
        files, problems = self._files_here()
        about_node: tuple[list[HeldCopy], list[str]] = ([], [])
        # The other ranks on the node see the same files
        if self.is_first_on_node:
            copies = [HeldCopy(key, file.header.shared_iteration) for key, file in files.items()]
            about_node = (copies, problems)

        held = []
        problems = []
        for copies, faults in _gather(about_node):
            held += copies
            problems += faults

        self._report_broken(problems)
        # Without an exchange, copies on other nodes cannot be fetched
        if self._exchange is None:
            held = [copy for copy in held if copy.key.node == self._node_of(copy.key.rank)]
        return Listing(history, files, held)

    def _files_here(self) -> tuple[dict[CopyKey, OpenState], list[str]]:
        """Return the files for this run on this node, and what is wrong with unusable files."""
        files: dict[CopyKey, OpenState] = {}
        problems = []
        for path, iteration, rank in self.place.files():
            try:
                opened = state_file.open_state(path)
            except TrainingError as error:
                problems.append(_here(str(error)))
                continue

            header = opened.header
            if (header.iteration, header.rank) != (iteration, rank):
                problems.append(_here(f"{path} does not match the iteration or rank in its name"))
            elif header.identity == self._identity:
                files[CopyKey(self.node, rank, iteration, header.lineage)] = opened

        return files, problems

    def _node_of(self, rank: int) -> int:
        return self.nodes.node_of_rank[rank]

    def _try(
        self, choice: NearChoice, files: Mapping[CopyKey, OpenState]
    ) -> LoadedCheckpoint | None:
        """Verify, send and load copies.

        Return None if a copy is damaged. A damaged copy is not tried again.
        """
        copies = choice.copies
        readers = [self.nodes.holder(copy.rank, copy.node) for copy in copies]
        read_here = [copy for copy in copies if readers[copy.rank] == self.rank]
        # This is recorded before anything is read, to also count a start that crashes here as an
        # attempt.
        self.log.event("near_verifying", iteration=choice.iteration, near=choice.lineage)
        faults = self._faults(lambda copy: files[copy].fault(self.threads), read_here)
        if not faults:
            faults = self._bring(choice, readers, files)
        if not faults:
            self.log.event("near_loading", iteration=choice.iteration, near=choice.lineage)
            opened = state_file.open_state(self.place.path(choice.iteration, self.rank))
            faults = self._faults(lambda _: self._fill(opened), [copies[self.rank]])
            self.is_spoiled = bool(faults)

        self._report_broken([fault for _, fault in faults], choice)
        self._bad.update(copy for copy, _ in faults)
        if faults:
            return None
        # All ranks call this together, because DeepSpeed gathers small weights here.
        self.engine.finish_own(CommonState(**opened.header.common))
        state.restore_random(opened.read_random())
        return self._as_loaded(choice, opened)

    def _bring(
        self,
        choice: NearChoice,
        readers: list[int],
        files: Mapping[CopyKey, OpenState],
    ) -> list[tuple[CopyKey, str]]:
        """Send copies to ranks that lack them on their own node, and return the errors.

        All ranks synchronize after each round, to begin the next round together.
        """
        brought = choice.from_other_nodes(self.nodes.node_of_rank)
        pairs = [(readers[rank], rank) for rank in brought]
        faults: list[tuple[CopyKey, str]] = []
        for transfers in transfer_rounds(pairs):
            faults_here = []
            for reader, rank in transfers:
                copy = choice.copies[rank]
                fault = self._carry(copy, reader, files)
                if fault:
                    faults_here.append((copy, _here(fault)))

            for faults_there in _gather(faults_here):
                faults += faults_there
            # In the next round, a rank would again wait for the partner that failed
            if faults:
                break

        return faults

    def _carry(
        self,
        copy: CopyKey,
        reader: int,
        files: Mapping[CopyKey, OpenState],
    ) -> str:
        """Send or receive one copy, if this rank is its sender or receiver.

        Return the error as text, or an empty string.
        """
        assert self._exchange is not None, "without partners only own copies are chosen"
        try:
            if self.rank == copy.rank:
                part = self.place.part(f"brought.rank_{copy.rank:05d}")
                self._exchange.receive(part, reader)
                self._take_over(part)
            elif self.rank == reader:
                self._exchange.send(files[copy].path, copy.rank)
        except (TrainingError, OSError, RuntimeError) as error:
            return str(error)

        return ""

    def _take_over(self, part: Path) -> None:
        """Verify a received file against its checksum, and rename it to its final name."""
        opened = state_file.open_state(part)
        fault = opened.fault(self.threads)
        if fault:
            raise TrainingError(fault)
        part.rename(self.place.path(opened.header.iteration, opened.header.rank))

    def _fill(self, opened: OpenState) -> str:
        """Fill this rank's tensors from a copy. Return the error as text, or an empty string."""
        try:
            with torch.no_grad():
                opened.read_into(self.engine.own_tensors())
        except (TrainingError, OSError, RuntimeError) as error:
            return f"{opened.path} cannot be loaded: {error}"

        return ""

    def _as_loaded(self, choice: NearChoice, opened: OpenState) -> LoadedCheckpoint:
        brought = choice.from_other_nodes(self.nodes.node_of_rank)
        if brought:
            source = near_partner(brought)
        else:
            source = NEAR_OWN

        return LoadedCheckpoint(
            progress=TrainingProgress(**opened.header.progress),
            folder=self.place.folder,
            problems=[],
            changes=[],
            harmless=[],
            weights_only=False,
            tracker_fault="",
            lost_iterations=0,
            data_cache=opened.header.data_cache,
            source=source,
        )

    def begin(self) -> None:
        """Keep the loaded copies until newer copies are complete, and check the available space."""
        if not self.is_on:
            return
        kept = set()
        if self._loaded is not None:
            self._complete = self._loaded.iteration
            ranks = range(torch.distributed.get_world_size())
            kept = {self.place.path(self._complete, rank) for rank in ranks}

        needed = self._needed_on_node()
        lack = ""
        if self.is_first_on_node:
            self.place.remove_all_but(kept)
            # The node needs space for two sets of copies; the kept copies are one of them.
            there = sum(path.stat().st_size for path in kept if path.exists())
            lack = lack_of_room(self.place.folder, needed - there)

        faults = _faults_of_all(lack)
        if faults:
            self.is_on = self._turn_off(faults)

    def _needed_on_node(self) -> int:
        """Return the total size of all copies on this node in bytes."""
        sizes = _gather(sum(part.tensor.nbytes for part in self.engine.own_tensors()))
        total = 0
        for rank in self.nodes.ranks_on(self.node):
            total += sizes[rank]
            if self._exchange is not None:
                total += sizes[self.nodes.partners(rank)[1]]

        return NEAR_COPIES * total

    def stepped(self) -> None:
        """Record that a step was taken from the loaded copies, which shows that they are sound."""
        if self._loaded is not None:
            loaded = self._loaded
            self._loaded = None
            self.log.event("near_continued", iteration=loaded.iteration, near=loaded.lineage)

    # Methods used during training

    def save(
        self,
        progress: TrainingProgress,
        data_cache: Mapping[str, str],
        shared_iteration: int,
    ) -> None:
        """Write this rank's state, and send it to the partner while training continues.

        No new copy is written while the previous copies are still in transit.
        """
        if not self.is_on:
            return
        start = time.monotonic()
        if not self._finish_pending():
            self.account.left_out += 1
            return

        if not self.is_on:
            return
        tensors = self.engine.own_tensors()
        random = _random_bytes()
        wait_for_gpu()
        header = StateHeader(
            rank=self.rank,
            iteration=progress.iteration,
            lineage=self.lineage,
            shared_iteration=shared_iteration,
            identity=self._identity,
            progress=dataclasses.asdict(progress),
            common=dataclasses.asdict(self.engine.common_state()),
            data_cache=dict(data_cache),
            random_bytes=len(random),
            tensors=[[own.name, own.tensor.nbytes] for own in tensors],
        )
        pending = _PendingCopy(self, header)
        faults = _faults_of_all(pending.write(random, tensors))
        if faults:
            pending.discard()
            self.is_on = self._turn_off(faults)
            return

        pending.go_on()
        self._pending = pending
        self.account.add(header.iteration, time.monotonic() - start)

    def _finish_pending(self, *, wait: bool = False) -> bool:
        """Return whether no copy is still in transit.

        If any rank has an error, all ranks stop making copies.
        """
        pending = self._pending
        if pending is None:
            return True
        is_done = wait or pending.is_done()
        if not reduce_number(int(is_done), torch.distributed.ReduceOp.MIN):
            return False
        self._pending = None
        faults = _faults_of_all(pending.fault())
        if faults:
            self.is_on = self._turn_off(faults)
        else:
            self._complete = pending.header.iteration
            self._remove_strays()

        return True

    def _remove_strays(self) -> None:
        """Remove copies for ranks that were partners before a node was replaced."""
        if not self.is_first_on_node:
            return
        expected = set(self.nodes.ranks_on(self.node))
        if self._exchange is not None:
            expected |= {self.nodes.partners(rank)[1] for rank in expected}
        for path, _, rank in self.place.files():
            if rank not in expected:
                path.unlink(missing_ok=True)

    def stale_file(self, rank: int, iteration: int) -> Path | None:
        """Return an obsolete copy for a rank, which is used to recycle its memory pages."""
        old = None
        for path, other, owner in self.place.files():
            if owner == rank and other not in (self._complete, iteration):
                old = path

        return old

    # Methods used at the end

    def begin_lineage(self) -> None:
        """Remove all copies after a rollback, since the steps in them have been abandoned."""
        self.lineage = share_value(secrets.token_hex(8))
        self._loaded = None
        self.end()

    def end(self) -> None:
        """Remove all copies, since the newest state is on the shared file system."""
        self._finish_pending(wait=True)
        self._complete = -1
        torch.distributed.barrier()
        if self._place is not None and self.is_first_on_node:
            self._place.remove_all_but(set())

    def _turn_off(self, faults: list[str]) -> bool:
        """Report the reason why copying stops, and return False. Complete copies are kept."""
        self._say(f"no more copies are made; training continues without them: {faults[0]}")
        self.log.event("near_off", message=faults[0])
        return False

    # Helper functions

    def _faults(
        self, look: Callable[[CopyKey], str], copies: list[CopyKey]
    ) -> list[tuple[CopyKey, str]]:
        """Check copies on this rank. Return damaged copies on all ranks, each with the error."""
        faults_here = []
        for copy in copies:
            if fault := look(copy):
                faults_here.append((copy, _here(fault)))

        return [fault for faults in _gather(faults_here) for fault in faults]

    def _report_broken(self, problems: list[str], choice: NearChoice | None = None) -> None:
        facts = {}
        if choice is not None:
            facts = {"iteration": choice.iteration, "near": choice.lineage}
        for problem in problems:
            self._say(f"copy in node memory skipped: {problem}")
            self.log.event("near_broken", message=problem, **facts)

    def _say(self, text: str) -> None:
        if self.rank == 0:
            say(text)


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a starting job knows about the copies before it reads any of them."""

    history: LoadHistory
    files: dict[CopyKey, OpenState]
    """Files on this node."""
    held: list[HeldCopy]
    """Copies on all nodes."""


@dataclasses.dataclass
class SaveAccount:
    """What copies have cost since the last event about them."""

    iteration: int = 0
    """Iteration at which the newest copy was written."""
    copies: int = 0
    left_out: int = 0
    """Number of copies skipped because the previous copies were still in transit."""
    stall_seconds: float = 0.0

    def add(self, iteration: int, seconds: float) -> None:
        """Add what one copy cost."""
        self.iteration = iteration
        self.copies += 1
        self.stall_seconds += seconds


class _PendingCopy:
    """A copy in progress. It is written between two steps, and then hashed and sent by a thread."""

    def __init__(self, copies: NearCopies, header: StateHeader) -> None:
        self.header = header
        self._copies = copies
        self._part = copies.place.part(f"own.rank_{copies.rank:05d}")
        self._future: Future[None] | None = None

    def write(self, random: bytes, tensors: list[OwnTensor]) -> str:
        """Write everything except the checksum. Return the error as text, or an empty string."""
        copies = self._copies
        try:
            _use_again(copies.stale_file(copies.rank, self.header.iteration), self._part)
            state_file.write_body(
                self._part,
                self.header,
                random,
                tensors,
                copies.threads,
            )
        except (OSError, RuntimeError) as error:
            return _here(f"{self._part} cannot be written: {error}")

        return ""

    def discard(self) -> None:
        """Remove the file written so far."""
        self._part.unlink(missing_ok=True)

    def go_on(self) -> None:
        """Hash and send the copy in a thread."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="near copy")
        self._future = executor.submit(self._seal_and_send)
        executor.shutdown(wait=False)

    def is_done(self) -> bool:
        """Return whether the thread has finished."""
        return self._future is not None and self._future.done()

    def fault(self) -> str:
        """Wait for the thread, and return the error text, or an empty string."""
        assert self._future is not None
        try:
            self._future.result()
        except (TrainingError, OSError, RuntimeError) as error:
            return _here(f"rank {self.header.rank}: {error}")

        return ""

    def _seal_and_send(self) -> None:
        copies = self._copies
        state_file.seal(self._part, self.header, copies.threads)
        final = copies.place.path(self.header.iteration, copies.rank)
        self._part.rename(final)
        if copies._exchange is None:
            return
        to, source = copies.nodes.partners(copies.rank)
        part = copies.place.part(f"partner.rank_{source:05d}")
        _use_again(copies.stale_file(source, self.header.iteration), part)
        copies._exchange.trade(final, to, part, source)
        copies._take_over(part)


def _use_again(old: Path | None, part: Path) -> None:
    """Reuse the pages in an old file for a new one, which is cheaper than allocating new pages."""
    if old is not None:
        old.replace(part)


def _random_bytes() -> bytes:
    """Return the random states on this rank in the weights-only format of torch."""
    content = io.BytesIO()
    torch.save(state.random_state().data, content)
    return content.getvalue()


def identity_of(spec: PhasePlan) -> dict[str, object]:
    """Return, as JSON, the values that must be equal for a training run to load a saved state."""
    identity = {
        "fingerprint": spec.fingerprint,
        "engine": spec.engine,
        "precision": spec.precision.format,
        "model": state.model_shape(spec),
        "parallel": dataclasses.asdict(spec.parallel),
    }
    plain: dict[str, object] = json.loads(json.dumps(identity))
    return plain


def _here(fault: str) -> str:
    """Prefix a fault with the node name, since all nodes have the same paths."""
    return f"{socket.gethostname()}: {fault}"


def _gather(value: T) -> list[T]:
    """Gather the values from all ranks, and return them on all ranks."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _attempt_together(action: Callable[[], T]) -> tuple[T | None, list[str]]:
    """Run an action on all ranks. Return the result on this rank, and the faults from all ranks."""
    result = None
    fault = ""
    try:
        result = action()
    except (TrainingError, OSError, RuntimeError, ValueError) as error:
        fault = _here(str(error) or repr(error))

    return result, _faults_of_all(fault)


def _faults_of_all(fault: str) -> list[str]:
    """Return the errors from all ranks. If there are none, only a single number is exchanged."""
    if not reduce_number(int(bool(fault)), torch.distributed.ReduceOp.MAX):
        return []
    return [text for text in _gather(fault) if text]
