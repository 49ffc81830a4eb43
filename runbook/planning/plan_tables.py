"""Tables used to show the content of plan.json.

The notebook and the command line show the same tables.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from runbook.core import quantities
from runbook.core.checks import Check, counted
from runbook.core.table import UNKNOWN, Table
from runbook.core.units import show_bytes, show_count, show_device_hours, show_duration
from runbook.params.schema.run_file import Training
from runbook.params.schema.site import Site, Timing
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.flops import CONVENTIONS
from runbook.planning.cost.start_up import start_up_seconds
from runbook.planning.make_plan import Plan
from runbook.planning.messages import PlanningMessage
from runbook.planning.site_limits import tier_table
from runbook.planning.useful_time import fault_costs, useful_time

PART_WORDS = {
    "matrices": "matrix products of the layers",
    "elementwise": "norms, activations, dropout",
    "output": "output layer and loss",
    "recompute": "recomputed in the backward pass",
    "launching": "starting kernels",
    "tensor": "waiting for tensor-parallel communication",
    "pipeline": "sending between stages",
    "bubble": "pipeline bubble",
    "data": "data-parallel communication that is not hidden",
    "waiting": "waiting for the slowest device",
}
PARAMETERS_ON_RANK = "parameters on a rank"
FIRST_LOSS = "first loss expected"
CHECKPOINT_INTERVAL = "steps between checkpoints"
CHECKPOINT_DISK = "disk for checkpoints"
AGAINST_PLAN = "against the plan"
_MODEL_PARTS = {
    "layers": "layers",
    "token_embedding": "token embedding",
    "position_embedding": "position embedding",
    "final_norm": "last norm",
    "output": "output layer",
    "total": "whole model",
}
_MEMORY_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits",
    "passing": "gradients in transit through a layer",
    "attention_scores": "attention scores, if they are stored",
    "buffers": "buffers of the engine and workspaces of matrix products, if they are known",
    "optimizer_moment": "the optimizer's step, after activations are freed",
    "host": "in main memory, per device",
}


def parameters_of(part: str) -> str:
    """Return the table row name used for the parameters in a part of the model."""
    return f"parameters: {part}"


def tables(plan: Plan) -> tuple[Table, ...]:
    """Return all tables for the plan, in the order in which a user decides."""
    makers = (
        summary_table,
        sizes_table,
        layout_table,
        memory_table,
        flops_table,
        time_table,
        parts_table,
        storage_table,
        data_table,
        endurance_table,
        places_table,
        checks_table,
    )
    all_tables = [make(plan) for make in makers]
    return tuple(table for table in all_tables if table.rows)


def summary_table(plan: Plan) -> Table:
    """Return a table with size, fit, time, cost, disk space and warnings."""
    phase = plan.phases[FULL]
    time = plan.time[FULL]
    label = plan.labels[-1]
    step_time = shown(time.seconds_per_iteration, show_duration)
    rows = [
        ("model", f"{label.parameters:,} parameters", f'called "{label.label}"'),
        ("devices", *_devices(phase)),
        (f"memory of a {plan.memory[FULL].limit_of}", *_needed_memory(plan)),
        ("tokens", show_count(phase.duration.tokens), f"{phase.duration.iterations:,} steps"),
        ("smoke test", *_smoke_test_time(plan)),
        ("training", shown(time.seconds, show_duration), f"{step_time} per step, {time.basis}"),
        (
            "device hours",
            shown(time.device_hours, show_device_hours),
            f"cost: {shown(time.cost, '{:,.4g}')}",
        ),
        *_with_failures(plan),
        ("jobs in a row", *_jobs(plan)),
        (CHECKPOINT_DISK, *_checkpoint_disk(plan)),
        ("disk for text", *_text_disk(plan)),
        ("rules", *_rules(plan)),
    ]
    return Table(
        [{"what": name, "plan": value, "note": note} for name, value, note in rows],
        "In short",
    )


def _devices(phase: PhasePlan) -> tuple[str, str]:
    parallel = phase.parallel
    return (
        f"{parallel.world_size:,}",
        f"{parallel.tensor} tensor x {parallel.pipeline} pipeline x "
        f"{parallel.context} context x {parallel.data} replicas",
    )


def _needed_memory(plan: Plan) -> tuple[str, str]:
    memory = plan.memory[FULL]
    needed = show_bytes(memory.least_bytes)
    likely = PlanningMessage.LIKELY_MEMORY.fill(sizes=_range_of(memory.likely_bytes))
    if not memory.limit_bytes:
        return needed, f"available: {UNKNOWN}; {likely}"
    return needed, f"of {show_bytes(memory.limit_bytes)}; {likely}"


def _range_of(sizes: tuple[int, int] | None) -> str:
    """Return a range of bytes as text."""
    return " to ".join(map(show_bytes, sizes)) if sizes else UNKNOWN


def _size_of(size: int | None) -> str:
    """Return a number of bytes as text."""
    return UNKNOWN if size is None else show_bytes(size)


def _with_failures(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the rows about what failures cost; empty if no failure rate is known."""
    expectation = useful_time(plan)
    if expectation is None:
        return []
    value = show_duration(86400 * expectation.days)
    low = f"{100 * expectation.low:.1f}"
    note = (
        f"{expectation.median:.1%} of it useful ({low} to {expectation.high:.1%}), "
        f"{expectation.failures:,.0f} failures; queue time not counted"
    )
    return [("with failures", value, note)]


