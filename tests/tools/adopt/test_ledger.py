"""The adoption ledger: every word that a script passes to its training program is in one row of the
proof.

The scripts are random: lists of options, written with odd quotes, arrays, functions, here-documents
and variables. What the training program should get is known without reading the script.
"""

from __future__ import annotations

import random
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.launches import Launch
from runbook.tools.adopt.proof import OptionVerdict, ProvenOption, unlisted_words
from runbook.tools.adopt.script import Word

REQUIRED_OPTIONS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --train-iters 100 --lr 1e-4"
)
REQUIRED = shlex.split(REQUIRED_OPTIONS)
KNOWN = (
    ("--min-lr", "1e-5"),
    ("--lr-decay-style", "cosine"),
    ("--lr-warmup-iters", "10"),
    ("--weight-decay", ".1"),
    ("--adam-eps", "1e-6"),
    ("--clip-grad", "0.5"),
    ("--hidden-dropout", "0"),
    ("--attention-dropout", "0.3"),
    ("--bf16",),
    ("--swiglu",),
    ("--seed", "7"),
    ("--split", "949,50,1"),
    ("--data-path", "0.3", "/data/a b_text_document", "0.7", "/data/c'd_text_document"),
    ("--tokenizer-type", "Llama2Tokenizer", "left_over"),
    ("--tokenizer-model", "/models/it's/tokenizer.model"),
    ("--exit-duration-in-mins", "1190"),
    ("--rampup-batch-size", "16", "16", "1000"),
    ("--recompute-granularity", "selective"),
    ("--async-save",),
    ("--vocab-size", "50257"),
)
STRANGE_VALUES = (
    "plain",
    "two words",
    "-0.5",
    "a=b=c",
    "*",
    "[1,2]",
    '{"loss": 1}',
    "quote's",
    'double"quote',
    "back\\slash",
    "$HOME_is_text",
    "semi;colon",
    "ünïcode",
    "",
    "#no-comment",
    "~",
)


def random_options(rng: random.Random) -> list[list[str]]:
    """Return known options, unknown options, and words that do not belong to any option."""
    options = [list(option) for option in rng.sample(KNOWN, 9)]
    for number in range(7):
        values = rng.choices(STRANGE_VALUES, k=rng.choice((0, 1, 1, 2)))
        name = f"--own-option-{number}"
        if values and rng.random() < 0.4:
            options.append([f"{name.replace('-', '_').replace('__', '--', 1)}={values[0]}"])
        else:
            options.append([name, *values])
    rng.shuffle(options)
    return options


def _quoted(rng: random.Random, word: str) -> str:
    """Write a word in one of the ways that bash accepts."""
    ansi = "$'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
    letters = "".join(letter if letter.isalnum() else f"\\{letter}" for letter in word)
    return rng.choice((shlex.quote(word), ansi, letters or "''"))


def _on_one_line(rng: random.Random, words: Sequence[str]) -> str:
    return f"torchrun pretrain_gpt.py {' '.join(_quoted(rng, word) for word in words)}\n"


def _in_arrays(rng: random.Random, words: Sequence[str]) -> str:
    middle = len(words) // 2
    first = "\n  ".join(_quoted(rng, word) for word in words[:middle])
    second = " ".join(_quoted(rng, word) for word in words[middle:])
    return f'A=(\n  {first} # a comment\n)\nA+=({second})\ntorchrun pretrain_gpt.py "${{A[@]}}"\n'


def _in_a_function(rng: random.Random, words: Sequence[str]) -> str:
    text = " \\\n    ".join(_quoted(rng, word) for word in words)
    return f'train() {{\n  torchrun pretrain_gpt.py "$@"\n}}\ntrain \\\n    {text}\n'


def _in_a_here_document(rng: random.Random, words: Sequence[str]) -> str:
    lines = "\n".join(words)
    return f"mapfile -t A <<'END'\n{lines}\nEND\ntorchrun pretrain_gpt.py \"${{A[@]}}\"\n"


def _in_variables(rng: random.Random, words: Sequence[str]) -> str:
    assignments = "".join(f"V{n}={_quoted(rng, word)}\n" for n, word in enumerate(words))
    names = " ".join(f'"$V{n}"' for n in range(len(words)))
    return f"{assignments}torchrun pretrain_gpt.py {names}\n"


