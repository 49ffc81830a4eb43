"""What reaches the five machines: word for word, readable by bash and by the upstream programs."""

import json
import shutil

import pytest
from sites import GOLDEN, NAMES, PHASES, RUNS, facts, rendered, texts

from runbook import shell
from runbook.errors import PlanError
from runbook.params.schema import Framework

REFUSED = {"lumi-13b:13b-1n-dp8-zero1": "need 68"}
"""Variants that stand in a document and cannot have been so: the plan refuses them, with these words."""

SCRIPTS = [path for site in GOLDEN.iterdir() if site.name != "local" for path in sorted(site.rglob("*.sh"))]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("run", RUNS)
def test_the_files_are_the_expected_ones_word_for_word(run, phase):
    settings, _, job = rendered(run, phase)
    folder = GOLDEN / settings.site.site / phase
    expected = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert texts(job) == expected


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_bash_can_read_the_script(script):
    shell.run(["bash", "-n", str(script)])


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    assert shell.run(["shellcheck", *map(str, SCRIPTS)]).out == ""


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("phase", PHASES)
def test_the_upstream_program_has_every_option(name, phase):
    if name in REFUSED:
        with pytest.raises(PlanError, match=REFUSED[name]):
            rendered(name, phase)
        return
    settings, _, job = rendered(name, phase)
    framework = settings.run.training.framework
    if framework is Framework.RUNBOOK:
        assert job.arguments == ["plan.json", "--phase", phase]
        return
    checkout = settings.site.frameworks[framework]
    known = facts(checkout.repository, checkout.commit)
    if framework is Framework.NEMO:
        assert unknown_keys(job.arguments, known["keys"]) == []
    else:
        assert faults(job.arguments, known["options"]) == []


def faults(arguments, options):
    """What the upstream parser would refuse: unknown options, wrong number, type or choice of values."""
    found, place = [], 0
    while place < len(arguments):
        name = arguments[place]
        end = next((i for i in range(place + 1, len(arguments)) if arguments[i].startswith("--")), len(arguments))
        values, place = arguments[place + 1 : end], end
        if name not in options:
            found.append(f"{name} is unknown")
            continue
        option = options[name]
        wanted = option["values"]
        if (isinstance(wanted, int) and len(values) != wanted) or (wanted == "+" and not values):
            found.append(f"{name} takes {wanted} values, not {values}")
        kinds = {"int": int, "float": float}
        for value in values:
            try:
                typed = kinds.get(option["type"], str)(value)
            except ValueError:
                found.append(f"{name} takes {option['type']}, not {value}")
                continue
            if "choices" in option and typed not in option["choices"]:
                found.append(f"{name} is one of {option['choices']}, not {value}")
    names = [word for word in arguments if word.startswith("--")]
    return found + [f"{name} twice" for name in set(names) if names.count(name) > 1]


def unknown_keys(arguments, keys):
    """Overrides of keys that the published configuration lacks, or of a section instead of a value."""
    words = [word.partition("=")[0] for word in arguments if not word.startswith(("--config-path=", "--config-name="))]
    return [word for word in words if word.lstrip("+") not in keys] + [w for w in set(words) if words.count(w) > 1]


def test_the_judge_of_options_finds_each_kind_of_fault():
    options = {
        "--size": {"values": 1, "type": "int"},
        "--way": {"values": 1, "type": "str", "choices": ["up"]},
        "--flag": {"values": 0, "type": "flag"},
        "--some": {"values": "+", "type": "str"},
    }
    assert faults(["--size", "1", "--way", "up", "--flag", "--some", "a", "b"], options) == []
    assert faults(["--sise", "1"], options) == ["--sise is unknown"]
    assert faults(["--size"], options) == ["--size takes 1 values, not []"]
    assert faults(["--size", "1.5"], options) == ["--size takes int, not 1.5"]
    assert faults(["--way", "down"], options) == ["--way is one of ['up'], not down"]
    assert faults(["--flag", "1"], options) == ["--flag takes 0 values, not ['1']"]
    assert faults(["--flag", "--flag"], options) == ["--flag twice"]
    assert faults(["--some"], options) == ["--some takes + values, not []"]


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
