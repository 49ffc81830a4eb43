"""Phrases that people use to state facts about a training run."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

DENIAL = (
    r"(?:\b(?:no|not|never|without|neither|nor)|n't)(?! (?:only|doubt)\b)"
    r"[ \t]+(?:(?!(?:and|are|because|but|gets|is|it|so)\b)[\w-]+[ \t]+){0,2}$"
)
"""Words that negate the following words, as in "we did not see any stragglers".

A verb or a conjunction ends the negation: "it does not scale and is slower" names a cause. The
negation must be on the same line: the end of a line in a log or a YAML file does not negate the
next line.
"""
_REACH_OF_A_DENIAL = 200
"""Number of characters before a phrase to search for a negation.

The number is limited because a log may be a single line of megabytes.
"""
_NUMBERED = (
    r"(?:rank|gpu|cuda|card|device|node|host|worker|process|core|stage|layer|step|iter(?:ation)?"
    r"|epoch|zero|level)s?"
)
"""Nouns before a 0 that numbers something, so that the 0 is not a count."""
_NONE_BEFORE = (
    rf"(?:^|\b(?!\w*{_NUMBERED}\b)\w+)[^\w\n]*(?<![\d.,])\b0[ \t]+"
    r"(?:(?:cuda|torch|dynamo|thermal|gpus?|cards?|nodes?|ranks?)[ \t]+)?$"
)
"""A zero count before a cause, as in "0 graph breaks". The 0 in "GPU 0 throttles" is not a count.
"""
_NONE_AFTER = re.compile(
    r"[ \t]*(?:(?:is|are|was|were|takes?|took|[:=]|\.{2,})[ \t]*)?"
    r"(?:none\b|(?<![\d.])0(?:\.0+)?(?!\w|[.,]?\d)(?!,? (?:and|to|or|then) \d))",
    re.IGNORECASE,
)
"""A zero count after a cause, as in "recompiles: 0" or "throttling: none"."""
_OF_THE_LOSS = (
    r"\b(?:loss|losses|perplexity|learning rate)[ \t]+"
    r"(?:(?!(?:and|but|of|or|so|while)\b)[\w-]+[ \t]+){0,2}$"
)
"""Words which show that the next word describes how the loss falls, not how long a step takes."""
PLAIN_ATTENTION = (
    r"(?<![a-z])(?:eager|vanilla|naive|unfused|non-fused) attention"
    r"|attn_impl\w*[\"']?[=:\s]+[\"']?(?:eager|math|torch)\b"
    r"|(?:\bno|\bwithout) flash[- ]?att\w*"
    r"|flash[- ]?att\w* (?:is |was )?(?:off|disabled|not (?:used|installed|available))\b"
)
"""Phrases which mean that attention stores its scores."""
WAYS_TO_WRITE = (
    ("tp", r"(\d+)[ -]?way (?:tensor(?:[ -](?:model[ -])?parallel\w*)?|TP)\b"),
    ("pp", r"(\d+)[ -]?way (?:pipeline(?:[ -](?:model[ -])?parallel\w*)?|PP)\b"),
    ("pp", r"(?<![\w.])(\d+) pipeline[ -]stages?\b"),
    ("dp", r"(\d+)[ -]?way (?:data[ -]parallel\w*|DP)\b"),
    (
        "micro_batch",
        r"\bbatch(?:[ _-]?size)?(?: of)?[ =:]+(\d+) (?:per|a|on each) (?:GPU|device)\b",
    ),
    ("global_batch", r"(?<![\w.])(\d+) sequences (?:of|with) \d{3,}\b"),
    ("seq_len", r"(?<![\w.])(\d{3,})[ -](?:tokens?[ -])?(?:sequences?|seq|context)\b"),
    ("seq_len", r"\bsequences (?:of|with)(?: length)? (\d{3,})\b"),
)
"""Patterns for facts whose number comes before the name."""
_ACCUMULATION = (
    r"\bgrad(?:ient)?s?[ _-]?accum(?:ulation)?(?:[ _-]?steps?)?(?: of| is)?[\s=:]*(\d+)\b",
    r"(?<![\w.])(\d+) (?:grad(?:ient)?[ -])?accum(?:ulation)?[ -]steps?\b",
    r"(?<![\w.])(\d+) micro-?batches (?:per|a|in each|each) (?:global )?(?:step|iteration|batch)",
)
"""Patterns for the micro-batch count per step."""
_CHECKPOINTING = r"(?:activation|gradient)s?[ _-]checkpoint(?:s|ing)?"
_RECOMPUTATION = rf"(?:(?:activation|gradient)s?[ -])?re-?comput(?:e|ation|ing)|{_CHECKPOINTING}"


_SEQUENCE_NAME = (
    r"(?:max[ _-]?)?(?:seq(?:uence)?s?|context|ctx)(?:[ _-]?(?:len(?:gth)?s?|window|size))?"
)
_THOUSANDS_OF_TOKENS = (
    rf"\b{_SEQUENCE_NAME}(?: (?:of|is|was|at))?[ \t=:]*(\d+) ?k\b",
    rf"(?<![\w.])(\d+) ?k(?=[ -](?:tokens?[ -])?{_SEQUENCE_NAME}\b)",
)
"""Sequence lengths in thousands: "sequence length 8k", "a 32k context"."""
_SEPARATED = (
    r"(?<![\d.,\[])"
    r"(?:\d{1,3},\d{3}|\d{1,2}(?:,\d{3}){2,}|\d{3}(?:,000){2,})"
    r"(?![\d,\]])"
)
"""A number with a comma after each thousand.

