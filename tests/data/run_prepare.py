"""A process of its own that tokenizes, to be killed by the tests: SOURCE PREFIX WORKERS SHARD_BYTES [max file size]."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from runbook.data import TokenizeOptions, prepare
from runbook.errors import RunbookError

if __name__ == "__main__":
    source, prefix, workers, shard_bytes, *limit = sys.argv[1:]
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
    options = TokenizeOptions(workers=int(workers), shard_bytes=int(shard_bytes))
    try:
        manifest = prepare([Path(source)], Path(prefix), options)
    except RunbookError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(manifest.reused_shards, len(manifest.shards), manifest.reused)
