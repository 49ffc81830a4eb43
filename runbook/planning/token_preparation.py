"""Estimates what each method of tokenizing the text costs: time, disk space and reads."""

from dataclasses import dataclass, replace

from runbook.core.units import four_digits
from runbook.params.schema.entries import TOKENIZED
from runbook.params.settings import Settings
from runbook.planning.choice import Machine
from runbook.planning.data_plan import DataPlan, fetched_bytes, record_bytes

FUSED_BYTES_PER_SECOND = 130e6
"""Bytes of JSON lines a single pass processes per second on one core: zstd, JSON, GPT-2 ids and
writing (138 to 144 MB/s measured on an AMD Zen 5, 2026-11; rounded down).
"""

FTFY_BYTES_PER_SECOND = 3.5e6
"""Bytes of text per second that ftfy 6.3.1 processes on one core (the included corpus, processor
time, the same machine, 2026-11-26).
"""

STEPS_BYTES_PER_SECOND = 2.9e6
"""Bytes of text that preprocess_data.py in Megatron-LM processes per second with one worker.

Measured on the same machine (2.93 MB/s).
"""


@dataclass(frozen=True)
class PreparationCost:
    """What one method of turning compressed text into token files costs. None means unknown."""

    name: str
    steps: str
    read_bytes: int | None = None
    written_bytes: int | None = None
    disk_bytes: int | None = None
    """Largest disk usage, including the downloaded files."""
    core_hours: float | None = None
    hours: float | None = None
    """Hours needed with all cores in the data job, or in this machine."""
    storage_hours: float | None = None
    """Hours needed to read and write with the fastest storage at the site; a lower bound for
    `hours`.
    """


ONE_PASS = PreparationCost("one pass", "compressed text to token files, with nothing in between")

THREE_STEPS = PreparationCost("the documents' three steps", "extract, join, preprocess_data.py")


def data_work(
    settings: Settings, data: DataPlan, machine: Machine | None = None
) -> tuple[PreparationCost, ...]:
    """Return what both methods cost for the text in this run.

    Return an empty tuple if no text has to be tokenized. Numbers are None if the text size is
    unknown.
    """
    datasets = []
    for text in settings.texts:
        if text.dataset.kind != TOKENIZED:
            datasets.append(text.dataset)

    if data.mock or not datasets:
        return ()
    sizes = [record_bytes(dataset) for dataset in datasets]
    if not all(sizes) or not data.estimated_bytes:
        return ONE_PASS, THREE_STEPS
    packed = sum(map(fetched_bytes, datasets))
    records = sum(sizes)
    cores = _cores(settings, machine)
    bandwidth = max(settings.site.write_bandwidth.values(), default=0.0) * 1e9

    def costs(way: PreparationCost, rate: float, copies: int) -> PreparationCost:
        read = packed + copies * records
        written = copies * records + data.estimated_bytes
        core_hours = records / rate / 3600
        return replace(
            way,
            read_bytes=read,
            written_bytes=written,
            disk_bytes=packed + written,
            core_hours=four_digits(core_hours),
            hours=four_digits(core_hours / cores) if cores else None,
            storage_hours=four_digits((read + written) / bandwidth / 3600) if bandwidth else None,
        )

    seconds_per_byte = {
        ONE_PASS: 1 / FUSED_BYTES_PER_SECOND,
        THREE_STEPS: 1 / STEPS_BYTES_PER_SECOND,
    }
    if settings.run.data.fix_text == "ftfy":
        for way in seconds_per_byte:
            seconds_per_byte[way] += 1 / FTFY_BYTES_PER_SECOND

    return (
        costs(ONE_PASS, 1 / seconds_per_byte[ONE_PASS], 0),
        costs(THREE_STEPS, 1 / seconds_per_byte[THREE_STEPS], 2),
    )


def _cores(settings: Settings, machine: Machine | None) -> int:
    """Return how many cores are used at once, on this machine or on the nodes of the data job."""
    if machine:
        return machine.cores
    job = settings.run.jobs.data
    per_node = settings.site.hardware.cores_per_node
    if job.cpus_per_task:
        per_node = max(1, job.tasks_per_node) * job.cpus_per_task
    return per_node * job.nodes * max(1, job.array)
