"""Reading a page as a browser would, for tests: its elements with their attributes, texts and parents."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "input", "link"}


@dataclass(eq=False)
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    parent: "Element | None"
    children: list["Element"] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def text(self) -> str:
        """All text in it and below."""
        return "".join([*self.words, *(child.text() for child in self.children)])

    def all(self, *tags: str) -> list["Element"]:
        """Every element below with one of these tags, in order; without tags every one."""
        found = []
        for child in self.children:
            if not tags or child.tag in tags:
                found.append(child)
            found += child.all(*tags)
        return found

    def under(self, tag: str) -> bool:
        """Whether an element of this tag holds it."""
        return self.parent is not None and (self.parent.tag == tag or self.parent.under(tag))


class Reader(HTMLParser):
    """Builds the tree, and refuses what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("root", {}, None)
        self.open = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_endtag(self, tag: str) -> None:
        assert self.open.tag == tag, f"</{tag}> closes <{self.open.tag}>"
        assert self.open.parent is not None
        self.open = self.open.parent

    def handle_data(self, data: str) -> None:
        self.open.words.append(data)


def read(page: str) -> Element:
    """The tree of a page."""
    reader = Reader()
    reader.feed(page)
    assert reader.open is reader.root
    return reader.root


def style_rules(style: str) -> list[tuple[str, dict[str, str]]]:
    """Selectors and declarations of a style sheet, those inside media queries too."""
    flat = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", style)
    rules = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", flat):
        declared = (part.split(":", 1) for part in body.split(";") if ":" in part)
        rules.append((selector.strip(), {name.strip(): value.strip() for name, value in declared}))
    return rules


def contrast(first: str, second: str) -> float:
    """Contrast of two colours, #rrggbb, by WCAG 2."""
    lights = []
    for colour in (first, second):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)
