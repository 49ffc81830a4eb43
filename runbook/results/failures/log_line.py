"""Splits a log line into text and launcher prefixes, which name the rank and host."""

import re
from dataclasses import dataclass

_PREFIXES = (
    # The time stamp a log collector puts before the launcher prefix: "2025-06-24 17:29:06
    # [rank0]:..."
    re.compile(r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\s+(?=\S)"),
    # A program that passes on an exception from another program at level INFO
    re.compile(
        r"^(?:\[\d{4}-\d\d-\d\d[ T][\d:.,]+\] )?\[INFO\] (?=(?:[a-z_]\w*\.)*[A-Z]\w*Error: \S)"
    ),
    # Lines from ranks that pass through Python logging: "- trainer - INFO - [rank7]: ..."
    re.compile(r"^- \S+ - [A-Z]+ - (?=\[rank\d+\]:)"),
    # NeMo-Run and torchx: "i.pretrain/0 [default0]:..."
    re.compile(r"^[a-zA-Z][\w.-]*/\d+ (?=\S|  )"),
    re.compile(r"^(?:stdout|stderr): (?=\S)"),
    # torchrun: "[rank3]: ...", "[rank3]:[E ...] ..."
    re.compile(r"^\[rank(?P<rank>\d+)\]:\s?"),
    # torchrun with --tee: "[trainer3]:...", "[trainer0|0]:...", "[default0]:..."
    re.compile(r"^\[(?:trainer|default|worker)(?P<rank>\d+)(?:\|\d+)?\]:"),
    # Open MPI: "[1,7]<stdout>:..."
    re.compile(r"^\[\d+,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>:\s?"),
    # srun --label: " 3: ..."; PALS and MPICH: "host 84: ..."
    re.compile(r"^\s*(?P<rank>\d{1,6}):\s"),
    re.compile(r"^(?P<host>[a-zA-Z][\w.-]*\d[\w.-]*) (?P<rank>\d{1,6}): "),
    # Ray: "(RayWorkerWrapper pid=1978, ip=10.0.0.8) ..."
    re.compile(r"^\((?:[\w:. ()]+ )?pid=\d+(?:, ip=(?P<host>[\d.]+))?\)\s?"),
    # SkyPilot: "(worker6, rank=6, pid=8930, ip=10.42.3.242) ..."
    re.compile(r"^\([\w-]+, rank=(?P<rank>\d+), pid=\d+(?:, ip=(?P<host>[\d.]+))?\)\s?"),
    # pdsh and the DeepSpeed launcher: "node7: ..."
    re.compile(r"^(?P<host>[a-zA-Z][a-zA-Z-]*\d[\w-]*): (?=\S)"),
)
_HAS_PREFIX = re.compile(
    "|".join(re.sub(r"\(\?P<\w+>", "(?:", prefix.pattern) for prefix in _PREFIXES)
)
"""All prefixes in one expression. Most lines have none, and a single match is faster than many."""
_NCCL = re.compile(r"(?:^|\s)(?P<host>[a-zA-Z][\w.-]*):\d+:\d+ \[\d+\]")
_PYTORCH_RANK = re.compile(r"\[(?:PG \S+(?: \S+)*? )?Rank (?P<rank>\d+)\]")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T](\d\d):(\d\d):(\d\d)")
MAX_PREFIXES = 4


@dataclass(frozen=True)
class LogLine:
    """The text in a line, and the rank and host that wrote it.

    `rank` is None and `host` is empty if the line does not name them.
    """

    text: str
    rank: int | None = None
    host: str = ""


def split_prefix(line: str) -> LogLine:
    """Strip the launchers' prefixes from a line.

    >>> split_prefix("15: [rank15]: AssertionError: no")
    LogLine(text='AssertionError: no', rank=15, host='')
    >>> split_prefix("c000001: FileNotFoundError: x.npy")
    LogLine(text='FileNotFoundError: x.npy', rank=None, host='c000001')
    >>> split_prefix("(head, rank=2, pid=4773) AssertionError")
    LogLine(text='AssertionError', rank=2, host='')
    """
    text = line
    rank: int | None = None
    host = ""
    nccl_host = ""
    for _ in range(MAX_PREFIXES):
        if not _HAS_PREFIX.match(text):
            break
        match = next(filter(None, (prefix.match(text) for prefix in _PREFIXES)))
        named = match.groupdict()
        if named.get("rank"):
            rank = int(named["rank"])
        host = named.get("host") or host
        text = text[match.end() :]

    # Ranks that share a log may write into the same line. The host named directly before a warning
    # wrote the warning.
    for nccl in _NCCL.finditer(text.partition("NCCL WARN")[0]):
        nccl_host = nccl["host"]
    host = host or nccl_host
    if rank is None and (named_rank := _PYTORCH_RANK.search(text)):
        rank = int(named_rank["rank"])
    return LogLine(text, rank, host)
