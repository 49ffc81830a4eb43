"""Rewrites HTML and SVG: parses the text and writes it again, with parts changed or removed.

In the output, `<` occurs only where the parser saw a tag begin, and every value is quoted. A
browser therefore sees no other tags, even if it parses broken HTML differently. The parser comes
from the standard library, because others (lxml, Beautiful Soup) convert attribute names in SVG to
lower case, and the picture would not be drawn.
"""

import re
from collections.abc import Mapping
from html import escape
from html.parser import HTMLParser

_NAME = re.compile(r"""[\s/]+([^\s/>=][^\s/>=]*)\s*(?:=\s*(?:"[^"]*"|'[^']*'|[^\s>"']*))?""")
_REMOTE_STYLE = re.compile(
    r"""url\(\s*["']?\s*(?!\s*["']?(?:data:|#))[^)]*\)|@import[^;]*;?|image-set\(""", re.I
)
_TAG_NAME = re.compile(r"[\w:.-]+")
"""The parser, like a browser, reads `<a<b>` as a tag named `a<b`. A tag whose name
contains any other character is left out.
"""
_MARKED_SECTION = re.compile(
    r"<!\[(?:temp|cdata|ignore|include|rcdata|if|else|endif)(?![\w.-])", re.IGNORECASE
)
"""Matches the start of a marked section that the Python parser knows: `<![CDATA[`, and Office's
conditional sections.
"""


class Rewriter(HTMLParser):
    """A parser that writes what it reads. Subclasses override the methods up to `raw`.

    Comments are left out.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._written: list[str] = []
        self._own_names: dict[str, str] = {}
        self._skipped: list[str] = []

    def rewrite(self, text: str) -> str:
        """Return the complete text after rewriting."""
        self.feed(text)
        self.close()
        return "".join(self._written)

    def skips(self, tag: str, attributes: Mapping[str, str | None]) -> bool:
        """Return whether an element is left out together with its content."""
        return False

    def renamed(self, tag: str) -> str | None:
        """Return the new tag name.

        If the result is None, the tag is left out, but its content is still read.
        """
        return tag

    def attribute(
        self,
        tag: str,
        name: str,
        value: str,
    ) -> str | None:
        """Return the new attribute value, or None to leave the attribute out."""
        return value

    def text(self, text: str) -> str:
        """Return the replacement for text between tags."""
        return text

    def raw(self, element: str, text: str) -> str:
        """Return new content for a style or script."""
        return text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Write a tag with its attributes, or start skipping its element."""
        if self._skipped:
            # Count only tags with the same name as the skipped element, because each has an end
            # tag.
            if tag == self._skipped[0]:
                self._skipped.append(tag)
        elif self.skips(tag, dict(attrs)):
            self._skipped.append(tag)
        else:
            self._write_tag(tag, attrs, ">")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Write a self-closing tag."""
        if not self._skipped:
            self._write_tag(tag, attrs, "/>")

    def handle_endtag(self, tag: str) -> None:
        """Write the end tag for an element."""
        if self._skipped:
            if tag == self._skipped[0]:
                self._skipped.pop()
            return

        name = self._shown_name(tag)
        if name:
            self._written.append(f"</{name}>")

    def handle_data(self, data: str) -> None:
        """Write text between tags, or the content of an element that cannot contain markup."""
        if self._skipped:
            return
        if self.cdata_elem in (None, "title", "textarea"):
            self._written.append(escape(self.text(data), quote=False))
        elif self.renamed(self.cdata_elem):
            self._written.append(self.raw(self.cdata_elem, data).replace("<", ""))

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Read a marked section.

        A section with an unknown name is treated as in browsers: as a comment up to the next `>`.

        The parser in Python 3.11 raises AssertionError for `<![CDATAx[` and `<![]>`.
        """
        if _MARKED_SECTION.match(self.rawdata, i):
            return super().parse_marked_section(i, report)
        return self.parse_bogus_comment(i)

    def handle_pi(self, data: str) -> None:
        """Write an XML declaration in its standard form, and drop any other processing instruction."""
        if data.startswith("xml "):
            self._written.append('<?xml version="1.0" encoding="utf-8"?>')

    def _write_tag(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],
        end: str,
    ) -> None:
        names = self._attribute_names(tag, attrs)
        tag_name = self._shown_name(tag)
        if tag_name is None:
            return
        parts = [tag_name]
        for shown_name, (name, value) in zip(names, attrs, strict=True):
            new_value = self.attribute(tag, name, value or "")
            if new_value is not None and re.fullmatch(r"[\w:.@-]+", shown_name):
                parts.append(f'{shown_name}="{escape(new_value)}"')

        self._written.append(f"<{' '.join(parts)}{end}")

    def _attribute_names(self, tag: str, attrs: list[tuple[str, str | None]]) -> list[str]:
        """Return the attribute names in a tag as written in the source.

        Also store the tag name as written.

        SVG is case-sensitive, but the parser is not. If we and the parser read the source
        differently, the names from the parser are used.
        """
        parsed_names = [name for name, _ in attrs]
        self._own_names[tag] = tag
        source = self.get_starttag_text() or ""
        tag_match = re.match(r"<([\w:.-]+)", source)
        if tag_match is None:
            return parsed_names
        if tag_match[1].lower() == tag:
            self._own_names[tag] = tag_match[1]
        names = [match[1] for match in _NAME.finditer(source, tag_match.end())]
        if [name.lower() for name in names] != parsed_names:
            return parsed_names
        return names

    def _shown_name(self, tag: str) -> str | None:
        """Return the name to write for a tag, or None to leave the tag out."""
        if not _TAG_NAME.fullmatch(tag):
            return None
        name = self.renamed(tag)
        return name if name != tag else self._own_names.get(tag, tag)


