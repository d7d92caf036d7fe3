"""Evaluations of runs in one form, and as a tool wrote them: a row for each run, checkpoint, task and metric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import Target
from toposcope.logs.raw import numbers

SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run", "recipe", "seed", "task", "metric", "date"), pl.String),
    **dict.fromkeys(("N", "D", "tokens_per_step", "value", "standard_error", "chance"), pl.Float64),
    **dict.fromkeys(("step", "shots", "n"), pl.Int64),
    "corpus": pl.Boolean,
}
"""Columns of `RawEvaluations.table`: null where the tool says nothing. ``corpus`` is true of the loss on a corpus; of
two values of one metric the one with the later ``date`` counts."""
COLUMNS = {
    name: SCHEMA.get(name, pl.String)
    for name in "run recipe N D step seed task shots metric role value n standard_error".split()
}
"""Columns of `Evaluations.table` and their types."""
ROLES = ("score", "loss", "likelihood", "corpus_loss", "other_score")
"""What a metric is: the score people care for, the loss of a task's right answers, a quantity made of likelihoods that
may stand for the score, the loss on a corpus (whose name is in the column ``task``), a further metric of a task that
has a score."""
MAX_SIZE = 1e30
"""Parameters, and tokens, beyond which (or below its inverse) a number is a mistake; products of both stay finite."""


@dataclass(frozen=True, eq=False)
class Evaluations:
    """What evaluations said about runs."""

    table: pl.DataFrame
    targets: Mapping[str, Target] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if dict(self.table.schema) != COLUMNS:
            raise ToposcopeError(f"evaluations: columns must be {', '.join(COLUMNS)}, with their types")
        if unknown := set(self.table["role"].unique()) - set(ROLES):
            raise ToposcopeError(f"evaluations: role {sorted(unknown)[0]!r}; expected one of {', '.join(ROLES)}")

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with scores, sorted."""
        return tuple(sorted(self.table.filter(pl.col("role") == "score")["task"].unique()))


@dataclass(frozen=True, eq=False)
class RawEvaluations:
    """Evaluations from one file or folder.

    Attributes
    ----------
    source : Path
    table : polars.DataFrame
        Columns and types `SCHEMA`; a row for each value. Without tasks, a table of what is known of runs.
    remarks : tuple of str
    named : bool
        Whether the runs have a model's full name, in which its family, size and checkpoint stand.
    """

    source: Path
    table: pl.DataFrame
    remarks: tuple[str, ...] = ()
    named: bool = False


def as_raw(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the columns and types of `SCHEMA`; texts that are numbers count as such."""
    columns = []
    for name, dtype in SCHEMA.items():
        if name not in table.columns:
            columns.append(pl.Series(name, [None], dtype=dtype).new_from_index(0, len(table)))
            continue
        column = table[name]
        if dtype.is_numeric() and column.dtype != dtype:
            values = pl.Series(name, numbers(column).values, nan_to_null=name != "value")
            # 1.5 is no step
            column = values.set(values != values.round(), None) if dtype == pl.Int64 else values
        columns.append(column.cast(dtype, strict=False).alias(name))
    return pl.DataFrame(columns)


def short_number(name: str) -> pl.Expr:
    """Return a number as people write it: 19.5341M, 302M."""
    value = pl.col(name)

    def text(unit: float) -> pl.Expr:
        return (value / unit).round_sig_figs(6).cast(pl.String).str.replace(r"\.0$", "")

    large = pl.when(value >= 1e9).then(pl.format("{}B", text(1e9)))
    return large.when(value >= 1e6).then(pl.format("{}M", text(1e6))).otherwise(text(1.0))
