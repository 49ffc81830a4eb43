"""Scripts of jobs in a chain and with spare nodes match their golden files, and other jobs contain
none of these lines.
"""

import json
import re

import pytest
from sites import FEWER_NODES, UNATTENDED, rendered, unattended_file, unattended_job
from suite.messages import refuses
from suite.programs import shellcheck
from suite.scripts import commands_of, directives_of, environment_of, options_of

from runbook.core import shell
from runbook.core.errors import JobError
from runbook.jobs.messages import JobLine, JobMessage, JobReason


@pytest.mark.parametrize("name", [*UNATTENDED, *FEWER_NODES])
def test_the_script_is_the_expected_one_word_for_word(name):
    assert unattended_job(name).script == unattended_file(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*UNATTENDED, *FEWER_NODES])
def test_shellcheck_finds_nothing(name):
    assert shell.run([shellcheck(), str(unattended_file(name))]).out == ""


def test_a_job_without_a_chain_and_spares_has_nothing_of_both():
    _, _, job = rendered("azure-175b", "04-training")
    for word in ("attempt", "next_job", "no-kill", "chain", "spare"):
        assert word not in job.script


def test_the_queue_is_asked_for_the_spare_nodes_and_the_step_is_not():
    script = unattended_job("own-trainer-slurm").script
    assert "#SBATCH --nodes=18" in script
    assert "#SBATCH --no-kill" in script
    assert "--nodes=16 " in script
    assert '--nodelist="$step_nodes"' in script


def test_the_number_of_nodes_is_a_matter_of_the_attempt():
    slurm = unattended_job("fewer-nodes-slurm")
    assert numbers_of_nodes(slurm.script) == [64, 32, 16]
    starter = training_command(slurm.script, "srun")
    assert options_of(starter, "srun", flags=FLAGS)["--nodes"] == "$num_nodes"
    assert options_of(starter, "torch.distributed.run")["--nnodes"] == "$num_nodes"
    assert directives_of(slurm.script)["no-kill"] == ""
    pbs = unattended_job("fewer-nodes-pbs")
    # 24 sequences are not divisible by the number of replicas on 7 or 5 nodes.
    assert numbers_of_nodes(pbs.script) == [8, 6, 4, 3, 2]
    starter = training_command(pbs.script, "mpiexec")
    assert starter[1] == "-n"
    ranks = environment_of(f"export RANKS={starter[2]}", variables={"num_nodes": "6"})
    assert ranks["RANKS"] == "24"
    ranks = environment_of(pbs.files["rank.sh"], variables={"RUNBOOK_NUM_NODES": "6"})
    assert ranks["WORLD_SIZE"] == "24"


FLAGS = ("--no-container-mount-home",)


def training_command(script, program):
    """Return the words in the command that starts the ranks in the training job."""
    (command,) = [command for command in commands_of(script, program) if "$job/rank.sh" in command]
    return command


def numbers_of_nodes(script):
    """Return the node counts that an attempt can train on, in the order they are tried."""
    (numbers,) = re.findall(r"(?m)^  for num_nodes in ([0-9 ]+); do$", script)
    return [int(number) for number in numbers.split()]


def test_a_program_whose_progress_is_not_known_is_refused():
    with refuses(JobError, JobMessage.PROGRESS_UNKNOWN, framework="nemo"):
        rendered("aws-pile-175b", "03-smoke-test", "jobs.smoke.chain=2")


SRUN = """#!/bin/bash
for option in "$@"; do
  case $option in --nodelist=*) node=${option#*=} ;; esac
done
[[ " $SILENT " != *" $node "* ]]
"""
"""Stands in for srun: it starts nothing on the silent nodes."""


def functions_of(script, *names):
    """Return the functions with these names, as the script defines them."""
    texts = [re.search(rf"^{name}\(\) \{{.*?^\}}$", script, re.M | re.S)[0] for name in names]
    return "\n".join(texts)


