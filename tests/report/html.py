"""A page taken apart, without a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input"}


@dataclass
class Element:
    """One element, with what is inside it."""

    tag: str
    attributes: dict[str, str]
    inside: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it."""
        return "".join(one if isinstance(one, str) else one.text for one in self.inside)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements below, by tag and attributes (class_ for class; one word of it is enough)."""
        found = []
        for one in self.inside:
            if isinstance(one, Element):
                wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
                if one.tag == tag and all(
                    value in one.attributes.get(key, "").split() for key, value in wanted.items()
                ):
                    found.append(one)
                found += one.all(tag, **attributes)
        return found

    def one(self, tag: str, **attributes: str) -> Element:
        """The only one."""
        (found,) = self.all(tag, **attributes)
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Element(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        opened = self.open.pop().tag
        assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def parse(text: str) -> Element:
    """The tree of a page. An end tag that does not fit is an AssertionError."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].tag}> is not closed"
    return parser.open[0]
