import sys

import pytest
from local_job import local_plan, local_settings


@pytest.fixture
def make_settings():
    """Return a function that makes settings for a local run, with changes, as if read from files."""
    return local_settings


@pytest.fixture
def make_plan():
    """Return a function that makes a plan with only the parts that rendering reads."""
    return local_plan


@pytest.fixture(scope="session")
def recorder(tmp_path_factory):
    """A stand-in for the trainer's Python that prints its arguments, folder and environment as
    JSON.
    """
    program = tmp_path_factory.mktemp("program") / "recorder"
    program.write_text(
        f"#!{sys.executable} -IS\n"
        "import json, os, sys\n"
        "line = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]) + '\\n'\n"
        "os.write(1, line.encode())\n"
    )
    program.chmod(0o755)
    return program
