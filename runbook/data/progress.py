"""How far the work is: what the notebook, the terminal and the record show while text becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.units import show_bytes, show_count, show_duration


@dataclass(frozen=True)
class Progress:
    """One moment of the work."""

    stage: str
    """resume, tokenize, index, done; download for downloads."""

    files: int
    files_total: int
    bytes: int
    """Of input files, as they lie on disk."""

    bytes_total: int
    text_bytes: int
    documents: int
    tokens: int
    seconds: float
    """Since this call began."""

    mb_per_second: float
    """Text, in megabytes of 10^6, since this call began."""

    eta_seconds: float | None
    """None: not known yet."""

    workers: int
    failures: int
    """Records and files left out, workers that died."""

    shards: int = 0
    shards_total: int = 0
    reused: int = 0
    """Shards that an earlier run had done."""

    def as_text(self) -> str:
        """One line for a terminal."""
        eta = "" if self.eta_seconds is None else f", {show_duration(self.eta_seconds)} to go"
        failures = f", {self.failures} failures" if self.failures else ""
        if self.stage == "download":
            return (
                f"download: {self.files}/{self.files_total} files, {show_bytes(self.bytes)} of "
                f"{show_bytes(self.bytes_total)}, {self.mb_per_second:.1f} MB/s{eta}{failures}"
            )
        size = f"{show_bytes(self.bytes)} of {show_bytes(self.bytes_total)}"
        made = f"{show_count(self.documents)} documents, {show_count(self.tokens)} tokens"
        workers = f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        return (
            f"{self.stage}: {self.files}/{self.files_total} files, {size}, {made}, "
            f"{self.mb_per_second:.1f} MB/s of text, {workers}{eta}{failures}"
        )
