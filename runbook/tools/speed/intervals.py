"""80 % intervals for predicted speeds, by device family, node count and composition of the step."""

import math

from runbook.planning.cost.iteration import CALIBRATED, StepSetup, iteration

NODE_COUNTS = ("one node", "many nodes")
WIDTHS: dict[tuple[str, str], float] = {
    ("", "one node"): 0.581,
    ("A100", "one node"): 0.440,
    ("H100", "one node"): 0.610,
    ("", "many nodes"): 0.494,
    ("A100", "many nodes"): 0.543,
    ("Blackwell", "many nodes"): 0.522,
    ("H100", "many nodes"): 0.389,
}
"""Half-width of the interval for the logarithm of the speed, relative to `uncertainty`.

The key '' stands for any other family. The intervals are conformal, computed from rows whose source
was not used in the fit (`benchmarks.predict_cross_validation`, 2026-11-29).
"""
PRODUCTS_UNCERTAINTY = 0.2
"""The `uncertainty` for a step that consists only of matrix products.

Chosen from 0.1, 0.2, 0.3, 0.5 and 1 for the lowest mean interval score on sources left out.
"""
_UNCALIBRATED = 2.0
"""Factor by which the interval is wider for a family without published training runs."""


def node_count(setup: StepSetup) -> str:
    """Return whether a setup has one node or many, as one of `NODE_COUNTS`."""
    one_node, many_nodes = NODE_COUNTS
    if setup.layout.world_size <= setup.device.devices_per_node:
        return one_node
    return many_nodes


def uncertainty(setup: StepSetup) -> float:
    """Return how uncertain a setup's speed is, relative to other setups.

    Large matrix products are alike in all programs. The more of a step is communication, pipeline
    bubble, memory-bound work or launches, the more a program that the fit does not know may differ.
    """
    return PRODUCTS_UNCERTAINTY + 1 - iteration(setup).products_share


def half_width(setup: StepSetup) -> float:
    """Return the half-width of the interval, relative to the predicted speed."""
    nodes = node_count(setup)
    family = setup.device.family
    width = WIDTHS.get((family, nodes), WIDTHS["", nodes])
    half = math.expm1(width * uncertainty(setup))
    return half if family in CALIBRATED else _UNCALIBRATED * half