def _jobs(plan: Plan) -> tuple[str, str]:
    jobs = shown(plan.endurance.jobs, "{:,}")
    limit = plan.endurance.walltime_seconds
    if not limit:
        return jobs, "no time limit is known"
    return jobs, f"of at most {show_duration(limit)}"


def _checkpoint_disk(plan: Plan) -> tuple[str, str]:
    disk = show_bytes(plan.checkpoint[FULL].disk_bytes)
    checkpoint = plan.phases[FULL].checkpoint
    if not checkpoint.saves:
        return disk, PlanningMessage.NOTHING_SAVED.fill()
    if not checkpoint.interval:
        return disk, "saved only at the end"
    return disk, f"saved every {checkpoint.interval:,} steps"


def _rules(plan: Plan) -> tuple[str, str]:
    verdicts = _verdicts(plan.checks)
    warnings = [check.name for check in plan.checks if check.verdict == "warn"]
    if not warnings:
        return verdicts, "no warnings"
    return verdicts, f"warnings: {'; '.join(warnings)}"


def _smoke_test_time(plan: Plan) -> tuple[str, str]:
    """Return the time needed for the smoke test, and the time for the steps alone.

    Most of the former is needed to start the processes.
    """
    steps = plan.time[SMOKE].seconds
    if steps is None:
        return UNKNOWN, "before the training run, to check that everything works"
    on_cpu = plan.computes_on.device == "cpu"
    start_up = start_up_seconds(on_cpu=on_cpu)
    return (
        PlanningMessage.SMOKE_TEST_TIME.fill(duration=show_duration(start_up + steps)),
        PlanningMessage.START_AND_STEPS.fill(
            start_up=show_duration(start_up),
            steps=show_duration(steps),
        ),
    )


def _text_disk(plan: Plan) -> tuple[str, str]:
    if not plan.data_work:
        return "none", "no text is tokenized in this run"
    ours, theirs = plan.data_work
    if ours.disk_bytes is None or theirs.disk_bytes is None:
        return UNKNOWN, "the size of the text is unknown until it is read"
    return decimal_bytes(
        ours.disk_bytes
    ), f"the documents' three steps: {decimal_bytes(theirs.disk_bytes)}"


def sizes_table(plan: Plan) -> Table:
    """Return a table with the parameters by part, and the usual labels next to the counts."""

    def rows(phase: str) -> dict[str, str]:
        counts = plan.parameters[phase]
        model = plan.phases[phase].model
        shape = model.shape
        ranks = counts.per_rank_by_stage
        return {
            **{
                parameters_of(words): f"{getattr(counts.whole, part):,}"
                for part, words in _MODEL_PARTS.items()
            },
            PARAMETERS_ON_RANK: _on_fullest_rank(ranks),
            FIRST_LOSS: PlanningMessage.FIRST_LOSS.fill(
                loss=counts.first_loss, vocabulary=shape.vocabulary
            ),
            "vocabulary": PlanningMessage.PADDED_VOCABULARY.fill(
                vocabulary=shape.vocabulary, padded=shape.padded_vocabulary
            ),
        }

    return by_phase(rows, "Sizes", "; ".join(label.text for label in plan.labels))


