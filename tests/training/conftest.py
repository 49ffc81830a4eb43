"""One warm trainer for all tests, and a corpus that is written in a moment."""

import json
import os
import shutil

import pytest

from . import specs
from .group import Zygote

if shutil.which("nvidia-smi") is None:
    # Set before Triton is imported anywhere: without a GPU, its kernels are interpreted.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def zygote():
    process = Zygote()
    yield process
    process.close()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Return a folder with corpus_text_document.bin and .idx."""
    folder = tmp_path_factory.mktemp("corpus")
    specs.write_corpus(folder / "corpus_text_document")
    return folder


@pytest.fixture
def run(tmp_path, corpus):
    """Create an empty run folder with the corpus in data/."""
    (tmp_path / "data").mkdir()
    for path in corpus.iterdir():
        (tmp_path / "data" / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture(scope="module")
def offline(zygote):
    """Return a function that sends one request to runbook.training.offline in a forked process.

    It returns the exit code, and the answer or error.
    """

    def ask(command, folder, world_size=1, **request):
        (folder / "request.json").write_text(json.dumps({"command": command, **request}))
        for name in ("out", "err"):
            (folder / name).unlink(missing_ok=True)
        done = zygote.start(
            folder, None, world_size=world_size, patch="training.plain_gpt:offline"
        ).wait()
        return max(done.codes), json.loads(done.out) if set(done.codes) == {0} else done.err

    return ask
