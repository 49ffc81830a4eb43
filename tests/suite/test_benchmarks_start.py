"""Every benchmark imports and prints its help, so that a changed signature is noticed before
somebody runs the benchmark.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
STARTS_BY_ITSELF = "ArgumentParser("


def without_torch(path: Path) -> bool:
    """Return whether importing a benchmark takes well under a second.

    Benchmarks that import torch are run by other tests.
    """
    text = path.read_text(encoding="utf-8")
    return STARTS_BY_ITSELF in text and not re.search(r"import torch|tests\.training", text)


NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if without_torch(path))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_starts_and_explains_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
