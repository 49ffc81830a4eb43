"""80 % intervals for predicted speeds, by device family and number of nodes."""

from runbook.planning.cost.iteration import CALIBRATED, StepSetup

NODE_COUNTS = ("one node", "many nodes")
HALF_WIDTHS: dict[tuple[str, str], float] = {
    ("", "one node"): 0.192,
    ("A100", "one node"): 0.274,
    ("H100", "one node"): 0.326,
    ("", "many nodes"): 0.154,
    ("A100", "many nodes"): 0.138,
    ("Blackwell", "many nodes"): 0.194,
    ("H100", "many nodes"): 0.116,
}
"""Half-width of the interval as a share of the prediction; '' stands for any other family.

The intervals are conformal, computed from rows whose source was not used in the fit
(`benchmarks.predict_cross_validation`, 2026-11-29).
"""
_UNCALIBRATED = 2.0
"""Factor by which the interval is wider for a family without published training runs."""


def node_count(setup: StepSetup) -> str:
    """Return the class of a setup's number of nodes, one of `NODE_COUNTS`."""
    one_node, many_nodes = NODE_COUNTS
    if setup.layout.world_size <= setup.device.devices_per_node:
        return one_node
    return many_nodes


def half_width(setup: StepSetup) -> float:
    """Return the half-width of the interval as a share of the predicted speed."""
    nodes = node_count(setup)
    family = setup.device.family
    width = HALF_WIDTHS.get((family, nodes), HALF_WIDTHS["", nodes])
    return width if family in CALIBRATED else _UNCALIBRATED * width
