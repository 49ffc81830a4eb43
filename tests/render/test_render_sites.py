"""The scripts for the five machines match the golden files, and bash and the upstream programs can
read them.
"""

import json
import re
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import pytest
from sites import (
    GOLDEN,
    NAMES,
    PACKAGE,
    PHASES,
    PROJECT,
    RUNS,
    data_jobs,
    facts,
    rendered,
    settings_of,
    texts,
)
from suite.messages import check_about, says
from suite.programs import shellcheck
from suite.scripts import command_of, commands_of

from runbook.core import shell
from runbook.core.errors import PlanError
from runbook.jobs.messages import SetupLine
from runbook.jobs.render.preparation import render_preparation
from runbook.plan_file.phase_names import FULL
from runbook.planning.rule_codes import PlanCode

REFUSED = {"lumi-13b:13b-1n-dp8-zero1": "72.8 GiB"}
"""Variants in a document that cannot have run as described, so the plan refuses them.

The memory needed, by variant.
"""

GIT = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-C"]

SCRIPTS = [
    path for site in GOLDEN.iterdir() if site.name != "local" for path in sorted(site.rglob("*.sh"))
]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("run", RUNS)
def test_the_files_are_the_expected_ones_word_for_word(run, phase):
    settings, _, job = rendered(run, phase)
    folder = GOLDEN / settings.site.site / phase
    expected = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert texts(job) == expected


@pytest.mark.parametrize("run", RUNS)
def test_the_jobs_of_the_data_phase_are_the_expected_ones_word_for_word(run):
    settings, jobs = data_jobs(run)
    folder = GOLDEN / settings.site.site
    expected = {
        path.parent.name: path.read_text(encoding="utf-8")
        for path in folder.glob("02-data*/job.sh")
    }
    assert {name: job.script for name, job in jobs.items()} == expected


@pytest.mark.parametrize("run", RUNS)
def test_the_preparation_is_the_expected_one_word_for_word(run):
    settings = settings_of(run)
    expected = (GOLDEN / settings.site.site / "01-environment" / "prepare.sh").read_text(
        encoding="utf-8"
    )
    assert render_preparation(settings, PACKAGE) == expected


def test_preparing_twice_changes_nothing_and_a_checkout_that_was_changed_is_refused(tmp_path):
    upstream = tmp_path / "upstream"
    shell.run(["git", "init", "-q", str(upstream)])
    (upstream / "pretrain_gpt.py").write_text("print('as pinned')\n")
    for words in (["add", "."], ["commit", "-q", "-m", "one"]):
        shell.run(["git", *GIT, str(upstream), *words])
    commit = shell.run(["git", "-C", str(upstream), "rev-parse", "HEAD"]).out.strip()
    own = settings_of("azure-175b", f"jobs.stage={tmp_path}/the stage")
    checkout = own.site.frameworks["megatron-lm"].model_copy(
        update={"repository": str(upstream), "commit": commit}
    )
    image = tmp_path / "the stage" / "image"
    step = own.site.preparation[0].model_copy(
        update={"creates": str(image), "commands": [f"touch '{image}'"]}
    )
    site = own.site.model_copy(
        update={"frameworks": {"megatron-lm": checkout}, "preparation": [step]}
    )
    script = tmp_path / "prepare.sh"
    script.write_text(render_preparation(replace(own, site=site), PROJECT), encoding="utf-8")
    shell.run(["bash", str(script)])
    before = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "the stage").rglob("*")
        if "gpt2" not in path.parts
    }
    said = shell.run(["bash", str(script)]).out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    clone = tmp_path / "the stage" / "Megatron-LM"
    assert says(said, SetupLine.CHECKOUT_THERE, folder=clone)
    assert says(said, SetupLine.STEP_THERE, title=step.title, creates=image)
    assert (tmp_path / "the stage" / "data" / "gpt2" / "merges.txt").is_file()
    (clone / "helpers.so").write_text("compiled there")
    shell.run(["bash", str(script)])  # a new file does not count as a change to the checkout
    (clone / "pretrain_gpt.py").write_text("print('edited')\n")
    edited = shell.run(["bash", str(script)], check=False)
    assert edited.exit_code == 1
    assert says(edited.err, SetupLine.CHECKOUT_CHANGED, folder=clone, commit=commit)
    status = " M pretrain_gpt.py"
    assert edited.err.splitlines()[1:] == [f"runbook: {status}"]
    shell.run(["git", *GIT, str(clone), "checkout", "-q", "--", "."])
    shell.run(
        [
            *("git", *GIT),
            str(clone),
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "two",
        ]
    )
    moved = shell.run(["bash", str(script)], check=False)
    assert moved.exit_code == 1
    assert says(moved.err, SetupLine.CHECKOUT_AT_OTHER_COMMIT, folder=clone, commit=commit)