Three or more groups of three digits, as in "100,200,300", are a list, unless zeros end it.
"""
_SENTENCE_END = re.compile(r"(?<=[.;!?])[ \t]+|\n")
_OTHERS_TRAINING = (
    r"\b(?:report(?:s|ed)?|publish(?:es|ed)?|paper|blog|readme|table|leaderboard|benchmark page"
    r"|they (?:have|had|get|got|reach|use|used|report|train|trained)|colleagues?|somebody|someone"
    r"|other people)\b"
)
"""Words in a sentence about other people's training runs."""
_INSTRUMENT = (
    r"(?:megatron\S*|deepspeed|nemo\S*|nanotron|torchtitan|gpt-?neox|torch|pytorch|lightning|logs?"
    r"|logger|trainer|framework|profil\w+|wandb|tensorboard|nsight|nsys|nvidia-smi|ranks?|nodes?"
    r"|scripts?|programs?|console|output|counters?|dashboard|training|it)"
)
_REPORT_OF_INSTRUMENT = (
    rf"\b{_INSTRUMENT}(?:[ \t]+\w+)?[ \t]+report(?:s|ed)?\b"
    rf"|\breported (?:by|in|from|on) (?:the |each |every )?{_INSTRUMENT}\b"
)
"""Words that refer to output from the training program itself."""
_OWN_TRAINING = r"\b(?:we|our|ours|us|i|my|mine)\b"
_STEP_TIME_UNIT = r"(ms|s|secs?|seconds)\b"
_STEP = r"(?:training )?(?:step|iteration|iter)"
_STEP_TIMES = (
    rf"(?<![\w.])(\d+(?:\.\d+)?) ?{_STEP_TIME_UNIT} ?(?:per|/|an?|each) ?{_STEP}\b",
    rf"\b(?:step|iteration) time(?: is| was| of|:)? (?:about |~ ?)?(\d+(?:\.\d+)?) ?{_STEP_TIME_UNIT}",
    rf"\b(?:each|an?|one|every) {_STEP} (?:takes|took|needs) "
    rf"(?:about |~ ?)?(\d+(?:\.\d+)?) ?{_STEP_TIME_UNIT}",
)
"""Times of a whole step, with their unit."""
_NUMBER_WORDS = {"two": "2", "three": "3", "four": "4", "eight": "8", "sixteen": "16"}
"""Words for numbers. "one" is missing, because "one GPU is slower" is about part of a training run.
"""
_NUMBER_WORD = "|".join(_NUMBER_WORDS)
_COUNTED = (
    rf"\b(?:{_NUMBER_WORD})(?= (?:nodes|machines)\b)"
    rf"|\b(?:(?<=\bon )|(?<=\bwith )|(?<=\busing ))(?:{_NUMBER_WORD})"
    r"(?= GPUs\b| (?:NVIDIA )?(?:GB|[ABHV])\d00)"
)
"""Words that state how many nodes or devices a training run uses."""
_MICRO_BATCH_TOKENS = (
    r"\bmicro[ _-]?batch(?:[ _-]?size)?(?: of| is|:|=)? ?(?:about )?"
    r"(\d+(?:\.\d+)?) ?([kM])?[ -]tokens\b"
    r"|(?<![\w.])(\d+(?:\.\d+)?) ?([kM])?[ -]tokens? micro[ _-]?batch(?:es)?\b"
)
"""Micro-batch sizes in tokens."""
_BATCH_TOKENS = (
    r"(?<!micro[ -])\bbatch(?:[ _-]?size)?(?: of| is|:|=)? ?(?:about )?"
    r"(\d+(?:\.\d+)?) ?([kM])?[ -]tokens\b"
    r"|(?<![\w.])(\d+(?:\.\d+)?) ?([kM])?[ -]tokens? (?:global )?batch(?:es)?\b"
    r"|(?<![\w.])(\d+(?:\.\d+)?) ?([kM]) tokens (?:per|a|in each) (?:global )?(?:step|batch)\b"
)
"""Batch sizes in tokens."""
_TOKEN_UNITS = {"": 1.0, "k": 1e3, "m": 1e6}