def attempts_of(name, losses, tmp_path):
    """Run the functions from the script: after each attempt some nodes are silent, and others are
    suspected.

    Return the node count for each attempt, according to three parts of the script, and why no other
    attempt follows (empty if one does).
    """
    script = unattended_job(name).script
    names = ("count_nodes", "choose_nodes", "note_node", "remember_node")
    names += ("take_left_out", "replace_nodes")
    hosts = script.split("((${#hosts[@]} == ")[1].split(")")[0]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "run").mkdir()
    lines = [
        "set -euo pipefail",
        f"PATH={tmp_path}/bin:$PATH job={tmp_path}/run events={tmp_path}/run/events.jsonl",
        f"hosts=($(seq -f n%g {hosts})) trusted=(${{hosts[@]}}) asked= job_number=1 job_reason=why",
        "declare -A is_doubtful=()",
        "left_out=()",
        functions_of(script, *names),
        "attempt=1; choose_nodes",
        SHOW_ATTEMPT,
    ]
    for silent, suspects in losses:
        lines.append(f"export SILENT='{silent}'; suspects='{suspects}'")
        lines.append('if ! replace_nodes; then echo "reason $job_reason"; exit; fi')
        lines += ["choose_nodes", SHOW_ATTEMPT]
    said = shell.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path / "run").out
    attempts = []
    reason = ""
    for line in said.splitlines():
        kind, _, text = line.partition(" ")
        if kind == "attempt":
            attempts.append(tuple(int(number) for number in text.split()))
        else:
            reason = text
    return attempts, reason


SHOW_ATTEMPT = 'echo "attempt $num_nodes $RUNBOOK_NUM_NODES ${#training_nodes[@]}"'


def too_few(left, needed):
    """Return the reason from a job that gave the reason "why" before it ran out of nodes."""
    return f"why{JobReason.TOO_FEW_FOR_ANY.fill(left=left, needed=needed)}"


def test_each_attempt_has_the_most_nodes_that_can_train(tmp_path):
    losses = [("n7", ""), ("n1 n2", ""), (" ".join(f"n{n}" for n in range(1, 40)), "")]
    attempts, reason = attempts_of("fewer-nodes-slurm", losses, tmp_path)
    assert attempts == [(64,) * 3, (32,) * 3, (32,) * 3, (16,) * 3]
    assert reason == ""


def test_too_few_nodes_end_the_job(tmp_path):
    silent = " ".join(f"n{n}" for n in range(2, 60))
    attempts, reason = attempts_of("fewer-nodes-slurm", [(silent, "")], tmp_path)
    assert attempts == [(64,) * 3]
    assert reason == too_few(left=6, needed=16)


def test_a_node_is_tried_again_once_and_left_out_the_second_time(tmp_path):
    """Without a spare node, the first suspicion changes nothing, because the node may not be at
    fault.
    """
    attempts, _ = attempts_of("fewer-nodes-slurm", [("", "n3"), ("", "n3")], tmp_path)
    assert attempts == [(64,) * 3, (64,) * 3, (32,) * 3]


def test_a_node_that_was_left_out_trains_again_where_too_few_others_are_there(tmp_path):
    """The node always answers, and may not have caused the failure for which it was left out."""
    silent = " ".join(f"n{n}" for n in range(17, 65))
    losses = [("", "n3"), ("", "n3"), (silent, ""), (f"n1 {silent}", "")]
    attempts, reason = attempts_of("fewer-nodes-slurm", losses, tmp_path)
    assert attempts == [(64,) * 3, (64,) * 3, (32,) * 3, (16,) * 3]
    assert reason == too_few(left=15, needed=16)
    lines = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    fates = [(event["node"], event["why"]) for event in map(json.loads, lines)]
    assert ("n3", JobLine.NODE_TRAINS_AGAIN.fill()) in fates


