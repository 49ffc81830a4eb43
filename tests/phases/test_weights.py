"""Exporting and importing weights: only new folders, tokenizer files, the model card."""

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from suite.messages import containing, refuses, says
from toy_run import PROJECT, TOY

from runbook import params
from runbook.cli.messages import CliMessage
from runbook.cli.program import cli
from runbook.core.errors import DataError, ParamsError
from runbook.phases import trained_model as weights
from runbook.phases.messages import PhaseMessage
from runbook.planning.make_plan import make_plan
from runbook.runs.run_files import write_plan_file
from runbook.tokens.tokenizer import load_tokenizer, tokenizer_files


@pytest.fixture
def folder(tmp_path):
    """Create a run folder with a plan and two steps, as after training."""
    settings = params.load("local", set_words=list(TOY), project=PROJECT)
    write_plan_file(settings, make_plan(settings), tmp_path / "run")
    lines = [
        {"iteration": step, "seconds": 1.0, "loss": 11.0 - step, "segment": 0} for step in (1, 2, 3)
    ]
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    return tmp_path / "run"


@pytest.fixture
def trainer(monkeypatch):
    """Replace the trainer by one that has no weights and records the requests."""
    asked = []

    def answer(command, folder, phase, request):
        asked.append((command, request))
        if command == "export":
            Path(request["out"]).mkdir()
        if command == "sample":
            return {"iteration": 2, "ids": [ids[:1] for ids in request["prompts"]]}
        return {
            "iteration": 2,
            "architecture": "GPT2LMHeadModel",
            "files": 1,
            "bytes": 9,
            "folder": "f",
        }

    monkeypatch.setattr(weights, "ask_trainer", answer)
    return asked


def test_weights_are_exported_after_their_model_left_the_parameters(folder, trainer, tmp_path):
    path = folder / "run.yaml"
    path.write_text(path.read_text().replace("\nmodel: ", "\nmodel: removed-"))
    weights.export_weights(folder, tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    unknown = PhaseMessage.NOT_RECORDED.fill()
    line = PhaseMessage.TEXT_OF_MODEL_CARD.fill(
        title="corpus", text="corpus", weight=1.0, licence=unknown
    )
    assert line in card and "# local\n" in card


def test_an_exported_folder_has_tokenizer_and_model_card_and_is_not_written_over(
    folder, trainer, tmp_path
):
    out = tmp_path / "hf"
    assert weights.export_weights(folder, out, shard_bytes=5 * 10**9).iteration == 2
    assert trainer == [("export", {"out": f"{out}.part", "iteration": 0, "shard_bytes": 5 * 10**9})]
    names = ["README.md", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert (
        sorted(path.name for path in out.iterdir()) == names and not (tmp_path / "hf.part").exists()
    )
    assert load_tokenizer(str(out)).encode("Hello world") == [15496, 995]
    assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 50256
    card = (out / "README.md").read_text()
    rows = dict(re.findall(r"(?m)^\| (.+?) \| (.+) \|$", card))
    losses = PhaseMessage.LOSSES_OF_TRAINING.fill(first=10, latest=9, last=2)
    recorded = {"Training loss (nat/token)": losses, "Commit": PhaseMessage.NOT_RECORDED.fill()}
    assert {name: rows[name] for name in recorded} == recorded
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["license"] == "other"
    assert says(card, PhaseMessage.TEXT_OF_MODEL_CARD, text="corpus", licence="public domain")
    with refuses(
        ParamsError,
        PhaseMessage.EXPORT_EXISTS,
        path=containing("hf"),
        why=PhaseMessage.EXPORT_NOT_REPLACED,
    ):
        weights.export_weights(folder, out)
    assert (out / "README.md").read_text() == card and len(trainer) == 1


def test_a_failed_export_leaves_nothing_and_another_ones_leftover_alone(
    folder, trainer, tmp_path, monkeypatch
):
    (tmp_path / "hf.part").mkdir()
    with refuses(
        ParamsError,
        PhaseMessage.EXPORT_EXISTS,
        path=containing("hf.part"),
        why=PhaseMessage.EXPORT_LEFT_PART,
    ):
        weights.export_weights(folder, tmp_path / "hf")
    assert (tmp_path / "hf.part").exists() and not trainer
    monkeypatch.setattr(weights, "_model_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        weights.export_weights(folder, tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_a_folder_with_another_tokenizer_is_not_imported(folder, trainer, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with refuses(
        DataError,
        PhaseMessage.NO_KNOWN_WEIGHTS,
        folder_files=containing("latest_checkpointed_iterat"),
    ):
        weights.import_weights(folder, theirs)
    (theirs / "config.json").write_text("{}")
    tokenizer = json.loads(tokenizer_files("gpt2")["tokenizer.json"])
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert weights.import_weights(folder, theirs) == "f"
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:1000]
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer))
    with refuses(
        ParamsError,
        PhaseMessage.ANOTHER_TOKENIZER,
        path=containing("tokenizer.json"),
        probe="Hello world",
        expected=containing("[39,"),
        name="gpt2",
    ):
        weights.import_weights(folder, theirs)
    assert [command for command, _ in trainer] == ["import"]


@pytest.mark.parametrize(
    "file", ["latest_checkpointed_iteration.txt", "common.pt", "mp_rank_00_001/model_optim_rng.pt"]
)
def test_a_megatron_checkpoint_is_imported_with_a_word_about_its_tokenizer(
    file, folder, trainer, tmp_path
):
    (tmp_path / "theirs" / file).parent.mkdir(parents=True)
    (tmp_path / "theirs" / file).write_text("")
    words = [
        "import",
        folder.name,
        "--runs",
        str(folder.parent),
        "--from",
        str(tmp_path / "theirs"),
    ]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        CliMessage.BEGINS_FROM.fill(weights="f", run="run"),
        CliMessage.NO_TOKENIZER.fill(),
    ]
    assert trainer == [("import", {"source": str(tmp_path / "theirs")})]


def test_prompts_of_options_and_a_file_are_continued_together(folder, trainer, tmp_path):
    file = tmp_path / "prompts.txt"
    words = ["sample", folder.name, "--runs", str(folder.parent)]
    file.write_text("Hello world\n\n Hello\n")
    done = CliRunner().invoke(
        cli, [*words, "--prompt", "Once", "--prompts", str(file), "--top-p", "0.9", "--json"]
    )
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert [(line["prompt"], line["continuation"]) for line in lines] == [
        ("Once", "Once"),
        ("Hello world", "Hello"),
        (" Hello", " Hello"),
    ]
    ((command, request),) = trainer
    assert (
        command == "sample"
        and request["prompts"] == [[7454], [15496, 995], [18435]]
        and request["top_p"] == 0.9
    )
    for content, reason in (
        (b"\n", "it has no line with a prompt"),
        (b"\xff\n", "it is not UTF-8"),
    ):
        file.write_bytes(content)
        done = CliRunner().invoke(cli, [*words, "--prompts", str(file)])
        assert done.exit_code == 2 and reason in done.output
    done = CliRunner().invoke(cli, [*words, "--prompt", "Once", "--prompt", ""])
    assert done.exit_code == 2 and CliMessage.EMPTY_PROMPT.fill() in done.output
    assert len(trainer) == 1
