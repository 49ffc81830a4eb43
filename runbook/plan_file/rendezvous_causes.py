"""Reasons why ranks did not meet in a rendezvous before the timeout."""

from __future__ import annotations

from enum import StrEnum


class RendezvousCause(StrEnum):
    """Why a rendezvous failed, in the words used in the error message.

    The trainer shows these words, and a drill can look for them with no need to import the trainer.
    """

    ADDRESS_NOT_RESOLVED = (
        "MASTER_ADDR is a host that cannot be resolved: it must be a name or address of rank 0's "
        "node"
    )
    CANNOT_LISTEN = (
        "rank 0 cannot listen there: the port is in use, or the address belongs to another node"
    )
    MISSING_RANK = "not all ranks arrived: look for a rank that failed earlier, or a missing node"
    NOTHING_LISTENS = "nothing listens there: rank 0 failed, or MASTER_ADDR is the wrong node"
    PORT_IN_USE = (
        "another process uses this port: choose another one, for example derived from the job's "
        "number"
    )
    RANK_0_SILENT = "rank 0 does not answer: it failed, runs elsewhere, or is behind a firewall"
    UNKNOWN = "not known to the trainer: the reason before this is torch's own"
