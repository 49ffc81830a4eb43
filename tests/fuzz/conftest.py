"""The fuzzed files are in one folder for the whole session."""

from __future__ import annotations

import pytest
from targets import make_targets


@pytest.fixture(scope="session")
def fuzz_targets(tmp_path_factory):
    return make_targets(tmp_path_factory.mktemp("fuzz"))
