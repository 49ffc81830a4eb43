"""The moment in which the ranks of a job find each other: it ends in time, and where it fails it says why."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from runbook.training.errors import FAILED, TrainingError
from runbook.training.ranks import Ranks

MARGIN_SECONDS = 5
"""Beyond the time-out that torch keeps itself: a server that takes the connection and never answers is waited for."""

_CAUSES = (
    ("EADDRINUSE", "another process uses this port: choose another one, for example from the job's number"),
    ("address already in use", "another process uses this port: choose another one, for example from the job's number"),
    ("clients joined", "not all ranks came: look for a rank that failed before, or a node that is missing"),
    ("gaierror", "MASTER_ADDR is no host that can be found: it must be a name or address of rank 0's node"),
    (
        "could not be resolved",
        "MASTER_ADDR is no host that can be found: it must be a name or address of rank 0's node",
    ),
    (
        "failed to listen",
        "rank 0 cannot listen there: another process uses this port, or the address is another node's",
    ),
    ("timed out", "rank 0 does not answer: it failed, runs elsewhere, or a firewall is between"),
    ("Connection refused", "nothing listens there: rank 0 failed, or MASTER_ADDR is another node"),
)


@contextlib.contextmanager
def meeting(ranks: Ranks, timeout_seconds: int) -> Iterator[None]:
    """Join the others in the body; `TrainingError` with the cause where that fails, and the end where it hangs."""
    where = f"{ranks.master_address}:{ranks.master_port}"
    text = f"rank {ranks.rank} of {ranks.world_size} did not meet the others at {where}"
    late = threading.Timer(timeout_seconds + MARGIN_SECONDS, _end, [f"{text} within {timeout_seconds} s: no answer"])
    late.daemon = True
    late.start()
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        words = str(error)
        cause = next((cause for sign, cause in _CAUSES if sign.lower() in words.lower()), "see the words before")
        raise TrainingError(f"{text}: {words.splitlines()[0] if words else error!r}. Cause: {cause}") from None
    finally:
        late.cancel()


def _end(text: str) -> None:
    """Nothing in this process can be waited for any more."""
    sys.stderr.write(f"{text}. Cause: something else than rank 0 listens at that port, or rank 0 hangs\n")
    sys.stderr.flush()
    os._exit(FAILED)