def _on_fullest_rank(ranks: Sequence[int]) -> str:
    """Return the number of parameters on the largest rank, and how many stages have that many."""
    largest = f"{max(ranks):,}"
    if len(ranks) == 1:
        return largest
    return largest + PlanningMessage.FULLEST_STAGE.fill(stages=len(ranks))


def layout_table(plan: Plan) -> Table:
    """Return a table that shows how devices, batch, length and learning rate are calculated."""

    def rows(phase: str) -> dict[str, str]:
        planned = plan.phases[phase]
        model = planned.model
        shape = model.shape
        rate = planned.learning_rate
        return {
            "model": PlanningMessage.MODEL_SHAPE.fill(
                name=model.name,
                layers=shape.layers,
                hidden=shape.hidden,
                heads=shape.heads,
                sequence_length=shape.sequence_length,
            ),
            "devices": devices_sum(planned),
            "batch": batch_sum(planned),
            "length": duration_sum(planned),
            "learning rate": PlanningMessage.RATE_PEAK.fill(
                peak=rate.peak,
                step=rate.warmup_samples / planned.batch.global_,
                course=_course_of(rate),
            ),
            "number format": planned.precision.format,
            "recomputed in the backward pass": planned.recompute,
        }

    return by_phase(rows, "Layout, batch and length")


def _course_of(rate: LearningRate) -> str:
    """Describe how the learning rate changes after the warm-up."""
    if rate.schedule == "wsd":
        return (
            f"stable, and {rate.wsd_decay_style} to {rate.minimum:g} over the last {rate.wsd_decay_samples:,} of "
            f"{rate.decay_samples:,} samples"
        )
    return PlanningMessage.RATE_COURSE.fill(
        schedule=rate.schedule,
        minimum=rate.minimum,
        samples=rate.decay_samples,
    )


def memory_table(plan: Plan) -> Table:
    """Return a table with the memory on the fullest rank by part, in total, and available."""

    def rows(phase: str) -> dict[str, str]:
        memory = plan.memory[phase]
        whole = {
            "needed, at least": memory.least_bytes,
            "needed, at most": memory.most_bytes,
            "there is": memory.limit_bytes,
        }
        return {
            **{
                words: show_bytes(getattr(memory.fullest_stage, part))
                for part, words in _MEMORY_PARTS.items()
            },
            **{name: _bytes_of(size, memory.limit_of) for name, size in whole.items()},
            "nine of ten peaks": _range_of(memory.likely_bytes),
            "nvidia-smi": _size_of(memory.on_device_bytes),
            "nvidia-smi, nine of ten": _range_of(memory.likely_on_device),
        }

    note = (
        "The parts belong to one rank of the fullest stage. On accelerators, contexts, "
        "communication buffers and unused blocks are not counted; nvidia-smi counts them."
    )
    return by_phase(rows, "Memory", note)


def _bytes_of(size: int, unit: str) -> str:
    """Return the memory in a node or device as text; 0 means unknown."""
    if not size:
        return UNKNOWN
    return PlanningMessage.LIMIT_OF.fill(size=show_bytes(size), unit=unit)


def memory_numbers(plan: Plan, phase: str) -> dict[str, float | None]:
    """Return the memory table as numbers in GiB, under names with units; None means unknown."""
    memory = plan.memory[phase]
    sizes = {words: getattr(memory.fullest_stage, part) for part, words in _MEMORY_PARTS.items()}
    sizes |= {
        f"needed, at least, of a {memory.limit_of}": memory.least_bytes,
        "needed, at most": memory.most_bytes,
    }
    sizes["there is"] = memory.limit_bytes or None
    return {
        f"{words} (GiB)": None if size is None else size / 2**30 for words, size in sizes.items()
    }


def flops_table(plan: Plan) -> Table:
    """Return a table with the FLOPs per token in every convention.

    The same speed corresponds to different TFLOP/s in each convention.
    """
    recomputed = PlanningMessage.COUNTS_RECOMPUTED.fill()
    rows = []
    for name, convention in CONVENTIONS.items():
        shown_name = name
        if name == plan.flops[FULL].convention:
            shown_name = PlanningMessage.OWN_CONVENTION.fill(convention=name)
        rows.append(
            {
                "convention": shown_name,
                "counts": recomputed if convention.kind == "hardware" else "the model's work",
                "formula": convention.formula,
                "smoke test": _flops_of_token(plan, SMOKE, name),
                "training": _flops_of_token(plan, FULL, name),
            }
        )

    note = "Compare reports by tokens/s; a TFLOP/s figure means nothing without its convention."
    return Table(rows, "Operations by convention", [note])


