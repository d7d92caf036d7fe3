"""Rows of charts in compact columns: texts once each, numbers to the digits that a screen can show."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 6
"""Significant digits of a number on the page; the tables beside it have all."""


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as columns.

    Parameters
    ----------
    rows : sequence of mapping
        As Vega-Lite reads them; a field that a row lacks is null.

    Returns
    -------
    dict
        By field: a list of numbers, or ``{"texts": [...], "at": [...]}`` with the place of each row's text, -1 for
        null.
    """
    fields = dict.fromkeys(field for row in rows for field in row)
    return {field: _column([row.get(field) for row in rows]) for field in fields}


def to_json(value: Any) -> str:
    """Return compact JSON that may stand inside a script of a page."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, str | None) for value in values) and any(isinstance(value, str) for value in values):
        place = {text: i for i, text in enumerate(dict.fromkeys(value for value in values if value is not None))}
        return {"texts": list(place), "at": [-1 if value is None else place[value] for value in values]}
    return [_rounded(value) if isinstance(value, float) else value for value in values]


def _rounded(value: float) -> float | int | None:
    if value != value or value in {float("inf"), float("-inf")}:
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
