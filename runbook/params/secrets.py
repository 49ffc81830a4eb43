"""Secrets are named, never written: `env:NAME` and `file:PATH`."""

import os
import re
from pathlib import Path

from runbook.core.errors import ParamsError

_REFERENCE = re.compile(r"(env):([A-Za-z_][A-Za-z0-9_]*)|(file):(\S.*)")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|A(?:KIA|SIA)[0-9A-Z]{12,}"  # AWS key ids
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{16,}|sk-[A-Za-z0-9_-]{20,}|AIza[0-9A-Za-z_-]{30,}"
    r"|nvapi-[A-Za-z0-9_-]{20,}"
    r"|https://(?:hooks\.slack\.com/|[^\s\"'/]*webhook\.office\.com/|[^\s\"'/]+/api/webhooks/)[^\s\"']{8,}"
    r"|https://api\.telegram\.org/bot[^\s\"']{8,}"  # chats' webhooks: who knows the address may write there
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----|(?:AccountKey|sig)=[A-Za-z0-9+/%]{30,}={0,2}"
)


def is_reference(value: object) -> bool:
    """Whether `value` names a secret instead of being one.

    >>> is_reference("env:HF_TOKEN"), is_reference("file:~/.token"), is_reference("hello")
    (True, True, False)
    """
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def find_token(text: str) -> re.Match[str] | None:
    """The first thing in `text` that looks like a real token."""
    return _TOKEN.search(text)


def mask(text: str) -> str:
    """`text` with what looks like a token cut to its first four characters.

    >>> mask("token hf_AbCdEfGhIjKlMnOpQrSt ends")
    'token hf_A... ends'
    """
    return _TOKEN.sub(lambda found: f"{found[0][:4]}...", text)


def resolve_secret(reference: str) -> str:
    """The secret that `env:NAME` or `file:PATH` names; an error names the reference and never shows a value."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ParamsError(
            f"{mask(reference)[:12]!r} is not a reference to a secret. Write env:NAME or file:PATH; the value itself "
            "belongs in the environment or in a file only you can read."
        )
    try:
        if match[1]:
            value = os.environ.get(match[2], "")
            missing = (
                f"the environment variable {match[2]} is not set. Set it: export {match[2]}=..."
            )
        else:
            value = Path(match[4]).expanduser().read_text(encoding="utf-8")
            missing = "the file is empty."
    except UnicodeDecodeError as error:
        raise ParamsError(f"{reference}: the file is not UTF-8 text.") from error
    except OSError as error:
        raise ParamsError(f"{reference}: the file cannot be read: {error.strerror}.") from error
    if not value.strip():
        raise ParamsError(f"{reference}: {missing}")
    return value.strip()
