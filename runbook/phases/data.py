"""02-data: from text to verified token files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.phases import campaign as campaigns
from runbook.phases.campaign import Campaign

PHASE = "02-data"
STEP = "02-data--tokenize"
VERSION = 1


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters and open the record."""
    return campaigns.bind(PHASE, namespace)
