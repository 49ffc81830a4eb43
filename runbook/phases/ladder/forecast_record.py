"""Records and tables for final-loss forecasts, whatever they are based on."""

from dataclasses import dataclass

from runbook.core.table import Table
from runbook.core.units import show_count
from runbook.forecast.interval_rules import INTERVAL, SHARE_IN_INTERVAL
from runbook.phases.messages import PhaseMessage

SIZE_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Model sizes to show at the same compute, as multiples of the size of the run."""


@dataclass(frozen=True)
class SizeForecast:
    """Training a model of a different size with the same compute."""

    parameters: float
    tokens: float
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class RunForecast:
    """A forecast for the loss on held-out text after the last step."""

    loss: float
    low: float
    high: float
    rungs: int
    source: str
    same_compute: tuple[SizeForecast, ...] = ()
    best: SizeForecast | None = None
    warnings: tuple[str, ...] = ()

    def as_text(self) -> str:
        """Return the forecast as one sentence."""
        return (
            f"The loss on held-out text after the last step will be {self.loss:.4f} "
            f"({self.low:.4f} to {self.high:.4f} in {SHARE_IN_INTERVAL} of forecasts), by {self.source}"
        )


def sizes_table(forecast: RunForecast) -> Table:
    """Return a table with the losses that other model sizes would reach with the same compute."""
    rows = [_size_row(size) for size in forecast.same_compute]
    notes = []
    if forecast.best is not None:
        best = forecast.best
        notes.append(
            PhaseMessage.BEST_SIZE.fill(
                parameters=show_count(best.parameters),
                tokens=show_count(best.tokens),
                loss=best.loss,
            )
        )

    return Table(rows, f"Other sizes at the compute of the run, by {forecast.source}", notes)


def _size_row(size: SizeForecast) -> dict[str, object]:
    return {
        "parameters": show_count(size.parameters),
        "tokens": show_count(size.tokens),
        "loss (nats)": f"{size.loss:.4f}",
        INTERVAL: f"{size.low:.4f} to {size.high:.4f}",
    }
