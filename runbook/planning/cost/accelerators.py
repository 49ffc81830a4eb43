"""Peak FLOP/s, memory and links of each accelerator.

A name that is not in the table counts as unknown; nothing is guessed.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

GB = 10**9
SOURCE = "facts hardware_peaks.csv (datasheets); links: vendors' datasheets, usual node designs"
_SISTER = "vendor: like its sister model, NVLink of 400 GB/s both ways"
_POLARIS = "Polaris: 4 GPUs per node, two Slingshot 10 cards of 12.5 GB/s"
_JUPITER = (
    "JUPITER: 4 superchips per node, 150 GB/s to each other one, a network card of 200 Gb/s each"
)
_GH200_HBM3E = "NVIDIA's data sheet of GH200 with HBM3e; links as in JUPITER"
_MI350_SOURCE = "AMD's data sheet of MI350X (air-cooled sister of MI355X); links as MI355X"
_TORCHTITAN = "torchtitan benchmarks (96 GB HBM2e, 2.4 TB/s, 500 W limit, 400 Gb/s a GPU)"


@dataclass(frozen=True)
class Accelerator:
    """One device as PyTorch sees it.

    Bandwidths are in bytes per second, in one direction, for one device.
    """

    name: str
    family: str
    """All devices in a family share the same calibrated coefficients (`iteration.Coefficients`)."""
    peaks: Mapping[str, float]
    """Peak in dense TFLOP/s from the datasheet, by precision."""
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    """Bandwidth between devices connected by fast links."""
    devices_per_node: int
    """Number of devices connected by fast links: all in a node or, for NVL72, all in a rack."""
    network_bandwidth: float
    """Usual network bandwidth per device between nodes with this device."""
    power_watts: float | None = None
    """Board power from the datasheet; None if no source states it."""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """A device as described by its datasheet."""

    name: str
    family: str
    peaks: Mapping[str, float]
    """Dense TFLOP/s by precision."""
    memory_gib: float
    memory_gb_per_second: float
    link_gb_per_second: float
    """Bandwidth in one direction to the other devices in the node."""
    devices_per_node: int
    network_gb_per_second: float
    """Bandwidth in one direction for one device."""
    power_watts: float | None = None
    source: str = SOURCE

    def accelerator(self) -> Accelerator:
        """Return the device with sizes in bytes and bandwidths in bytes per second."""
        return Accelerator(
            name=self.name,
            family=self.family,
            peaks=self.peaks,
            memory_bytes=round(self.memory_gib * 2**30),
            memory_bandwidth=self.memory_gb_per_second * GB,
            link_bandwidth=self.link_gb_per_second * GB,
            devices_per_node=self.devices_per_node,
            network_bandwidth=self.network_gb_per_second * GB,
            power_watts=self.power_watts,
            source=self.source,
        )


_VOLTA_SXM2 = {"fp16": 125.0, "fp32": 15.7}
_VOLTA_PCIE = {"fp16": 112.0, "fp32": 14.0}
_AMPERE = {
    "fp16": 312.0,
    "bf16": 312.0,
    "tf32": 156.0,
    "fp32": 19.5,
}
_HOPPER = {
    "fp16": 989.4,
    "bf16": 989.4,
    "fp8": 1978.9,
    "tf32": 494.7,
    "fp32": 67.0,
}
_H100_PCIE = {
    "fp16": 756.0,
    "bf16": 756.0,
    "fp8": 1513.0,
    "fp32": 51.0,
}
_H100_NVL = {
    "fp16": 835.0,
    "bf16": 835.0,
    "fp8": 1671.0,
    "fp32": 60.0,
}
_BLACKWELL = {
    "fp16": 2250.0,
    "bf16": 2250.0,
    "fp8": 4500.0,
    "tf32": 1125.0,
    "fp32": 80.0,
}
_GRACE = {
    "fp16": 2500.0,
    "bf16": 2500.0,
    "fp8": 5000.0,
    "tf32": 1250.0,
    "fp32": 80.0,
}
_L40S = {
    "fp16": 362.0,
    "bf16": 362.0,
    "fp8": 733.0,
    "fp32": 91.6,
}
_MI250 = {"fp16": 191.5, "bf16": 191.5, "fp32": 23.95}
_MI300 = {
    "fp16": 1307.4,
    "bf16": 1307.4,
    "fp8": 2614.9,
    "tf32": 653.7,
    "fp32": 163.4,
}
_MI350 = {
    "fp16": 2306.9,
    "bf16": 2306.9,
    "fp8": 4613.7,
    "fp32": 144.2,
}
_MI355 = {
    "fp16": 2500.0,
    "bf16": 2500.0,
    "fp8": 5000.0,
    "fp32": 157.3,
}
_PVC_512 = {"fp16": 340.8, "bf16": 340.8, "tf32": 170.4}
_PVC_448 = {"fp16": 298.2, "bf16": 298.2, "tf32": 149.1}

_DATA_SHEETS = (
    _Sheet(
        name="V100-SXM2",
        family="V100",
        peaks=_VOLTA_SXM2,
        memory_gib=32,
        memory_gb_per_second=900,
        link_gb_per_second=150,
        devices_per_node=8,
        network_gb_per_second=12.5,
        power_watts=300.0,
    ),
    _Sheet(
        name="V100-PCIe",
        family="V100",
        peaks=_VOLTA_PCIE,
        memory_gib=32,
        memory_gb_per_second=900,
        link_gb_per_second=16,
        devices_per_node=4,
        network_gb_per_second=6.25,
    ),
    _Sheet(
        name="A100-SXM4-40GB",
        family="A100",
        peaks=_AMPERE,
        memory_gib=40,
        memory_gb_per_second=1555,
        link_gb_per_second=300,
        devices_per_node=8,
        network_gb_per_second=25,
        power_watts=400.0,
    ),
    _Sheet(
        name="A100-SXM4-80GB",
        family="A100",
        peaks=_AMPERE,
        memory_gib=80,
        memory_gb_per_second=2039,
        link_gb_per_second=300,
        devices_per_node=8,
        network_gb_per_second=25,
        power_watts=400.0,
    ),
    _Sheet(
        name="A100-PCIe",
        family="A100",
        peaks=_AMPERE,
        memory_gib=40,
        memory_gb_per_second=1555,
        link_gb_per_second=32,
        devices_per_node=4,
        network_gb_per_second=12.5,
    ),
    _Sheet(
        name="H100-SXM5",
        family="H100",
        peaks=_HOPPER,
        memory_gib=80,
        memory_gb_per_second=3350,
        link_gb_per_second=450,
        devices_per_node=8,
        network_gb_per_second=50,
        power_watts=700.0,
    ),
    _Sheet(
        name="H100-PCIe",
        family="H100",
        peaks=_H100_PCIE,
        memory_gib=80,
        memory_gb_per_second=2000,
        link_gb_per_second=64,
        devices_per_node=8,
        network_gb_per_second=25,
    ),
    _Sheet(
        name="H100-NVL",
        family="H100",
        peaks=_H100_NVL,
        memory_gib=94,
        memory_gb_per_second=3900,
        link_gb_per_second=300,
        devices_per_node=2,
        network_gb_per_second=25,
    ),
    _Sheet(
        name="H200-SXM",
        family="H100",
        peaks=_HOPPER,
        memory_gib=141,
        memory_gb_per_second=4800,
        link_gb_per_second=450,
        devices_per_node=8,
        network_gb_per_second=50,
        power_watts=700.0,
    ),
    _Sheet(
        name="GH200-96GB",
        family="H100",
        peaks=_HOPPER,
        memory_gib=96,
        memory_gb_per_second=4000,
        link_gb_per_second=450,
        devices_per_node=4,
        network_gb_per_second=25,
        source=_JUPITER,
    ),
    _Sheet(
        name="GH200-144GB",
        family="H100",
        peaks=_HOPPER,
        memory_gib=144,
        memory_gb_per_second=4900,
        link_gb_per_second=450,
        devices_per_node=4,
        network_gb_per_second=25,
        source=_GH200_HBM3E,
    ),
    _Sheet(
        name="B200-SXM",
        family="Blackwell",
        peaks=_BLACKWELL,
        memory_gib=180,
        memory_gb_per_second=8000,
        link_gb_per_second=900,
        devices_per_node=8,
        network_gb_per_second=50,
    ),
    _Sheet(
        name="B300-SXM",
        family="Blackwell Ultra",
        peaks=_BLACKWELL,
        memory_gib=270,
        memory_gb_per_second=8000,
        link_gb_per_second=900,
        devices_per_node=8,
        network_gb_per_second=100,
    ),
    _Sheet(
        name="GB200",
        family="Blackwell",
        peaks=_GRACE,
        memory_gib=186,
        memory_gb_per_second=8000,
        link_gb_per_second=900,
        devices_per_node=64,
        network_gb_per_second=50,
    ),
    _Sheet(
        name="GB300",
        family="Blackwell Ultra",
        peaks=_GRACE,
        memory_gib=279,
        memory_gb_per_second=8000,
        link_gb_per_second=900,
        devices_per_node=64,
        network_gb_per_second=100,
    ),
    _Sheet(
        name="MI250X-GCD",
        family="MI250X",
        peaks=_MI250,
        memory_gib=64,
        memory_gb_per_second=1638,
        link_gb_per_second=100,
        devices_per_node=8,
        network_gb_per_second=12.5,
    ),
    _Sheet(
        name="MI300X",
        family="MI300X",
        peaks=_MI300,
        memory_gib=192,
        memory_gb_per_second=5300,
        link_gb_per_second=448,
        devices_per_node=8,
        network_gb_per_second=50,
    ),
    _Sheet(
        name="MI325X",
        family="MI300X",
        peaks=_MI300,
        memory_gib=256,
        memory_gb_per_second=6000,
        link_gb_per_second=448,
        devices_per_node=8,
        network_gb_per_second=50,
    ),
    _Sheet(
        name="MI350X",
        family="MI350",
        peaks=_MI350,
        memory_gib=288,
        memory_gb_per_second=8000,
        link_gb_per_second=538,
        devices_per_node=8,
        network_gb_per_second=50,
        source=_MI350_SOURCE,
    ),
    _Sheet(
        name="MI355X",
        family="MI350",
        peaks=_MI355,
        memory_gib=288,
        memory_gb_per_second=8000,
        link_gb_per_second=538,
        devices_per_node=8,
        network_gb_per_second=50,
    ),
    _Sheet(
        name="PVC-512",
        family="PVC",
        peaks=_PVC_512,
        memory_gib=64,
        memory_gb_per_second=1638,
        link_gb_per_second=60,
        devices_per_node=8,
        network_gb_per_second=25,
    ),
    _Sheet(
        name="PVC-448",
        family="PVC",
        peaks=_PVC_448,
        memory_gib=64,
        memory_gb_per_second=1638,
        link_gb_per_second=60,
        devices_per_node=12,
        network_gb_per_second=16.7,
    ),
    _Sheet(
        name="L40S",
        family="L40S",
        peaks=_L40S,
        memory_gib=48,
        memory_gb_per_second=864,
        link_gb_per_second=32,
        devices_per_node=8,
        network_gb_per_second=12.5,
    ),
    _Sheet(
        name="H100-SXM5-96GB-500W",
        family="H100-500W",
        peaks=_HOPPER,
        memory_gib=96,
        memory_gb_per_second=2400,
        link_gb_per_second=450,
        devices_per_node=8,
        network_gb_per_second=50,
        source=_TORCHTITAN,
    ),
    _Sheet(
        name="A100-Polaris",
        family="A100",
        peaks=_AMPERE,
        memory_gib=40,
        memory_gb_per_second=1555,
        link_gb_per_second=300,
        devices_per_node=4,
        network_gb_per_second=6.25,
        source=_POLARIS,
    ),
    _Sheet(
        name="A800-SXM4-80GB",
        family="A100",
        peaks=_AMPERE,
        memory_gib=80,
        memory_gb_per_second=2039,
        link_gb_per_second=200,
        devices_per_node=8,
        network_gb_per_second=25,
        source=_SISTER,
    ),
    _Sheet(
        name="H800-SXM5",
        family="H100",
        peaks=_HOPPER,
        memory_gib=80,
        memory_gb_per_second=3350,
        link_gb_per_second=200,
        devices_per_node=8,
        network_gb_per_second=50,
        source=_SISTER,
    ),
)
ACCELERATORS = {sheet.name: sheet.accelerator() for sheet in _DATA_SHEETS}
"""Accelerators by name."""


class _NameRule(NamedTuple):
    """A pattern for device names as machines report them, and the device name in the table."""

    pattern: str
    name: str
    """Name in the table; empty if the pattern matches a device that is not in the table."""


_NAME_RULES = (
    # The first match applies, so a rule for a variant precedes the rule for its family.
    _NameRule(r"A800", "A800-SXM4-80GB"),
    _NameRule(r"H800", "H800-SXM5"),
    _NameRule(r"V100.*PCIE", "V100-PCIe"),
    _NameRule(r"V100", "V100-SXM2"),
    _NameRule(r"A100.*POLARIS", "A100-Polaris"),
    _NameRule(r"A100.*PCIE", "A100-PCIe"),
    _NameRule(r"A100.*\b40( ?GI?B?)?\b", "A100-SXM4-40GB"),
    _NameRule(r"A100", "A100-SXM4-80GB"),
    _NameRule(r"H100.*(500 ?W|HBM2E|96 ?GB)", "H100-SXM5-96GB-500W"),
    _NameRule(r"H100.*PCIE", "H100-PCIe"),
    _NameRule(r"H100.*NVL", "H100-NVL"),
    _NameRule(r"H100", "H100-SXM5"),
    _NameRule(r"GH200.*144", "GH200-144GB"),
    _NameRule(r"GH200", "GH200-96GB"),
    _NameRule(r"H200", "H200-SXM"),
    _NameRule(r"GB300", "GB300"),
    _NameRule(r"GB200", "GB200"),
    _NameRule(r"B300", "B300-SXM"),
    _NameRule(r"B200", "B200-SXM"),
    _NameRule(r"MI250.*(MODULE|2 ?GCD)", ""),
    _NameRule(r"MI250", "MI250X-GCD"),
    _NameRule(r"MI300X?\b(?!.*A\b)", "MI300X"),
    _NameRule(r"MI325", "MI325X"),
    _NameRule(r"MI350", "MI350X"),
    _NameRule(r"MI355", "MI355X"),
    _NameRule(r"(PVC|MAX 1550|PONTE).*(SUPERMUC|512)", "PVC-512"),
    _NameRule(r"(PVC|MAX 1550|PONTE)", "PVC-448"),
    _NameRule(r"L40S", "L40S"),
)


_MEMORY_SIZES = {
    "V100-SXM2": (16, 32),
    "V100-PCIe": (16, 32),
    "A100-SXM4-80GB": (40, 80),
    "A100-PCIe": (40, 80),
    "A800-SXM4-80GB": (40, 80),
    "GH200-96GB": (96, 144),
    "GH200-144GB": (96, 144),
}
"""Memory sizes, in gigabytes, for devices sold in more than one size.

