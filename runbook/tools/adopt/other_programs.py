"""Recognizes training programs that adopt does not read.

These are programs from other frameworks, and programs from Megatron for models other than GPTs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.tools.adopt.script import Word


@dataclass(frozen=True)
class Sign:
    """Patterns that identify programs from another framework."""

    framework: str
    """What the framework is usually called."""
    script: str = ""
    """Pattern for the program path, or empty for any path."""
    option: str = ""
    """Pattern for a whole option name, with dashes between words, or empty for any option."""
    value: str = ""
    """Pattern for an argument that is not an option, such as a file, or empty for any argument."""


_HUGGING_FACE = (
    r"model-name-or-path|per-device-(train|eval)-batch-size|gradient-accumulation-steps|do-train"
    r"|num-train-epochs"
    r"|save-total-limit|evaluation-strategy|lr-scheduler-type|report-to|logging-steps"
)
_VISION = r"img-[hw]|[\w-]*vision-[\w-]+|freeze-(lm|vit)|num-classes|patch-dim|clip-(?!grad)[\w-]+|image-[\w-]+"

SIGNS = (
    Sign("ESM-2 of BioNeMo", script=r"esm2|esm_|bionemo|evo2|geneformer"),
    Sign("GLM", script=r"(^|[/_])glm\w*\.py$"),
    Sign("BERT", script=r"bert\w*\.py$"),
    Sign("T5", script=r"(^|[/_])t5\w*\.py$"),
    Sign("Retro", script=r"retro\w*\.py$"),
    Sign("a retrieval model (ICT, REALM)", script=r"_(ict|realm)\w*\.py$"),
    Sign("a vision model", script=r"vision|[/_]vit|imagenet|dino|[/_]clip"),
    Sign("a vision-language model", script=r"multimodal|mimo|[/_]vlm|llava|internvl|(^|[/_])neva"),
    Sign("Mamba or another state-space model", script=r"(^|[/_])ssm\w*\.py$"),
    Sign("one of Megatron's downstream tasks", script=r"(^|/)tasks/"),
    Sign("DeepSpeed-Chat", script=r"rlhf|reward_model"),
    Sign("LLaMA-Factory", script=r"llama_?factory"),
    Sign("ms-swift", script=r"(^|/)swift(/|$)|swift[./]cli"),
    Sign("reinforcement learning", script=r"(^|[/.])verl[/.]"),
    Sign("MaxText", script=r"maxtext"),
    Sign("LLM Foundry", script=r"llm-?foundry"),
    Sign("LitGPT", script=r"lit-?gpt"),
    Sign("Modalities", script=r"(^|[/.])modalities([/.]|$)"),
    Sign("OLMo", script=r"olmo"),
    Sign("torchtitan", script=r"torchtitan"),
    Sign("GPT-NeoX", script=r"deepy\.py$|gpt-?neox"),
    Sign("llm.c", script=r"train_gpt2(cu|fp32cu)?$"),
    Sign(
        "Megatron Bridge",
        script=r"run_recipe\.py$|run_script\.py$|megatron[-_]bridge|_recipe\w*\.py$",
    ),
    Sign("a recipe of NeMo 2", script=r"nemo_?run|llm_pretrain"),
    Sign("PyTorch FSDP", script=r"fsdp"),
    Sign(
        "fine-tuning",
        script=r"(^|[/_])(finetune|finetuning|sft|dpo|ppo|grpo|peft|lora|post_?train)[\w-]*\.py$",
    ),
    Sign("fine-tuning", option="stage", value="sft|dpo|orm|prm|simpo"),
    Sign("Megatron Bridge", option="model-recipe-name"),
    Sign("reinforcement learning", option=r"rollout-[\w-]+|advantage-estimator"),
    Sign("BERT", option=r"bert-[\w-]+|mask-prob|short-seq-prob"),
    Sign("T5", option=r"decoder-seq-length"),
    Sign("a vision model", option=_VISION),
    Sign("DeepSpeed-Chat", option=r"actor-model-name-or-path|critic-[\w-]+"),
    Sign("nanotron", script=r"(run_train|use_trainer)\.py$", option=r"config-file"),
    Sign("torchtitan", option=r"job\.config[_-]file|training\.\w+|model\.(name|flavor)|module"),
    Sign("nanoGPT", script=r"train\.py$", option=r"n-layer|n-head|n-embd|block-size"),
    Sign("nanoGPT", script=r"train\.py$", value=r"(.*/)?config/\w+\.py"),
    Sign("picotron", script=r"train\.py$", option="config", value=r".*\.json"),
    Sign("Hugging Face's Trainer", option=_HUGGING_FACE),
    Sign("Hugging Face's Accelerate", option=r"mixed-precision|num-processes"),
    Sign("PyTorch FSDP", option=r"fsdp|sharding-strategy|fsdp-[\w-]+"),
)
"""Signs, in order of precedence. The first sign that a program matches gives its framework.

A program name takes precedence over its options.
"""


def foreign_framework(script: Word, arguments: Sequence[Word]) -> str:
    """Return the framework or model that a program belongs to, or an empty string.

    >>> arguments = [Word("--per_device_train_batch_size", 1), Word("4", 1)]
    >>> foreign_framework(Word("train.py", 1), arguments)
    "Hugging Face's Trainer"
    >>> foreign_framework(Word("pretrain_gpt.py", 1), [Word("--num-layers", 1), Word("4", 1)])
    ''
    """
    names = [_option_name(word.text) for word in arguments if word.text.startswith("--")]
    values = [word.text for word in arguments if not word.text.startswith("-")]
    for sign in SIGNS:
        if _shows(sign, script.text, names, values):
            return sign.framework
    return ""


_IMPORTED = (
    ("Megatron Bridge", r"megatron\.bridge"),
    ("a recipe of NeMo 2", r"nemo\.collections(?:\.llm| import llm)|nemo_run"),
    ("torchtitan", "torchtitan"),
    ("nanotron", "nanotron"),
    ("Hugging Face's Trainer", r"transformers import [^\n]*\bTrainer"),
    ("Hugging Face's Accelerate", "accelerate"),
)
"""Patterns for modules that show which framework a program uses if it imports them.

Megatron modules are not among them, because all kinds of programs import Megatron.
"""


def imported_frameworks(texts: Mapping[str, str]) -> dict[str, str]:
    r"""Return the framework imported by each Python program, by file name.

    Programs that import none of these modules are omitted.

    >>> imported_frameworks({"a/run.py": "import torch\nfrom megatron.bridge.training import pretrain\n"})
    {'run.py': 'Megatron Bridge'}
    """
    frameworks: dict[str, str] = {}
    for path, text in texts.items():
        name = path.rpartition("/")[2]
        if not name.endswith(".py"):
            continue
        for framework, pattern in _IMPORTED:
            if re.search(rf"^[ \t]*(?:from|import) (?:{pattern})\b", text, re.MULTILINE):
                frameworks.setdefault(name, framework)
                break
    return frameworks


def _option_name(text: str) -> str:
    return text[2:].partition("=")[0].replace("_", "-").lower()


def _shows(
    sign: Sign,
    script: str,
    names: Sequence[str],
    values: Sequence[str],
) -> bool:
    """Return whether a program matches every pattern in a sign."""
    if sign.script and not re.search(sign.script, script, re.IGNORECASE):
        return False
    if sign.option and not any(re.fullmatch(sign.option, name) for name in names):
        return False
    return not sign.value or any(re.fullmatch(sign.value, value) for value in values)
