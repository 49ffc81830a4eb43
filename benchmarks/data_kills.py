"""Kill `runbook data tokenize` with all its workers at random moments, and run it again each time.

    python -m benchmarks.data_kills FOLDER [--kills 50] [--workers 2] [--seed 1]

FOLDER contains a few hundred megabytes of text. Each moment is within the time that an undisturbed
run takes. At the end, the output must equal that from the undisturbed run byte for byte, and each
kill may cost at most one shard per worker. A hook in sitecustomize records each time that a process
starts a shard. A shard that started n times was repeated n - 1 times.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.data_commands import ours, remove, token_sum

HOOK = """
import os
import runbook.tokens.pipeline.shard as shard
original = shard.ShardMaker.make
def make(self, piece, fingerprint, sink):
    descriptor = os.open(os.environ["RUNBOOK_BEGUN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{piece.number}\\n".encode())
    os.close(descriptor)
    return original(self, piece, fingerprint, sink)
shard.ShardMaker.make = make
"""


def begun(log: Path) -> Counter[int]:
    """Return how many times each shard was started."""
    return Counter(int(line) for line in log.read_text().split()) if log.exists() else Counter()


def run(words: list[str], env: dict[str, str], seconds: float | None) -> bool:
    """Return whether the command ended in time. If it did not, kill its whole process group."""
    process = subprocess.Popen(
        words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
    )
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    if process.returncode:
        raise SystemExit(
            f"exit code {process.returncode}:\n{said.decode(errors='replace')[-2000:]}"
        )
    return True


def main() -> None:
    """Measure, and print the results.

    Exit with code 1 if a byte differs or a kill costs more than one shard per worker.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    inputs = sorted(arguments.folder.glob("*.jsonl*"))
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        (home / "sitecustomize.py").write_text(HOOK)
        log = home / "begun"
        env = os.environ | {"PYTHONPATH": temporary, "RUNBOOK_BEGUN": str(log)}
        words = ours(inputs, home / "whole", arguments.workers)
        began = time.monotonic()
        run(words, env, None)
        length = time.monotonic() - began
        expected = token_sum(home / "whole")
        shards = len(begun(log))
        kills = rounds = worst = lost = 0
        while kills < arguments.kills:
            rounds += 1
            remove(home / "out")
            log.unlink(missing_ok=True)
            words = ours(inputs, home / "out", arguments.workers)
            ended = False
            here = 0
            while not ended:
                before = begun(log)
                wait = chance.uniform(0, length) if kills + here < arguments.kills else None
                ended = run(words, env, wait)
                here += not ended
                again = sum((begun(log) - before)[shard] for shard in before)
                worst = max(worst, again)
                lost = lost + again
            kills += here
            if token_sum(home / "out") != expected:
                print(f"FAILED: other bytes after {here} kills in round {rounds}", file=sys.stderr)
                raise SystemExit(1)
        print(
            f"{kills} kills in {rounds} rounds of {shards} shards, {arguments.workers} workers, an undisturbed run "
            f"takes {length:.1f} s: the same bytes each time; {lost} shards repeated in total, at most {worst} per kill"
        )
        if worst > arguments.workers:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
