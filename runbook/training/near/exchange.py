"""Sends files between partners. Ranks with the same local rank form a ring across nodes.

The module uses separate gloo groups, to let a thread send while training continues.
"""

import abc
import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from runbook.plan_file.errors import TrainingError
from runbook.training.health.watchdog import KEEPS_ITS_TIMEOUT
from runbook.training.messages import TrainingMessage
from runbook.training.near.partners import NodeMap
from runbook.training.near.state_file import BLOCK_BYTES, write_all


class Exchange:
    """Sends and receives files within the ring of this rank. All ranks create it together."""

    def __init__(self, nodes: NodeMap, timeout_seconds: float) -> None:
        rank = torch.distributed.get_rank()
        timeout = datetime.timedelta(seconds=timeout_seconds)
        self._group: Any = None
        for ring in nodes.rings():
            group = torch.distributed.new_group(
                ring,
                timeout=timeout,
                backend="gloo",
                group_desc=KEEPS_ITS_TIMEOUT,
            )
            if rank in ring:
                self._group = group

    def trade(
        self,
        sent: Path,
        to: int,
        received: Path,
        source: int,
    ) -> None:
        """Send a file to one rank while receiving a file from a different rank."""
        self._carry(_Outgoing(self._group, sent, to), _Incoming(self._group, received, source))

    def send(self, path: Path, to: int) -> None:
        """Send a file."""
        self._carry(_Outgoing(self._group, path, to))

    def receive(self, path: Path, source: int) -> None:
        """Receive a file from another rank and write it."""
        self._carry(_Incoming(self._group, path, source))

    def _carry(self, *flows: "_Flow") -> None:
        """Transfer all files at the same time, block by block.

        If a file cannot be read or written, the other rank is not stopped, and the error is raised
        at the end.
        """
        try:
            for flow in flows:
                flow.begin()
            for flow in flows:
                flow.finish_size()
            offset = 0
            while active := [flow for flow in flows if offset < flow.size]:
                for flow in active:
                    flow.begin_block(offset)
                for flow in active:
                    flow.finish_block(offset)
                offset += BLOCK_BYTES
        finally:
            for flow in flows:
                flow.close()

        for flow in flows:
            flow.raise_fault()


class _Flow(abc.ABC):
    """A file in transit between this rank and another rank: `_Outgoing` or `_Incoming`."""

    flags = os.O_RDONLY

    def __init__(
        self,
        group: Any,
        path: Path,
        other: int,
    ) -> None:
        self.size = 0
        self._group = group
        self._path = path
        self._other = other
        self._fault: OSError | None = None
        self._descriptor: int | None = None
        self._work: Any = None
        self._message = torch.zeros(1, dtype=torch.int64)
        with self._noting():
            self._descriptor = os.open(path, self.flags, 0o600)

    def begin(self) -> None:
        """Start exchanging the file size."""
        self._post()

    def finish_size(self) -> None:
        """Wait until both sides know the file size."""
        self._work.wait()
        self.size = int(self._message)

    def begin_block(self, offset: int) -> None:
        """Start exchanging the block at this offset."""
        self._message = torch.zeros(min(BLOCK_BYTES, self.size - offset), dtype=torch.uint8)
        self._post()

    def finish_block(self, offset: int) -> None:
        """Wait until the block has arrived."""
        self._work.wait()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)

    def raise_fault(self) -> None:
        """Raise `TrainingError` if the file could not be read or written."""
        if self._fault is not None:
            raise TrainingError(
                TrainingMessage.COPY_NOT_EXCHANGED, path=self._path, fault=self._fault
            )

    @abc.abstractmethod
    def _post(self) -> None:
        """Hand the message to the process group."""

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Record the first error in the body, to raise it at the end."""
        try:
            yield
        except OSError as error:
            self._fault = self._fault or error


class _Outgoing(_Flow):
    """A file to send.

    If a block cannot be read, it is sent as zeros, and verification will reject the copy.
    """

    def begin(self) -> None:
        """Send the size."""
        if self._descriptor is not None:
            self._message[0] = os.fstat(self._descriptor).st_size
        super().begin()

    def begin_block(self, offset: int) -> None:
        """Read and send a block."""
        content = bytearray(min(BLOCK_BYTES, self.size - offset))
        with self._noting():
            os.preadv(self._descriptor or 0, [content], offset)
        self._message = torch.frombuffer(content, dtype=torch.uint8)
        self._post()

    def _post(self) -> None:
        self._work = torch.distributed.isend(self._message, self._other, group=self._group)


class _Incoming(_Flow):
    """A file to receive. The blocks are received even if they cannot be written."""

    flags = os.O_RDWR | os.O_CREAT

    def finish_size(self) -> None:
        """Truncate the file to its size, since it may reuse pages from a longer file."""
        super().finish_size()
        if self._descriptor is not None:
            with self._noting():
                os.ftruncate(self._descriptor, self.size)

    def finish_block(self, offset: int) -> None:
        """Write a block after it has arrived."""
        super().finish_block(offset)
        if self._fault is None and self._descriptor is not None:
            with self._noting():
                write_all(self._descriptor, self._message.numpy().data, offset)

    def _post(self) -> None:
        self._work = torch.distributed.irecv(self._message, self._other, group=self._group)