class _Phrase(NamedTuple):
    """Patterns for phrases that state a value for a fact."""

    fact: str
    value: str
    pattern: str


_PHRASES = (
    _Phrase(
        "recompute",
        "full",
        rf"\bfull (?:{_RECOMPUTATION})\b|\bwith {_CHECKPOINTING}"
        rf"|{_CHECKPOINTING} (?:is |was )?(?:turned |switched )?(?:on|enabled)\b"
        r"|\brecomput(?:e|es|ing) (?:all|every|whole) (?:the )?(?:layers?|blocks?|activations?)\b",
    ),
    _Phrase("recompute", "selective", rf"\bselective (?:{_RECOMPUTATION})\b"),
    _Phrase("recompute", "none", rf"\b(?:no|without) (?:any )?(?:{_RECOMPUTATION})\b"),
    _Phrase("flash", "no", PLAIN_ATTENTION),
)
_FORMAT = (
    r"(?<![\w.])(bf16|bfloat16|fp16|float16|fp8|fp32|float32)\b"
    r"(?![ -](?:master|main|copy|copies|grad|accum|optimi[sz]er|reduc|logit|residual|state|softmax))"
)
"""The number format of the training run, not a format used only for gradients, optimizer states or
sums.
"""
_LACK = r"\b(?:forgot|forgotten|nobody (?:set|passed)|instead of)[ \t]+(?:to (?:set|pass) )?-*$"
"""Words before a format that show that the training run does not use it."""
_FORMAT_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def phrase_facts(text: str) -> dict[str, str]:
    """Return the values that phrases state.

    >>> phrase_facts("full activation checkpointing, no flash attention, in float32")
    {'recompute': 'full', 'flash': 'no', 'precision': 'fp32'}
    """
    facts = {}
    for phrase in _PHRASES:
        if is_stated(phrase.pattern, text):
            facts[phrase.fact] = phrase.value
    formats = _stated_formats(text)
    if len(formats) == 1:
        facts["precision"] = formats.pop()
    return facts


def plain_numbers(text: str) -> str:
    """Return a text in which lengths, numbers with commas, and node counts are plain digits.

    For a power of two, "k" means 1,024, as usual for sequence lengths.

    >>> plain_numbers("sequence length 8k, 4k context, 1,024 sequences on two nodes")
    'sequence length 8192, 4096 context, 1024 sequences on 2 nodes'
    >>> plain_numbers("seq len of 10k at 3.7k tokens/s")
    'seq len of 10000 at 3.7k tokens/s'
    """
    text = re.sub(_SEPARATED, lambda match: match[0].replace(",", ""), text)
    for pattern in _THOUSANDS_OF_TOKENS:
        text = re.sub(pattern, _without_thousands, text, flags=re.IGNORECASE)
    return re.sub(
        _COUNTED,
        lambda match: _NUMBER_WORDS[match[0].lower()],
        text,
        flags=re.IGNORECASE,
    )


