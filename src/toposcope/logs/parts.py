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
    column = next((name for name in table.columns if name not in (loss, key) and _tells_parts(table[name])), None)
    if column is None:
        return table, ()
    names = {text: part_of(text) for text in table[column].drop_nulls().unique(maintain_order=True).sort()}
    part = pl.col(column).replace_strict(names, default=None, return_dtype=pl.String)
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


def _tells_parts(column: pl.Series) -> bool:
    """Return whether every value is a part, one of them of validation; ``val_c4`` is one beside ``train``."""
    if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        return False
    texts = column.drop_nulls().unique()
    if not 0 < len(texts) <= MAX_PARTS:
        return False
    parts = [part_of(text) for text in texts]
    further = [part for part in parts if "/" in part]
    return (
        all(parts)
        and any(is_validation(part) for part in parts)
        and (not further or (bool(TRAINING & set(parts)) and all(is_validation(part) for part in further)))
    )
