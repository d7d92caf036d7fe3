"""Tables in Markdown: model cards, leaderboards in a README, what lm-evaluation-harness prints."""

import re
from collections.abc import Iterator, Mapping

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.evaluations import RawEvaluations
from toposcope.logs.evaluations.formats import EvaluationFile
from toposcope.logs.evaluations.formats.table import holds_evaluations, read_table
from toposcope.logs.evaluations.tasks import standard_task
from toposcope.logs.raw import join_names, plural

ENDINGS = (".md", ".markdown")
_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-*:?\s*)*")  # the line under the names of columns
_CELL = re.compile(r"(?<!\\)\|")
_STYLE = re.compile(r"\*\*|__|`|</?(?:b|br|i|sup|sub)\s*/?>")
_HEADING = re.compile(r"(#{1,6}) +(.+?)[ #]*")
_MODEL = re.compile(r"pretrained=[\"']?([^,\"'\s)]+)")
HARNESS = ("filter", "n-shot", "metric", "value")
"""Columns of the tables that lm-evaluation-harness prints, behind that of tasks or groups."""


def claims(material: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it is a Markdown file with a table of scores."""
    if material.path.suffix.lower() not in ENDINGS or not material.path.is_file():
        return False
    return any(holds_evaluations(table, material.path, columns) for _, table in _tables(material.text))


def evaluations(material: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values in each table."""
    parts, unread = [], []
    for model, table in _tables(material.text):
        if holds_evaluations(table, material.path, columns):
            part = read_table(table, material.path, columns)
            is_named = not part.table["run"].is_in([material.path.stem]).all()
            runs = part.table if is_named or not model else part.table.with_columns(run=pl.lit(model))
            parts.append(RawEvaluations(part.source, runs, part.remarks))
        else:
            unread.append(table.columns[0] or "without a name")
    if not parts:
        raise ToposcopeError("no table in it holds scores")
    if unread:
        what = plural(len(unread), "table holds", "tables hold")
        remark = f"{what} no scores, not read (first columns: {join_names(unread, 10)})"
        parts.append(RawEvaluations(material.path, parts[0].table.clear(), (remark,)))
    return parts


def _tables(text: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each table with a rule under its names, cells as text, and the model that is named above it."""
    lines, headings, model = text.split("\n"), dict[int, str](), ""
    for i, line in enumerate(lines):
        if heading := _HEADING.fullmatch(line.strip()):
            headings = {level: name for level, name in headings.items() if level < len(heading[1])}
            headings[len(heading[1])] = heading[2]
            model = " ".join(name for level, name in headings.items() if level > 1)
        if command := _MODEL.search(line):
            model = command[1].rstrip("/")
        if not i or "|" not in line or not _RULE.fullmatch(line) or "|" not in lines[i - 1]:
            continue
        end = next((j for j in range(i + 1, len(lines)) if "|" not in lines[j]), len(lines))
        if rows := [_cells(row) for row in lines[i + 1 : end]]:
            yield model, _of_harness(_table(_cells(lines[i - 1]), rows))


def _cells(line: str) -> list[str]:
    """Return the cells of a line without marks of style."""
    cells = _CELL.split(line.strip().removeprefix("|").removesuffix("|"))
    return [_STYLE.sub("", cell).replace("\\|", "|").strip() for cell in cells]


def _table(names: list[str], rows: list[list[str]]) -> pl.DataFrame:
    """Return the columns with a name, and the first without."""
    columns: dict[str, list[str | None]] = {}
    for i, name in enumerate(names):
        if name not in columns and (name or i == 0):
            columns[name] = [row[i] if i < len(row) and row[i] else None for row in rows]
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def _of_harness(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table of lm-evaluation-harness with a task and a filter in each row; as it is, if it is another."""
    first, plain = table.columns[0], {name.lower(): name for name in table.columns}
    if first.lower() not in ("tasks", "groups") or not plain.keys() >= set(HARNESS):
        return table
    cells = [cell or "" for cell in table[first].forward_fill()]
    groups: dict[str, list[str]] = {}
    owners, group = [], ""
    for cell in cells:
        group = group if cell.startswith("-") else cell
        owners.append(group)
        groups.setdefault(group, []).extend([cell.lstrip("- ")] if cell.startswith("-") else [])
    of_one_kind = {g for g, parts in groups.items() if standard_task(g) or all(p.startswith(g) for p in parts)}
    names = []
    for cell, owner in zip(cells, owners, strict=True):
        part = cell.lstrip("- ").replace(" ", "_")
        if not cell.startswith("-"):
            names.append(f"{owner}:_average" if groups[owner] else owner)
        else:
            names.append(f"{owner}_{part}" if owner in of_one_kind and not part.startswith(owner) else part)
    metric, filtered = pl.col(plain["metric"]), pl.col(plain["filter"])
    named = pl.when(filtered.is_in(["none"]) | filtered.is_null()).then(metric).otherwise(metric + "," + filtered)
    kept = table.select(shots=plain["n-shot"], metric=named, value=plain["value"])
    error = table[plain["stderr"]] if "stderr" in plain else pl.Series([None] * len(table), dtype=pl.String)
    return kept.with_columns(pl.Series("task", names), error.alias("standard_error"))