def own_sentences(text: str) -> str:
    """Return a text without the sentences about other people's training runs.

    >>> own_sentences("We run on 64 H100. NVIDIA reports 60 % on 1024 H100.")
    'We run on 64 H100.'
    >>> own_sentences("Megatron reports 60 % on 64 H100.")
    'Megatron reports 60 % on 64 H100.'
    """
    sentences = _SENTENCE_END.split(text)
    own = [sentence for sentence in sentences if not _is_of_others(sentence)]
    return text if len(own) == len(sentences) else "\n".join(own)


def _is_of_others(sentence: str) -> bool:
    """Return whether a sentence is about other people's training runs."""
    by_others = re.sub(_REPORT_OF_INSTRUMENT, "", sentence, flags=re.IGNORECASE)
    if not re.search(_OTHERS_TRAINING, by_others, re.IGNORECASE):
        return False
    return re.search(_OWN_TRAINING, sentence, re.IGNORECASE) is None


def _without_thousands(match: re.Match[str]) -> str:
    thousands = int(match[1])
    is_power_of_two = thousands & (thousands - 1) == 0
    length = thousands * (1024 if is_power_of_two else 1000)
    before = match[0][: match.start(1) - match.start()]
    return f"{before}{length}"


def batch_tokens(text: str) -> float:
    """Return how many tokens a global batch has according to a text, or 0.

    >>> batch_tokens("a global batch size of 4M tokens"), batch_tokens("trained on 300 B tokens")
    (4000000.0, 0.0)
    """
    return _stated_tokens(_BATCH_TOKENS, text)


def micro_batch_tokens(text: str) -> float:
    """Return how many tokens a micro-batch has according to a text, or 0.

    >>> micro_batch_tokens("a micro batch of 8k tokens"), micro_batch_tokens("micro batch 2")
    (8000.0, 0.0)
    """
    return _stated_tokens(_MICRO_BATCH_TOKENS, text)


def _stated_tokens(pattern: str, text: str) -> float:
    """Return the first token count in a text, or 0; the pattern has groups for both parts."""
    match = re.search(pattern, text, re.IGNORECASE)
    if match is None:
        return 0.0
    groups = match.groups(default="")
    figure = next(filter(None, groups[::2]))
    unit = next(filter(None, groups[1::2]), "")
    return float(figure) * _TOKEN_UNITS[unit.lower()]


def step_seconds(text: str) -> list[float]:
    """Return the seconds per step that a text states, in ascending order.

    >>> step_seconds("18.0 s per step"), step_seconds("the step time is 950 ms"), step_seconds("9 s")
    ([18.0], [0.95], [])
    """
    seconds = set()
    for pattern in _STEP_TIMES:
        for figure, unit in re.findall(pattern, text, re.IGNORECASE):
            milliseconds_of_unit = 1 if unit.lower() == "ms" else 1000
            seconds.add(float(figure) * milliseconds_of_unit / 1000)
    return sorted(seconds - {0.0})


def accumulation(text: str) -> int:
    """Return how many micro-batches per step a text states, or 0.

    >>> accumulation("grad accum 16"), accumulation("only 4 micro-batches per step")
    (16, 4)
    """
    for pattern in _ACCUMULATION:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            return int(match[1])
    return 0


def is_stated(pattern: str, text: str) -> bool:
    """Return whether a pattern has a match that is neither negated nor called forgotten."""
    matches = re.finditer(pattern, text, re.IGNORECASE)
    return any(not _is_unused(_line_before(text, match.start())) for match in matches)


def _is_unused(before: str) -> bool:
    """Return whether the text before an option shows that the training run does not use it."""
    return re.search(f"{DENIAL}|{_LACK}", before, re.IGNORECASE) is not None


