"""What objects show of themselves in a notebook: a small static table of facts in the notebook's own colours."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

MAX_BYTES = 15_000  # rows beyond it are only counted
MAX_CHARACTERS = 300  # of a cell; longer ones are cut
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def facts_table(
    title: str,
    facts: Mapping[str, object],
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[object]] = (),
) -> str:
    """Return HTML: a title, facts by name, and below them a table.

    Texts are escaped; there is no script, and no colour but that of the page.
    """
    lines = [
        f"<tr>{_cell(name, 'th scope=row')}{_cell(value)}</tr>"
        for name, value in facts.items()
        if value is not None and value != ""
    ]
    html = _table(
        lines, f"<caption style='text-align:left;font-weight:bold;white-space:nowrap'>{_text(title)}</caption>"
    )
    listed = [f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows]
    if not listed:
        return html
    head = f"<tr>{''.join(_cell(name, 'th scope=col') for name in columns)}</tr>" if any(columns) else ""
    room = MAX_BYTES - len(html.encode()) - len(head.encode())
    n_shown = 0
    while n_shown < len(listed) and (room := room - len(listed[n_shown].encode())) > 0:
        n_shown += 1
    more = f"<p>and {len(listed) - n_shown:,} more</p>" if n_shown < len(listed) else ""
    return html + _table([head, *listed[:n_shown]]) + more


def _table(lines: Sequence[str], caption: str = "") -> str:
    return f"<table style='border-collapse:collapse'>{caption}{''.join(lines)}</table>"


def _cell(value: object, tag: str = "td") -> str:
    return f"<{tag} style='{_CELL}'>{_text(value)}</{tag.partition(' ')[0]}>"


def _text(value: object) -> str:
    """Return a value as HTML text, on its own in the direction of its script."""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
    return f"<bdi>{escape(text.encode(errors='replace').decode())}</bdi>"
