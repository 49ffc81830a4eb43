"""Someone's own job script, read and never run: its values as a run file, what is left over, which errors it has."""

from __future__ import annotations

from runbook.adopt.adopting import Adopted, adopt

__all__ = ["Adopted", "adopt"]
