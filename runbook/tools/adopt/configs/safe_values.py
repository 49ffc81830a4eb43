"""Makes values from a configuration safe to show: no secrets, no control characters."""

import re
from collections.abc import Sequence
from typing import Any

from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.processes_and_logs import MASKED, is_secret_option, without_secret_values

_MORE_SECRETS = re.compile(
    r"(?:^|_)(?:passphrase|private_?key|account_?key|authorization|auth|bearer|netrc|pat)$"
    r"|(?:^|_)(?:hf|hub|huggingface|api|access|auth|wandb|github|gitlab|ngc|bearer|refresh)_?tokens$"
    r"|(?:^|_)(?:secret|password|api_?key|access_?key)s$",
    re.IGNORECASE,
)
"""Names for secrets that occur in configurations but not on command lines.

The name `tokens` alone is not among them, because nanotron has a section with that name.
"""
_COUNTS_TOKENS = re.compile(r"(?:^|_)(?:per|mask|cls|image|max|min|num)_token$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether any part of a dotted key looks like the name of a secret.

    >>> secret_names = ("log.wandb.api_key", "hf_tokens", "secret.v", "wandbApiKey")
    >>> [is_secret_name(name) for name in secret_names]
    [True, True, True, True]
    >>> other_names = ("tokens.train_steps", "model.bos_token_id", "flops_per_token")
    >>> [is_secret_name(name) for name in other_names]
    [False, False, False]
    """
    return any(map(_is_secret_part, re.split(r"[^\w-]+", name)))


def _is_secret_part(part: str) -> bool:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).replace("-", "_")
    if _COUNTS_TOKENS.search(spaced):
        return False
    return is_secret_option(spaced) or _MORE_SECRETS.search(spaced) is not None


def safe_name(name: str) -> str:
    """Return a dotted key without control characters and access tokens."""
    return visible(mask(name))


def safe_value(name: str, value: Any) -> Any:
    """Return a value that can be shown, masked if its dotted key names a secret.

    Booleans and null are never secrets. Raise OverflowError for a whole number with more than 64
    bits.

    >>> safe_value("hf_token", 4711), safe_value("lr", 1e-4)
    ('...', 0.0001)
    >>> safe_value("log", [{"api_key": "qq77"}])
    [{'api_key': '...'}]
    """
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name):
        return MASKED
    if isinstance(value, dict):
        return {
            safe_name(str(key)): safe_value(f"{name}.{key}", item) for key, item in value.items()
        }

    if isinstance(value, list | tuple):
        return [safe_value("", item) for item in _without_secret_options(value)]
    if isinstance(value, int) and abs(value) > 2**63:
        raise OverflowError("a whole number of more than 64 bits")
    return visible(mask(value)) if isinstance(value, str) else value


def _without_secret_options(items: Sequence[Any]) -> Sequence[Any]:
    """Return the words in a command, such as ["--api-key", "abc"], without secret values."""
    if items and all(isinstance(item, str) for item in items):
        return without_secret_values(items)
    return items
