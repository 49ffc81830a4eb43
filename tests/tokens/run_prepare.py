"""A separate process that tokenizes, for tests to kill: SOURCE PREFIX WORKERS SHARD_BYTES [max file
size].

With KILL_AFTER it kills itself at a random moment after this many shards, so that nothing depends
on the speed of the machine.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path

from runbook.core.errors import RunbookError
from runbook.tokens.pipeline.bin_writer import Committer
from runbook.tokens.pipeline.parts_folder import ShardMark
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions


def kill_after(shards: int) -> None:
    """Kill this process at a random moment after it has committed this many shards."""
    original = Committer._commit
    left = [shards]

    def finish(self: Committer, mark: ShardMark) -> None:
        original(self, mark)
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(random.uniform(0, 0.01), os.kill, (os.getpid(), signal.SIGKILL)).start()

    Committer._commit = finish  # type: ignore[method-assign]


if __name__ == "__main__":
    source, prefix, workers, shard_bytes, *limit = sys.argv[1:]
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
    if after := int(os.environ.get("KILL_AFTER", 0)):
        kill_after(after)
    options = TokenizeOptions(workers=int(workers), shard_bytes=int(shard_bytes))
    try:
        manifest = prepare([Path(source)], Path(prefix), options)
    except RunbookError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(manifest.reused_shards, len(manifest.shards), manifest.reused)
