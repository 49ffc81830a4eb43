"""How often long training runs stop unexpectedly, and the source for this rate."""

DEVICE_HOURS_PER_FAILURE = 50_677
"""Device-hours between failures when Llama 3 was trained (arXiv 2407.21783): 419 unexpected stops
from all causes in 54 days on 16,384 H100s.
"""
FAILURE_SOURCE = "Llama 3: 419 unexpected stops in 54 days on 16,384 H100"


def seconds_between_failures(devices: int) -> float:
    """Return the mean time between failures with this many devices.

    >>> round(seconds_between_failures(128) / 3600)
    396
    """
    return DEVICE_HOURS_PER_FAILURE / devices * 3600
