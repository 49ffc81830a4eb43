"""Write <framework>-<commit>.json: the options in an upstream checkout, read from its source
without running it.

    python tests/upstream/make.py GIT_DIRECTORY megatron-lm REPOSITORY COMMIT FILE...
    python tests/upstream/make.py GIT_DIRECTORY nemo REPOSITORY COMMIT FILE.yaml...

Only facts are kept: names, value counts, types and choices, and the dotted keys and value kinds in
a configuration.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent

DEEPSPEED = {
    "--deepspeed": {"values": 0, "type": "flag"},
    "--deepspeed_config": {"values": 1, "type": "str"},
    "--deepspeed_mpi": {"values": 0, "type": "flag"},
}
"""The options that deepspeed.add_config_arguments adds (DeepSpeed 0.12 to 0.19), which no file in
the checkouts contains.
"""


def source(git, commit, name):
    """Return a file from the checkout at the commit."""
    return subprocess.run(
        ["git", "-C", git, "show", f"{commit}:{name}"], capture_output=True, text=True, check=True
    ).stdout


def options(text):
    """Return every `add_argument` call in a Python source: option names, and what may follow them."""
    found = {}
    for call in ast.walk(ast.parse(text)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        if call.func.attr == "add_config_arguments":
            found |= DEEPSPEED
        if call.func.attr != "add_argument":
            continue
        names = [word.value for word in call.args if isinstance(word, ast.Constant)]
        words = {word.arg: word.value for word in call.keywords}
        for name in names:
            if name.startswith("-"):
                found[name] = fact(words)
    return found


def fact(words):
    """Return how many values an option takes, their type, and which ones are allowed."""
    action = literal(words.get("action"), "store")
    if action in ("store_true", "store_false", "store_const", "count", "help"):
        return {"values": 0, "type": "flag"}
    if not isinstance(action, str):  # argparse.BooleanOptionalAction and similar actions
        return {"values": 0, "type": "flag"}
    kind = words.get("type")
    entry = {
        "values": literal(words.get("nargs"), 1),
        "type": kind.id if isinstance(kind, ast.Name) else "str",
    }
    choices = allowed(words.get("choices"))
    return entry | ({"choices": choices} if choices is not None else {})


def literal(node, default):
    """Return the value that a literal has, or the default if there is none."""
    if node is None:
        return default
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node) if isinstance(node, ast.Constant) else object()


def allowed(node):
    """Return the choices as a list, or None if they cannot be read from the source."""
    if node is None:
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        return list(range(*[ast.literal_eval(word) for word in node.args]))
    value = literal(node, None)
    return list(value) if isinstance(value, list | tuple) else None


def keys(text):
    """Return the dotted keys in a configuration, each with its value kind."""
    return dict(sorted(walk(yaml.safe_load(text), "")))


def walk(tree, prefix):
    """Yield the leaves of nested mappings."""
    for name, value in tree.items():
        here = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from walk(value, f"{here}.")
        else:
            yield here, type(value).__name__ if value is not None else "null"


def main(git, framework, repository, commit, *files):
    """Write the facts about one checkout."""
    facts = {}
    for name in files:
        facts |= (
            keys(source(git, commit, name))
            if framework == "nemo"
            else options(source(git, commit, name))
        )
    header = {
        "framework": framework,
        "repository": repository,
        "commit": commit,
        "files": list(files),
    }
    body = {"keys" if framework == "nemo" else "options": dict(sorted(facts.items()))}
    path = HERE / f"{framework}-{commit[:8]}.json"
    path.write_text(json.dumps(header | body, indent=1) + "\n")
    print(f"{path.name}: {len(facts)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
