"""Final steps that several programs' formats share."""

from runbook.tools.adopt.configs.config_format import Values, line_of, text
from runbook.tools.adopt.findings import Findings


def take_tokenizer_file(values: Values, *names: str, findings: Findings) -> None:
    """Adopt the tokenizer file if the first of these keys is an absolute path, or ask for it."""
    name = next((name for name in names if name in values), names[-1])
    findings.ask_for_tokenizer(text(values, name), line_of(values, name), name)


def turn_saves_off(findings: Findings, line: int) -> None:
    """Turn checkpoints off."""
    findings.take("training.save_interval", 0, line, "checkpoints are off")
    findings.drop("training.async_save")


def turn_evaluation_off(findings: Findings, line: int) -> None:
    """Turn evaluation off if it would have no batches."""
    findings.take("training.eval_interval", 0, line, "no batches to validate with")
    findings.drop("training.eval_iterations")


def take_nodes_of(world: int, findings: Findings, *, line: int, source: str) -> None:
    """Convert a device count to whole nodes on the site, or to part of one node."""
    devices_per_node = findings.devices_per_node
    nodes = -(-world // devices_per_node)
    findings.take("jobs.training.nodes", max(1, nodes), line, source)
    if world < devices_per_node:
        findings.take("jobs.training.devices_per_node", world, line, source)


def drop_single_chunk(findings: Findings) -> None:
    """Drop a virtual pipeline with one chunk, which has no effect."""
    if findings.number("parallel.virtual_pipeline", 1) <= 1:
        findings.drop("parallel.virtual_pipeline")


def leave_schedule(findings: Findings, line: int, name: str) -> None:
    """Record a learning-rate decay whose shape our schedules do not have."""
    findings.leave(line, name, "our schedules decay linearly, as a cosine or exponentially")
