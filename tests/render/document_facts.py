"""Flat facts about the values that a document's script and our script pass, used to compare them.

Kinds: directives (for the queue), step (srun, mpiexec, singularity), starter (torchrun, deepspeed),
arguments (for the program; with NeMo, the whole configuration), environment, deepspeed (the values
in its file).
"""

import json
import re
import shlex

from tests.render.sites import PROJECT, rendered

SAMPLES = PROJECT / "tests" / "samples" / "documents"
KINDS = ("directives", "step", "starter", "arguments", "environment", "deepspeed")
PLACES = {"--save", "--load", "--tensorboard-dir", "--data-cache-path", "--deepspeed_config"}
"""Options that take a folder or file, which differs in every run."""


def sample(run, variant):
    """Return the facts about a document's script: the default ones, changed for this variant."""
    variants = json.loads((SAMPLES / f"{run}.json").read_text(encoding="utf-8"))["variants"]
    found = {kind: dict(values) for kind, values in variants[""].items()}
    for kind, values in variants[variant].items() if variant else ():
        found[kind] = {
            key: value for key, value in ({**found[kind], **values}).items() if value is not None
        }
    return found


def ours(name):
    """Return the same facts for the job that we render."""
    settings, _, job = rendered(name, "04-training")
    text = {
        file: content.replace("/GIVE_JOBS_STAGE", "{stage}") for file, content in job.files.items()
    }
    script = job.script.replace("/GIVE_JOBS_STAGE", "{stage}")
    found = {kind: {} for kind in KINDS}
    directives, environment = of_script(script)
    rank_environment = of_script(text["rank.sh"])[1]
    found["directives"], found["environment"] = directives, {**environment, **rank_environment}
    step = re.search(
        r"^export RUNBOOK_SECONDS_LEFT=.*?\n((?:srun|mpiexec) .*?)</dev/null", script, re.M | re.S
    )
    words = _with_starter_names(shlex.split(step[1].replace("\\\n", " ")))
    at = next(
        place for place, word in enumerate(words) if word in ("torchrun", "deepspeed", "bash")
    )
    inside = words.index("singularity") if "singularity" in words else at
    found["step"] = options_of(words[1:inside], words[0]) | options_of(
        words[inside + 2 : at - 1], "singularity"
    )
    found["starter"] = options_of(words[at + 1 : -2], words[at]) if at < len(words) - 2 else {}
    program = re.search(r"^python3 -u (\S+) ", text["rank.sh"], re.M)[1]
    arguments = [word.replace("/GIVE_JOBS_STAGE", "{stage}") for word in job.arguments]
    found["arguments"] = {
        "program": program.rpartition("/")[2],
        **options_of(arguments, "", short=True),
    }
    for file, content in text.items():
        if file.endswith(".json"):
            found["deepspeed"] = flat(json.loads(content))
    if settings.run.training.framework == "nemo":
        base = sample(settings.run.run, "")["arguments"]
        found["arguments"] = {**base, **_plain_hydra(found["arguments"])}
    return found


def _with_starter_names(words):
    """Replace `python3 -m MODULE`, which runs a starter, with the program that the documents call."""
    names = {"torch.distributed.run": "torchrun", "deepspeed.launcher.runner": "deepspeed"}
    for module, name in names.items():
        if module in words:
            at = words.index(module)
            return [*words[: at - 2], name, *words[at + 1 :]]
    return words


def differences(theirs, own):
    """Return each fact that differs, as kind and name, with both values. None means absent."""
    return {
        (kind, name): (theirs.get(kind, {}).get(name), own.get(kind, {}).get(name))
        for kind in KINDS
        for name in sorted(theirs.get(kind, {}).keys() | own.get(kind, {}).keys())
        if theirs.get(kind, {}).get(name) != own.get(kind, {}).get(name)
    }


