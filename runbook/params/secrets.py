"""Secrets are referred to, never written: `env:NAME` and `file:PATH`.

Anything that looks like a real secret is detected and masked.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from runbook.core.errors import ParamsError
from runbook.params.messages import ParamsMessage

_REFERENCE = re.compile(r"(env):([A-Za-z_][A-Za-z0-9_]*)|(file):(\S.*)")


class TokenShape(NamedTuple):
    """What tokens for a service look like, according to its documentation (read 2026-11)."""

    service: str
    pattern: str


TOKEN_SHAPES = (
    TokenShape("Hugging Face", r"(?:hf_|api_org_|hf_oauth_)[A-Za-z0-9]{16,}"),
    TokenShape("AWS key id", r"A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{12,}"),
    TokenShape("GitHub", r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"),
    TokenShape("GitLab", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)-[A-Za-z0-9_.-]{16,}"),
    TokenShape("Slack", r"xox[abeoprs]-[A-Za-z0-9-]{16,}|xapp-[A-Za-z0-9-]{16,}"),
    TokenShape("OpenAI, Anthropic", r"sk-[A-Za-z0-9_-]{20,}"),
    TokenShape("Google", r"AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[\w-]{20,}"),
    TokenShape("NVIDIA", r"nvapi-[A-Za-z0-9_-]{20,}"),
    TokenShape("Weights & Biases", r"wandb_v\d+_[A-Za-z0-9_]{20,}"),
    TokenShape("Docker", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}"),
    TokenShape("PyPI, npm", r"pypi-[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{30,}"),
    TokenShape("Databricks", r"dapi[0-9a-f]{32}(?:-\d+)?"),
    TokenShape("DigitalOcean", r"do[opr]_v1_[0-9a-f]{40,}"),
    TokenShape("HashiCorp Vault", r"hv[sbr]\.[A-Za-z0-9_-]{20,}"),
    TokenShape("Stripe", r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    TokenShape("SendGrid", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    TokenShape("Tailscale", r"tskey-[a-z]+-[A-Za-z0-9-]{16,}"),
    TokenShape("age", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    TokenShape("Replicate, Groq, xAI", r"r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|xai-\w{30,}"),
    TokenShape("JSON web token", r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    TokenShape("Telegram bot", r"\d{8,10}:AA[A-Za-z0-9_-]{30,}"),
    TokenShape("Azure client secret", r"[A-Za-z0-9_.-]{3}\dQ~[A-Za-z0-9_.~-]{30,}"),
    TokenShape(
        "webhook of a chat: anyone who knows the address may write there",
        r"https://(?:hooks\.slack\.com/|hooks\.zapier\.com/|[^\s\"'/]*webhook\.office\.com/"
        r"|[^\s\"'/]+\.logic\.azure\.com[^\s\"'/]*/|chat\.googleapis\.com/v1/spaces/"
        r"|[^\s\"'/]+/api/webhooks/|[^\s\"'/]+/hooks/|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/"
        r"|oapi\.dingtalk\.com/robot/|events\.pagerduty\.com/integration/"
        r"|api\.telegram\.org/bot)[^\s\"'<>]{8,}",
    ),
    TokenShape(
        "private key with its body, which in JSON has \\n between its lines",
        r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:(?:[A-Za-z0-9+/=,:.\s-]|\\n)*?"
        r"-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|(?:[A-Za-z0-9+/=\s]|\\n)*)",
    ),
    TokenShape(
        "signature of a signed address",
        r"(?:AccountKey|SharedAccessKey|SharedAccessSignature|sig|(?:X-(?:Amz|Goog)-)?Signature"
        r"|X-Amz-Security-Token)=[A-Za-z0-9+/%_-]{30,}={0,2}",
    ),
)

_NAMES_A_SECRET = (
    r"(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|account[_-]?key"
    r"|private[_-]?key|client[_-]?secret|credentials?)"
)
_HAS_DIGIT_AND_LETTER = r"(?=[^\s\"'&,;]*\d)(?=[^\s\"'&,;]*[A-Za-z])"
_RANDOM = rf"{_HAS_DIGIT_AND_LETTER}[A-Za-z0-9+/_~.%-]{{16,}}={{0,2}}"
"""A value that is probably neither a word nor a number, because it is long and has letters and
digits.
"""

_AFTER_A_NAME = (
    # HF_TOKEN=..., "api_key": "...", --token ...; references (env:NAME) and paths are not secrets.
    rf"(?i:(?:(?<=[\s\"'`({{,;:?&/-])|^)[\w-]{{0,60}}{_NAMES_A_SECRET}[\"']?\s*[:=]\s*[\"']?)"
    rf"(?!(?:env|file):|[/~$]|\w+://)(?P<random>{_RANDOM})",
    rf"(?i:(?:(?<=[\s\"'])|^)--[\w-]{{0,60}}{_NAMES_A_SECRET}\s+[\"']?)"
    rf"(?!(?:env|file):|[/~$]|\w+://)(?P<random>{_RANDOM})",
    r"(?i:\b(?:password|passwd|passphrase|pwd)[\"']?\s*[:=]\s*[\"']?)"
    r"(?!(?:env|file):|[$<{\[]|\.\.\.|(?i:none|null|true|false)\b)(?P<password>[^\s\"'&,;\\]{6,})",
    r"(?i:\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+|\bbearer\s+)"
    r"(?P<bearer>[A-Za-z0-9._~+/-]{16,}=*)",
    # https://user:password@host
    r"(?<=://)[^\s/:@\"'<>]*:(?P<userinfo>[^\s/:@\"'<>]{3,})(?=@)",
)

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:" + "|".join(shape.pattern for shape in TOKEN_SHAPES) + ")",
)
_NAMED = tuple(re.compile(pattern, re.MULTILINE) for pattern in _AFTER_A_NAME)
_SURE = tuple(pattern for pattern in _NAMED if "password" not in pattern.groupindex)
"""Patterns for values that are refused. A text such as `password: see the wiki` does not match them
and is only masked."""
_TOKEN_MARKS = (
    *("hf_", "api_org_", "AKIA", "ASIA", "ABIA", "ACCA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-"),
    *("glsoat-", "glffct-", "xox", "xapp-"),
    *("sk-", "AIza", "ya29.", "GOCSPX-", "nvapi-", "wandb_v", "dckr_", "pypi-", "npm_", "dapi"),
    *("_v1_", "hvs.", "hvb.", "hvr.", "k_live_", "k_test_", "SG.", "tskey-", "AGE-SECRET", "r8_"),
    *("gsk_", "xai-", "eyJ", ":AA", "Q~", "https://", "-----BEGIN", "Key=", "sig=", "ignature="),
    "Token=",
)
_NAME_MARKS = ("pass", "pwd", "secret", "token", "key", "credential", "bearer", "authoriz", "://")
"""Every match contains at least one of these letter sequences.

