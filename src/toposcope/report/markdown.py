"""A report as Markdown: the same sentences, tables with pipes, figures as links."""

import re
from collections.abc import Iterator

from toposcope.report import document as content
from toposcope.report.tables import Table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def to_markdown(document: content.Document) -> str:
    """Return a report as CommonMark with GitHub's tables; names that look like markup are escaped."""
    return "\n\n".join(_parts(document)) + "\n"


def _parts(document: content.Document) -> Iterator[str]:
    yield f"# {_escaped(document.title)}"
    for place, sentence in enumerate(document.lead):
        yield _escaped(sentence) if place else f"**{_escaped(sentence)}**"
    for section in document.sections:
        yield f"## {_escaped(section.title)}"
        for block in section.blocks:
            yield from _block(block)


def _block(block: content.Block) -> Iterator[str]:
    match block:
        case content.Paragraph():
            yield "".join(_inline(part) for part in block.parts).strip()
        case content.Heading():
            yield f"### {_escaped(block.text)}"
        case content.Terms():
            yield "\n".join(f"- **{_escaped(term)}**: {_escaped(meaning)}" for term, meaning in block.items)
        case content.Preformatted():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            yield f"{fence}\n{block.text.rstrip()}\n{fence}"
        case content.Picture():
            yield from _picture(block)
        case content.Details():
            yield f"### {_escaped(block.summary)}"
            for inner in block.blocks:
                yield from _block(inner)
        case Table():
            yield from _table(block)


def _picture(block: content.Picture) -> Iterator[str]:
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


def _inline(part: content.Inline) -> str:
    if isinstance(part, str):
        # Spaces at the ends stand between this part and the next.
        return " " * part[:1].isspace() + _escaped(part) + " " * part[-1:].isspace()
    if isinstance(part, content.Link):
        return f"[{_escaped(part.text)}]({part.href})"
    return f"`{part.text}`"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
