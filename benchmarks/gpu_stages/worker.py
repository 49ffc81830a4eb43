"""A process of the benchmark: it imports immediately, waits for its start signal, then measures.

    python -m benchmarks.gpu_stages.worker JOB.json

Rows go to standard output as JSON lines. Everything else that is printed goes to standard error.
The process takes no GPU memory before its start signal, so several processes may wait while another
one measures.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Emit = Callable[[dict[str, Any]], None]


def main() -> None:
    """Carry out the job that the file on the command line describes."""
    faulthandler.enable()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rows = _take_standard_output()

    def emit(row: dict[str, Any]) -> None:
        rows.write(json.dumps(row) + "\n")
        rows.flush()

    begun = time.monotonic()
    failed = ""
    try:
        for module in job["imports"]:
            importlib.import_module(module)
        emit({"ready": round(time.monotonic() - begun, 2)})
        if not sys.stdin.readline():
            _leave(rows, 0)  # The parent has ended, or has no time left for this job.
        module_name, function_name = job["function"].split(":")
        module = importlib.import_module(f"benchmarks.gpu_stages.{module_name}")
        getattr(module, function_name)(job["arguments"], emit)
    except BaseException as error:  # noqa: BLE001 - whatever ended the job is the reason in the file
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
    emit({"done": not failed, "failed": failed[:1000]})
    _leave(rows, 1 if failed else 0)


def _take_standard_output() -> TextIO:
    """Return the real standard output.

    From now on, output from libraries goes to standard error.
    """
    rows = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return rows


def _leave(rows: TextIO, code: int) -> None:
    """Exit immediately.

    The exit handlers of torch and NCCL take seconds, and the driver frees everything anyway.
    """
    rows.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