def _flops_of_token(plan: Plan, phase: str, convention: str) -> str:
    gflop = plan.flops[phase].per_token[convention] / 1e9
    return PlanningMessage.FLOPS_OF_TOKEN.fill(gflop=gflop)


def time_table(plan: Plan) -> Table:
    """Return a table with the expected times.

    If they are unknown, the cells are empty and a note gives the reason.
    """

    def rows(phase: str) -> dict[str, str]:
        time = plan.time[phase]
        return {
            "a step": shown(time.seconds_per_iteration, show_duration),
            "all steps and evaluations": shown(time.seconds, show_duration),
            "tokens/s": shown(time.tokens_per_second, "{:,.0f}"),
            "TFLOP/s per device": shown(time.tflops_per_device, "{:.3g} (megatron-full)"),
            "share of the peak (MFU)": shown(time.mfu, "{:.1%}"),
            "device hours": shown(time.device_hours, show_device_hours),
            "cost": shown(time.cost, "{:,.2f}"),
            "from": time.basis,
        }

    return by_phase(rows, "Time", "Loading, compiling and checkpoints take additional time.")


def time_numbers(plan: Plan, phase: str) -> dict[str, float | None]:
    """Return the times in the table as numbers, under names with units; None means unknown."""
    time = plan.time[phase]
    spec = plan.phases[phase]
    return {
        "steps": spec.duration.iterations,
        "micro-batches a step": spec.batch.num_microbatches,
        quantities.STEP_TIME: time.seconds_per_iteration,
        "all steps and evaluations (h)": None if time.seconds is None else time.seconds / 3600,
        quantities.THROUGHPUT: time.tokens_per_second,
        quantities.SPEED: time.tflops_per_device,
        quantities.MFU: None if time.mfu is None else 100 * time.mfu,
        "device hours (h)": time.device_hours,
        "cost": time.cost,
    }


def parts_table(plan: Plan) -> Table:
    """Return a table with the step time by part, if the accelerator is modelled part by part."""
    title = "Where the time of a step goes"
    parts = {phase: plan.time[phase].parts or {} for phase in (SMOKE, FULL)}
    if not parts[FULL]:
        return Table((), title, ["Only steps on accelerators are modelled part by part."])
    names = [name for name in parts[FULL] if name != "waiting"] + ["waiting"]

    def share(phase: str, name: str) -> str:
        seconds = parts[phase].get(name, 0.0)
        if seconds:
            return f"{show_duration(seconds)} ({seconds / sum(parts[phase].values()):.1%})"
        return "0"

    return Table(
        [
            {
                "part": PART_WORDS.get(name, name),
                "smoke test": share(SMOKE, name),
                "training": share(FULL, name),
            }
            for name in names
        ],
        title,
    )


def endurance_table(plan: Plan) -> Table:
    """Return a table about saves to each storage tier, failures, consecutive jobs and energy.

    Unknown values are marked as such.
    """
    endurance = plan.endurance
    between = plan.endurance.hours_between_failures
    rows = {
        "between two saves, as chosen": shown(endurance.interval_seconds, show_duration),
        "between two failures": shown(between and 3600 * between, show_duration),
    }
    for save in endurance.saves:
        best = shown(save.best_interval_seconds, show_duration)
        rows[f"{save.tier} ({save.bytes_per_second / 1e9:g} GB/s)"] = (
            f"{show_duration(save.write_seconds)} per save; best every {best}: adds "
            f"{shown(save.added_share, '{:.1%}')}, as chosen "
            f"{shown(save.added_share_as_chosen, '{:.1%}')}"
        )
    limit = show_duration(endurance.walltime_seconds)
    rows["jobs in a row"] = shown(endurance.jobs, f"{{:,}} of at most {limit}")
    rows["energy"] = shown(endurance.energy_kwh, f"{{:,.4g}} kWh: {endurance.energy_basis}")
    source = endurance.failure_source
    notes = [f"Failures: {source}; best interval by Daly."] if source else []
    costs = fault_costs(plan)
    if costs is not None:
        notes.append(f"Useful time, simulated: {'; '.join(costs.assumptions)}.")
    return Table(
        [{"what": what, "training": value} for what, value in rows.items()],
        "Saves, failures, jobs and energy",
        notes,
    )


