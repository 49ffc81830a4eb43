"""The device that a site names: found under its many names, with values from the table, and a
warning if it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from suite.messages import says

from runbook.planning import Check, make_plan
from runbook.planning.cost.accelerators import (
    ACCELERATORS,
    find_accelerator,
    named_memory,
    nearest_accelerators,
)
from runbook.planning.messages import PlanningMessage
from runbook.results.published_results import read_table

PEAKS = read_table("hardware_peaks.csv")
WHOLE_MODULES = ("MI250X|per module (2 GCD)", "PVC Max 1550|full module")
"""Torch sees half of the card as a device, and the name alone does not say whether the whole card
is meant.
"""
NAMED = [
    row
    for row in PEAKS
    if row["fp16_tflops"] and f"{row['accelerator']}|{row['unit']}" not in WHOLE_MODULES
]


def on(device: str, **values: Any) -> dict[str, Any]:
    return {"hardware": {"device": device, "devices_per_node": 4, **values}}


@pytest.mark.parametrize("row", NAMED, ids=lambda row: f"{row['accelerator']} {row['unit']}")
def test_every_device_of_the_table_of_peaks_is_found_with_its_peak(row: dict[str, str]) -> None:
    vendor = "AMD Instinct " if row["accelerator"].startswith("MI") else "NVIDIA "
    for name in (
        row["accelerator"],
        vendor + row["accelerator"],
        row["accelerator"].replace("-", "_").lower(),
    ):
        if "512 EU" in row["unit"]:
            name += " 512"
        device = find_accelerator(name)
        assert device is not None, name
        assert device.peaks["fp16"] == float(row["fp16_tflops"])


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_device_of_our_own_table_is_found_by_its_name(name: str) -> None:
    assert find_accelerator(name) == ACCELERATORS[name]


@pytest.mark.parametrize(
    ("name", "device", "gigabytes"),
    [
        ("A100-40GB", "A100-SXM4-40GB", 40),
        ("A100-SXM4-40GB", "A100-SXM4-40GB", 40),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", 40),
        ("nvidia_a100-sxm4-40gb", "A100-SXM4-40GB", 40),
        ("a100_40", "A100-SXM4-40GB", 40),
        ("a100sxm4-80gb", "A100-SXM4-80GB", 80),
        ("A100", "A100-SXM4-80GB", 0),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe", 40),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe", 80),
        ("Tesla V100-SXM2-16GB", "V100-SXM2", 16),
        ("V100", "V100-SXM2", 0),
        ("H100", "H100-SXM5", 80),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5", 80),
        ("MI250X", "MI250X-GCD", 64),
        ("AMD Instinct MI250X", "MI250X-GCD", 64),
        ("NVIDIA GH200 480GB", "GH200-96GB", 96),
        ("NVIDIA GH200 120GB", "GH200-96GB", 96),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB", 144),
        ("GH200", "GH200-96GB", 0),
        ("NVIDIA H200", "H200-SXM", 141),
    ],
)
def test_a_name_gives_the_device_and_its_memory_where_it_says_it(
    name: str, device: str, gigabytes: int
) -> None:
    found = find_accelerator(name)
    assert found is not None
    assert (found.name, named_memory(name)) == (device, gigabytes * 2**30)


@pytest.mark.parametrize(
    "name", ["A1000-40GB", "GPU", "RTX 4090", "a100_3g.20gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
)
def test_what_is_none_of_ours_stays_unknown(name: str) -> None:
    assert find_accelerator(name) is None
    assert named_memory(name) == 0
    assert set(nearest_accelerators(name)) <= set(ACCELERATORS)


def test_a_device_by_its_name_alone_has_peak_memory_and_time(
    verdicts: Callable[..., dict[str, Check]], settings: Callable[..., Any]
) -> None:
    found = verdicts(site=on("A100-40GB"))
    assert found["device"].verdict == "pass"
    assert found["device"].value == ", ".join(
        (
            PlanningMessage.DEVICE_READ_AS.fill(device="A100-40GB", name="A100-SXM4-40GB"),
            "40.0 GiB",
            PlanningMessage.PEAK_OF_DEVICE.fill(peak=312.0, precision="bf16"),
        )
    )
    assert found["04-training: memory"].verdict == "pass"
    assert found["04-training: memory"].value.endswith("40.0 GiB are available")


def test_what_is_not_known_of_a_device_is_warned_of_with_the_lines_to_write(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    unknown = verdicts(site=on("A1000-40GB"))["device"]
    no_memory = PlanningMessage.MEMORY_NOT_KNOWN.fill()
    no_peak = PlanningMessage.NO_PEAK_KNOWN.fill(precision="bf16")
    assert (unknown.verdict, unknown.value) == ("warn", f"A1000-40GB, {no_memory}, {no_peak}")
    assert unknown.remedy.startswith(
        "In params/sites/here.yaml: set hardware.device to a name in the table (A100-SXM4-40GB, "
    )
    assert says(unknown.remedy, PlanningMessage.WRITE_MEMORY)
    assert says(unknown.remedy, PlanningMessage.WRITE_PEAK, precision="bf16")
    old = verdicts(site=on("V100-SXM2-32GB"))["device"]
    read_as = PlanningMessage.DEVICE_READ_AS.fill(device="V100-SXM2-32GB", name="V100-SXM2")
    assert (old.verdict, old.value) == ("warn", ", ".join([read_as, "32.0 GiB", no_peak]))
    assert "device" not in verdicts()


def test_unknown_cores_are_warned_of_where_a_queue_would_give_one_to_a_task(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    queued = {"scheduler": "slurm"}
    assert verdicts(site=queued | on("A100-40GB"))["cores"].verdict == "warn"
    assert "cores" not in verdicts(site=queued | on("A100-40GB", cores_per_node=64))
    assert "cores" not in verdicts(site=on("A100-40GB"))


def test_memory_that_only_just_fits_is_warned_of_as_a_search_would_not_take_it(
    settings: Callable[..., Any],
    verdicts: Callable[..., dict[str, Check]],
    refusal: Callable[..., str],
) -> None:
    def site(memory: float) -> dict[str, Any]:
        return on("A100-40GB", device_memory=round(memory))

    need = make_plan(settings(smoke="tiny", site=on("A100-40GB"))).as_dict()["memory"][
        "04-training"
    ]["least_bytes"]
    tight = verdicts(smoke="tiny", site=site(need * 1.01))["04-training: memory"]
    assert tight.verdict == "warn"
    assert tight.value.endswith(PlanningMessage.USABLE_SHARE.fill(share=0.94))
    assert says(tight.remedy, PlanningMessage.LESS_MEMORY, job_key="jobs.training")
    assert verdicts(smoke="tiny", site=site(need * 4))["04-training: memory"].verdict == "pass"
    assert "04-training: memory" in refusal(smoke="tiny", site=site(need * 0.99))