The name must contain the size.
"""


_GRACE_MEMORY = re.compile(r"\b(120|240|480) ?GB\b")
"""Memory of the processor on a GH200, which drivers write behind the name of the 96 GB model."""


_MIG_SLICE = re.compile(r"\bMIG\b|\d+G\.\d+GB")
_LONGER_NAME = re.compile(r"(?<![A-Z0-9])(V100|A100|H100|H200|B200)(?!SXM|PCIE)[A-WYZ0-9]")
"""Matches a name that begins with one of these names but belongs to a different device, such as
A1000.
"""


@cache
def find_accelerator(text: str) -> Accelerator | None:
    """Return the device with this name, or None if it is not in the table.

    An A100 whose name does not state a memory size is assumed to be the 80 GB model.

    >>> find_accelerator("NVIDIA H100 80GB HBM3").name
    'H100-SXM5'
    >>> find_accelerator("A100-SXM4-40GB (Polaris)").name
    'A100-Polaris'
    >>> unknown = ("MI250X module (2 GCD)", "TPUv5p", "GH100x")
    >>> [find_accelerator(name) for name in unknown]
    [None, None, None]

    A MIG slice has less memory and a lower peak than the whole card, so it counts as unknown:

    >>> find_accelerator("a100_3g.20gb") is None
    True
    """
    plain = _plain(text)
    if _MIG_SLICE.search(plain):
        return None
    for rule in _NAME_RULES:
        if re.search(rf"(?<![A-Z0-9]){rule.pattern}", plain):
            if _LONGER_NAME.search(plain):
                return None
            return ACCELERATORS.get(rule.name)

    return None


def named_memory(text: str) -> int:
    """Return how much memory the device with this name has, in bytes.

    Return 0 if the table has no such device, or if the name does not determine the size.

    >>> [named_memory(name) // 2**30 for name in ("A100-40GB", "NVIDIA A100-PCIE-80GB", "MI250X")]
    [40, 80, 64]
    >>> named_memory("A100"), named_memory("GH200"), named_memory("TPUv5p")
    (0, 0, 0)
    """
    device = find_accelerator(text)
    if device is None:
        return 0
    sizes = memory_sizes(text)
    if not sizes:
        return device.memory_bytes
    plain = _plain(text)
    if device.name == "GH200-96GB" and _GRACE_MEMORY.search(plain):
        return device.memory_bytes
    for number in re.findall(r"\b(\d+)(?: ?GI?B?)?\b", plain):
        if int(number) in sizes:
            return int(number) * 2**30

    return 0


def memory_sizes(text: str) -> tuple[int, ...]:
    """Return the memory sizes for a device in gigabytes, or () if there is only one size."""
    device = find_accelerator(text)
    return _MEMORY_SIZES.get(device.name, ()) if device else ()


def nearest_accelerators(text: str, count: int = 3) -> list[str]:
    """Return the names in the table that are most similar to an unknown one, best first.

    Return all names if no name is similar.

    >>> nearest_accelerators("A1000-40GB")[0], nearest_accelerators("L40")
    ('A100-SXM4-40GB', ['L40S'])
    >>> len(nearest_accelerators("?")) > 20
    True
    """
    unknown = _plain(text)

    def likeness(name: str) -> tuple[float, int]:
        plain = _plain(name)
        ratio = difflib.SequenceMatcher(None, unknown, plain).ratio()
        common_words = set(unknown.split()) & set(plain.split())
        return ratio, len(common_words)

    ranked = sorted(ACCELERATORS, key=likeness, reverse=True)
    alike = [name for name in ranked if likeness(name)[0] > 0.5]
    return alike[:count] or sorted(ACCELERATORS)


def _plain(text: str) -> str:
    """Return a name in capitals, with every separator replaced by a single space."""
    return re.sub(r"[\s_\-/]+", " ", text.strip()).upper()