def storage_table(plan: Plan) -> Table:
    """Return a table with data and checkpoint sizes."""

    def rows(phase: str) -> dict[str, str]:
        store = plan.checkpoint[phase]
        checkpoint = plan.phases[phase].checkpoint
        if checkpoint.saves:
            without_interval = PlanningMessage.SAVES_AT_END.fill()
        else:
            without_interval = PlanningMessage.NOTHING_SAVED.fill()
        return {
            "one checkpoint": PlanningMessage.CHECKPOINT_SIZE.fill(
                size=show_bytes(store.checkpoint_bytes),
                bytes_per_parameter=store.bytes_per_parameter,
            ),
            CHECKPOINT_DISK: f"{show_bytes(store.disk_bytes)} ({store.num_checkpoints} at a time)",
            CHECKPOINT_INTERVAL: str(checkpoint.interval or without_interval),
        }

    data = plan.data
    tokens = f"{data.estimated_tokens:,} tokens" if data.estimated_tokens else f"tokens {UNKNOWN}"
    size = show_bytes(data.estimated_bytes) if data.estimated_bytes else f"size {UNKNOWN}"
    names = ", ".join(part.dataset for part in data.parts) or data.dataset
    note = PlanningMessage.DATA_SIZE.fill(
        names=names,
        tokens=tokens,
        size=size,
        source=data.tokens_from,
    )
    return by_phase(rows, "Storage", note)


def data_table(plan: Plan) -> Table:
    """Return a table that compares tokenizing in one pass with the documents' three steps.

    There are no rows if no text has to be tokenized.
    """
    title = "Preparing the text"
    if not plan.data_work:
        return Table((), title, ["No text is tokenized in this run."])
    columns = {}
    for way in plan.data_work:
        hours = {
            "time on the job's cores": way.hours,
            "minimum, given the storage's speed": way.storage_hours,
        }
        columns[way.name] = {
            "steps": way.steps,
            "read": shown(way.read_bytes, decimal_bytes),
            "written": shown(way.written_bytes, decimal_bytes),
            "disk at its fullest": shown(way.disk_bytes, decimal_bytes),
            "time on one core": shown(way.core_hours and 3600 * way.core_hours, show_duration),
            **{what: shown(value and 3600 * value, show_duration) for what, value in hours.items()},
        }
    note = "Rates were measured on one core of an AMD Zen 5; downloads take additional time."
    return Table(_side_by_side(columns), title, [note])


def places_table(plan: Plan) -> Table:
    """Return a table with the folders the phases write to. No two phases share a folder."""
    places = (
        "checkpoint folder",
        "log metrics",
        "log validation",
        "log samples",
        "log tensorboard",
        "data cache",
    )

    def rows(phase: str) -> dict[str, str]:
        return {place: attrgetter(place.replace(" ", "."))(plan.phases[phase]) for place in places}

    note = "Relative to the run's folder. A full run never loads a smoke test's checkpoint."
    return by_phase(rows, "Places", note)


def checks_table(plan: Plan) -> Table:
    """Return a table with every rule applied to the plan.

    A plan that breaks a rule is never shown.
    """
    return Table([check.as_dict() for check in plan.checks], "Checks", [_verdicts(plan.checks)])


def site_tables(site: Site, content: Plan, training: Training) -> tuple[Table, ...]:
    """Return the tables for the site: checkpoint times by tier, and numbers from its document."""
    all_tables = (
        tier_table(
            site,
            content.model.parameters,
            training.precision,
            training.optimizer.moments,
        ),
        documents_table(site, content),
    )
    return tuple(table for table in all_tables if table.rows)


def documents_table(site: Site, content: Plan) -> Table:
    """Return a table that applies measurements and advice from the site's document to this run."""
    rows = []
    if site.advised_batch:
        rows.append(_advised_batch(site.advised_batch, content.phases[FULL]))
    rows += [_timing_row(timing, content.data.estimated_bytes) for timing in site.timings]
    return Table(
        rows,
        "For comparison: the document's numbers",
        ["Measured or advised by its authors, not by us."],
    )


