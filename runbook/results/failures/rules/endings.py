"""Rules for the lines a launcher prints when a rank has ended.

These lines always result from a different failure, and are never the cause.
"""

from runbook.results.failures.kinds import KILLED, PEER_DIED, PROGRAM_ENDED
from runbook.results.failures.rule import Level, NextStep, Rule

_PREPARES_FOR_SIGNALS = (
    r"\btrap\s+['\"\w$-].*\bSIG|\bhandlers? for SIG"
    r"|\b(?:[Rr]egister|[Ii]nstall)(?:ed|ing)\b.{0,60}\bSIG"
    r"|\bSIG\w+ handlers? .{0,20}(?:registered|installed)"
)
"""A line where a program or script says which signals it will catch."""

ENDING_RULES = (
    Rule(
        kind=KILLED,
        patterns=(
            r"exitcode\s*: -9\b",
            r"Signal 9 \(SIGKILL\)",
            r"died with <Signals\.SIGKILL",
            r"[Kk]illed by signal 9",
            r"exit(?:ed)? (?:with )?(?:exit )?code 137\b",
            r"^\s*Killed$",
            r"\bline \d+: +\d+ Killed\b",
            r": Killed$",
            r"return code -9",
            r"exits with return code = -9",
            r"THE EXIT STRING: Killed",
        ),
        example="  exitcode  : -9 (pid: 4112)",
        source="PyTorch, torchelastic's report of a failed rank",
    ),
    # An invalid instruction or division fails again with the same build, so the library must be
    # replaced by a different build.
    Rule(
        kind=PROGRAM_ENDED,
        patterns=(
            r"exitcode\s*: -[48]\b",
            r"Signal [48] \(SIG",
            r"SIG(?:ILL|FPE)\b",
            r"Illegal instruction(?! set)",
            r"Floating point exception",
        ),
        unless=_PREPARES_FOR_SIGNALS,
        example="torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -8) local_rank: 0 (pid: 69053)",
        counterexample="  exitcode  : -11 (pid: 4112)",
        source="hpcaitech/Open-Sora#749",
        decision=NextStep.FIX_FIRST,
    ),
    Rule(
        kind=PROGRAM_ENDED,
        patterns=(
            r"Segmentation fault",
            r"SIGSEGV",
            r"signal 11\b",
            r"exitcode\s*: -(?:11|4|8)\b",
            r"Signal (?:4|8|11) \(SIG",
            r"Fatal Python error",
            r"exit code 13[69]\b",
            r"(?:: | )Assertion `.{0,200}' failed\.?$",
            # Assertions in MPICH
            r"Assertion failed in file \S+ at line \d+",
        ),
        unless=rf"died from signal|{_PREPARES_FOR_SIGNALS}",
        example="Fatal Python error: Segmentation fault",
        source="Python, faulthandler",
    ),
    # The C library found its heap or stack overwritten, and ended the process.
    Rule(
        kind=PROGRAM_ENDED,
        patterns=(
            r"\b(?:malloc|free|realloc|munmap_chunk|malloc_consolidate)\(\): (?:invalid|corrupt|unaligned"
            r"|mismatching|double free|memory)",
            r"double free or corruption",
            r"corrupted (?:size vs\. prev_size|double-linked list)",
            r"\*\*\* stack smashing detected",
        ),
        example="double free or corruption (!prev)",
        counterexample="free(): 3 blocks returned",
        source="mlcommons/training#770",
    ),
    # A process that aborts has already printed the reason: an exception, or a wait for another
    # rank.
    Rule(
        kind=PROGRAM_ENDED,
        patterns=(
            r"exitcode\s*: -6\b",
            r"Signal 6 \(SIG",
            r"core dumped",
            r"SIGABRT",
            r"exit code 134\b",
            # A signal reported by the shell or srun, not a message from a server that aborted a job
            r"^\s*Aborted(?: \(|$)|: Aborted$|\d +Aborted\b",
        ),
        unless=rf"died from signal|{_PREPARES_FOR_SIGNALS}",
        example="[ERROR] failed (exitcode: -6) local_rank: 0 (pid: 4711) of binary: /usr/bin/python",
        counterexample="Fatal Python error: Segmentation fault",
        source="NVIDIA/Megatron-LM#1525",
        level=Level.CONSEQUENCE,
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"ChildFailedError",
            r"RayActorError|ActorDiedError",
            r"exitcode\s*: (?:-15|143|1)\b",
            r"Sending process \d+ closing signal",
            r"Signal 15 \(SIGTERM\)",
            r"SignalException",
            r"exited with exit code",
            r"Exited with exit code",
            r"Killing subprocess",
            r"failed \(exitcode",
            r"tasks? [\d,-]+: (?:Terminated|Exited|Killed|Aborted)",
            r"CANCELLED AT \S+ DUE TO TASK FAILURE",
            r"noticed that process rank",
            r"has exited due to process rank \d+",
            r"Primary job +terminated normally",
            r"MPI_ABORT was invoked",
            r"\[ERR\.\] PLE \d+ .{0,60}aborted",
            r"exits with return code",
        ),
        example="srun: error: nid01934: tasks 2,4-5,7: Terminated",
        source="desihub/desitarget#628",
        level=Level.CONSEQUENCE,
    ),
)