def _by_eval(rng: random.Random, words: Sequence[str]) -> str:
    command = f"torchrun pretrain_gpt.py {shlex.join(words)}"
    return f"CMD={shlex.quote(command)}\neval $'{_ansi(command)}'\n"


def _ansi(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _by_another_shell(rng: random.Random, words: Sequence[str]) -> str:
    return f"bash -c {shlex.quote(_on_one_line(rng, words))}\n"


FORMS: Sequence[Callable[[random.Random, Sequence[str]], str]] = (
    _on_one_line,
    _in_arrays,
    _in_a_function,
    _in_a_here_document,
    _in_variables,
    _by_eval,
    _by_another_shell,
)


def report_of(folder: Path, text: str) -> AdoptReport:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
    return adopt([script], folder / "mine.yaml", replace=True)


def words_of(launch: Launch) -> list[str]:
    return [word.text for word in launch.arguments]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.strip("_"))
def test_every_word_of_a_random_script_is_in_the_proof(form, tmp_path):
    rng = random.Random(f"37-{form.__name__}")
    options = random_options(rng)
    words = [*REQUIRED, *(word for option in options for word in option)]
    report = report_of(tmp_path, form(rng, words))

    launch = report.adopted.launch
    assert launch is not None
    assert words_of(launch) == words  # nothing is lost between the script and what adopt reads
    assert unlisted_words(launch.arguments, report.proof) == []

    shown = Counter(row.option.partition("=")[0].lstrip("-") for row in report.proof)
    for option in options:
        name = option[0].partition("=")[0].lstrip("-").replace("_", "-")
        assert shown[name] == 1, name
    for row in report.proof:
        assert row.why or row.verdict in (OptionVerdict.SAME, OptionVerdict.UNACCOUNTED), row


def test_a_word_that_no_row_shows_is_unaccounted_for():
    arguments = [Word("--lr", 1), Word("1e-4", 1), Word("--seed", 2), Word("7", 2)]
    row = ProvenOption("lr", "1e-4", "1e-4", OptionVerdict.SAME, "", 1)
    lost = unlisted_words(arguments, [row])
    assert [(row.option, row.verdict, row.line) for row in lost] == [
        ("word --seed", OptionVerdict.UNACCOUNTED, 2),
        ("word 7", OptionVerdict.UNACCOUNTED, 2),
    ]


def test_a_word_behind_an_option_that_takes_fewer_is_named(tmp_path):
    text = f"torchrun pretrain_gpt.py {REQUIRED_OPTIONS} --tokenizer-type NullTokenizer extra --bf16 yes\n"
    rows = {row.option: row for row in report_of(tmp_path, text).proof}
    assert rows["word extra"].verdict is rows["word yes"].verdict is OptionVerdict.DROPPED


def test_options_of_launchers_are_in_the_proof(tmp_path):
    text = (
        "srun --mpi=pmix --cpu-bind=none -x bad01 "
        f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {REQUIRED_OPTIONS}\n"
    )
    rows = {row.option: row for row in report_of(tmp_path, text).proof}
    assert rows["srun --mpi=pmix"].verdict is OptionVerdict.DROPPED
    assert rows["srun -x bad01"].why
    nodes = rows["torchrun --nnodes 2"]
    assert nodes.verdict is OptionVerdict.SAME
    assert yaml.safe_load(nodes.rendered) == {"jobs.training.nodes": 2}


def test_a_key_that_the_runs_program_does_not_have_is_no_match(tmp_path):
    head = "#!/bin/bash\n#SBATCH -p ndv4\n# /shared/home azure ndv4 CycleCloud\n"
    text = f"{head}torchrun pretrain_gpt.py {REQUIRED_OPTIONS} --async-save --save /a --save-interval 5\n"
    report = report_of(tmp_path, text)
    row = next(row for row in report.proof if row.option == "--async-save")
    is_own_trainer = report.adopted.findings.value("training.framework") == "runbook"
    assert row.verdict is (OptionVerdict.SAME if is_own_trainer else OptionVerdict.DROPPED)
