"""Finds the causes that a text rules out, as in "we already checked that the network is fine"."""

import re
from collections.abc import Iterator

from runbook.tools.speed.phrases import sentences_of
from runbook.tools.speed.topics import topics_in

_CAUSE = r"(?:causes?|reasons?|bottlenecks?|problems?|issues?|culprits?|to blame)"
_RULED_OUT = re.compile(
    rf"\b(?:is|are|was|were)(?: not|n't) (?:the |a |an |our )?{_CAUSE}\b"
    rf"|\bnot (?:the |a |our )?{_CAUSE}\b"
    rf"|\b(?:no|without) (?:\w+ ){{0,2}}{_CAUSE}\b"
    r"|\b(?:rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|eliminated?)\b"
    r"|\b(?:is|are|was|were|looks?|seems?|works?) (?:also |all |quite |very |really )?"
    r"(?:fine|ok(?:ay)?|healthy|normally|as expected|fast enough)\b"
    r"|(?:\bnot|n't)\b[^.;,]{0,20}\b(?:related to|due to|caused by|because of)\b"
)
"""Words in a clause which show that the subject of the clause does not make training slow."""
_SUBJECTS = (
    ("network", r"\b(?:network|interconnect|nics?|links?|switch(?:es)?)\b"),
    ("communication", r"\b(?:nvlink|pcie|all-?reduce)\b"),
    ("data wait", r"\b(?:data|input|storage|file ?system|disks?|ssds?|i/?o)\b"),
    ("host", r"\bcpus?\b"),
    ("memory", r"\b(?:memory|ram|swap)\b"),
    ("stragglers", r"\b(?:temperatures?|cooling|clocks?|power)\b"),
    ("software version", r"\b(?:versions?|drivers?)\b"),
)
"""Causes, and further words for their subjects.

Next to a complaint these words are too vague for a suspicion, but they suffice to rule a cause out.
"""
_CLAUSE_END = re.compile(r"[,:()]|\b(?:but|although|though|while|whereas|yet|still|however)\b")

_TOOL = re.compile(r"\b[nr]ccl[-_ ]?tests?\b|\bnvidia-smi\b|\biperf\w*")
"""Programs that test something other than what their names say."""
_PRONOUN = re.compile(r"\s*(?:and )?(?:it|this|that|they|these|both)\b")
"""A clause whose subject is in the clause before."""


def causes_ruled_out(text: str) -> frozenset[str]:
    """Return the causes that a lower-case text rules out.

    >>> sorted(causes_ruled_out("it is slow. the network is fine, but the loader waits"))
    ['network']
    >>> causes_ruled_out("the network is slow, is that normal?")
    frozenset()
    """
    plain = _TOOL.sub("", text)
    clauses = [clause for clause in _clauses(plain) if _RULED_OUT.search(clause)]
    causes = {cause for clause in clauses for cause in topics_in(clause)}
    for cause, words in _SUBJECTS:
        if any(re.search(words, clause) for clause in clauses):
            causes.add(cause)
    return frozenset(causes)


def _clauses(text: str) -> Iterator[str]:
    """Yield the parts of sentences between commas and conjunctions.

    A clause about "it" begins with the clause before, whose subject it has.
    """
    for sentence in sentences_of(text):
        if sentence.rstrip().endswith("?"):
            continue
        before = ""
        for clause in _CLAUSE_END.split(sentence):
            yield before + clause if _PRONOUN.match(clause) else clause
            before = clause
