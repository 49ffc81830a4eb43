"""The calibrated figures of the speed model, each a share or a multiple with a meaning of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Coefficients:
    """What published results settle; everything else in the model is counted."""

    sustained: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(
            {
                "V100": 0.70,
                "A100": 0.76,
                "H100": 0.62,
                "H100-500W": 0.52,
                "Blackwell": 0.66,
                "MI250X": 0.45,
                "MI300X": 0.45,
                "PVC": 0.35,
                "L40S": 0.55,
            }
        )
    )
    """Share of the 16-bit peak that large matrix products sustain at the power limit, by family."""
    fp8: float = 0.85
    """The same share in fp8, relative to 16 bits."""
    attention: float = 0.60
    """Speed of fused attention relative to large matrix products."""
    attention_hopper: float = 0.60
    """The same again on H100 outside a vendor's own stack: kernels written for the A100."""
    elementwise: float = 1.0
    """Bytes moved by norms, activations, residuals and dropout, relative to one read and write each by fused code."""
    eager: float = 1.6
    """The same without a compiler or fused kernels, relative to with."""
    unfused: float = 2.0
    """The same in DeepSpeed's forks of Megatron."""
    tuned: float = 0.7
    """The same in a vendor's own tuned stack."""
    scores: float = 25.0
    """Bytes a score costs in both passes where attention scores are kept."""
    tensor_tuned: float = 0.4
    """Share of tensor-parallel communication that is waited for in a vendor's own stack; elsewhere all of it."""
    links: float = 0.7
    """Share of the links' datasheet that collectives reach."""
    network: float = 0.7
    """Share of the network's figure that collectives reach."""
    overlap_power: float = 2.5
    """How sharply communication of shared states hides behind work (1: not at all, infinite: wholly)."""
    layer_microseconds: float = 1000.0
    """Least time of a layer's two passes, however small: what launching its kernels takes."""
    unfused_microseconds: float = 2500.0
    """The same in DeepSpeed's forks of Megatron."""
    jitter: float = 0.006
    """Time added by each doubling of the devices beyond eight: waiting for the slowest."""


START = Coefficients()
"""Where the fit begins: measured matrix products and vendors' figures, before any training is looked at."""

DEFAULT = Coefficients(
    sustained=MappingProxyType(
        {
            "V100": 0.95,
            "A100": 0.725,
            "H100": 0.653,
            "H100-500W": 0.617,
            "Blackwell": 0.671,
            "MI250X": 0.503,
            "MI300X": 0.45,
            "PVC": 0.406,
            "L40S": 0.55,
        }
    ),
    fp8=0.923,
    attention=0.492,
    attention_hopper=0.606,
    elementwise=2.12,
    eager=1.95,
    unfused=5.15,
    tuned=0.764,
    scores=19.7,
    tensor_tuned=0.291,
    links=0.782,
    network=0.81,
    overlap_power=2.3,
    layer_microseconds=1000.0,
    unfused_microseconds=6840.0,
    jitter=0.00407,
)
"""Fitted to published results: `python -m benchmarks.predict_cross_validation --fit` prints them anew."""

CALIBRATED = frozenset({"V100", "A100", "H100", "H100-500W", "Blackwell", "MI250X", "PVC"})
"""Families with a published training among the rows of the fit; the others rest on measured matrix products."""
