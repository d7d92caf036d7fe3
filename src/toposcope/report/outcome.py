"""What the association table answers: one outcome, from which every sentence about the study's verdict is written."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import polars as pl

from toposcope.analysis.power import SIZES
from toposcope.analysis.verdict import BEYOND, LEVEL, MIN_POWER, NONE, PLANTED, POWER, RUNS, TREND, UNDETERMINED
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import SCALED, has_scales, measured, primary
from toposcope.report.material import Material
from toposcope.wording import joined

CLOCK_COLUMNS = {
    "rho_step": "the step",
    "rho_learning_rate": "the learning rate",
    "rho_weight_norm": "the weight norm",
}
"""The clocks by the columns of their correlation with the loss."""


class Kind(Enum):
    """Outcomes, in the order in which they are looked for."""

    NO_LOSS = "no loss is known"
    NO_FEATURE = "no feature varies"
    BEYOND = "a feature passes every test"
    OPEN = "a feature passes every test that so few runs allow"
    UNTESTABLE = "no test is defined"
    WEAK = "no feature is found, and the tests would have missed what matters"
    PARTIAL = "a feature is significant given the clocks, but fails another test"
    NOTHING = "no feature is significant given the clocks"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome for the topological features of the whole network, each run against its first target."""

    kind: Kind
    rows: pl.DataFrame  # the association rows of topological features whose correlation is defined
    deciding: list[str]  # the features that the outcome is about; empty for those where no feature stands out

    @property
    def features(self) -> list[str]:
        """Features whose correlation with the loss is defined in some run."""
        return features_of(self.rows)

    @property
    def n_runs(self) -> int:
        """Runs with such a feature."""
        return self.rows.get_column("run").n_unique()

    @property
    def tested(self) -> pl.DataFrame:
        """Rows with a verdict."""
        return self.rows.filter(pl.col("verdict") != UNDETERMINED)

    @property
    def untested(self) -> pl.DataFrame:
        """Rows without a verdict."""
        return self.rows.filter(verdict=UNDETERMINED)

    @property
    def weak(self) -> pl.DataFrame:
        """Rows that were tested without a verdict: the tests would have missed what matters."""
        return without_power(self.rows)


def outcome_of(material: Material) -> Outcome:
    """Return what the association table of a study answers."""
    network = primary(material).filter(pl.col("group") == NETWORK)
    rows = measured(network).filter(pl.col("kind") == TOPOLOGY)
    if not len(network):
        return Outcome(Kind.NO_LOSS, rows, [])
    if not len(rows):
        return Outcome(Kind.NO_FEATURE, rows, [])
    for kind, deciding in (
        (Kind.BEYOND, rows.filter(verdict=BEYOND)),
        (Kind.OPEN, without_runs(rows)),
    ):
        if len(deciding):
            return Outcome(kind, rows, features_of(deciding))
    if rows.filter(pl.col("verdict") != UNDETERMINED).is_empty():
        return Outcome(Kind.WEAK if len(without_power(rows)) else Kind.UNTESTABLE, rows, [])
    partial = features_of(beyond_clocks(rows))
    return Outcome(Kind.PARTIAL if partial else Kind.NOTHING, rows, partial)


def features_of(rows: pl.DataFrame) -> list[str]:
    """Return the features of some rows, each once."""
    return list(rows.get_column("feature").unique(maintain_order=True))


def without_runs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that pass every test but the comparison with other runs, for which there are too few."""
    return rows.filter(verdict=UNDETERMINED, untested=RUNS.untested)


def without_power(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose tests would have missed what matters."""
    return rows.filter(verdict=UNDETERMINED, untested=POWER.untested)


def power_words(rows: pl.DataFrame) -> str:
    """Say what the tests of some rows of `without_power` would have found, by their median."""
    power, detectable = (rows.get_column(name).to_numpy() for name in ("power", "detectable"))
    first = f"a partial correlation of {PLANTED:g} would be found in {np.median(power):.0%} of cases"
    # Where more than half of the rows find none of the sizes, the median is infinite.
    smallest = float(np.median(np.where(np.isfinite(detectable), detectable, np.inf)))
    which = f"one of {smallest:g}" if np.isfinite(smallest) else f"not even one of {SIZES[-1]:g}"
    return f"{first}, {which} in {MIN_POWER:.0%}"


def beyond_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are significant given every clock, but fail another test."""
    return _significant_given_clocks(rows).filter(~_explained_by_scale(rows))


def only_beyond_scale(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of hidden states, significant given every clock but not given the step and the top eigenvalue."""
    return _significant_given_clocks(rows).filter(_explained_by_scale(rows))


def clocks_of(rows: pl.DataFrame) -> str:
    """Name the clocks that were known in every row."""
    known = [name for column, name in CLOCK_COLUMNS.items() if rows.get_column(column).is_finite().all()]
    return joined(known or ["the step"])


def _significant_given_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("p_given_all_adjusted").fill_nan(1.0) < LEVEL, pl.col("verdict").is_in([TREND, NONE]))


def _explained_by_scale(rows: pl.DataFrame) -> pl.Expr:
    if not has_scales(rows):
        return pl.lit(value=False)
    return pl.col(SCALED).is_finite() & ~(pl.col("p_given_scale_adjusted").fill_nan(1.0) < LEVEL)
