"""What preparing the text takes, our way and the documents' three steps: bytes read and written, disk, hours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from runbook.params.dataset import Dataset
from runbook.plan.choices import Chosen
from runbook.plan.data import DataPlan
from runbook.plan.machine import Machine

FUSED_BYTES_PER_SECOND = 130e6
"""JSON lines through one core in one pass: zstd, JSON, GPT-2 ids, writing, the whole process (138 to 144 MB/s measured
on an AMD Zen 5, 2026-11; rounded down)."""

STEPS_BYTES_PER_SECOND = 2.9e6
"""The same through Megatron-LM's preprocess_data.py with one worker, on the same machine (2.93 MB/s of text)."""

RECORD_SHARE = 1.04
"""Bytes of JSON lines to bytes of the text in them, where only the text was counted (685 to 659 MB)."""

COMPRESSED_SHARE = 0.36
"""Bytes of zstd files to bytes of the JSON lines in them (1.5 to 4.2 GB in a sample of SlimPajama)."""


@dataclass(frozen=True)
class Way:
    """One way from compressed text to token files; None is not known."""

    name: str
    steps: str
    read_bytes: int | None
    written_bytes: int | None
    disk_bytes: int | None
    """At its fullest, the downloaded files included."""
    core_hours: float | None
    hours: float | None
    """On the cores of the data job, or of this machine."""
    storage_hours: float | None
    """Least that reading and writing take at the site's fastest storage: the hours cannot be fewer."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def data_work(chosen: Chosen, data: DataPlan, machine: Machine | None = None) -> tuple[Way, ...]:
    """Both ways for the run's text; none where no text is tokenized, figures None where its size is not known."""
    datasets = [text.dataset for text in chosen.texts if text.dataset.kind != "tokenized"]
    if data.mock or not datasets:
        return ()
    sizes = [one.record_bytes or round(one.text_bytes * RECORD_SHARE) for one in datasets]
    records = sum(sizes) if all(sizes) else None
    packed = sum(map(_packed, datasets, sizes))
    tokens = data.estimated_bytes or None
    cores = _cores(chosen, machine)
    bandwidth = max(chosen.site.write_bandwidth.values(), default=0.0) * 1e9

    def way(name: str, steps: str, rate: float, copies: int) -> Way:
        if records is None or tokens is None:
            return Way(name, steps, None, None, None, None, None, None)
        between = copies * records
        read, written = packed + between, between + tokens
        core_hours = records / rate / 3600
        return Way(
            name=name,
            steps=steps,
            read_bytes=read,
            written_bytes=written,
            disk_bytes=packed + written,
            core_hours=_round(core_hours),
            hours=_round(core_hours / cores) if cores else None,
            storage_hours=_round((read + written) / bandwidth / 3600) if bandwidth else None,
        )

    return (
        way("one pass", "compressed text to token files, nothing between", FUSED_BYTES_PER_SECOND, 0),
        way("the documents' three steps", "extract, join, preprocess_data.py", STEPS_BYTES_PER_SECOND, 2),
    )


def _packed(dataset: Dataset, records: int) -> int:
    """Bytes of a dataset's files as they are fetched."""
    named = dataset.download_bytes or sum(file.bytes for file in dataset.files)
    return named or round(records * COMPRESSED_SHARE)


def _cores(chosen: Chosen, machine: Machine | None) -> int:
    """Cores that work at once: of this machine, or of the data job's nodes."""
    if machine:
        return machine.cores
    job = chosen.run.jobs.data
    tasks, cpus = job.tasks_per_node, job.cpus_per_task or 1
    per_node = tasks * cpus if tasks else chosen.site.hardware.cores_per_node
    return per_node * job.nodes * max(1, job.array)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
