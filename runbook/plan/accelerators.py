"""What is known of each accelerator: peaks, memory, links; a name that is not here is unknown, never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

GB = 10**9


@dataclass(frozen=True)
class Accelerator:
    """One device as PyTorch sees it; bandwidths in bytes a second, one direction, for one device."""

    name: str
    family: str
    """Devices of one family share their calibrated fractions (`coefficients.py`)."""
    peaks: Mapping[str, float]
    """Dense TFLOP/s of the datasheet by precision."""
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    """Inside the domain of fast links."""
    devices_per_node: int
    """Of that domain (a node; a rack for NVL72)."""
    network_bandwidth: float
    """Between nodes, as usual for this machine."""
    power_watts: float | None = None
    """Board power of the datasheet; None where we have no source."""
    source: str = ""


def _device(
    name: str, family: str, peaks: Mapping[str, float], memory: tuple[float, float], links: tuple[float, int, float]
) -> Accelerator:
    gigabytes, bandwidth = memory
    link, node, network = links
    return Accelerator(
        name, family, peaks, round(gigabytes * 2**30), bandwidth * GB, link * GB, node, network * GB, source=SOURCE
    )


SOURCE = "facts hardware_peaks.csv (datasheets); links: vendors' datasheets, usual node designs"
_HOPPER = {"fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 67.0}
_AMPERE = {"fp16": 312.0, "bf16": 312.0, "tf32": 156.0, "fp32": 19.5}
_BLACKWELL = {"fp16": 2250.0, "bf16": 2250.0, "fp8": 4500.0, "tf32": 1125.0, "fp32": 80.0}
_GRACE = {"fp16": 2500.0, "bf16": 2500.0, "fp8": 5000.0, "tf32": 1250.0, "fp32": 80.0}
_MI300 = {"fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "tf32": 653.7, "fp32": 163.4}
_MI355 = {"fp16": 2500.0, "bf16": 2500.0, "fp8": 5000.0, "fp32": 157.3}

ACCELERATORS = {
    device.name: device
    for device in (
        _device("V100-SXM2", "V100", {"fp16": 125.0, "fp32": 15.7}, (32, 900), (150, 8, 12.5)),
        _device("V100-PCIe", "V100", {"fp16": 112.0, "fp32": 14.0}, (32, 900), (16, 4, 6.25)),
        _device("A100-SXM4-40GB", "A100", _AMPERE, (40, 1555), (300, 8, 25)),
        _device("A100-SXM4-80GB", "A100", _AMPERE, (80, 2039), (300, 8, 25)),
        _device("A100-PCIe", "A100", _AMPERE, (40, 1555), (32, 4, 12.5)),
        _device("H100-SXM5", "H100", _HOPPER, (80, 3350), (450, 8, 50)),
        _device(
            "H100-PCIe", "H100", {"fp16": 756.0, "bf16": 756.0, "fp8": 1513.0, "fp32": 51.0}, (80, 2000), (64, 8, 25)
        ),
        _device(
            "H100-NVL", "H100", {"fp16": 835.0, "bf16": 835.0, "fp8": 1671.0, "fp32": 60.0}, (94, 3900), (300, 2, 25)
        ),
        _device("H200-SXM", "H100", _HOPPER, (141, 4800), (450, 8, 50)),
        _device("B200-SXM", "Blackwell", _BLACKWELL, (180, 8000), (900, 8, 50)),
        _device("B300-SXM", "Blackwell", _BLACKWELL, (270, 8000), (900, 8, 100)),
        _device("GB200", "Blackwell", _GRACE, (186, 8000), (900, 64, 50)),
        _device("GB300", "Blackwell", _GRACE, (279, 8000), (900, 64, 100)),
        _device("MI250X-GCD", "MI250X", {"fp16": 191.5, "bf16": 191.5, "fp32": 23.95}, (64, 1638), (100, 8, 12.5)),
        _device("MI300X", "MI300X", _MI300, (192, 5300), (448, 8, 50)),
        _device("MI325X", "MI300X", _MI300, (256, 6000), (448, 8, 50)),
        _device("MI355X", "MI300X", _MI355, (288, 8000), (538, 8, 50)),
        _device("PVC-512", "PVC", {"fp16": 340.8, "bf16": 340.8, "tf32": 170.4}, (64, 1638), (60, 8, 25)),
        _device("PVC-448", "PVC", {"fp16": 298.2, "bf16": 298.2, "tf32": 149.1}, (64, 1638), (60, 12, 16.7)),
        _device("L40S", "L40S", {"fp16": 362.0, "bf16": 362.0, "fp8": 733.0, "fp32": 91.6}, (48, 864), (32, 8, 12.5)),
    )
}
"""By name."""

ACCELERATORS["H100-SXM5-96GB-500W"] = replace(
    ACCELERATORS["H100-SXM5"],
    name="H100-SXM5-96GB-500W",
    family="H100-500W",
    memory_bytes=96 * 2**30,
    memory_bandwidth=2400 * GB,
    source="torchtitan benchmarks (96 GB HBM2e, 2.4 TB/s, 500 W limit, 400 Gb/s a GPU)",
)
ACCELERATORS["A100-Polaris"] = replace(
    ACCELERATORS["A100-SXM4-40GB"],
    name="A100-Polaris",
    family="A100",
    devices_per_node=4,
    network_bandwidth=6.25 * GB,
    source="Polaris: 4 GPUs a node, two Slingshot 10 cards of 12.5 GB/s",
)
for _name, _of in (("A800-SXM4-80GB", "A100-SXM4-80GB"), ("H800-SXM5", "H100-SXM5")):
    ACCELERATORS[_name] = replace(
        ACCELERATORS[_of],
        name=_name,
        link_bandwidth=200 * GB,
        source="vendor: as its sister, NVLink of 400 GB/s both ways",
    )
for _name, _watts in (("V100-SXM2", 300), ("A100-SXM4-40GB", 400), ("A100-SXM4-80GB", 400), ("H100-SXM5", 700)):
    ACCELERATORS[_name] = replace(ACCELERATORS[_name], power_watts=float(_watts))

_RULES = (
    (r"A800", "A800-SXM4-80GB"),
    (r"H800", "H800-SXM5"),
    (r"V100.*PCIE", "V100-PCIe"),
    (r"V100", "V100-SXM2"),
    (r"A100.*POLARIS", "A100-Polaris"),
    (r"A100.*PCIE", "A100-PCIe"),
    (r"A100.*40 ?GB?\b", "A100-SXM4-40GB"),
    (r"A100", "A100-SXM4-80GB"),
    (r"H100.*(500 ?W|HBM2E|96 ?GB)", "H100-SXM5-96GB-500W"),
    (r"H100.*PCIE", "H100-PCIe"),
    (r"H100.*NVL", "H100-NVL"),
    (r"H100", "H100-SXM5"),
    (r"G?H200", "H200-SXM"),
    (r"GB300", "GB300"),
    (r"GB200", "GB200"),
    (r"B300", "B300-SXM"),
    (r"B200", "B200-SXM"),
    (r"MI250.*(MODULE|2 ?GCD)", ""),
    (r"MI250", "MI250X-GCD"),
    (r"MI300X?\b(?!.*A\b)", "MI300X"),
    (r"MI325", "MI325X"),
    (r"MI35[05]", "MI355X"),
    (r"(PVC|MAX 1550|PONTE).*(SUPERMUC|512)", "PVC-512"),
    (r"(PVC|MAX 1550|PONTE)", "PVC-448"),
    (r"L40S", "L40S"),
)


def find_accelerator(text: str) -> Accelerator | None:
    """The device a name means, None where it means none of ours; an A100 without its memory is the 80 GB one.

    >>> find_accelerator("NVIDIA H100 80GB HBM3").name, find_accelerator("A100-SXM4-40GB (Polaris)").name
    ('H100-SXM5', 'A100-Polaris')
    >>> find_accelerator("MI250X module (2 GCD)"), find_accelerator("TPUv5p"), find_accelerator("GH100x")
    (None, None, None)
    """
    plain = re.sub(r"[\s_\-/]+", " ", text.strip()).upper()
    for pattern, name in _RULES:
        if re.search(rf"(?<![A-Z0-9]){pattern}", plain):
            if re.search(r"(?<![A-Z0-9])(V100|A100|H100|H200|B200)[A-WYZ0-9]", plain):
                return None
            return ACCELERATORS.get(name)
    return None
