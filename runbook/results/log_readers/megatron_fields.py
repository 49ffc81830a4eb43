"""Field names, line layouts and FLOP conventions of Megatron-LM's log lines."""

import math
import re
from collections.abc import Callable, Mapping

from runbook.results.log_readers.record import number

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d(\.\d+)?\]")
_CAUSAL_SINCE = "2025-03-06"
"""Date of the commit (8873b55d6a) since which Megatron-LM counts only the causal half of the attention scores."""
_BY_DATE = {False: "megatron-full", True: "megatron-full-or-causal"}
WHOLE = {
    "loss": re.compile(r"[eE][-+]\d\d$"),
    "learning_rate": re.compile(r"[eE][-+]\d\d$"),
    "grad_norm": re.compile(r"\.\d{3}$"),
    "milliseconds": re.compile(r"\.\d$"),
    "seconds": re.compile(r"\.\d\d$"),
}
"""How a whole value ends; one that ends otherwise at the end of a line without a bar was cut off."""


def canonical(key: str) -> str:
    """A key without its dress, so that wrapped, underlined and spaced forms are one.

    >>> canonical(" elapsed_time_per_iteration_ms"), canonical(" lm-loss"), canonical(" tokens per gpu per second(tgs)")
    ('elapsedtimeperiterationms', 'lmloss', 'tokenspergpupersecond(tgs)')
    """
    return re.sub(r"[\s_-]+", "", key).lower()


# MindSpeed prints "gloablbatchsize".
_MEANING = {
    "elapsedtimeperiteration(ms)": "milliseconds", "elapsedtimeperiterationms": "milliseconds",
    "elapsedtimeperiteration(s)": "seconds", "elapsedtimeperiterations": "seconds",
    "elapsedtimeperiteration": "elapsed", "learningrate": "learning_rate", "globalbatchsize": "batch",
    "gloablbatchsize": "batch", "lmloss": "loss", "loss": "loss", "lossscale": "loss_scale",
    "gradnorm": "grad_norm", "numberofskippediterations": "skipped", "numberofnaniterations": "nan",
    "samplespersecond": "samples_per_second", "samples/sec": "samples_per_second", "consumedsamples": "samples",
    "consumedtokens": "tokens", "actualseqlen": "length", "[lm]tflops": "tflops_lm", "[ds]tflops": "tflops_ds",
    "tflops": "tflops", "tflop/s/gpu": "tflops", "modeltflop/s/gpu": "tflops", "approxflopspergpu": "tflops",
}  # fmt: skip

FAMILY = {
    "approxflopspergpu": "gpt-neox", "samples/sec": "gpt-neox", "consumedtokens": "megatron-deepspeed",
    "samplespersecond": "megatron-deepspeed", "actualseqlen": "megatron-deepspeed",
    "[lm]tflops": "megatron-deepspeed", "tokenspergpu(tokens/s/gpu)": "primus",
    "tokens/s/gpuinst/harmonicmean": "primus", "tflops": "megatron-deepspeed",
    "modeltflop/s/gpu": "megatron-bridge",
}  # fmt: skip
"""Keys that only one of Megatron's descendants prints."""
NVIDIA = "throughputpergpu(tflop/s/gpu)"
"""A key of Megatron-LM's own; a log with it is no Megatron-DeepSpeed's, whatever a fork added to the line."""


def meaning(key: str) -> str:
    """Which of our fields a key stands for; empty for one that is not ours.

    >>> meaning(" throughput per GPU (TFLOP/s/GPU)"), meaning(" tokens per GPU (tokens/s/GPU)"), meaning(" num zeros")
    ('tflops', 'tokens_per_second', '')
    >>> meaning(" tokens/sec/gpu"), meaning(" tokens/sec"), meaning(" tokens per gpu per second(tgs)")
    ('tokens_per_second', 'all_tokens_per_second', 'tokens_per_second')
    """
    plain = canonical(key)
    if plain in _MEANING:
        return _MEANING[plain]
    if plain.endswith("(tflop/s/gpu)"):
        return "tflops"
    if plain.startswith("tokens") and ("persec" in plain or "tokens/s" in plain):
        return "tokens_per_second" if "gpu" in plain or "device" in plain else "all_tokens_per_second"
    return ""