def of_script(text):
    """Return the directives in a batch script and the variables that it exports or unsets, as
    written.
    """
    directives = {}
    environment = {}
    for line in text.splitlines():
        if match := re.match(r"#SBATCH --([\w-]+)(?:[= ](\S+))?\s*$", line):
            directives[match[1]] = "(yours)" if match[1] == "account" else match[2] or ""
        elif match := re.match(r"#PBS -l (\w+)=(\S+)|#PBS -(\w) (\S+)", line):
            name = f"-l {match[1]}" if match[1] else f"-{match[3]}"
            directives[name] = "(yours)" if name == "-A" else match[2] or match[4]
        elif match := re.match(r"unset (\w+)$", line):
            environment[match[1]] = "(unset)"
        elif line.startswith("export "):
            words = re.sub(r"\$\(\((.*?)\)\)", lambda found: found[0].replace(" ", ""), line)
            environment |= dict(
                word.split("=", 1) for word in shlex.split(words)[1:] if "=" in word
            )
    return directives, {name: value for name, value in environment.items() if value != f"${name}"}


def options_of(words, program, *, short=False):
    """Return options by name.

    With `short`, a path is reduced to its last part, because every machine has its own folders.
    """
    found = {}
    name = ""
    for word in words:
        head, equals, value = word.partition("=")
        if word.startswith("-") and not re.match(r"-\d", word):
            name = head
            found[_spelled(name, program)] = [_value(value, name, short)] if equals else []
        elif equals and re.fullmatch(r"[+~]*[\w.]+", head):  # Hydra's name=value
            found[head.lstrip("+")] = [_value(value, head, short)]
        elif name:
            found[_spelled(name, program)].append(_value(word, name, short))
    return {name: " ".join(values) for name, values in found.items()}


def _spelled(name, program):
    return f"{program} {name}".strip() if not program else f"{program} {name.replace('_', '-')}"


def _value(word, name, short):
    if short and name in PLACES:
        return "(a place of its own)"
    if short and "/" in word and not word.startswith(("'", "[")):
        word = "…/" + word.rstrip("/").rpartition("/")[2]
    return number(word)


def number(word):
    """Return a number in a uniform spelling, and anything else unchanged.

    >>> number("6.0e-5"), number("6e-05"), number("1.0"), number("True"), number(None)
    ('6e-05', '6e-05', '1', 'true', 'null')
    """
    if word is None or isinstance(word, bool) or word in ("True", "False"):
        return "null" if word is None else str(word).lower()
    try:
        value = float(word)
    except (TypeError, ValueError):
        return str(word)
    return str(int(value)) if value.is_integer() else repr(value)


def flat(values, path=""):
    """Return a nested mapping by dotted keys."""
    found = {}
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            found |= flat(value, f"{name}.")
        else:
            found[name] = (
                " ".join(number(item) for item in value)
                if isinstance(value, list)
                else number(value)
            )
    return found


def hydra_values(base, given):
    """Return the NeMo configuration that a script starts: the file with the overrides applied."""
    values = {key: _resolved(value, key, base) for key, value in flat({**base, "run": {}}).items()}
    return {**{key: _short(value) for key, value in values.items()}, **_plain_hydra(given)}


def _resolved(value, key, base):
    """Return a value with references resolved and products computed, as OmegaConf does."""

    def of(match):
        path = match[1].removeprefix("training.")
        found = base
        for part in (f"{key.rpartition('.')[0]}{path}" if path.startswith(".") else path).split(
            "."
        ):
            found = found.get(part, "") if isinstance(found, dict) else ""
        return str(found)

    value = re.sub(r"\$\{([.\w]+)\}", of, value)
    product = re.fullmatch(r"\$\{multiply:(\d+), ?(\d+)\}", value)
    return str(int(product[1]) * int(product[2])) if product else value


def _plain_hydra(given):
    found = {}
    for name, value in given.items():
        if name.startswith("--config") or name in ("container", "cluster_type"):
            continue
        if value.startswith("["):
            value = " ".join(_short(number(item)) for item in value.strip("[]").split(","))
        found[name] = value.strip("'")
    return found


def _short(value):
    return " ".join(
        "…/" + word.rpartition("/")[2] if "/" in word else word for word in str(value).split(" ")
    )
