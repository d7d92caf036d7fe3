"""Which columns separate rows: parts of one run, such as training and validation, and runs, by their labels."""

import re
from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.logs.columns import VALIDATION, Columns, identify_columns
from toposcope.logs.raw import Numbers, one_line
from toposcope.logs.steps import appended_runs

MAX_PARTS, MAX_LABELS, MAX_CANDIDATES = 20, 3, 8  # words for parts of a run; columns that separate runs, and are tried
MAX_REPEATED_SHARE = 0.1  # of the rows that repeat a step: so many resumed runs may leave
MAX_LATE_SHARE = 0.2  # of the shortest run: how much later than the first another run may begin
MIN_PART_ROWS, MIN_PART_SHARE = 5, 0.1  # rows, and share of the steps, of a part of a run; by turns go on fewer
MIN_BLANK_SHARE, MAX_SHARE_DIFFERENCE = 0.5, 0.1  # rows without a label that are a run: as many, repeating as others do

TRAINING = frozenset({"train", "training"})
ALIASES = {
    **{"fit": "train", "trn": "train", "validate": "validation", "validating": "validation", "vld": "val"},
    **{"evaluate": "eval", "testing": "test", "hold": "heldout", "holdout": "heldout", "held": "heldout"},
}
"""Other words for parts, by those in `identify_columns`."""
_TEXTS = (pl.String, pl.Boolean, pl.Categorical, pl.Enum)
_EVENT = re.compile(r"(?<=[A-Za-z])[_ -](?:step|epoch|batch|iter|loop|phase|end|metrics|log)s?$", re.IGNORECASE)
"""Ends of words for parts: ``train_step``."""
PER_ROW = frozenset({"step", "rank", "epoch", "tokens", "flops", "weight_norm", "grad_norm"})
"""Quantities that are never the label of a run."""
NO_LABELS = frozenset(
    """
    time timestamp date datetime elapsed eta seconds sec ms hours memory mem task benchmark domain layer metric
    throughput speed mfu tflops loss value attempt restart session rank gpu gpus cuda device host hostname node
    process pid worker replica
    """.split()
)
"""Words of columns that vary within a run, by row or by process."""
_STEP, _EPOCH = "\0step", "\0epoch"


def part_of(name: str) -> str:
    """Return the part that a name says, such as ``val`` of ``Validate`` or ``val/c4`` of ``val_c4``; empty if none."""
    words = re.findall(r"[^\W_]+", name.lower())
    words = [ALIASES.get(word, word) for word in words if word not in ("set", "out")]
    return "/".join(words) if words and words[0] in TRAINING | VALIDATION else ""


def is_part(name: str) -> bool:
    """Return whether a name is that of a part and nothing more."""
    part = part_of(name)
    return bool(part) and "/" not in part


def is_validation(name: str) -> bool:
    """Return whether a name has a word of validation in it."""
    return not VALIDATION.isdisjoint(ALIASES.get(word, word) for word in re.findall(r"[^\W_]+", name.lower()))


