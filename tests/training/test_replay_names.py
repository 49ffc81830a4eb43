"""`runbook replay RUN --step N` names the step, rank, layer and cause of what went wrong in
training.

CI runs one case for each of two kinds, and trains the replay in forked processes.
RUNBOOK_TEST_REPLAYS=20 draws twenty cases of all kinds and runs every command with the real
launcher.
"""

import json
import os
import shutil

import numpy
import pytest

from runbook.cli.program import cli
from runbook.tools.replay import again

from . import replay_cases, specs
from .replay_cases import CODE, TOKENS, ReplayCase, draw_cases

pytestmark = pytest.mark.training

SEED = int(os.environ.get("RUNBOOK_TEST_REPLAYS_SEED", "1"))
COUNT = int(os.environ.get("RUNBOOK_TEST_REPLAYS", "0"))
CASES = draw_cases(COUNT, SEED) if COUNT else [draw_cases(20, SEED)[number] for number in (2, 6)]


@pytest.fixture
def forked(zygote, monkeypatch):
    """Fork the replay's ranks from a warm process, unless the real launcher is requested."""

    def train_again(job, _say):
        until = ["--until", str(job.step)]
        ranks = job.phase.parallel.world_size
        done = zygote.start(job.folder, None, world_size=ranks, arguments=until).wait()
        assert done.code == 0, done.err[-3000:]

    if not COUNT:
        monkeypatch.setattr(again, "train_again", train_again)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number}-{case.kind}-{case.layout}")
def test_replay_names_what_went_wrong(case, zygote, run, corpus, tmp_path, monkeypatch, capsys):
    folder = run / "wrong"
    (folder / "data").mkdir(parents=True)
    for path in corpus.iterdir():
        (folder / "data" / path.name).symlink_to(path)
    tokens = folder / "data" / "corpus_text_document.bin"
    if case.kind == TOKENS:
        sample = sample_of(case, zygote, folder)
        replay_cases.change_token(tokens, sample, case.position)
    train(case, zygote, folder)
    (folder / "run.yaml").touch()
    tokens.unlink()
    tokens.symlink_to(corpus / tokens.name)
    if case.kind == CODE:
        package = replay_cases.changed_package(tmp_path / "changed", case.changed_line)
        monkeypatch.setenv("PYTHONPATH", str(package))
    arguments = ["replay", "wrong", "--runs", str(run), "--json", "--step", str(case.step)]
    code = cli.main(arguments, standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    print(case, json.dumps(answer))
    assert code == 1
    assert names(answer) == expected(case, answer)


def train(case: ReplayCase, zygote, folder) -> None:
    """Train to the end, with a stop before it if the case needs one."""
    stop = f"term:rank=0,step={replay_cases.RESUMED_AT}" if case.is_resumed else ""
    job = zygote.train(folder, case.spec(), extra={"RUNBOOK_FAULTS": stop or case.faults})
    if case.is_resumed:
        assert job.code == 75, job.err[-3000:]
        job = zygote.train(folder, case.spec(), extra={"RUNBOOK_FAULTS": case.faults})
    assert job.code == 0, job.err[-3000:]
    assert not job.events("alarm"), "the second computation was wrong in the same way"
    assert [line["iteration"] for line in job.metrics][-1] == replay_cases.ITERATIONS


def sample_of(case: ReplayCase, zygote, folder) -> list[int]:
    """Return the tokens of the changed sample."""
    order = folder.parent / "order"
    shutil.copytree(folder, order, symlinks=True)
    content = {**case.spec(), "parallel": {**specs.spec()["parallel"]}}
    job = zygote.train(order, content, world_size=1, patch="training.sample_order:write")
    assert job.code == 0, job.err[-3000:]
    rows = numpy.load(order / "train.npy")
    return rows[case.sample].tolist()


def names(answer):
    """Return the parts of the answer that a case determines."""
    where = answer["difference"] or {}
    return {
        "step": answer["first_step"],
        "verdict": answer["verdict"],
        "rank": where.get("rank"),
        "part": where.get("part"),
        "layer": where.get("layer"),
        "readers": answer["ranks_of_other_samples"],
    }


def expected(case: ReplayCase, answer):
    """Return the same parts as the case expects them."""
    nowhere = {"step": case.step, "readers": [], "rank": None, "part": None, "layer": None}
    if case.kind == CODE:
        return nowhere | place_of_changed_line(case) | {"verdict": "program"}
    if case.kind != TOKENS:
        where = {"rank": case.rank, "part": case.kind, "layer": case.layer}
        return nowhere | where | {"verdict": "hardware"}
    readers = case.ranks_of_replica()
    data = nowhere | {"readers": list(readers), "verdict": "data"}
    if case.micro_batch > 0:
        return data
    if case.position < specs.TINY["sequence_length"]:
        return data | {"rank": readers[0], "part": "forward", "layer": 0}
    # The last token in a sample is only a label, so the loss gradient is the first to differ.
    first = answer["difference"]["rank"]
    assert first in readers
    return data | {"rank": first, "part": "backward", "layer": replay_cases.LAYERS + 1}


def place_of_changed_line(case: ReplayCase):
    """The place where a changed line first has an effect. All ranks compute it, and the first rank
    is named.
    """
    line = case.changed_line
    is_on_last_stage = line.layer > replay_cases.LAYERS and "pipeline" in case.options
    first = replay_cases.num_ranks(case.layout) // 2 if is_on_last_stage else 0
    return {"rank": first, "part": line.part, "layer": line.layer}