@pytest.mark.parametrize("run", ["lumi-13b", "polaris-25b"])
def test_modules_that_read_unset_variables_can_be_loaded_by_the_preparation(run, tmp_path):
    own = settings_of(run, f"jobs.stage={tmp_path}/stage")
    step = next(
        step
        for step in own.site.preparation
        if any("module load" in line for line in step.commands)
    )
    loading = [line for line in step.commands if line.startswith(("module load", "conda activate"))]
    mark = tmp_path / "made"
    step = step.model_copy(update={"creates": str(mark), "commands": [*loading, f"touch {mark}"]})
    site = own.site.model_copy(update={"frameworks": {}, "paths": {}, "preparation": [step]})
    script = tmp_path / "prepare.sh"
    script.write_text(render_preparation(replace(own, site=site), PROJECT), encoding="utf-8")
    # As with Lmod and conda: functions that a login shell exports, which read variables that may
    # not be set.
    functions = {
        f"BASH_FUNC_{name}%%": '() { echo "$__NEVER_SET" >/dev/null; }'
        for name in ("module", "conda")
    }
    said = shell.run(["bash", str(script)], env=functions, check=False)
    assert (said.exit_code, said.err) == (0, "")
    assert mark.exists()


def test_the_module_that_lumis_jobs_load_is_the_one_that_its_preparation_installs():
    own = settings_of("lumi-13b")
    module = own.site.modules[-1]
    text = render_preparation(own, PACKAGE)
    assert command_of(text, "eb")[:2] == ["eb", f"{module.replace('/', '-')}.eb"]
    loaded = commands_of(text, "module", "load")
    assert ["module", "load", "LUMI", "partition/G", module] in loaded
    assert (
        "rocm-5.6.1" not in text
    )  # LUMI archived the document's recipe on 2026-01-23, so eb does not find it


def test_a_recipe_that_lumi_has_archived_since_ends_the_preparation_with_what_to_do(tmp_path):
    own = settings_of("lumi-13b", f"jobs.stage={tmp_path}/stage")
    site = own.site.model_copy(update={"frameworks": {}, "paths": {}})
    script = tmp_path / "prepare.sh"
    script.write_text(render_preparation(replace(own, site=site), PROJECT), encoding="utf-8")
    functions = {"BASH_FUNC_module%%": "() { :; }", "BASH_FUNC_eb%%": "() { return 1; }"}
    said = shell.run(["bash", str(script)], env=functions, check=False)
    assert said.exit_code == 1
    (command,) = [text for text in site.preparation[0].commands if text.startswith("eb ")]
    explanation = re.findall(r'say "(.*)" >&2', command)
    assert said.err.splitlines() == [f"runbook: {line}" for line in explanation]
    assert len(explanation) == 2
    assert "params/sites/lumi.yaml" in said.err
    assert not (tmp_path / "stage" / ".runbook").exists()


