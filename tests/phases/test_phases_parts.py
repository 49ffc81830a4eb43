"""Smaller parts of the phases: parameters in a folder, machine, events, samples, phase order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.messages import containing, refuses
from toy_run import PROJECT, TOY, open_run

from runbook import params
from runbook.core.errors import DataError, ParamsError, RecordError
from runbook.params.messages import ParamsMessage
from runbook.phases import token_inputs as token_files
from runbook.phases import training_results
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase
from runbook.phases.phase_steps import VERSIONS, phase_step
from runbook.phases.runner import RunRequest, expand_variants
from runbook.plan_file.phase_names import PHASES
from runbook.planning import make_plan
from runbook.planning.messages import PlanningMessage
from runbook.results.gates import credible_step_seconds
from runbook.runs import this_machine
from runbook.runs.messages import RunMessage
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_files import changed_values, read_plan_file, with_prompt_ids, write_plan_file
from runbook.tokens.messages import TokenMessage
from runbook.tokens.sources.input_files import content_sample
from runbook.tokens.tokenizer import load_tokenizer


def settings_of(*words: str) -> params.Settings:
    return params.load("local", set_words=[*TOY, *words], project=PROJECT)


def folder_of(runs: Path) -> Path:
    return open_run("00-plan", runs=runs).folder


def test_equal_values_make_no_difference_and_write_nothing_anew(runs):
    folder = folder_of(runs)
    assert changed_values(folder, settings_of()) == []
    before = {name: (folder / name).stat().st_mtime_ns for name in ("run.yaml", "plan.json")}
    open_run("00-plan", runs=runs)
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before


def test_every_other_value_is_named_with_what_it_was_and_is(runs):
    folder = folder_of(runs)
    other = settings_of("training.iterations=7", "parallel.tensor=2", "data.split=90,5,5")
    assert changed_values(folder, other) == [
        ("data.split", "949,50,1", "90,5,5"),
        ("parallel.tensor", 1, 2),
        ("training.iterations", 6, 7),
    ]


def test_a_key_that_is_younger_than_the_folder_counts_only_where_it_was_chosen(runs):
    """A new version may add keys. A run continues as long as nobody has set a new key."""
    folder = folder_of(runs)
    text = (folder / "run.yaml").read_text()
    lines = [line for line in text.splitlines() if "dropout:" not in line and " seed:" not in line]
    assert len(lines) == len(text.splitlines()) - 2
    (folder / "run.yaml").write_text("\n".join(lines) + "\n")
    assert changed_values(folder, settings_of()) == []
    assert changed_values(folder, settings_of("training.dropout=0.1")) == [
        ("training.dropout", "(absent)", 0.1)
    ]


def test_a_folder_without_parameters_takes_any(tmp_path):
    assert changed_values(tmp_path, settings_of()) == []


def test_a_run_yaml_that_is_none_is_told(runs):
    folder = folder_of(runs)
    (folder / "run.yaml").write_text("run: [")
    with refuses(RecordError, RunMessage.FILE_CHANGED_LATER, path=containing("run.yaml")):
        changed_values(folder, settings_of())


def test_other_values_are_refused_with_both_remedies_and_nothing_is_written(runs):
    folder = folder_of(runs)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other_values = PhaseMessage.FOLDER_OF_OTHER_VALUES.of(
        folder=folder,
        changes=PhaseMessage.VALUE_CHANGED.fill(
            key="training.iterations", old=6, new=7, origin=" (--set training.iterations=7)"
        ),
        remedies=(
            PhaseMessage.KEEP_BOTH_OR_DO_AGAIN.fill(run="local")
            + PhaseMessage.LONGER_TRAINING_GOES_ON.fill()
        ),
    )
    with refuses(ParamsError, other_values) as error:
        open_run("00-plan", "training.iterations=7", runs=runs)
    assert error.value.exit_code == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_missing_or_broken_plan_is_told_by_name(tmp_path):
    with refuses(RecordError, RunMessage.NO_PLAN_YET, path=containing("plan.json")):
        read_plan_file(tmp_path)
    (tmp_path / "plan.json").write_text('{"schema": 1')
    with refuses(RecordError, PlanningMessage.PLAN_NOT_JSON, source=containing("plan.json")):
        read_plan_file(tmp_path)


def test_the_plan_file_holds_the_prompt_as_ids_and_the_plan_itself_does_not():
    prompt = "The first time"
    settings = settings_of(f"training.sample_prompt={prompt}")
    plan = make_plan(settings, this_machine.measure_machine(settings.site))
    spec = with_prompt_ids(settings, plan).phases["04-training"].sampling
    assert list(spec.prompt_ids) == load_tokenizer().encode(prompt)
    assert plan.phases["04-training"].sampling.prompt_ids == ()
    assert with_prompt_ids(settings_of("training.sample_prompt="), plan)


def test_writing_the_plan_reads_back_as_it_was(tmp_path):
    settings = settings_of()
    plan = make_plan(settings, None)
    write_plan_file(settings, plan, tmp_path / "run")
    assert read_plan_file(tmp_path / "run") == with_prompt_ids(settings, plan)
    assert (
        params.load(str(tmp_path / "run" / "run.yaml"), project=PROJECT).values()
        == settings.values()
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, PHASES),
        ({"from_phase": "data", "to_phase": "3"}, ("02-data", "03-smoke-test")),
        ({"from_phase": "05-analysis"}, ("05-analysis", "06-evaluation")),
        ({"to_phase": "plan"}, ("00-plan",)),
        ({"from_phase": "Smoke", "to_phase": "smoke-test"}, ("03-smoke-test",)),
    ],
)
def test_the_phases_asked_for_come_in_their_order(words, expected):
    assert tuple(RunRequest("local", **words).phases()) == expected


def test_an_order_that_is_none_and_a_word_that_is_no_phase_are_told():
    with refuses(
        ParamsError,
        PhaseMessage.PHASES_OUT_OF_ORDER,
        from_phase="04",
        to_phase="02",
        phases=containing("00-plan, 01-environment, 02"),
    ):
        RunRequest("local", from_phase="04", to_phase="02").phases()
    with pytest.raises(ValueError) as error:
        RunRequest("local", to_phase="trainng").phases()
    assert str(error.value) == ParamsMessage.NOT_A_PHASE.fill(
        word="trainng", phases=", ".join(PHASES)
    )


def test_the_name_of_a_set_of_overrides_travels_as_a_word():
    assert RunRequest("local", ("a=1", "b=x y"), name="quick").words() == [
        "a=1",
        "b=x y",
        "as=quick",
    ]
    assert RunRequest("local").words() == []
    assert settings_of(*RunRequest("local", name="quick").words()).name == "local--quick"


def test_a_run_without_variants_says_so():
    assert expand_variants("local", all_variants=False) == ["local"]
    with refuses(Exception, PhaseMessage.NO_VARIANTS, run="local"):
        expand_variants("local", all_variants=True)


def test_flags_of_the_processor_are_words_of_one_line(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: flags of nothing\nflags\t\t: fpu avx512_bf16 amx_tile\nbugs\t: spectre\n"
    )
    assert this_machine.cpu_flags(path) == {"fpu", "avx512_bf16", "amx_tile"}
    path.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert this_machine.cpu_flags(path) == frozenset()
    assert this_machine.cpu_flags(tmp_path / "none") == frozenset()


def test_a_plan_for_another_machine_does_not_reckon_with_this_one():
    site = settings_of().site
    measured = this_machine.measure_machine(site)
    assert measured is not None
    assert measured.cores >= 1
    assert measured.memory_bytes > 2**28
    assert this_machine.measure_machine(site.model_copy(update={"scheduler": "slurm"})) is None


def test_samples_are_text_again_and_a_half_written_one_waits(tmp_path):
    prompt = "The first time"
    continuation = " we met"
    ids = load_tokenizer().encode(prompt + continuation)
    rows = [{"iteration": n, "prompt_ids": ids[:3], "ids": ids[3:], "time": 0.0} for n in (0, 24)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "samples.jsonl").write_text(text[:-20])
    spec = SimpleNamespace(log=SimpleNamespace(samples="samples.jsonl"))
    assert training_results.sample_rows(tmp_path, spec, "gpt2") == [
        {"after iteration": 0, "prompt": prompt, "continuation": continuation}
    ]
    (tmp_path / "samples.jsonl").write_text(text)
    assert [
        row["after iteration"] for row in training_results.sample_rows(tmp_path, spec, "gpt2")
    ] == [0, 24]
    assert training_results.sample_rows(tmp_path / "none", spec, "gpt2") == []


def test_a_sample_written_twice_counts_once_the_last(tmp_path):
    spec = SimpleNamespace(log=SimpleNamespace(samples="s"))
    rows = [{"iteration": 0, "prompt_ids": [464], "ids": [ids], "time": 0.0} for ids in (257, 262)]
    (tmp_path / "s").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [
        row["continuation"] for row in training_results.sample_rows(tmp_path, spec, "gpt2")
    ] == [" the"]


def test_a_step_time_is_credible_within_a_factor_of_the_plans():
    assert credible_step_seconds(0.3) == (pytest.approx(0.1), pytest.approx(0.9))
    assert credible_step_seconds(None) is None


def test_a_phase_is_done_again_when_its_version_is_raised(runs, monkeypatch):
    open_phase = open_run("02-data", runs=runs)
    before = {phase: digest_of(open_phase, phase) for phase in PHASES}
    monkeypatch.setitem(VERSIONS, "04-training", 2)
    changed = {phase for phase in PHASES if digest_of(open_phase, phase) != before[phase]}
    assert changed == {"04-training"}


@pytest.mark.parametrize(
    ("word", "phases"),
    [
        ("training.iterations=7", {"00-plan", "04-training"}),
        ("training.smoke.iterations=7", {"00-plan", "03-smoke-test"}),
        ("training.save_interval=3", {"00-plan"}),
        ("training.keep_checkpoints=5", {"00-plan"}),
        ("training.seed=9", {"00-plan", "03-smoke-test", "04-training"}),
        ("data.append_eod=false", {"00-plan", "02-data"}),
        (
            "jobs.training.walltime=00:10:00",
            {"00-plan"},
        ),  # the plan counts the jobs that a training run takes
    ],
)
def test_each_value_does_again_only_what_depends_on_it(runs, word, phases):
    """The following phases depend on the output of the changed phase, not on the value itself."""
    open_phase = open_run("00-plan", runs=runs)
    settings = settings_of(word)
    plan = make_plan(settings, this_machine.measure_machine(settings.site))
    folder = open_phase.folder
    changed = {
        phase
        for phase in PHASES
        if phase_step(PlannedRun(settings, plan, folder), phase).fingerprint
        != digest_of(open_phase, phase)
    }
    assert changed == phases


def digest_of(open_phase: OpenPhase, phase: str) -> str:
    return phase_step(open_phase.run, phase).fingerprint


def test_other_text_in_the_folder_means_other_tokens_and_text_that_is_gone_does_not(runs, tmp_path):
    texts = tmp_path / "text"
    texts.mkdir()
    (texts / "a.jsonl.zst").write_text('{"text": "one"}\n')
    open_phase = open_run("02-data", f"data.folder={texts}", runs=runs)
    before = digest_of(open_phase, "02-data")
    manifest = {"inputs": [{"path": str(path), **dated(path)} for path in texts.iterdir()]}
    (open_phase.folder / "data").mkdir()
    (open_phase.folder / "data" / "corpus.manifest.json").write_text(json.dumps(manifest))
    assert digest_of(open_phase, "02-data") == before
    replace_unnoticed(texts / "a.jsonl.zst", b'{"text": "two"}\n')
    assert digest_of(open_phase, "02-data") != before, "the same size and date"
    (texts / "a.jsonl.zst").unlink()
    assert digest_of(open_phase, "02-data") == before
    (texts / "a.jsonl.zst").write_text('{"text": "two words"}\n')
    assert digest_of(open_phase, "02-data") != before


def test_text_that_is_not_there_is_told_with_the_key_that_names_it(tmp_path):
    missing = PhaseMessage.DATA_FOLDER.of(
        folder="nowhere",
        where="--set data.folder=nowhere (command line)",
        error=TokenMessage.INPUT_MISSING.fill(path=PROJECT / "nowhere"),
    )
    with refuses(DataError, missing):
        token_files.input_files(settings_of("data.folder=nowhere"))


def test_text_in_place_of_the_shipped_corpus_may_have_any_name(tmp_path):
    (tmp_path / "mine.txt").write_text("some text\n")
    assert token_files.input_files(settings_of(f"data.folder={tmp_path}")) == [
        tmp_path / "mine.txt"
    ]
    assert len(token_files.input_files(settings_of())) == 5


def dated(path: Path) -> dict:
    return {
        "bytes": path.stat().st_size,
        "mtime_ns": path.stat().st_mtime_ns,
        "sample": content_sample(path),
    }


def replace_unnoticed(path: Path, content: bytes) -> None:
    """Replace a file's content, and keep its size and date."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
