"""Write tests/samples/documents: what each document's own script passes, recorded by running it
with stand-in programs.

    RUNBOOK_DOCUMENTS=FOLDER python -m tests.render.record_documents

FOLDER contains a git directory OWNER+NAME/repo for each repository in `DOCUMENTS`. The scripts run
in a temporary folder. Every program they start (srun, torchrun, mpiexec ...) is a stand-in that
records its arguments and environment. Only these facts are kept.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.render.document_facts import SAMPLES, flat, hydra_values, of_script, options_of

VARIABLE = "RUNBOOK_DOCUMENTS"

STUB = r"""
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
values = {"-n", "--ppn", "--hostfile", "--container-image", "--container-mounts", "--nodes", "--ntasks-per-node"}
def note(at):
    with open(os.environ["STUB_LOG"], "a") as file:
        file.write(json.dumps([name, words[:at], words[at:], dict(os.environ)]) + "\n")
def start(at):
    note(at)
    become(words[at:])
def become(rest):
    os.execvp(rest[0], rest)
def end_of_options():
    at = 0
    while words[at].startswith("-"):
        at += 2 if words[at] in values else 1
    return at
if name in ("srun", "mpiexec"):
    start(end_of_options())
elif name == "singularity":
    start(2)
elif name == "torchrun" and "--no_python" in words:
    start(words.index("--no_python") + 1)
elif name in ("torchrun", "deepspeed"):
    note(next(at for at, word in enumerate(words) if word.endswith(".py")))
elif name == "python3" and words[:1] == ["-c"]:
    become([sys.executable, "-IS", *words])
elif name == "python3":
    note(next(at for at, word in enumerate(words) if word.endswith(".py")))
elif name == "sbatch":
    note(-1)
    os.environ["SLURM_JOB_NUM_NODES"] = next(word[8:] for word in words if word.startswith("--nodes="))
    become(["bash", words[-1]])
"""

STARTERS = ["srun", "mpiexec", "singularity", "torchrun", "deepspeed", "python3", "sbatch"]
SAYING = {
    **dict.fromkeys(("hostname", "scontrol", "get-master"), 'echo "$STUB_HOST"'),
    **dict.fromkeys(
        ["sleep", "ps", "module", "ml", "conda", "rocm-smi", "taskset", "git", "squeue"], ""
    ),
    "nvidia-smi": 'seq "$STUB_GPUS"',
    "whoami": "echo user",
    "date": "echo now",
    "ssh": "exit 1",
}
"""Other programs that the scripts query, each written as one shell line."""


@dataclass(frozen=True)
class Variant:
    """A way to run a document's script."""

    script: str
    nodes: int
    devices: int = 8
    variables: dict = field(default_factory=dict)
    """The variables that a person exports before the script, according to the document."""
    edits: dict = field(default_factory=dict)
    """Assignments that the document says to change in the script, by variable name."""
    submit: dict = field(default_factory=dict)
    """Options given to sbatch on the command line."""
    base: str = ""
    """The configuration file in NeMo's launcher."""
    benchmark: bool = True
    """Whether to apply the overrides in the script, which turn the NeMo file into a benchmark."""


@dataclass(frozen=True)
class Document:
    """Where the scripts for a document are, and how the document runs them."""

    repository: str
    commit: str
    folder: str
    variants: dict
    host: str = "node1"
    config: str = ""
    """The DeepSpeed file that the script writes, or a pattern for it."""


def _lumi(**edits):
    shape = {
        "125": {"num_layers": 12, "hidden_size": 768, "num_attn_heads": 12},
        "175": {"num_layers": 96, "hidden_size": 12288, "num_attn_heads": 96},
    }
    nodes = edits.pop("nodes", 2)
    edits |= shape.get(edits.pop("model", ""), {})
    edits = {"num_node": nodes, "num_gpus": 8 * nodes, **edits}
    return Variant("lumi_ds_pretrain_gpt.sh", nodes, edits=edits, submit={"nodes": nodes})


def _azure(nodes, **variables):
    return Variant(
        "04-gpt175B.sh", nodes, variables=variables, submit={"partition": "gpu", "nodes": nodes}
    )


def _polaris(nodes, **variables):
    # Exports from the document, which a variant replaces.
    own = {
        "MODEL_SIZE_KEY": "GPT25B",
        "SEQ_LEN": 4096,
        "USE_FLASH_ATTN_V2": 1,
        "MICRO_BATCH": 1,
        "GAS": 1,
        "SP_TYPE": "megatron",
        "ZERO_STAGE": 1,
    }
    given = {name: value for name, value in {**own, **variables}.items() if value is not None}
    return Variant("ALCF/train-gpt3.sh", nodes, 4, variables=given)


