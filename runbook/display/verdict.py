"""Verdicts and states as people tell them apart: by word, by symbol and, last, by colour.

The colours are blue and orange of Okabe and Ito's palette: the common forms of colour blindness tell them apart.
"""

from __future__ import annotations

from html import escape

SYMBOLS = {
    "pass": "✓",
    "done": "✓",
    "completed": "✓",
    "fail": "✗",
    "failed": "✗",
    "timeout": "✗",
    "kernel-died": "✗",
    "warn": "!",
    "interrupted": "!",
    "running": "▶",
}
GOOD, BAD, CARE = "#0072b2", "#d55e00", "#b58900"
COLOURS = {"✓": GOOD, "✗": BAD, "!": CARE, "▶": GOOD}
ANSI = {"✓": "\x1b[34m", "✗": "\x1b[1;33m", "!": "\x1b[33m", "▶": "\x1b[34m"}


def symbol_of(word: str) -> str:
    """The symbol of a verdict or state; a question mark for one that is not known.

    >>> symbol_of("pass"), symbol_of("fail"), symbol_of("unknown")
    ('✓', '✗', '?')
    """
    return SYMBOLS.get(word, "?")


def verdict_text(word: str, colour: bool = False) -> str:
    """`✓ pass`, in colour where asked."""
    symbol = symbol_of(word)
    text = f"{symbol} {word}"
    return f"{ANSI[symbol]}{text}\x1b[0m" if colour and symbol in ANSI else text


def verdict_html(word: str) -> str:
    """`✓ pass` for a page: bold, with a coloured bar; the word itself keeps the page's own colour."""
    colour = COLOURS.get(symbol_of(word), "currentColor")
    return (
        f'<span style="border-left:.3em solid {colour};padding-left:.4em;white-space:nowrap;font-weight:600">'
        f"{symbol_of(word)} {escape(word)}</span>"
    )
