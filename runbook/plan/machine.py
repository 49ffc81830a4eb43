"""What a plan needs to know of the machine it is for, where somebody could look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Facts of the machine at hand; a plan is pure, so its caller collects them."""

    cores: int
    """Physical cores."""
    flags: frozenset[str] = frozenset()
    """The CPU's instruction sets as Linux names them (avx512_bf16, amx_bf16 ...); empty: not known."""
    memory_bytes: int = 0
    """Main memory; 0: not known."""
    free_disk_bytes: int = 0
    """Free space where the run's folder is; 0: not known."""