def first_stated(pattern: str, text: str, unless: str = "") -> re.Match[str] | None:
    """Return the first match that is not negated, not a zero count, and not about the loss.

    Matches in sentences that match `unless` are skipped.

    >>> first_stated("recompiles", "recompiles: 0"), first_stated("(slow)", "the loss is slow to fall")
    (None, None)
    >>> first_stated("after an upgrade", "after an upgrade to 2.6 nothing changed", unless="nothing")
    """
    for match in re.finditer(pattern, text, re.IGNORECASE):
        before = _line_before(text, match.start(match.lastindex or 0))
        is_denied = re.search(f"{DENIAL}|{_NONE_BEFORE}", before, re.IGNORECASE)
        is_none = _NONE_AFTER.match(text, match.end())
        is_of_loss = match.lastindex and re.search(_OF_THE_LOSS, before, re.IGNORECASE)
        is_well = unless and re.search(unless, sentence_at(text, match.start()), re.IGNORECASE)
        if not (is_denied or is_none or is_of_loss or is_well):
            return match

    return None


def sentences_of(text: str) -> list[str]:
    r"""Return the sentences and lines in a text, without empty ones.

    >>> sentences_of("It is slow. Why?\nstep 1")
    ['It is slow.', 'Why?', 'step 1']
    """
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def sentence_at(text: str, position: int) -> str:
    """Return the sentence or line at a position in a text, cut to the words around it.

    >>> sentence_at("It is slow. Version 2.6 is fast. Why?", 15)
    'Version 2.6 is fast.'
    """
    start = max(0, position - _REACH_OF_A_DENIAL)
    end = position + _REACH_OF_A_DENIAL
    before = _SENTENCE_END.split(text[start:position])[-1]
    after = _SENTENCE_END.split(text[position:end])[0]
    return before + after


_TIME = r"(?<![\w.])(\d+(?:\.\d+)?) ?(?:s|secs?|seconds|ms)\b(?!/)"
_LISTED_TIMES = (
    r"((?:\d+(?:\.\d+)?(?:,| then| to|,? and) ?){2,}\d+(?:\.\d+)?) ?(?:s|secs?|seconds|ms)\b"
)
"""Matches a list of times with a single unit after the last time."""
_OTHER_COMPARISON = (
    r"\b(?:nodes?|gpus?|ranks?|[tpd]p|batch|forward|backward|optimizer|reduce\w*|gather\w*|"
    r"data|load\w*|seq\w*|layers?|experts?|with|without|save\w*|checkpoint\w*)\b"
)
"""Words between times that differ for a reason other than progress in a run."""
_LEAST_TIMES = 3
"""Smallest number of times that can show growth."""
_GROWTH = (1.1, 20.0)
"""Limits on the ratio of the last time to the first."""


def growing_times(text: str) -> str:
    """Return the words that report growing step times in a run, or ''.

    >>> growing_times("step times 1.2, 1.3, 1.5, 1.9 s"), growing_times("forward 1 s, backward 2 s, step 4 s")
    ('1.2, 1.3, 1.5, 1.9 s', '')
    """
    if not re.search(r"\b(?:steps?|iterations?|iters?)\b", text, re.IGNORECASE):
        return ""
    for match in re.finditer(_LISTED_TIMES, text, re.IGNORECASE):
        if _grow(re.findall(r"\d+(?:\.\d+)?", match[1])):
            return match[0]
    matches = [*re.finditer(_TIME, text)]
    if not _grow(re.findall(_TIME, text)):
        return ""
    first, last = matches[0], matches[-1]
    span = text[first.start() : last.end()]
    if re.search(_OTHER_COMPARISON, span, re.IGNORECASE):
        return ""
    return span


def _grow(figures: Sequence[str]) -> bool:
    """Return whether each time is longer than the one before, by a plausible total growth."""
    times = [*map(float, figures)]
    if len(times) < _LEAST_TIMES or not times[0]:
        return False
    least, most = _GROWTH
    is_ascending = all(later > earlier for earlier, later in pairwise(times))
    return is_ascending and least < times[-1] / times[0] < most


def _stated_formats(text: str) -> set[str]:
    """Return the number formats that a training run uses, according to its text."""
    formats = set()
    for match in re.finditer(_FORMAT, text, re.IGNORECASE):
        if not _is_unused(_line_before(text, match.start())):
            name = match[1].lower()
            formats.add(_FORMAT_NAMES.get(name, name))
    return formats


def _line_before(text: str, start: int) -> str:
    """Return the text on a line before a position.

    For a long line, return only the last words.
    """
    earliest = max(0, start - _REACH_OF_A_DENIAL)
    line_start = text.rfind("\n", earliest, start) + 1
    return text[max(earliest, line_start) : start]
