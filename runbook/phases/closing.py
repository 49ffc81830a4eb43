"""The end of a phase: record written, phase marked done, a card shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from runbook.display import show_text
from runbook.display.place import ENGINE_VARIABLE
from runbook.errors import RecordError
from runbook.phases import steps
from runbook.phases.campaign import VERSIONS, Campaign, phase_fingerprint
from runbook.phases.report import write_report


def finish(campaign: Campaign, outputs: Sequence[Path]) -> None:
    """Write the twin, mark the phase done over its outputs, refresh the report; a failed verdict is an error."""
    twin = campaign.session.finish()
    if twin.verdict == "fail":
        raise RecordError(f"{campaign.phase} did not pass; its checks above say why.")
    digest = phase_fingerprint(campaign.settings, campaign.plan, campaign.folder, campaign.phase)
    version = VERSIONS[campaign.phase]
    steps.write_mark(campaign.folder, campaign.phase, version, digest, outputs, verdict=twin.verdict)
    # Our engine still writes this notebook, then the manifest; noted here, a kill in between would look like an edit.
    write_report(campaign.folder, manifest=ENGINE_VARIABLE not in os.environ)
    show_text(f"{campaign.phase}: {twin.verdict}")