def with_parts(table: pl.DataFrame, loss: str | None, key: str | None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return a table in which a loss of rows of training and of validation is a column for each, and a remark."""
    column = next((name for name in table.columns if name not in (loss, key) and _parts(table[name])), None)
    if column is None:
        return table, ()
    names = _parts(table[column])
    part = pl.col(column).cast(pl.String).replace_strict(names, default=None, return_dtype=pl.String)
    validations = list(dict.fromkeys(name for name in names.values() if is_validation(name)))
    if key is not None:
        table = table.with_columns(
            pl.when(part.is_in(validations)).then(pl.format("{}/{}", part, key)).otherwise(pl.col(key)).alias(key)
        )
    else:
        found = identify_columns(table.columns)
        targets = {target.name for target in (*found.losses, *found.accuracies)} | ({loss} if loss else set())
        shared = [name for name in table.columns if name in targets and not is_validation(name)]
        table = table.with_columns(
            *(pl.when(part == v).then(pl.col(name)).alias(f"{v}/{name}") for v in validations for name in shared),
            *(pl.when(part.is_in(validations)).then(None).otherwise(pl.col(name)).alias(name) for name in shared),
        )
        made = [f"{v}/{name}" for v in validations for name in shared]
        table = table.drop(name for name in made if table[name].null_count() == len(table))
    texts = ", ".join(one_line(text) for text in names)
    return table.drop(column), (f"column {one_line(column)!r} says which rows are of which part of the run: {texts}",)


def _parts(column: pl.Series) -> dict[str, str]:
    """Return the part that each text of a column is; nothing unless all are parts, one of them of validation."""
    if column.dtype not in _TEXTS or not 0 < column.n_unique() <= MAX_PARTS:
        return {}
    texts = column.cast(pl.String).drop_nulls().unique().sort().to_list()
    if part_of(column.name.lower().removeprefix("is_")) and {text.lower() for text in texts} <= {"true", "false"}:
        is_training = not is_validation(column.name)
        return {text: "train" if (text.lower() == "true") == is_training else "val" for text in texts}
    parts = {text: part_of(_EVENT.sub("", text)) for text in texts}
    further = [part for part in parts.values() if "/" in part]
    has_validation = any(is_validation(part) for part in parts.values())
    are_sets = not further or (not TRAINING.isdisjoint(parts.values()) and all(map(is_validation, further)))
    return parts if texts and all(parts.values()) and has_validation and are_sets else {}


def one_row_per_epoch(table: pl.DataFrame, epoch: str, loss: str) -> pl.DataFrame:
    """Return a table in which rows of an epoch, of its training and of its validation, are one row."""
    training = table.filter(pl.col(loss).is_not_null())
    if training[epoch].n_unique() < len(training):
        return table
    return table.group_by(epoch, maintain_order=True).agg(pl.all().drop_nulls().last()).select(table.columns)


class RunNames(NamedTuple):
    """The run of every row."""

    names: pl.Series  # null where a row does not say
    labels: list[str]  # the columns that they are made of


def name_runs(
    table: pl.DataFrame, columns: Columns, steps: pl.Series, loss: str, key: str | None = None
) -> RunNames | None:
    """Return the run of every row by the columns that separate runs; None if the table holds one run."""
    usable = steps.filter(table[loss].is_not_null() & steps.is_finite())
    if (usable.diff().drop_nulls() > 0).all():  # each row is a step of its own
        return None
    row_key = [_STEP, _EPOCH, *columns.named.get("rank", [])[:1], *([key] if key else [])]
    epoch = pl.col(columns.named["epoch"][0]) if columns.named.get("epoch") else pl.lit(0.0)
    rows = table.with_columns(steps.alias(_STEP), epoch.cast(pl.Float64, strict=False).floor().alias(_EPOCH))
    rows = rows.filter(pl.col(loss).is_not_null() & steps.is_finite())

    def n_repeated(labels: list[str]) -> int:
        known = rows.drop_nulls(labels) if labels else rows
        return len(known) - known.select(*labels, *row_key).n_unique()

    before = n_repeated([])
    n_steps = len(rows) - before
    if rows.select(*row_key, loss).n_unique() - n_steps <= before / 2:  # no row, or one of the same loss
        return None
    candidates = []
    for name in _candidates(table, columns, key):
        if 1 < rows[name].n_unique() <= len(rows) / 2:
            if _are_blanks_a_run(rows, name, row_key):
                rows, table = (
                    frame.with_columns(pl.col(name).cast(pl.String).fill_null("none")) for frame in (rows, table)
                )
            if not _changes_in_runs(rows, name) and _begin_together(rows, [name]) and n_repeated([name]) < before:
                candidates.append(name)
    labels: list[str] = []
    candidates = candidates[:MAX_CANDIDATES]
    for some in (some for n in range(1, MAX_LABELS + 1) for some in combinations(candidates, n)):
        if not before:
            break
        repeated = n_repeated(list(some))
        if repeated <= MAX_REPEATED_SHARE * before and _begin_together(rows, list(some)):
            labels, before = list(some), repeated
    return RunNames(_names(table.select(labels)), labels) if labels else None


def name_blocks(table: pl.DataFrame, columns: Columns, loss: Numbers) -> RunNames | None:
    """Return the run of every row of a table without steps: by a label with whose changes the loss begins again."""
    for name in _candidates(table, columns, None):
        block = table[name].rle_id()
        n = block.n_unique()
        if n > 1 and n == table[name].n_unique():
            places = pl.int_range(pl.len()).over(block).cast(pl.Float64)
            if len(appended_runs(table.select(places).to_series().to_numpy(), None, loss)) == n - 1:
                return RunNames(_names(table.select(name)), [name])
    return None


def _are_blanks_a_run(rows: pl.DataFrame, name: str, row_key: list[str]) -> bool:
    """Return whether rows without a value are those of a run: as many as others have, and as often one per step."""
    groups = rows.group_by(name).agg(n=pl.len(), unique=pl.struct(row_key).n_unique())
    blank, others = groups.filter(pl.col(name).is_null()), groups.drop_nulls(name)
    if blank.is_empty() or others.is_empty():
        return False
    n, unique = blank["n"][0], blank["unique"][0]
    usual = float(np.median(others["n"].to_numpy()))
    share = float(np.median((others["unique"] / others["n"]).to_numpy()))
    return bool(n >= MIN_BLANK_SHARE * usual and abs(unique / n - share) <= MAX_SHARE_DIFFERENCE)


def _candidates(table: pl.DataFrame, columns: Columns, key: str | None) -> list[str]:
    """Return the columns that may be labels, by their names: texts before numbers, a learning rate last."""
    varying = {name for quantity in PER_ROW for name in columns.named.get(quantity, [])}
    varying |= {target.name for target in (*columns.losses, *columns.accuracies)}
    named_runs, rates = columns.named.get("run", []), columns.named.get("learning_rate", [])
    names = [
        name
        for name in table.columns
        if name not in varying
        and name != key
        and NO_LABELS.isdisjoint(re.findall(r"[a-z]+", name.lower()))
        and not is_part(name)
    ]

    def preference(name: str) -> tuple[bool, bool, bool]:
        return name not in named_runs, name in rates, _are_numbers(table[name])

    return sorted(names, key=preference)


def _changes_in_runs(rows: pl.DataFrame, name: str) -> bool:
    """Return whether a column changes where steps go on from row to row, as a schedule does that several runs share."""
    part = (pl.col(_STEP).diff() <= 0).fill_null(value=False).cum_sum()
    # after the first row: that may be the last of a run that took turns with the one that goes on
    parts = rows.group_by(part).agg(n=pl.len(), changes=pl.col(name).slice(1).drop_nulls().n_unique() > 1)
    least = max(MIN_PART_ROWS, MIN_PART_SHARE * rows[_STEP].n_unique())
    changing = parts.filter(pl.col("changes") & (pl.col("n") >= least))
    return bool(changing["n"].sum() > len(rows) / 2)


def _begin_together(rows: pl.DataFrame, labels: list[str]) -> bool:
    """Return whether groups begin at about the same step, as runs do, and parts of a resumed run do not."""
    groups = (
        rows.drop_nulls(labels)
        .group_by(labels)
        .agg(first=pl.col(_STEP).min(), last=pl.col(_STEP).max(), n=pl.col(_STEP).n_unique())
    )
    if len(groups) < 2:
        return False
    first, span = groups["first"].to_numpy(), (groups["last"] - groups["first"]).to_numpy()
    gap = float(np.median(span / np.maximum(groups["n"].to_numpy() - 1, 1)))
    return bool(np.ptp(first) <= max(2 * gap, MAX_LATE_SHARE * span.min()))


def _names(values: pl.DataFrame) -> pl.Series:
    """Return names by labels, ``variant=a seed=1``; the label of a single column of texts alone."""
    labels = values.columns
    texts = [pl.col(label).cast(pl.String) for label in labels]
    if len(labels) == 1 and not _are_numbers(values[labels[0]]):
        return values.select(texts[0])[labels[0]]
    pattern = " ".join(f"{label.replace('{', '(').replace('}', ')')}={{}}" for label in labels)
    return values.select(pl.format(pattern, *texts).alias("run"))["run"]


def _are_numbers(column: pl.Series) -> bool:
    return column.dtype != pl.String or column.drop_nulls().head(1).cast(pl.Float64, strict=False).null_count() == 0
