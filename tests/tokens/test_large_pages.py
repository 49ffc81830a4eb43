"""A process that tokenizes gets large pages for its heap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MEASURE_HEAP = """
import ctypes, re
from pathlib import Path

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for _ in range(640):
    ctypes.memset(libc.malloc(100_000), 1, 100_000)
maps = Path("/proc/self/smaps").read_text()
heap = re.findall(r"\\[heap\\].*?AnonHugePages: +([0-9]+) kB", maps, re.S)
print(sum(map(int, heap)))
"""
ASK = """
from runbook.tokens.pipeline.large_pages import use_large_pages

assert use_large_pages()
"""
TOKENIZE = """
import contextlib, io, sys
from runbook.cli import main

sys.argv = ["runbook", "data", "tokenize", "in.jsonl", "--out", "out", "--workers", "1"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
assert Path("out_text_document.bin").exists()
"""


def huge_kilobytes(folder: Path, before: str) -> int:
    """Run a script in a new process, then allocate 64 MB there in small blocks.

    Return how many kB of the heap are in large pages.
    """
    script = f"from pathlib import Path\n{before}\n{MEASURE_HEAP}"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return int(result.stdout)


@pytest.mark.skipif(
    not ENABLED.exists() or "[madvise]" not in ENABLED.read_text(),
    reason="Linux gives large pages to every process here, or to none",
)
def test_heap_has_large_pages_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a fox"}\n')
    assert huge_kilobytes(tmp_path, "") == 0
    assert huge_kilobytes(tmp_path, ASK) > 0
    assert huge_kilobytes(tmp_path, TOKENIZE) > 0