def _advised_batch(sequences_per_device: int, phase: PhasePlan) -> dict[str, str]:
    devices = phase.parallel.world_size
    sequences = sequences_per_device * devices
    return {
        "what": "global batch, advised",
        "the document": PlanningMessage.ADVISED_BATCH.fill(
            per_device=sequences_per_device, devices=devices, sequences=sequences
        ),
        "rate": "",
        "this run": f"{phase.batch.global_:,} sequences",
        "on": "",
    }


def _timing_row(timing: Timing, data_bytes: int) -> dict[str, str]:
    """Return a row with the time from a document, and the time this run needs at the same rate.

    A `data_bytes` of 0 means unknown.
    """
    row = {
        "what": timing.what,
        "the document": show_duration(timing.seconds),
        "rate": "",
        "this run": "",
        "on": timing.machine,
    }
    if timing.bytes:
        rate = timing.bytes / timing.seconds
        row["the document"] = PlanningMessage.BYTES_IN_TIME.fill(
            size=show_bytes(timing.bytes), time=show_duration(timing.seconds)
        )
        row["rate"] = f"{rate / 1e6:,.0f} MB/s"
        if timing.like == "data" and data_bytes:
            row["this run"] = PlanningMessage.BYTES_IN_TIME.fill(
                size=show_bytes(data_bytes), time=show_duration(data_bytes / rate)
            )
    return row


def devices_sum(phase: PhasePlan) -> str:
    """Return the number of devices, written as a product of the parallel sizes."""
    parallel = phase.parallel
    context = ""
    if parallel.context > 1:
        context = PlanningMessage.CONTEXT_DEVICES.fill(context=parallel.context)
    product = PlanningMessage.DEVICES_BY_KIND.fill(
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        context=context,
        data=parallel.data,
    )
    chunks = ""
    if parallel.virtual_pipeline > 1:
        chunks = PlanningMessage.CHUNKS_OF_STAGE.fill(chunks=parallel.virtual_pipeline)
    return PlanningMessage.DEVICES_PRODUCT.fill(
        product=product,
        devices=parallel.world_size,
        chunks=chunks,
        zero_stage=parallel.zero_stage,
    )


def batch_sum(phase: PhasePlan) -> str:
    """Return the global batch, written as a product.

    1 micro x 2 replicas x 2 steps = 4 sequences = 4,096 tokens.
    """
    batch = phase.batch
    return PlanningMessage.BATCH_PRODUCT.fill(
        micro=batch.micro,
        replicas=counted(phase.parallel.data, "replica"),
        steps=counted(batch.num_microbatches, "step"),
        sequences=batch.global_,
        tokens=batch.global_ * phase.model.shape.sequence_length,
    )


def duration_sum(phase: PhasePlan) -> str:
    """Return the total length as a product."""
    length = phase.duration
    return PlanningMessage.LENGTH_PRODUCT.fill(
        iterations=length.iterations,
        sequences=phase.batch.global_,
        samples=length.samples,
        tokens=show_count(length.tokens),
    )


def decimal_bytes(count: float) -> str:
    """Return bytes in decimal units, as used for disks.

    >>> decimal_bytes(7.08e12), decimal_bytes(4e6), decimal_bytes(12)
    ('7.08 TB', '4 MB', '12 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} B"


def by_phase(rows: Callable[[str], Mapping[str, object]], title: str, *notes: str) -> Table:
    """Return a table with these rows for the smoke test and for the full training."""
    return Table(_side_by_side({"smoke test": rows(SMOKE), "training": rows(FULL)}), title, notes)


def _side_by_side(columns: Mapping[str, Mapping[str, object]]) -> list[dict[str, object]]:
    row_names = next(iter(columns.values()))
    rows = []
    for row_name in row_names:
        row: dict[str, object] = {"what": row_name}
        for column_name, column in columns.items():
            row[column_name] = column[row_name]
        rows.append(row)
    return rows


def shown(value: Any, show: str | Callable[[Any], str]) -> str:
    """Return a value formatted with a format or a function, or "not known" if it is None."""
    if value is None:
        return UNKNOWN
    return show.format(value) if isinstance(show, str) else show(value)


def _verdicts(checks: Sequence[Check]) -> str:
    counts = Counter(check.verdict for check in checks)
    return PlanningMessage.VERDICTS.fill(
        passed=counts["pass"],
        warned=counts["warn"],
        unknown=counts["unknown"],
    )
