"""A report as Markdown: the same sentences, tables with pipes, figures as links."""

import re
from collections.abc import Iterator

from toposcope.report.document import (
    Block,
    Details,
    Document,
    Heading,
    Inline,
    Link,
    Paragraph,
    Picture,
    Preformatted,
    Terms,
)
from toposcope.report.tables import Table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def to_markdown(document: Document) -> str:
    """Return a report as CommonMark with GitHub's tables; names that look like markup are escaped."""
    return "\n\n".join(_parts(document)) + "\n"


def _parts(document: Document) -> Iterator[str]:
    yield f"# {_escaped(document.title)}"
    for title, sentences in document.lead:
        if title:
            yield f"## {_escaped(title)}"
        first, *others = sentences
        yield f"**{_escaped(first)}**"
        yield from map(_escaped, others)
    for section in document.sections:
        yield f"## {_escaped(section.title)}"
        for block in section.blocks:
            yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph():
            yield "".join(_inline(part) for part in block.parts).strip()
        case Heading():
            yield f"### {_escaped(block.text)}"
        case Terms():
            yield "\n".join(f"- **{_escaped(term)}**: {_escaped(meaning)}" for term, meaning in block.items)
        case Preformatted():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            yield f"{fence}\n{block.text.rstrip()}\n{fence}"
        case Picture():
            yield from _picture(block)
        case Details():
            yield f"### {_escaped(block.summary)}"
            for inner in block.blocks:
                yield from _block(inner)
        case Table():
            yield from _table(block)


def _picture(block: Picture) -> Iterator[str]:
    chart = block.chart
    yield f"![{_escaped(chart.alt)}](figures/{chart.name}.svg)"
    yield f"**{_escaped(chart.title)}.** {_escaped(chart.caption)}"


def _table(table: Table) -> Iterator[str]:
    titles = [f"{column.group}: {column.title}" if column.group else column.title for column in table.columns]
    lines = [
        _row(titles),
        "|" + "|".join("---" if column.text else "---:" for column in table.columns) + "|",
        *(_row(cells) for cells in table.rows),
    ]
    yield f"**{_escaped(table.caption)}**"
    yield "\n".join(lines)


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _inline(part: Inline) -> str:
    if isinstance(part, str):
        # Spaces at the ends stand between this part and the next.
        return " " * part[:1].isspace() + _escaped(part) + " " * part[-1:].isspace()
    if isinstance(part, Link):
        return f"[{_escaped(part.text)}]({part.href})"
    return f"`{part.text}`"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
