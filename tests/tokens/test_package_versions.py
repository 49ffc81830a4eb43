"""Finds package versions without reading package descriptions."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from runbook.tokens import package_versions
from runbook.tokens.package_versions import package_version


@pytest.mark.parametrize(
    "package", ["gpt3-runbook", "fastokens", "tokenizers", "msgspec", "backports.zstd", "numpy"]
)
def test_a_folder_has_the_version_that_the_metadata_state(package: str) -> None:
    assert package_version(package) == version(package)


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert package_version("no-such-package") == ""


def test_a_package_without_a_folder_of_its_name_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_versions, "_versions_in", lambda _: {})
    package_version.cache_clear()
    assert package_version("msgspec") == version("msgspec")
    package_version.cache_clear()


def test_tokenizing_reads_no_description_of_a_package(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n')
    program = f"""
import sys
from pathlib import Path
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.pipeline.tokenize import prepare
prepare([Path({str(source)!r})], Path({str(tmp_path / "out")!r}), TokenizeOptions(workers=1))
print("importlib.metadata" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
