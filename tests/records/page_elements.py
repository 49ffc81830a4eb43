"""Reads the elements in an HTML page with their texts, so that a test can find a value by its
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser

WITHOUT_END = {"meta", "link", "br", "hr", "img", "input", "path", "line", "polyline"}


@dataclass
class Element:
    """An element: its tag, its attributes, and the text inside it."""

    tag: str
    attributes: Mapping[str, str | None]
    text: str = ""


class _Reader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in WITHOUT_END:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag in [element.tag for element in self._open]:
            while self._open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def elements_of(page: str, tag: str, **attributes: str) -> list[Element]:
    """Return the elements with this tag and these attributes, in order."""
    return [
        element
        for element in _Reader(page).elements
        if element.tag == tag and attributes.items() <= element.attributes.items()
    ]


def texts_of(page: str, tag: str, **attributes: str) -> list[str]:
    """Return the texts in the elements with this tag and these attributes."""
    return [element.text.strip() for element in elements_of(page, tag, **attributes)]


def definitions_of(page: str) -> dict[str, str]:
    """Return the descriptions in the page's definition lists by term."""
    return dict(zip(texts_of(page, "dt"), texts_of(page, "dd"), strict=True))
