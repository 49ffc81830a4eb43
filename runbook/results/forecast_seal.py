"""Reads and writes sealed forecasts for a training run. A checksum reveals later changes."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runbook.core.errors import RecordError
from runbook.core.files import read_json_record, write_text
from runbook.results.messages import ResultMessage

FORECASTS_FILE = "forecasts.json"
"""File with the sealed forecasts, in the run folder."""


@dataclass(frozen=True)
class Forecast:
    """A forecast for one quantity in a training run, with an interval."""

    quantity: str
    """`loss`, `step time`, `memory`, `total time`, `cost`, `cost in money` or `useful time`."""
    unit: str
    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class SealedForecasts:
    """The forecasts for a training run, unchanged since they were made."""

    run: str
    fingerprint: str
    """Fingerprint of the training run the forecasts apply to."""
    sealed: str
    """When the forecasts were made, in UTC."""
    late: bool
    """Whether the forecasts were made after the first step.

    Late forecasts are shown but never counted.
    """
    forecasts: tuple[Forecast, ...]
    checksum: str = ""
    schema: int = 1

    def computed_checksum(self) -> str:
        """Return the sha256 over all fields except the checksum itself."""
        content = asdict(self)
        del content["checksum"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def seal(forecasts: SealedForecasts, folder: Path) -> SealedForecasts:
    """Write forecasts with their checksum."""
    sealed = replace(forecasts, checksum=forecasts.computed_checksum())
    write_text(folder / FORECASTS_FILE, json.dumps(asdict(sealed), indent=1) + "\n")
    return sealed


def read_sealed(folder: Path) -> SealedForecasts | None:
    """Return the sealed forecasts for a run, or None if there are none.

    Raise `RecordError` if the forecasts have changed since they were sealed.
    """
    remedy = "It was written by runbook before the first step; restore it from a copy."
    path = folder / FORECASTS_FILE
    sealed = read_json_record(path, SealedForecasts, "sealed forecasts", remedy)
    if sealed is not None and sealed.checksum != sealed.computed_checksum():
        checksum_now = sealed.computed_checksum()[:12]
        raise RecordError(
            ResultMessage.FORECAST_CHANGED,
            path=path,
            sealed=sealed.sealed,
            checksum_now=checksum_now,
            checksum=sealed.checksum[:12],
        )

    return sealed
