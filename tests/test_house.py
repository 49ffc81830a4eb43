"""The project structure: walls between packages, an install without extras, and documents that only
name things that exist.
"""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from runbook.cli.messages import CliMessage
from runbook.phases.messages import PhaseMessage

REPOSITORY = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = {"jupyter", "train", "data", "forecast", "test", "docs"}
TRACKERS = {"mlflow", "trackio", "wandb", "evaluation"}  # for users who want one; not in the lock
BASE = {"click", "jinja2", "psutil", "pydantic", "pyyaml"}
IMPORT_NAMES = {
    "megatron-core": "megatron",
    "backports-zstd": "backports",
    "jupyterlab": "jupyterlab",
}
ALSO_ABSENT = {"nbformat", "IPython", "jupyter_client", "jupyter_core", "traitlets", "zmq", "tqdm"}
"""Dependencies of the extras that the base install does not bring."""
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def requirement_name(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower()


def absent_without_extras() -> set[str]:
    """Return the import names of all packages that only the extras install."""
    brought = {
        requirement_name(one)
        for name, group in PROJECT["project"]["optional-dependencies"].items()
        if name in ("jupyter", "train", "data")
        for one in group
    }
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in brought - BASE} | ALSO_ABSENT


def without_extras(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in which the packages of all extras cannot be imported."""
    program = BLOCK.format(absent=absent_without_extras()) + code
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )


def tracked() -> list[Path]:
    """Return the files in the repository, or without git, all existing files."""
    if (REPOSITORY / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout
        return [
            path for name in listed.split("\0") if name and (path := REPOSITORY / name).is_file()
        ]
    skip = (".venv", "runs", ".git")
    return [
        path
        for path in REPOSITORY.rglob("*")
        if path.is_file() and path.relative_to(REPOSITORY).parts[0] not in skip
    ]


def test_the_walls_between_packages_hold():
    ended = subprocess.run(
        [BIN / "lint-imports", "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout
    assert " 0 broken" in ended.stdout
    contracts = {one["name"]: one for one in PROJECT["tool"]["importlinter"]["contracts"]}
    assert set(contracts) >= {
        "Arrows point one way",
        "training stands alone",
        "only training imports torch, megatron or deepspeed",
        "only shell starts programs",
    }


def test_every_package_has_its_place_in_the_order():
    """Check that each package belongs to a layer, because lint-imports ignores all others."""
    (layers,) = [
        one["layers"]
        for one in PROJECT["tool"]["importlinter"]["contracts"]
        if one["type"] == "layers"
    ]
    named = {name.strip().removeprefix("runbook.") for layer in layers for name in layer.split("|")}
    there = {
        path.stem
        for path in (REPOSITORY / "runbook").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    assert there - named <= {"training", "__main__", "workflow"}


def test_the_extras_are_the_promised_ones_and_only_train_brings_torch():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == EXTRAS | TRACKERS | {"all", "ftfy"}
    assert {requirement_name(one) for one in PROJECT["project"]["dependencies"]} == BASE
    with_torch = {name for name, group in extras.items() if "torch" in map(requirement_name, group)}
    assert with_torch == {"train"}
    jupyter = set(map(requirement_name, extras["jupyter"]))
    assert {"jupyterlab", "papermill", "nbclient", "ipywidgets", "pandas", "matplotlib"} <= jupyter
    assert {"torch", "megatron-core", "deepspeed", "tensorboard"} <= set(
        map(requirement_name, extras["train"])
    )


def test_the_lock_pins_everything_that_is_asked_for():
    lock = (REPOSITORY / "requirements.lock").read_text()
    pinned = {
        match.lower().replace("_", "-")
        for match in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)
    }
    groups = PROJECT["project"]["optional-dependencies"]
    asked = {requirement_name(one) for name in EXTRAS - {"docs"} for one in groups[name]} | BASE
    assert {name.replace("_", "-") for name in asked} - pinned == set()
    assert re.search(r"^torch==2\.13\.0\b", lock, re.MULTILINE)
    loose = [
        line
        for line in lock.splitlines()
        if line.strip() and not line.lstrip().startswith(("#", "--")) and "==" not in line
    ]
    assert loose == []


def test_without_extras_everything_a_login_node_needs_is_imported():
    modules = [
        *(
            "runbook.cli",
            "runbook.params",
            "runbook.params.run_loader",
            "runbook.planning",
            "runbook.jobs.render",
        ),
        *(
            "runbook.jobs",
            "runbook.records.manifest",
            "runbook.log_readers",
            "runbook.cli.plan",
        ),
        *("runbook.cli.run", "runbook.cli.report", "runbook.cli.logs", "runbook.cli.init"),
        *(
            "runbook.phases.runner",
            "runbook.phases.run_plan",
            "runbook.phases.run_checks",
            "runbook.phases.rendered_jobs",
            "runbook.runs.status",
            "runbook.phases.p01_environment.phase",
        ),
    ]
    code = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    every_command = (
        "\nfrom runbook.cli.commands import COMMANDS, load_command"
        "\nfor name in COMMANDS: load_command(name)"
    )
    ended = without_extras(code + every_command, *modules)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("check", "local"),
        ("plan", "local"),
        ("plan", "local", "--json", "--set", "training.sample_prompt="),
        ("why", "local", "training.iterations"),
        ("render", "local", "--out", "{tmp}", "--set", "training.sample_prompt="),
        ("status", "--runs", "{tmp}"),
    ],
)
def test_without_extras_a_run_can_be_checked_planned_and_rendered(words, tmp_path):
    ended = without_extras(
        "from runbook.cli import main\nmain()", *(word.format(tmp=tmp_path) for word in words)
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_without_extras_a_run_with_a_trained_ladder_is_planned(tmp_path):
    main = "from runbook.cli import main\nmain()"
    assert without_extras(main, "init", str(tmp_path)).returncode == 0
    ladder = tmp_path / "runs/local--ladder/ladder.json"
    ladder.parent.mkdir(parents=True)
    ladder.write_text("{}")
    in_project = "import os, sys\nos.chdir(sys.argv.pop(1))\n" + main
    ended = without_extras(in_project, str(tmp_path), "plan", "local")
    assert (ended.returncode, ended.stderr) == (0, "")
    reason = PhaseMessage.LADDER_NEEDS_PACKAGE.fill(package="numpy")
    assert reason in " ".join(ended.stdout.split())


def test_a_package_of_an_extra_that_is_missing_is_told_with_the_extra(tmp_path):
    code = "from runbook.cli import main\nmain()"
    ended = without_extras(
        code, "run", "local", "--set", "training.sample_prompt=", "--runs", str(tmp_path)
    )
    assert ended.returncode == 1
    missing = CliMessage.PACKAGE_MISSING.fill(
        package="papermill", remedy=CliMessage.ANY_EXTRA.fill(extra="jupyter")
    )
    assert ended.stderr == f"Error: {missing}\n"
    ended = without_extras(code, "data", "show", "nowhere")
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"{CliMessage.ANY_EXTRA.fill(extra='data')}\n")


def test_a_missing_module_that_no_extra_brings_is_not_hidden():
    from runbook.cli.extras import which_extra

    with pytest.raises(ModuleNotFoundError):
        which_extra(
            ModuleNotFoundError("No module named 'runbook.nothing'", name="runbook.nothing")
        )


def test_every_package_of_the_jupyter_and_data_extras_is_known_to_the_command_line():
    from runbook.cli import extras

    groups = PROJECT["project"]["optional-dependencies"]
    tools = {"jupyterlab", "ipywidgets"}  # never imported by the package
    for name in ("jupyter", "data"):
        asked = {IMPORT_NAMES.get(one, one) for one in map(requirement_name, groups[name])} - tools
        known = {
            package.lower() for packages in extras.EXTRAS.values() for package in packages.split()
        }
        assert asked - known == set(), name


def test_the_wheel_holds_what_the_package_reads():
    """hatchling packs the files that git does not ignore, so no file that the packages read may be
    ignored.
    """
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["runbook"]
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert [
        path
        for path in (*wheel["shared-data"], *wheel["force-include"])
        if not (REPOSITORY / path).exists()
    ] == []
    names = {path.relative_to(REPOSITORY).as_posix() for path in tracked()}
    wanted = {
        "runbook/tokens/gpt2/vocab.json",
        "runbook/tokens/gpt2/merges.txt",
        "runbook/tokens/gpt2/LICENSE",
    }
    for folder, pattern in {
        "runbook/tokens/corpus": "*.zst",
        "runbook/jobs/render/templates": "*.j2",
        "runbook/records/pages/templates": "*",
        "runbook/results/published": "*.csv",
        "runbook/tools/adopt": "*.json",
        "runbook/tools/speed": "*.csv",
        "runbook/results": "*.json",
        "runbook/tokens": "probes.json",
        "runbook/training/checkpoints": "*.json",
        "runbook/phases": "*.md",
    }.items():
        files = [path for path in (REPOSITORY / folder).rglob(pattern) if path.is_file()]
        found = {path.relative_to(REPOSITORY).as_posix() for path in files}
        assert found, folder
        wanted |= found
    assert wanted - names == set()


def test_the_entry_points_are_there():
    scripts = PROJECT["project"]["scripts"]
    engines = PROJECT["project"]["entry-points"]["papermill.engine"]
    code = "import importlib, json\nfor place in sys.argv[1:]:\n" + (
        "    module, _, name = place.partition(':')\n    assert getattr(importlib.import_module(module), name)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", "import sys\n" + code, *scripts.values(), *engines.values()],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert (list(scripts), list(engines)) == (["runbook"], ["runbook"])


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_path_a_document_names_exists(name):
    text = re.sub(r"```.*?```", "", (REPOSITORY / name).read_text(), flags=re.DOTALL)
    made_later = ("runs/", "build/", ".venv/", "records/", "http")
    named = {
        word.rstrip("/.,")
        for span in re.findall(r"`([^`\n]+)`", text)
        for word in span.split()
        if "/" in word and not word.startswith(made_later) and re.fullmatch(r"[\w./*-]+", word)
    }
    missing = [
        word
        for word in sorted(named)
        if not list(REPOSITORY.glob(word)) and not _is_alternative(word)
    ]
    assert missing == []
    assert named or name != "README.md"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_module_a_guide_names_exists_in_the_package_or_the_repository(name):
    spans = re.findall(r"`([\w./-]+/[\w.-]+\.py)`", (REPOSITORY / name).read_text())
    missing = []
    for module in spans:
        is_placeholder = Path(module).stem.isupper()
        if is_placeholder:
            continue
        if not (REPOSITORY / module).exists() and not (REPOSITORY / "runbook" / module).exists():
            missing.append(module)

    assert spans
    assert missing == []


def test_the_readme_is_read_in_three_minutes():
    assert len((REPOSITORY / "README.md").read_text().split()) <= 900


def _is_alternative(word: str) -> bool:
    """Return whether a word lists alternatives, such as `plan/predict`, instead of a path."""
    first = word.partition("/")[0]
    return not (REPOSITORY / first).exists()


def test_no_place_of_a_machine_is_named():
    pattern = re.compile(
        r"(?<![\w.$}])/(?:root|work|Users/[a-z]\w*|home/(?!x/|user/|me/|ada/)[a-z]\w*)(?:/|\b)"
    )
    found = []
    for path in tracked():
        if path == Path(__file__) or path.suffix in (".zst", ".png"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        found += [f"{path.relative_to(REPOSITORY)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_every_module_says_its_one_reason_in_its_first_line():
    for path in [
        *sorted((REPOSITORY / "runbook").rglob("*.py")),
    ]:
        text = path.read_text()
        if not text.strip():
            continue
        first = text.splitlines()[0]
        assert first.startswith(('"""', 'r"""')), path
        assert len(first) > 20, path


LISTED_MODULE = re.compile(r"^([a-z][a-z_0-9]*)/? {2,}\S", re.MULTILINE)
"""A line in a package docstring that names a module or a package, and says what it does."""


def test_every_module_that_a_package_lists_exists():
    listed = set()
    missing = []
    for path in (REPOSITORY / "runbook").rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        for name in LISTED_MODULE.findall(docstring):
            listed.add(name)
            if not ((path.parent / name).is_dir() or path.with_name(f"{name}.py").exists()):
                missing.append(f"{path.relative_to(REPOSITORY)}: {name}")

    assert missing == []
    assert len(listed) >= 8  # those in runbook.training.near


MOST_LOOSE_SIGNATURES = 70
"""Maximum number of functions that take or return a `dict[str, Any]`.

Lower it when there are fewer.
"""


def package_modules() -> dict[str, Path]:
    paths = sorted((REPOSITORY / "runbook").rglob("*.py"))
    return {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def test_no_module_imports_itself_through_others():
    """The test covers cycles inside packages, and imports inside functions or only for types."""
    modules = package_modules()
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                targets = (f"{node.module}.{alias.name}" for alias in node.names)
                graph[name] |= {
                    target if target in modules else node.module for target in targets
                } - {name}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the cycle


PHASE_NAME = re.compile(r"0[0-6]-[a-z]+(-test)?(--[a-z-]+)?")
WITHOUT_PHASE_NAMES = {
    # It imports none of our modules, because importing node_checks on any node imports this package
    # first.
    "runbook",
    "runbook.plan_file.phase_names",
}


def test_the_name_of_a_phase_is_written_once():
    repeated = []
    for name, path in package_modules().items():
        text = path.read_text()
        is_checked = name not in WITHOUT_PHASE_NAMES and not name.startswith("runbook.tools.")
        # Most modules have none, and parsing is slow, so check the text first.
        if not is_checked or not PHASE_NAME.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and PHASE_NAME.fullmatch(node.value):
                repeated.append(f"{name}:{node.lineno}: {node.value}")

    assert repeated == []


def test_untyped_mappings_stay_at_the_edge():
    loose = 0
    for path in package_modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                annotations = [
                    argument.annotation
                    for argument in ast.walk(node.args)
                    if isinstance(argument, ast.arg)
                ]
                text = " ".join(
                    ast.unparse(each) for each in (*annotations, node.returns) if each is not None
                )
                loose += "dict[str, Any]" in text or "Mapping[str, Any]" in text
    assert loose <= MOST_LOOSE_SIGNATURES


def test_no_class_name_means_two_things():
    """Also check that no two functions in the package have equal bodies."""
    classes: dict[str, list[str]] = {}
    functions: dict[str, list[str]] = {}
    for name, path in package_modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(name)
            elif isinstance(node, ast.FunctionDef) and len(ast.unparse(node).splitlines()) > 3:
                body = "\n".join(ast.unparse(part) for part in node.body)
                functions.setdefault(body, []).append(f"{name}.{node.name}")
    assert {
        name: places
        for name, places in classes.items()
        if len(places) > 1 and not name.startswith("_")
    } == {}
    assert [places for places in functions.values() if len(places) > 1] == []