def _aws(base, steps, nodes, *, benchmark=True):
    edits = {"MODEL_SIZE": base, "MAX_STEPS": steps, "NODES": nodes}
    return Variant(
        "submit-gpt3-175b16-nccl_stock.sh", nodes, edits=edits, base=base, benchmark=benchmark
    )


def _aws_srun(base, nodes, *, benchmark=True):
    return Variant(
        "nemo-megatron-v2.sbatch",
        nodes,
        variables={"MODEL_SIZE": base},
        base=base,
        benchmark=benchmark,
    )


SMALL = {
    "NUM_ATTENTION_HEADS": 8,
    "SEQ_LENGTH": 1024,
    "TENSOR_MODEL_PARALLEL_SIZE": 1,
    "PIPELINE_MODEL_PARALLEL_SIZE": 1,
}

DOCUMENTS = {
    "lumi-13b": Document(
        "henkdr/Megatron-Deepspeed-LUMI",
        "635a468fadafaa8b87975716b08b1c414ec40f4f",
        "examples_deepspeed/rebase",
        {
            "": _lumi(),
            "125m-2n-pp2-tp2": _lumi(
                model="125", global_batch_size=256, lr="6.0e-4", init_std=0.02
            ),
            "13b-2n-dp16-zero1": _lumi(mp_size=1, pp_size=1, no_pp='"true"'),
            "2n-zero2": _lumi(mp_size=1, pp_size=1, no_pp='"true"', zero_stage=2),
            "13b-2n-pp8-tp2": _lumi(pp_size=8),
            "13b-2n-pp2-tp4": _lumi(mp_size=4),
            "13b-2n-pp4-tp2": _lumi(pp_size=4),
            "175b-48n": _lumi(
                nodes=48,
                model="175",
                mp_size=8,
                pp_size=8,
                global_batch_size=1536,
                lr="0.6e-4",
                init_std=0.005,
            ),
        },
        config="examples_deepspeed/rebase/ds_config_gbs*.json",
    ),
    "azure-175b": Document(
        "Azure/ai-infrastructure-on-azure",
        "2ada9479d830d5512ed01f9bed0e40d7b816debb",
        "examples/megatron-lm/GPT3-175B/slurm",
        {
            "": _azure(16),
            "smoke": _azure(2, NUM_LAYERS=12, HIDDEN_SIZE=512, **SMALL),
            "857m": _azure(
                2,
                **(
                    SMALL
                    | {
                        "NUM_LAYERS": 24,
                        "HIDDEN_SIZE": 1024,
                        "NUM_ATTENTION_HEADS": 16,
                        "SEQ_LENGTH": 2048,
                    }
                ),
            ),
            "175b": _azure(16, GLOBAL_BATCH_SIZE=2048),
        },
    ),
    "polaris-25b": Document(
        "argonne-lcf/Megatron-DeepSpeed",
        "6bcac4ee574da196d0d7da548693b2e8f62e0146",
        "ALCF",
        {
            "": _polaris(8),
            "flash2": _polaris(8),
            "megatron": _polaris(8),
            "tp4-pp8": _polaris(8, PPSIZE=8, GAS=8),
            "gas8": _polaris(8, GAS=8),
            "flash1": _polaris(8, USE_FLASH_ATTN_V1=1, USE_FLASH_ATTN_V2=None),
            "flash-triton": _polaris(8, USE_FLASH_ATTN_TRITON=1, USE_FLASH_ATTN_V2=None),
            "ulysses": _polaris(8, SP_TYPE="ds", MPSIZE=1, ZERO_STAGE=3),
            **{
                key.lower(): _polaris(2, MODEL_SIZE_KEY=key, SEQ_LEN=2048)
                for key in ("GPT125M", "GPT1_5B", "GPT2_7B", "GPT6_7B", "GPT13B", "BERT1.2B")
            },
            **{
                key.lower(): _polaris(8, MODEL_SIZE_KEY=key, SEQ_LEN=2048)
                for key in ("GPT30B", "GPT33B", "GPT145B_8L", "GPT1T_2L")
            },
            "gpt145b": _polaris(32, MODEL_SIZE_KEY="GPT145B", SEQ_LEN=2048, PPSIZE=16, GAS=16),
            "llama_7b": _polaris(2, MODEL_SIZE_KEY="LLAMA_7B"),
            "llama_13b": _polaris(2, MODEL_SIZE_KEY="LLAMA_13B"),
            "llama_70b": _polaris(16, MODEL_SIZE_KEY="LLAMA_70B", PPSIZE=8, GAS=16),
        },
        host="x3001",
        config="ds_config-gpt.json",
    ),
    "slurm-oscar": Document(
        "woojinsoh/Megatron-DeepSpeed-Slurm",
        "1b53975055fa7275c7c0786d98e180bafc5047ee",
        "",
        {
            "": Variant("megatron_ds_mnmg.slurm", 2),
            "multi-node": Variant("megatron_ds_mnmg.slurm", 2),
            "single-node": Variant("megatron_ds_snmg.slurm", 1),
            "4-nodes": Variant("megatron_ds_mnmg.slurm", 4, submit={"nodes": 4}),
            "52b": Variant(
                "megatron_ds_mnmg.slurm",
                8,
                submit={"nodes": 8},
                edits={"PP": 16, "HIDDEN": 8192, "LAYERS": 64, "GLOBAL_BATCH": 1024},
            ),
        },
        config="ds_config.json",
    ),
    "aws-pile-175b": Document(
        "aws-samples/aws-hpc-tutorials",
        "1c9f36794395aa673c50469a333d38b21000ffe1",
        "content/09-ml-on-parallelcluster/nemo4aws",
        {
            "": _aws_srun("175b", 16),
            "benchmark-srun": _aws_srun("175b", 16),
            "benchmark-torchrun": _aws("175b", 40, 16),
            "real-srun": _aws_srun("175b", 128, benchmark=False),
            "real-torchrun": _aws("175b", 75000, 128, benchmark=False),
            "126m": _aws("126m", 1000, 8),
            "5b": _aws_srun("5b", 16),
            "20b": _aws_srun("20b", 64),
            "40b": _aws_srun("40b", 128),
        },
    ),
}

SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}
"""Variables that bash itself exports."""

NEMO = ("NVIDIA/NeMo-Framework-Launcher", "edd369a5429722d7302bce420762dd59dc721b48")
"""Tag 23.04. The files in the closed 22.09 image, which the document uses, are not public."""

NEMO_PROGRAM = "megatron_gpt_pretraining.py"
"""The program that the image's launcher starts with that configuration."""


def main():
    """Write one file for each document."""
    folder = Path(os.environ[VARIABLE])
    for run in DOCUMENTS:
        (SAMPLES / f"{run}.json").write_text(
            json.dumps(recorded(run, folder), indent=1) + "\n", encoding="utf-8"
        )


def recorded(run, folder):
    """Return what a document's script passes: everything for its default way to run, and only the
    differences for each other way.
    """
    document = DOCUMENTS[run]
    facts = {name: _facts(document, variant, folder) for name, variant in document.variants.items()}
    date = _git(document.repository, folder, "log", "-1", "--format=%cs", document.commit).strip()
    variants = {
        name: _changed(facts[""], found) if name else found for name, found in facts.items()
    }
    where = {
        "repository": document.repository,
        "path": document.folder,
        "commit": document.commit,
        "date": date,
    }
    return {**where, "variants": variants}


def _changed(own, other):
    changed = {}
    for kind in own.keys() | other.keys():
        one = own.get(kind, {})
        two = other.get(kind, {})
        changed[kind] = {
            key: two.get(key)
            for key in sorted(one.keys() | two.keys())
            if one.get(key) != two.get(key)
        }
    return {kind: values for kind, values in sorted(changed.items()) if values}


def _facts(document, variant, folder):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        calls, given = _run(document, variant, folder, root)
        found = {
            kind: {}
            for kind in ("directives", "step", "starter", "arguments", "environment", "deepspeed")
        }
        batch = [text for text in _texts(document, variant, root) if "#SBATCH" in text]
        for text in batch[:1]:
            found["directives"] = of_script(text)[0]
        found["directives"] |= {name: str(value) for name, value in variant.submit.items()}
        for name, words, program, environment in calls:
            words, program = ([_staged(word, root) for word in part] for part in (words, program))
            if name == "sbatch":
                found["directives"] |= {
                    key.strip("-"): value for key, value in options_of(words, "").items()
                }
            elif name in ("srun", "mpiexec", "singularity"):
                found["step"] = {
                    **(found["step"] if name == "singularity" else {}),
                    **options_of(words, name),
                }
            elif name in ("torchrun", "deepspeed"):
                found["starter"] = options_of(words, name)
            if program and program[0].endswith(".py"):
                found["arguments"] = _program(program)
                found["environment"] = _own(environment, given, root)
        if document.config:
            (file,) = root.glob(document.config)
            found["deepspeed"] = flat(json.loads(file.read_text()))
        if variant.base:
            found["environment"] |= _launchers(found["arguments"])
            found["arguments"] = _nemo(variant, folder, found["arguments"])
        return found


def _staged(word, root):
    return word.replace(f"{root}/fsx", "/fsx").replace(str(root), "{stage}")