Text without them, such as a picture in a megabyte of base64, need not be searched with the
patterns.
"""
Cut = Callable[[str], str]
"""Function used to replace a secret."""


def is_reference(value: object) -> bool:
    """Return whether `value` is a reference to a secret, rather than the secret itself.

    >>> is_reference("env:HF_TOKEN"), is_reference("file:~/.token"), is_reference("hello")
    (True, True, False)
    """
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def find_token(text: str) -> re.Match[str] | None:
    """Return the first part of `text` that looks like a real token."""
    matches = (pattern.search(text) for pattern in (_TOKEN, *_SURE))
    return next((match for match in matches if match), None)


def holds_secret(text: str) -> bool:
    """Return whether `text` contains an apparent token, or a value such as `password: ...`."""
    return replace_secrets(text, lambda _: "") != text


def mask(text: str) -> str:
    """Return `text` without passwords, and with apparent tokens cut to four characters.

    >>> mask("token hf_AbCdEfGhIjKlMnOpQrSt ends")
    'token hf_A... ends'
    >>> mask("export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567; password: correct-horse")
    'export WANDB_API_KEY=...; password: ...'
    """
    return replace_secrets(text, lambda token: f"{token[:4]}..." if token else "...")


def replace_secrets(text: str, cut: Cut) -> str:
    """Return `text` with each token replaced.

    `cut(token)` replaces a token, and `cut("")` replaces the value after the name of a secret.
    """
    if any(mark in text for mark in _TOKEN_MARKS):
        text = _TOKEN.sub(lambda match: cut(match[0]), text)
    lower = text.lower()
    if not any(mark in lower for mark in _NAME_MARKS):
        return text
    for pattern in _NAMED:
        text = pattern.sub(lambda match: _without_value(match, cut), text)
    return text


def _without_value(match: re.Match[str], cut: Cut) -> str:
    """Return the match with its named group replaced. The name in front of it is kept."""
    start, end = match.span(match.lastgroup or 0)
    before = match.string[match.start() : start]
    after = match.string[end : match.end()]
    return f"{before}{cut('')}{after}"


def mask_value(value: Any) -> Any:
    """Mask secrets in all strings of a JSON value, including key names, and return the new value.

    Each string is masked before the value is written as JSON, because a secret with several lines
    is a single string here, but contains escapes in JSON.
    """
    if isinstance(value, str):
        return mask(value)
    # Keep the type, because nodes in a notebook are dicts with attributes.
    if isinstance(value, dict):
        return type(value)({mask(str(key)): mask_value(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [mask_value(item) for item in value]
    return value


def resolve_secret(reference: str) -> str:
    """Return the secret that `env:NAME` or `file:PATH` refers to.

    Error messages name the reference, and never show a value.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ParamsError(ParamsMessage.NOT_A_SECRET_REFERENCE, reference=mask(reference)[:12])

    try:
        if match[1]:
            value = os.environ.get(match[2], "")
            missing = ParamsMessage.VARIABLE_NOT_SET.of(reference=reference, variable=match[2])
        else:
            value = Path(match[4]).expanduser().read_text(encoding="utf-8")
            missing = ParamsMessage.SECRET_FILE_EMPTY.of(reference=reference)
    except UnicodeDecodeError as error:
        raise ParamsError(ParamsMessage.SECRET_FILE_NOT_TEXT, reference=reference) from error
    except OSError as error:
        raise ParamsError(
            ParamsMessage.SECRET_FILE_NOT_READABLE, reference=reference, reason=error.strerror
        ) from error

    if not value.strip():
        raise ParamsError(missing)
    return value.strip()
