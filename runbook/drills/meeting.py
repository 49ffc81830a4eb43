"""Drills on how ranks find each other, without a job's script between: ports, addresses, ranks that never come."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from runbook import shell
from runbook.drills.bench import Bench
from runbook.drills.case import PHASE, Case
from runbook.drills.verdict import Ending
from runbook.shell import Finished

TIMEOUT_SECONDS = 4
MARGIN_SECONDS = 15
"""Beyond the time-out: starting and ending a process on a busy machine."""


def rendezvous(bench: Bench) -> Ending:
    """A port that is taken, rank 0 or rank 1 missing, an address that is nobody's."""
    case = Case(bench, "meeting", f"training.process_group_timeout={TIMEOUT_SECONDS}")
    ending = Ending("port in use; rank 0 missing; rank 1 missing; an address that does not resolve")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _judge(ending, "port in use", _start(case, [0, 1], {"MASTER_PORT": str(taken.getsockname()[1])}), "in use")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = {"MASTER_PORT": str(probe.getsockname()[1])}
    _judge(ending, "rank 0 missing", _start(case, [1], port), port["MASTER_PORT"])
    _judge(ending, "rank 1 missing", _start(case, [0], port), "not all ranks came")
    wrong = {**port, "MASTER_ADDR": "no-such-host.invalid"}
    _judge(ending, "wrong address", _start(case, [1], wrong), "no-such-host.invalid")
    told = case.train()
    ending.rule(not told and case.done(), "a job that chooses its own port trains" if not told else told[:300])
    ending.action = f"each ended with its cause, soon after the time-out of {TIMEOUT_SECONDS} s"
    return ending


def _start(case: Case, ranks: Sequence[int], changes: Mapping[str, str]) -> tuple[float, list[Finished]]:
    """Start these of two ranks by hand; how long they took and what they said."""
    words = [str(case.bench.root / "python"), "-m", "runbook.training", str(case.folder / "plan.json")]

    def one(rank: int) -> Finished:
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", **changes}
        return shell.run([*words, "--phase", PHASE], cwd=case.folder, env=environment, check=False, timeout=120)

    began = time.monotonic()
    with ThreadPoolExecutor(len(ranks)) as pool:
        finished = list(pool.map(one, ranks))
    return time.monotonic() - began, finished


def _judge(ending: Ending, what: str, ended: tuple[float, list[Finished]], cause: str) -> None:
    seconds, ranks = ended
    text = "\n".join(one.out + one.err for one in ranks)
    ending.rule(all(one.exit_code for one in ranks), f"{what}: every rank failed")
    ending.rule(seconds < TIMEOUT_SECONDS + MARGIN_SECONDS, f"{what}: after {seconds:.1f} s")
    ending.rule(cause in text and "Traceback" not in text, f"{what}: cause named" if cause in text else text[-600:])
    ending.detected_after_s = max(ending.detected_after_s or 0.0, seconds)