def _launchers(arguments):
    """Return the variables that NeMo's launcher is configured to export."""
    return {
        name.removeprefix("env_vars."): value
        for name, value in arguments.items()
        if name.startswith("env_vars.")
    }


def _program(words):
    """Return the training program and its options."""
    arguments = [word.removeprefix("training.") for word in words[1:]]
    return {"program": words[0].rpartition("/")[2], **options_of(arguments, "", short=True)}


def _own(environment, given, root):
    """Return the variables that the script set."""
    return {
        variable: _staged(value, root)
        for variable, value in environment.items()
        if given.get(variable) != value and variable not in SHELL
    }


def _nemo(variant, folder, given):
    base = _git(
        NEMO[0],
        folder,
        "show",
        f"{NEMO[1]}:launcher_scripts/conf/training/gpt3/{variant.base}.yaml",
    )
    sections = ("trainer.", "exp_manager.", "model.")
    own = {name: value for name, value in given.items() if name.startswith(sections)}
    return {
        "program": NEMO_PROGRAM,
        **hydra_values(yaml.safe_load(base), own if variant.benchmark else {}),
    }


def _run(document, variant, folder, root):
    """Return every call that the script makes to a stand-in, with the environment."""
    files = _git(
        document.repository,
        folder,
        "ls-tree",
        "-r",
        "--name-only",
        document.commit,
        document.folder or ".",
    )
    for name in files.split():
        if name.endswith((".sh", ".slurm", ".sbatch", ".json")):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                _adapted(
                    _git(document.repository, folder, "show", f"{document.commit}:{name}"),
                    variant,
                    root,
                )
            )
            path.chmod(0o755)
    given = _environment(document, variant, root)
    place = "" if variant.script.startswith("ALCF") else document.folder
    script = root / place / variant.script
    if script.suffix == ".sbatch":
        command = ["sbatch", f"--nodes={variant.nodes}", script]
    else:
        command = ["bash", script]
    if "lumi" in variant.script:
        here = root / "elsewhere"
    else:
        here = script.parents[variant.script.count("/")]
    here.mkdir(exist_ok=True)
    subprocess.run(
        command, cwd=here, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    return [json.loads(line) for line in (root / "calls").read_text().splitlines()], given


def _adapted(text, variant, root):
    """Return the script at this path, with the assignments changed as the document asks."""
    for name, value in variant.edits.items():
        text = re.sub(rf"^((?:export )?{name})=\S+", rf"\1={value}", text, count=1, flags=re.M)
    for theirs, ours in (
        ("/users/username", f"{root}"),
        ("/Megatron-DeepSpeed", ""),
        ("/runscripts/", ""),
        ("/usr/bin/time ", ""),
    ):
        text = text.replace(theirs, ours)
    text = re.sub(r"\$RANDOM|\$\{RANDOM\}", "RANDOM", text)
    return text.replace("/fsx", f"{root}/fsx")


def _environment(document, variant, root):
    programs = root / "programs"
    programs.mkdir()
    stand_ins = dict.fromkeys(STARTERS, f"#!{sys.executable} -IS\n{STUB}")
    for name, text in (
        stand_ins | {name: f"#!/bin/sh\n{line}\n" for name, line in SAYING.items()}
    ).items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (root / "nodes").write_text(
        "".join(f"{document.host}{number}\n" for number in range(variant.nodes))
    )
    data = root / "slimpajama" / "preprocessed"
    data.mkdir(parents=True)
    for number in range(74):
        (data / f"train_chunk_{number}.jsonl_text_document.bin").touch()
    slurm = {
        "JOB_ID": 1000,
        "NNODES": variant.nodes,
        "JOB_NUM_NODES": variant.nodes,
        "GPUS_PER_NODE": variant.devices,
    }
    slurm |= {"LOCALID": 0, "NODEID": 0, "PROCID": 0, "NODELIST": "nodes", "STEP_NODELIST": "nodes"}
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(root),
        "USER": "user",
        "LC_ALL": "C.UTF-8",
        "SIF": "image.sif",
        "STUB_LOG": str(root / "calls"),
        "STUB_HOST": document.host,
        "STUB_GPUS": str(variant.devices),
        "STAGE_PATH": str(root),
        "PBS_NODEFILE": str(root / "nodes"),
        **{f"SLURM_{name}": str(value) for name, value in slurm.items()},
        **{name: str(value) for name, value in variant.variables.items()},
    }


def _texts(document, variant, root):
    first = root / document.folder / variant.script
    return [
        path.read_text()
        for path in (first, first.parent / "nemo-megatron.sbatch")
        if path.is_file()
    ]


def _git(repository, folder, *words):
    place = folder / repository.replace("/", "+") / "repo"
    return subprocess.run(
        ["git", "--git-dir", place, *words], capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
