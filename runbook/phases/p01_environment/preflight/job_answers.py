"""The answers that the nodes in a job have written so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runbook.node_checks.answers import PartAnswer, PartState, read_answers
from runbook.phases.messages import PhaseMessage

JOB = "job"
STEP = "step"
"""The part that reports how the launcher of a stage ended. The job script writes it."""
END = "end"
"""The last part that a node writes in a stage."""
NodeFacts = Mapping[str, Any]
"""An answer from a node for one part, written by node_checks."""


@dataclass(frozen=True)
class JobAnswers:
    """The newest answers, one per node, stage and part."""

    nodes: tuple[str, ...]
    """All nodes in the job, in scheduler order. Empty until the job has started."""
    answers: Mapping[tuple[str, str, str], PartAnswer] = field(default_factory=dict)
    """Answers by stage, node and part."""

    def answer(
        self,
        rung: str,
        node: str,
        part: str,
    ) -> PartAnswer | None:
        """Return the answer from a node, or None if it wrote nothing for this part."""
        return self.answers.get((rung, node, part))

    def facts(self, rung: str, part: str) -> dict[str, NodeFacts]:
        """Return the answers by node. Nodes without an answer are left out."""
        facts_by_node = {}
        for node in self.nodes:
            part_answer = self.answer(rung, node, part)
            if part_answer is not None and part_answer.state is PartState.DONE:
                facts_by_node[node] = part_answer.facts

        return facts_by_node

    def missing(self, rung: str, part: str) -> dict[str, str]:
        """Map each node whose answer is missing to the reason.

        The node wrote nothing, the check failed or hung, or the program on the node ended early.
        """
        reasons = {}
        for node in self.nodes:
            part_answer = self.answer(rung, node, part)
            if part_answer is None:
                reasons[node] = "no answer"
            elif part_answer.state is PartState.FAILED:
                reasons[node] = part_answer.error
            elif part_answer.state is PartState.HUNG:
                reasons[node] = PhaseMessage.NO_ANSWER_HANGS.fill(
                    seconds=part_answer.facts.get("seconds", 0)
                )
            elif part_answer.state is PartState.BEGUN:
                reasons[node] = "ended before it answered"

        return reasons

    def has_ended(self, rung: str) -> bool:
        """Return whether the programs on all nodes have reached the end of a stage."""
        return all(self.answer(rung, node, END) is not None for node in self.nodes)

    def parts(self, rung: str) -> list[str]:
        """Return the parts of a stage that any node has answered, in order of arrival."""
        names = [part for name, _, part in self.answers if name == rung]
        return list(dict.fromkeys(names))

    def exit_code(self, rung: str) -> int | None:
        """Return the exit code from the launcher for a stage, or None while it is running."""
        step_answer = self.answers.get((rung, "", STEP))
        if step_answer is None:
            return None
        return int(str(step_answer.facts["code"]))

    def as_dict(self) -> dict[str, dict[str, dict[str, object]]]:
        """Return the facts by node, stage and part, ready to be written as JSON."""
        by_node: dict[str, dict[str, dict[str, object]]] = {node: {} for node in self.nodes}
        for (rung, node, part), part_answer in self.answers.items():
            if node in by_node and part_answer.state is PartState.DONE and part != END:
                by_node[node].setdefault(rung, {})[part] = part_answer.facts

        return by_node


def parse_job_answers(text: str, nodes: tuple[str, ...] = ()) -> JobAnswers:
    """Parse the output from a job.

    Pass `nodes` if no output line names the nodes in the job, as on this machine.
    """
    answers: dict[tuple[str, str, str], PartAnswer] = {}
    for part_answer in read_answers(text):
        answers[(part_answer.rung, part_answer.node, part_answer.part)] = part_answer
    job = answers.get((JOB, "", "nodes"))
    if job is not None:
        nodes = tuple(str(job.facts["nodes"]).split())
    return JobAnswers(nodes, answers)
