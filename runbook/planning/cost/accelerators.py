"""What is known of each accelerator: peaks, memory, links; a name that is not here is unknown, never guessed."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

GB = 10**9
SOURCE = "facts hardware_peaks.csv (datasheets); links: vendors' datasheets, usual node designs"
_SISTER = "vendor: as its sister, NVLink of 400 GB/s both ways"
_POLARIS = "Polaris: 4 GPUs a node, two Slingshot 10 cards of 12.5 GB/s"
_MI350_SOURCE = "AMD's data sheet of MI350X (air-cooled sister of MI355X); links as MI355X"
_TORCHTITAN = "torchtitan benchmarks (96 GB HBM2e, 2.4 TB/s, 500 W limit, 400 Gb/s a GPU)"


@dataclass(frozen=True)
class Accelerator:
    """One device as PyTorch sees it; bandwidths in bytes a second, one direction, for one device."""

    name: str
    family: str
    """Devices of one family share their calibrated shares (`iteration.Coefficients`)."""
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
    name: str,
    family: str,
    peaks: Mapping[str, float],
    memory: tuple[float, float],
    links: tuple[float, int, float],
    power: float | None = None,
    *,
    source: str = SOURCE,
) -> Accelerator:
    """Memory in GiB and GB/s; links of a device in GB/s, devices of a node, network in GB/s."""
    size = round(memory[0] * 2**30)
    bandwidth = memory[1] * GB
    link = links[0] * GB
    node = links[1]
    network = links[2] * GB
    return Accelerator(name, family, peaks, size, bandwidth, link, node, network, power, source)


_HOPPER = {"fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 67.0}
_H100_PCIE = {"fp16": 756.0, "bf16": 756.0, "fp8": 1513.0, "fp32": 51.0}
_H100_NVL = {"fp16": 835.0, "bf16": 835.0, "fp8": 1671.0, "fp32": 60.0}
_AMPERE = {"fp16": 312.0, "bf16": 312.0, "tf32": 156.0, "fp32": 19.5}
_BLACKWELL = {"fp16": 2250.0, "bf16": 2250.0, "fp8": 4500.0, "tf32": 1125.0, "fp32": 80.0}
_GRACE = {"fp16": 2500.0, "bf16": 2500.0, "fp8": 5000.0, "tf32": 1250.0, "fp32": 80.0}
_MI300 = {"fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "tf32": 653.7, "fp32": 163.4}
_MI350 = {"fp16": 2306.9, "bf16": 2306.9, "fp8": 4613.7, "fp32": 144.2}
_MI355 = {"fp16": 2500.0, "bf16": 2500.0, "fp8": 5000.0, "fp32": 157.3}

ACCELERATORS = {
    device.name: device
    for device in (
        _device(
            "V100-SXM2", "V100", {"fp16": 125.0, "fp32": 15.7}, (32, 900), (150, 8, 12.5), 300.0
        ),
        _device("V100-PCIe", "V100", {"fp16": 112.0, "fp32": 14.0}, (32, 900), (16, 4, 6.25)),
        _device("A100-SXM4-40GB", "A100", _AMPERE, (40, 1555), (300, 8, 25), 400.0),
        _device("A100-SXM4-80GB", "A100", _AMPERE, (80, 2039), (300, 8, 25), 400.0),
        _device("A100-PCIe", "A100", _AMPERE, (40, 1555), (32, 4, 12.5)),
        _device("H100-SXM5", "H100", _HOPPER, (80, 3350), (450, 8, 50), 700.0),
        _device("H100-PCIe", "H100", _H100_PCIE, (80, 2000), (64, 8, 25)),
        _device("H100-NVL", "H100", _H100_NVL, (94, 3900), (300, 2, 25)),
        _device("H200-SXM", "H100", _HOPPER, (141, 4800), (450, 8, 50)),
        _device("B200-SXM", "Blackwell", _BLACKWELL, (180, 8000), (900, 8, 50)),
        _device("B300-SXM", "Blackwell Ultra", _BLACKWELL, (270, 8000), (900, 8, 100)),
        _device("GB200", "Blackwell", _GRACE, (186, 8000), (900, 64, 50)),
        _device("GB300", "Blackwell Ultra", _GRACE, (279, 8000), (900, 64, 100)),
        _device(
            "MI250X-GCD",
            "MI250X",
            {"fp16": 191.5, "bf16": 191.5, "fp32": 23.95},
            (64, 1638),
            (100, 8, 12.5),
        ),
        _device("MI300X", "MI300X", _MI300, (192, 5300), (448, 8, 50)),
        _device("MI325X", "MI300X", _MI300, (256, 6000), (448, 8, 50)),
        _device("MI350X", "MI300X", _MI350, (288, 8000), (538, 8, 50), source=_MI350_SOURCE),
        _device("MI355X", "MI300X", _MI355, (288, 8000), (538, 8, 50)),
        _device(
            "PVC-512", "PVC", {"fp16": 340.8, "bf16": 340.8, "tf32": 170.4}, (64, 1638), (60, 8, 25)
        ),
        _device(
            "PVC-448",
            "PVC",
            {"fp16": 298.2, "bf16": 298.2, "tf32": 149.1},
            (64, 1638),
            (60, 12, 16.7),
        ),
        _device(
            "L40S",
            "L40S",
            {"fp16": 362.0, "bf16": 362.0, "fp8": 733.0, "fp32": 91.6},
            (48, 864),
            (32, 8, 12.5),
        ),
        _device(
            "H100-SXM5-96GB-500W",
            "H100-500W",
            _HOPPER,
            (96, 2400),
            (450, 8, 50),
            source=_TORCHTITAN,
        ),
        _device("A100-Polaris", "A100", _AMPERE, (40, 1555), (300, 4, 6.25), source=_POLARIS),
        _device("A800-SXM4-80GB", "A100", _AMPERE, (80, 2039), (200, 8, 25), source=_SISTER),
        _device("H800-SXM5", "H100", _HOPPER, (80, 3350), (200, 8, 50), source=_SISTER),
    )
}
"""By name."""

_RULES = (
    (r"A800", "A800-SXM4-80GB"),
    (r"H800", "H800-SXM5"),
    (r"V100.*PCIE", "V100-PCIe"),
    (r"V100", "V100-SXM2"),
    (r"A100.*POLARIS", "A100-Polaris"),
    (r"A100.*PCIE", "A100-PCIe"),
    (r"A100.*\b40( ?GI?B?)?\b", "A100-SXM4-40GB"),
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
    (r"MI350", "MI350X"),
    (r"MI355", "MI355X"),
    (r"(PVC|MAX 1550|PONTE).*(SUPERMUC|512)", "PVC-512"),
    (r"(PVC|MAX 1550|PONTE)", "PVC-448"),
    (r"L40S", "L40S"),
)


_MEMORY_SIZES = {
    "V100-SXM2": (16, 32),
    "V100-PCIe": (16, 32),
    "A100-SXM4-80GB": (40, 80),
    "A100-PCIe": (40, 80),
    "A800-SXM4-80GB": (40, 80),
    "GH200": (96, 144),
}
"""Gigabytes that a device is sold with where there are several; its name must say which."""


@cache
def find_accelerator(text: str) -> Accelerator | None:
    """The device a name means, None where it means none of ours; an A100 without its memory is the 80 GB one.

    >>> find_accelerator("NVIDIA H100 80GB HBM3").name, find_accelerator("A100-SXM4-40GB (Polaris)").name
    ('H100-SXM5', 'A100-Polaris')
    >>> find_accelerator("MI250X module (2 GCD)"), find_accelerator("TPUv5p"), find_accelerator("GH100x")
    (None, None, None)
    >>> find_accelerator("a100_3g.20gb") is None  # a MIG slice has neither the peak nor the memory of its card
    True
    """
    plain = _plain(text)
    if re.search(r"\bMIG\b|\d+G\.\d+GB", plain):
        return None
    for pattern, name in _RULES:
        if re.search(rf"(?<![A-Z0-9]){pattern}", plain):
            if re.search(r"(?<![A-Z0-9])(V100|A100|H100|H200|B200)(?!SXM|PCIE)[A-WYZ0-9]", plain):
                return None
            return ACCELERATORS.get(name)
    return None


def named_memory(text: str) -> int:
    """Bytes of memory of the device that a name means; 0 where the name leaves open which size it is.

    >>> [named_memory(name) // 2**30 for name in ("A100-40GB", "NVIDIA A100-PCIE-80GB", "MI250X")]
    [40, 80, 64]
    >>> named_memory("A100"), named_memory("NVIDIA GH200 480GB"), named_memory("TPUv5p")
    (0, 0, 0)
    """
    device = find_accelerator(text)
    plain = _plain(text)
    if device is None:
        return 0
    sizes = memory_sizes(text)
    named = [
        int(size) for size in re.findall(r"\b(\d+)(?: ?GI?B?)?\b", plain) if int(size) in sizes
    ]
    if named:
        return named[0] * 2**30
    return 0 if sizes else device.memory_bytes


def memory_sizes(text: str) -> tuple[int, ...]:
    """Gigabytes that a device of this name is sold with, where its table entry is one of several."""
    device = find_accelerator(text)
    if "GH200" in _plain(text):
        name = "GH200"
    elif device:
        name = device.name
    else:
        name = ""
    return _MEMORY_SIZES.get(name, ())


def nearest_accelerators(text: str, count: int = 3) -> list[str]:
    """The names of the table most like an unknown one, best first; all of them where none is like it.

    >>> nearest_accelerators("A1000-40GB")[0], nearest_accelerators("L40"), len(nearest_accelerators("?")) > 20
    ('A100-SXM4-40GB', ['L40S'], True)
    """
    wanted = _plain(text)

    def likeness(name: str) -> tuple[float, int]:
        plain = _plain(name)
        return difflib.SequenceMatcher(None, wanted, plain).ratio(), len(
            set(wanted.split()) & set(plain.split())
        )

    ranked = sorted(ACCELERATORS, key=likeness, reverse=True)
    return [name for name in ranked if likeness(name)[0] > 0.5][:count] or sorted(ACCELERATORS)


def _plain(text: str) -> str:
    return re.sub(r"[\s_\-/]+", " ", text.strip()).upper()
