"""Someone's own job script as a run file: its values, what could not be carried over, its known errors."""

from runbook.adopt.adoption import Adoption, adopt

__all__ = ["Adoption", "adopt"]
