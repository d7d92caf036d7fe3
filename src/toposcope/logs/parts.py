"""Parts of one run: its training and its validation, told apart by words such as ``train`` and ``val``."""

import re

import polars as pl

from toposcope.logs.columns import VALIDATION, identify_columns
from toposcope.logs.raw import one_line

TRAINING = frozenset({"train", "training"})
ALIASES = {
    **{"fit": "train", "trn": "train", "validate": "validation", "validating": "validation", "vld": "val"},
    **{"evaluate": "eval", "testing": "test", "hold": "heldout", "holdout": "heldout", "held": "heldout"},
}
"""Other words for parts, by those in `identify_columns`."""
MAX_PARTS = 20
_TEXTS = (pl.String, pl.Boolean, pl.Categorical, pl.Enum)
_EVENT = re.compile(r"(?<=[A-Za-z])[_ -](?:step|epoch|batch|iter|loop|phase|end|metrics|log)s?$", re.IGNORECASE)
"""Ends of words for parts: ``train_step``."""


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
    """Return a table in which a loss of rows of training and of validation is a column for each, and a remark.

    Parameters
    ----------
    table : polars.DataFrame
    loss : str or None
        A column that the caller named as the loss.
    key : str or None
        The column that names the quantity in each row, of a long table.
    """
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
    """Return the part that each text of a column is; nothing unless all are parts, one of them of validation.

    ``val_c4`` is a part beside ``train``; of a column ``is_train``, ``true`` and ``false`` are parts.
    """
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