def test_what_polaris_installs_from_a_repository_is_pinned():
    names = re.findall(r"git\+https://\S+", render_preparation(settings_of("polaris-25b"), PACKAGE))
    assert names and all(re.search(r"@[0-9a-f]{40}$", name) for name in names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_bash_can_read_the_script(script):
    shell.run(["bash", "-n", str(script)])


def test_shellcheck_finds_nothing():
    assert shell.run([shellcheck(), *map(str, SCRIPTS)]).out == ""


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("phase", PHASES)
def test_the_upstream_program_has_every_option(name, phase):
    if name in REFUSED:
        with pytest.raises(PlanError) as caught:
            rendered(name, phase)
        check_about(caught.value.checks, PlanCode.MEMORY_FITS, FULL, needed=REFUSED[name])
        return
    settings, _, job = rendered(name, phase)
    framework = settings.run.training.framework
    if framework == "runbook":
        assert job.arguments == ["plan.json", "--phase", phase]
        return
    checkout = settings.site.frameworks[framework]
    known = facts(checkout.repository, checkout.commit)
    if framework == "nemo":
        assert unknown_keys(job.arguments, known["keys"]) == []
    else:
        assert faults(job.arguments, known["options"]) == []


class FaultKind(StrEnum):
    """Why an upstream parser refuses an option."""

    UNKNOWN = "unknown"
    NUMBER_OF_VALUES = "number of values"
    TYPE = "type"
    CHOICE = "choice"
    TWICE = "twice"


class Fault(NamedTuple):
    """An option that an upstream parser would reject."""

    option: str
    kind: FaultKind
    values: tuple[str, ...] = ()


def faults(arguments, options):
    """Return everything that the upstream parser would refuse: unknown options, and a wrong number,
    type or choice of values.
    """
    faults = []
    place = 0
    while place < len(arguments):
        name = arguments[place]
        end = next(
            (i for i in range(place + 1, len(arguments)) if arguments[i].startswith("--")),
            len(arguments),
        )
        values = tuple(arguments[place + 1 : end])
        place = end
        if name not in options:
            faults.append(Fault(name, FaultKind.UNKNOWN))
            continue
        option = options[name]
        wanted = option["values"]
        if (isinstance(wanted, int) and len(values) != wanted) or (wanted == "+" and not values):
            faults.append(Fault(name, FaultKind.NUMBER_OF_VALUES, values))
        kinds = {"int": int, "float": float}
        for value in values:
            try:
                typed = kinds.get(option["type"], str)(value)
            except ValueError:
                faults.append(Fault(name, FaultKind.TYPE, (value,)))
                continue
            if "choices" in option and typed not in option["choices"]:
                faults.append(Fault(name, FaultKind.CHOICE, (value,)))
    names = [word for word in arguments if word.startswith("--")]
    twice = [name for name in set(names) if names.count(name) > 1]
    return faults + [Fault(name, FaultKind.TWICE) for name in twice]


def unknown_keys(arguments, keys):
    """Return overrides for keys that the published configuration lacks, or that replace a section
    instead of a value.
    """
    words = [
        word.partition("=")[0]
        for word in arguments
        if not word.startswith(("--config-path=", "--config-name="))
    ]
    return [word for word in words if word.lstrip("+") not in keys] + [
        w for w in set(words) if words.count(w) > 1
    ]


def test_the_judge_of_options_finds_each_kind_of_fault():
    options = {
        "--size": {"values": 1, "type": "int"},
        "--way": {"values": 1, "type": "str", "choices": ["up"]},
        "--flag": {"values": 0, "type": "flag"},
        "--some": {"values": "+", "type": "str"},
    }
    assert faults(["--size", "1", "--way", "up", "--flag", "--some", "a", "b"], options) == []
    number = FaultKind.NUMBER_OF_VALUES
    wrong_type = FaultKind.TYPE
    assert faults(["--sise", "1"], options) == [Fault("--sise", FaultKind.UNKNOWN)]
    assert faults(["--size"], options) == [Fault("--size", number)]
    assert faults(["--size", "1.5"], options) == [Fault("--size", wrong_type, ("1.5",))]
    assert faults(["--way", "down"], options) == [Fault("--way", FaultKind.CHOICE, ("down",))]
    assert faults(["--flag", "1"], options) == [Fault("--flag", number, ("1",))]
    assert faults(["--flag", "--flag"], options) == [Fault("--flag", FaultKind.TWICE)]
    assert faults(["--some"], options) == [Fault("--some", number)]


@pytest.mark.parametrize("run", RUNS)
def test_arguments_in_the_script_are_those_of_the_list(run, tmp_path):
    _, _, job = rendered(run, "04-training")
    text = job.files["rank.sh"]
    array = text[text.index("arguments=(") : text.index("\n)\n") + 3]
    script = tmp_path / "array.sh"
    script.write_text(f'{array}printf "%s\\0" "${{arguments[@]}}"\n')
    said = shell.run(["bash", str(script)]).out
    assert said.split("\0")[:-1] == job.arguments
    assert json.loads(texts(job)["arguments.json"]) == job.arguments
