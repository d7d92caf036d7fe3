"""Points of a scaling law: one loss for each of many runs of N parameters on D tokens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecaster import RefusedError
from toposcope.logs.columns import identify_columns, target_of
from toposcope.logs.formats import read_raw
from toposcope.logs.raw import join_names, parse_numbers, plural
from toposcope.typing import Indices, Vector

MIN_LARGEST = 1e5  # parameters or tokens; all of a table in millions and billions stay below

Labels = NDArray[np.str_]

COLUMNS = ("N", "D", "C", "loss", "run", "family")
"""What the caller can say that a column is; tokens follow from the compute C = 6 N D."""
TOKENS = ("D", "n_train_tokens", "num_train_tokens", "tokens_trained", "data", "data_size", "dataset_size")
COMPUTE = ("C", "c6nd", "flops", "flop", "compute", "training_flops", "training_flop", "train_flops", "total_flops")
FAMILY = ("source", "dataset", "corpus", "group")
"""Names of totals of a run, in addition to those of `toposcope.logs.columns.NAMES`."""


@dataclass(frozen=True, eq=False)
class Points:
    """Losses that runs reached, with their parameters and tokens."""

    N: Vector
    D: Vector
    loss: Vector
    run: Labels = field(default_factory=lambda: np.empty(0, np.str_))
    family: Labels = field(default_factory=lambda: np.empty(0, np.str_))
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.N)
        if not len(self.run):
            object.__setattr__(self, "run", np.array([str(i) for i in range(n)], dtype=np.str_))
        if not len(self.family):
            object.__setattr__(self, "family", np.full(n, "", dtype=np.str_))
        for name in ("N", "D", "loss"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            if not (np.isfinite(values) & (values > 0)).all():
                raise ToposcopeError(f"points: {name} must be finite and positive everywhere")
        if any(len(column) != n for column in (self.D, self.loss, self.run, self.family)):
            raise ToposcopeError("points: N, D, loss, run and family must be equally long")

    def __len__(self) -> int:
        return len(self.N)

    @property
    def C(self) -> Vector:  # noqa: N802
        """Training compute 6 N D, floating-point operations (Kaplan et al. 2020, section 2.1)."""
        return 6 * self.N * self.D

    def where(self, rows: NDArray[np.bool_] | Indices) -> "Points":
        """Return some of the points; remarks stay."""
        return Points(self.N[rows], self.D[rows], self.loss[rows], self.run[rows], self.family[rows], self.remarks)


def read_points(path: str | Path, columns: Mapping[str, str] | None = None) -> Points:
    """Read points from a table: CSV, JSON lines, Parquet, or anything else that logs are read from."""
    path, named = Path(path), dict(columns or {})
    if unknown := set(named) - set(COLUMNS):
        raise ToposcopeError(
            f"points: no column can be named to be {', '.join(sorted(unknown))}; choose from {', '.join(COLUMNS)}"
        )
    if not path.exists():
        raise ToposcopeError(f"{path}: no such file")
    raws = read_raw(path, look=True)
    if raws is None:
        raise ToposcopeError(f"{path}: not a table of points; give CSV, JSON lines or Parquet")
    tables = [raw.table.with_columns(run=pl.lit(raw.name)) if len(raws) > 1 else raw.table for raw in raws]
    points = _from_table(path, pl.concat(tables, how="diagonal_relaxed"), named)
    if points.N.max() < MIN_LARGEST and points.D.max() < MIN_LARGEST:
        raise ToposcopeError(
            f"{path}: N up to {points.N.max():.4g} and D up to {points.D.max():.4g} look like millions and billions; "
            "give parameters and tokens themselves"
        )
    return replace(points, remarks=(*raws[0].remarks, *points.remarks))


def _from_table(path: Path, table: pl.DataFrame, named: dict[str, str]) -> Points:
    source = _sources(path, table.columns, named)
    values = {column: parse_numbers(table[source[column]]).values for column in ("N", "D", "C") if column in source}
    loss, unit = parse_numbers(table[source["loss"]]).values, target_of(source["loss"]).unit
    if unit == "perplexity":
        loss = np.log(loss, where=loss > 0, out=np.full(len(loss), np.nan))
    loss, remarks = loss * nats_of(unit), [f"losses are per {each}" for each in {counted_per(unit)} - {"token"}]
    N = np.where(values["N"] > 0, values["N"], np.nan)
    D = values["D"] if "D" in values else values["C"] / (6 * N)
    if "D" not in values:
        remarks.append(f"tokens are computed from compute ({source['C']}): D = C / (6 N)")
    run, family = (_labels(table, source.get(column)) for column in ("run", "family"))
    complete = np.all([np.isfinite(column) & (column > 0) for column in (N, D, loss)], axis=0)
    keys = pl.DataFrame({"N": N, "D": D, "loss": loss, "run": run.tolist(), "family": family.tolist()})
    first = keys.select(pl.struct(pl.all()).is_first_distinct()).to_series().to_numpy()
    for n, what in (
        ((~complete).sum(), "without a positive N, D and loss: ignored"),
        ((complete & ~first).sum(), "twice in the table: counted once"),
    ):
        if n:
            remarks.append(f"{plural(int(n), 'row', 'rows')} {what}")
    rows = complete & first
    if not rows.any():
        raise ToposcopeError(f"{path}: no row has a positive N, D and loss")
    run = np.where(run == "", np.array([f"row {i + 1}" for i in range(len(table))], dtype=np.str_), run)
    return Points(N[rows], D[rows], loss[rows], run[rows], family[rows], tuple(remarks))


def _sources(path: Path, names: list[str], named: dict[str, str]) -> dict[str, str]:
    """Return which column of a table each of `COLUMNS` is read from."""
    for column, name in named.items():
        if name not in names:
            raise ToposcopeError(f"{path}: no column {name} ({column}); there are {join_names(names)}")
    source = _identified(names) | named
    for column, meaning in (("N", "parameters"), ("D", "training tokens"), ("loss", "the loss")):
        if column not in source and not (column == "D" and "C" in source):
            raise ToposcopeError(f"{path}: no column for {column}, {meaning}; name it. There are {join_names(names)}")
    return source


def _identified(names: list[str]) -> dict[str, str]:
    """Return which column is which of `COLUMNS`, by their names."""
    logged = identify_columns(names)
    plain = {name if len(name) == 1 else re.sub(r"\W+", "_", name).strip("_").lower(): name for name in names}
    found = {"loss": [target.name for target in logged.losses]}
    for column, quantity, others in (
        ("N", "parameters", ()),
        ("D", "tokens", TOKENS),
        ("C", "", COMPUTE),
        ("run", "run", ()),
        ("family", "family", FAMILY),
    ):
        found[column] = [*logged.named.get(quantity, []), *(plain[other] for other in others if other in plain)]
    return {column: candidates[0] for column, candidates in found.items() if candidates}


def counted_per(unit: str) -> str:
    """Return what a loss in a unit is of: a token, a byte or a character."""
    return next((each for each in ("byte", "character") if unit.endswith(f"per {each}")), "token")


def nats_of(unit: str) -> float:
    """Return how many nats are one of a unit of losses."""
    return float(np.log(2)) if unit.startswith("bits") else 1.0


def _labels(table: pl.DataFrame, name: str | None) -> Labels:
    if name is None:
        return np.full(len(table), "", dtype=np.str_)
    return table[name].cast(pl.String).fill_null("").to_numpy().astype(np.str_)


def points_of_family(points: Points | str | Path, family: str | None = None) -> Points:
    """Return the points of one family, read from a table if a path is given."""
    if not isinstance(points, Points):
        points = read_points(points)
    names = np.unique(points.family).tolist()
    if family is not None:
        if family not in names:
            known = ", ".join(filter(None, names)) or "an unknown one"
            raise ToposcopeError(f"family {family}: no such points; they are of {known}")
        return points.where(points.family == family)
    if len(names) > 1:
        raise RefusedError(f"points are of {len(names)} families ({', '.join(names)}); choose one with --family NAME")
    return points