_ACTIVE = frozenset(
    {
        "applet",
        "base",
        "body",
        "embed",
        "form",
        "frame",
        "frameset",
        "head",
        "html",
        "iframe",
        "link",
        "meta",
        "noscript",
        "object",
        "plaintext",
        "portal",
        "script",
    }
)
"""Tags that load, submit or run something, lead to another page, or may occur only once in a page.

The tags are left out. Their content is kept, except for the text of scripts.
"""
_FETCHING = frozenset(
    {
        "action",
        "background",
        "classid",
        "codebase",
        "data",
        "formaction",
        "http-equiv",
        "longdesc",
        "manifest",
        "ping",
        "poster",
        "profile",
        "src",
        "srcdoc",
        "srcset",
        "target",
    }
)
_LINK = re.compile(r"(?:https?|mailto):|[^:]*$|[^:/?#]*[/?#]", re.I)
"""Matches addresses allowed in links: those with one of these schemes, or with no scheme."""


class WithoutEffects(Rewriter):
    """Rewrites HTML so that clicks on links work, but nothing loads, submits or runs.

    >>> rewrite = lambda html: WithoutEffects().rewrite(html)
    >>> rewrite('<meta http-equiv=refresh content="0;url=//x"><base href=//x><form action=//x>a<br></form>')
    'a<br>'
    >>> rewrite('<a href="https://example.org">b</a><img src=//x onerror=y()><svg viewBox="0 0 1 1"/>')
    '<a href="https://example.org">b</a><img><svg viewBox="0 0 1 1"/>'
    >>> rewrite('<a href="java&#9;script:x">c</a><style>p {} <meta http-equiv=refresh></style>')
    '<a>c</a><style>p {} meta http-equiv=refresh></style>'
    """

    def renamed(self, tag: str) -> str | None:
        """Leave out active elements."""
        return tag if tag not in _ACTIVE else None

    def attribute(
        self,
        tag: str,
        name: str,
        value: str,
    ) -> str | None:
        """Leave out attributes that load or run something."""
        # A browser reads java&#9;script: as `javascript:`.
        address = re.sub(r"[\x00-\x20]", "", value)
        if name.startswith("on"):
            return None
        if name in _FETCHING:
            is_inside = name == "src" and address.startswith("data:image/")
            return value if is_inside else None

        if name in ("href", "xlink:href"):
            is_inside = address.startswith(("#", "data:image/"))
            is_link = tag in ("a", "area") and _LINK.match(address)
            return value if is_inside or is_link else None

        return _REMOTE_STYLE.sub("none", value)

    def raw(self, element: str, text: str) -> str:
        """Return a style sheet without external addresses."""
        return _REMOTE_STYLE.sub("none", text)
