"""The functions that read rendered scripts see what a queue and a shell would see."""

from __future__ import annotations

import subprocess

import pytest

from suite.scripts import array_of, command_of, commands_of, directives_of, environment_of, unset_in

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --requeue
export A='two words' B="$user"-x C=$((3 + number))
export -n D
unset E # not for us
  export INDENTED=1
srun \\
  --nodes=2 \\
  bash "$job/rank.sh" </dev/null &
cores=(1 '2 3')
"""


def test_values_are_those_that_the_shell_gives() -> None:
    values = environment_of(SCRIPT, variables={"user": "a b", "number": "4"})
    assert values == {"A": "two words", "B": "a b-x", "C": "7"}
    assert unset_in(SCRIPT) == {"E"}
    assert array_of(SCRIPT, "cores") == ["1", "2 3"]


def test_a_quote_that_is_not_closed_is_a_fault() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        environment_of("export A='two")


def test_a_command_ends_where_its_input_begins() -> None:
    assert command_of(SCRIPT, "srun") == ["srun", "--nodes=2", "bash", "$job/rank.sh"]
    assert commands_of(SCRIPT, "mpiexec") == []
    with pytest.raises(ValueError):
        command_of(SCRIPT + SCRIPT, "srun")


def test_a_directive_that_comes_twice_or_is_malformed_is_a_fault() -> None:
    assert directives_of(SCRIPT) == {"nodes": "2", "requeue": ""}
    for wrong in ("#SBATCH --nodes=2\n#SBATCH --nodes=3\n", "#SBATCH nodes=2\n"):
        with pytest.raises(AssertionError):
            directives_of(wrong)
