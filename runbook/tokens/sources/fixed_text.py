"""Repairs wrongly decoded characters with ftfy, as NeMo's `--apply-ftfy` does."""

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage


def load_ftfy() -> ModuleType:
    """Return the package ftfy.

    If ftfy is missing, raise `DataError` with instructions for installing it.
    """
    try:
        import ftfy  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise DataError(TokenMessage.FTFY_MISSING) from None

    module: ModuleType = ftfy
    return module


def fixed_pieces(pieces: Iterable[str]) -> Iterator[str]:
    """Repair a document in pieces. The joined pieces equal `ftfy.fix_text` for the whole document.

    ftfy repairs each line separately, and cuts a line after a million characters. Only one fact
    carries over from line to line: whether a `<` has occurred. After that, HTML entities are no
    longer decoded.
    """
    ftfy: Any = load_ftfy()
    config = ftfy.TextFixerConfig(explain=False)
    pending = ""
    for piece in pieces:
        pending += piece
        start = 0
        while (end := _line_end(pending, start, config.max_decode_length)) > 0:
            line = pending[start:end]
            config = _without_html(config, line)
            yield ftfy.fix_text(line, config)
            start = end

        pending = pending[start:]

    if pending:
        yield ftfy.fix_text(pending, _without_html(config, pending))


def _line_end(text: str, start: int, longest: int) -> int:
    """Return where the next segment that ftfy repairs separately ends.

    The result is 0 if the text so far does not determine the end.
    """
    end = text.find("\n", start, start + longest) + 1
    if not end and len(text) - start > longest:
        end = start + longest
    return end


def _without_html(config: Any, line: str) -> Any:
    if config.unescape_html == "auto" and "<" in line:
        return config._replace(unescape_html=False)
    return config