def test_a_node_that_was_left_out_and_is_silent_by_now_does_not_train_again(tmp_path):
    silent = " ".join(f"n{n}" for n in (3, *range(18, 65)))
    losses = [("", "n3"), ("", "n3"), (silent, "")]
    attempts, _ = attempts_of("fewer-nodes-slurm", losses, tmp_path)
    assert attempts[3] == (16, 16, 16)
    lost = " ".join(f"n{n}" for n in (1, 3, *range(18, 65)))
    (tmp_path / "again").mkdir()
    attempts, reason = attempts_of(
        "fewer-nodes-slurm", [("", "n3"), ("", "n3"), (lost, "")], tmp_path / "again"
    )
    assert (len(attempts), reason) == (3, too_few(left=15, needed=16))


STARTER = """#!/bin/bash
for option in "$@"; do
  case $option in --nodelist=*) node=${option#*=} ;; esac
done
case "$*" in
  *near.removal*)
    echo "$node" >>"$job/asked"
    [[ " $SILENT " != *" $node "* ]]
    ;;
  *next_job*)
    printf '%s' "$ANSWER" >"$job/decision"
    [[ -n $ANSWER ]]
    ;;
esac
"""
"""Stands in for srun: the program that decides writes the answer, and copies are removed except on
silent nodes.
"""


def end_of(answer, silent, tmp_path):
    """Run the part of the script that handles a failed attempt, and return the lines it logs."""
    script = unattended_job("own-trainer-slurm").script
    (tmp_path / "srun").write_text(STARTER)
    (tmp_path / "srun").chmod(0o755)
    lines = [
        "set -euo pipefail",
        f"export PATH={tmp_path}:$PATH job={tmp_path} ANSWER='{answer}' SILENT='{silent}'",
        "hosts=(n1 n2 n3) trusted=(n1 n2 n3) training_nodes=(n1 n2) host=n1",
        "job_result=1 job_signal= job_reason=failed",
        functions_of(script, "decide", "remove_near_copies"),
        "decide",
        re.search(r'^if \[\[ \$action == "stop".*$', script, re.M)[0],
    ]
    return shell.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path).err.splitlines()


def decision_to_stop(why):
    """Return the log line saying that no job follows, and why."""
    cause = JobLine.DECISION_CAUSE.fill(why=why)
    return f"runbook: {JobLine.DECISION.fill(reason='failed', action='stop', cause=cause)}"


STOP = "stop\nelsewhere\n\na person has to mend it\n0\n"


def test_copies_in_node_memory_are_removed_where_the_training_stops_for_a_person(tmp_path):
    (line,) = end_of(STOP, "", tmp_path)
    assert line == decision_to_stop(why=STOP.splitlines()[3])
    assert sorted((tmp_path / "asked").read_text().split()) == ["n1", "n2", "n3"]


def test_copies_that_were_not_removed_are_counted(tmp_path):
    line = end_of(STOP, "n1 n3", tmp_path)[-1]
    assert line == f"runbook: {JobLine.COPIES_LEFT.fill(failures=2, nodes=3)}"


def test_copies_are_kept_where_the_program_that_decides_gave_no_answer(tmp_path):
    (line,) = end_of("", "", tmp_path)
    assert line == decision_to_stop(why=JobLine.NO_ANSWER.fill())
    assert not (tmp_path / "asked").exists()


def test_the_line_of_a_failed_step_is_seen_if_it_comes_while_the_log_is_searched(tmp_path):
    """When a step fails, hundreds of lines may arrive at once, between two searches."""
    log = "seq -f 'a traceback, line %g of a rank' 40"
    lines = [
        "set -euo pipefail",
        f"job={tmp_path} now=100 failed_at=0 err_read=1",
        functions_of(unattended_job("own-trainer-slurm").script, "check_end"),
        f'{log} >"$job/err"',
        # The failure is written once the first search has read the log.
        'tail() { command tail "$@"; [[ -e $job/failed ]] || { : >"$job/failed"; '
        f"{{ echo 'srun: Terminating StepId=7.0'; {log}; }} >>\"$job/err\"; }}; }}",
        "check_end",
        "echo $failed_at",
        "now=105",
        "check_end",
        "echo $failed_at",
    ]
    said = shell.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path).out
    assert said.split() == ["0", "105"]