def layout_of(text: str, meaning_of: Callable[[str], str], *, rate_first: bool) -> re.Pattern[str] | None:
    """An expression that matches records with exactly these keys in this order, each ended by a bar.

    Its groups are our fields. `rate_first`: gpt-neox's samples/sec stand before the iteration.
    """
    pattern = r"(?P<prefix>[^|]*?\s|)iteration\s*=?\s*(?P<iteration>\d+)\s*/\s*\d+\s*\|"
    if rate_first:
        pattern = (
            r"(?P<prefix>[^|]*?)samples/sec:\s*(?P<samples_per_second>[\d.]+)\s*\|"
            r"\s*iteration\s*(?P<iteration>\d+)\s*/\s*\d+\s*\|"
        )
    for piece in text.split("|")[:-1]:
        key, sign, _ = piece.partition(":" if ":" in piece else "=")
        meant = meaning_of(key)
        if not sign:
            return None
        value = r"[^|]*\|"
        if meant and f"(?P<{meant}>" not in pattern:
            unit = "(?:[KMGTP]FLOPS)?" if meant == "tflops" else ""
            value = rf"\s*(?P<{meant}>[-+.\deE]+{unit}) \|"
        pattern += re.escape(key) + sign + value
    return re.compile(pattern + r"\s*$")


def convention(family: str, arguments: Mapping[str, str], values: Mapping[str, str], prefix: str) -> str:
    """The name of the formula behind a record's TFLOP/s, as far as the log tells.

    Megatron-LM changed its formula without changing its line: a log older than the change is `megatron-full`; one with
    microseconds in its time stamp and Megatron-LM's own list of arguments is newer; any other may be either, as our own
    trainer prints the same line in the full convention. Megatron-DeepSpeed's factor is in its arguments.
    """
    if family in ("gpt-neox", "megatron-bridge"):
        return family
    if "tflops_lm" in values:
        return "megatron-full"
    if family == "megatron-deepspeed":
        recompute = arguments.get("recompute_granularity", "None") != "None"
        checkpoint = arguments.get("checkpoint_activations")
        if checkpoint is None and "recompute_granularity" not in arguments:
            return "megatron-deepspeed"
        return "megatron-deepspeed-f4" if recompute or checkpoint == "True" else "megatron-deepspeed-f3"
    stamp = _STAMP.search(prefix)
    if stamp is not None:
        return "megatron-causal" if stamp[2] and arguments else _BY_DATE[stamp[1] >= _CAUSAL_SINCE]
    old = re.fullmatch(r"\s*\d\.\d{3}E[-+]\d+\s*", values.get("learning_rate", ""))
    return _BY_DATE[not (old and family == "megatron-lm")]


_FLOPS = re.compile(r"\s*([-+\d.eE]+)\s*([KMGTPE])FLOPS", re.IGNORECASE)
_POWERS = {"K": -9, "M": -6, "G": -3, "T": 0, "P": 3, "E": 6}


def tera(text: str) -> float | None:
    """TFLOP/s, by the unit that stands behind the number where there is one (gpt-neox prints what fits).

    >>> tera(" 941.2GFLOPS "), tera(" 112.9TFLOPS "), tera(" 455.4/456.1 "), tera("1.2PFLOPS")
    (0.9412, 112.9, 455.4, 1200.0)
    """
    found = _FLOPS.match(text)
    if found is None:
        return number(text)
    value = number(found[1])
    return None if value is None else round(value * 10.0 ** _POWERS[found[2].upper()], 12)


def count(text: str | None) -> int | None:
    """A whole number, or None where there is none."""
    value = number(text)
    return None if value is None or not math.isfinite(value) else int(value)
