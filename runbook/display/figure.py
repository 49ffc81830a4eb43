"""A figure where figures can be seen, its content in words where they cannot."""

from __future__ import annotations

from runbook.display.place import display_bundle, where_we_are, write


def show_figure(svg: str, caption: str) -> None:
    """Show an SVG with its numbers in words: the words alone are what a terminal, a log and a screen reader get."""
    if where_we_are().is_kernel:
        display_bundle({"image/svg+xml": svg, "text/plain": "(figure; its numbers follow)"})
    write(caption)


def show_html(html: str, text: str) -> None:
    """Show HTML where it can be seen, else the text that says the same."""
    if where_we_are().is_kernel:
        display_bundle({"text/html": html, "text/plain": text})
    else:
        write(text)
