"""Rows of charts in compact columns: the names of fields once, numbers to the digits that a screen can show."""

import json
import math
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
        By field, a list with a value for each row.
    """
    fields = dict.fromkeys(field for row in rows for field in row)
    return {field: [_rounded(row.get(field)) for row in rows] for field in fields}


def to_json(value: Any) -> str:
    """Return compact JSON that may stand inside a script of a page."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
