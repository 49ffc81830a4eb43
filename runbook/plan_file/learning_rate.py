"""Learning-rate schedules: warm-up, decay, and the rate in each step."""

import math
from dataclasses import dataclass, field
from typing import Literal

from runbook.plan_file.json_records import OMIT_DEFAULT

Schedule = Literal["cosine", "linear", "constant", "wsd"]
"""How the learning rate changes after the warm-up."""
WsdDecay = Literal["exponential", "linear", "cosine"]
"""How the rate decays in a wsd schedule (warm-up, stable, decay)."""


@dataclass(frozen=True)
class LearningRate:
    """A learning-rate schedule.

    The rate warms up linearly from 0 to the peak, then decays to the minimum at the end of the
    decay.

    >>> rate = LearningRate(peak=1.0, minimum=0.1, schedule="linear", warmup_samples=8,
    ... decay_samples=44)
    >>> [round(rate.at(samples), 3) for samples in (4, 8, 12, 28, 44, 84)]
    [0.5, 1.0, 0.9, 0.5, 0.1, 0.1]

    With wsd the rate stays at its peak until the last `wsd_decay_samples` of the decay length.

    >>> from dataclasses import replace
    >>> wsd = replace(rate, schedule="wsd", wsd_decay_samples=8, wsd_decay_style="linear")
    >>> [round(wsd.at(samples), 3) for samples in (4, 8, 36, 40, 44, 84)]
    [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    """

    peak: float
    minimum: float
    schedule: Schedule
    warmup_samples: int
    decay_samples: int
    wsd_decay_samples: int = field(default=0, metadata=OMIT_DEFAULT)
    """For wsd: number of samples, at the end of the decay length, over which the rate falls."""
    wsd_decay_style: WsdDecay = field(default="exponential", metadata=OMIT_DEFAULT)

    @property
    def falls_from(self) -> int:
        """Return the number of samples after which the rate begins to fall."""
        if self.schedule == "wsd":
            return max(self.warmup_samples, self.decay_samples - self.wsd_decay_samples)
        return self.warmup_samples

    def at(self, samples: int) -> float:
        """Return the rate for the step that ends with sample number `samples`, as in Megatron.

        Even the first step has a rate above 0.
        """
        if self.warmup_samples and samples <= self.warmup_samples:
            return self.peak * samples / self.warmup_samples
        if self.schedule == "constant":
            return self.peak
        if samples >= self.decay_samples:
            return self.minimum
        if self.schedule == "wsd":
            return self.minimum + self._wsd_share(samples) * (self.peak - self.minimum)
        done = (samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        if self.schedule == "linear":
            share = 1 - done
        else:
            share = 0.5 * (math.cos(math.pi * done) + 1)

        return self.minimum + share * (self.peak - self.minimum)

    def _wsd_share(self, samples: int) -> float:
        """Return where the rate is between the minimum (0) and the peak (1).

        The formulas are taken from megatron-core. All of them end at 0.
        """
        into_decay = samples - (self.decay_samples - self.wsd_decay_samples)
        if into_decay <= 0:
            return 1.0
        done = into_decay / self.wsd_decay_samples
        if self.wsd_decay_style == "linear":
            return 1 - done
        if self.wsd_decay_style == "cosine":
            return 0.5 * (math.cos(math.pi * done) + 1)
        share: float = 2 * 0.5**done - 1
        return share
