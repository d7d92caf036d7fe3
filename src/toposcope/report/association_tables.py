"""The association tables of the page, with a legend of their columns (docs/methods/association.md)."""

from dataclasses import dataclass

import polars as pl

from toposcope.analysis.association import STEP
from toposcope.analysis.verdict import LEVEL
from toposcope.probes.feature import TOPOLOGY
from toposcope.report.document import Terms
from toposcope.report.headline import headline_features
from toposcope.report.material import Material
from toposcope.report.tables import (
    Spec,
    Table,
    feature_of,
    headline_rows,
    interval_of,
    number_of,
    p_value,
    share,
    table,
    tenths,
    text_of,
    whole,
)

SCALED = "rho_top_eigenvalue"  # this column has a number for features of hidden states only

_POWER = "power"
_RAW, _BLOCKS, _CLOCKS, _GIVEN = "1 as usually reported", "2 dependence", "3 clocks", "4 given the clocks"
_DIFFERENCES, _OTHERS, _TWIN, _NOISE, _ADJUSTED = (
    "5 differences",
    "6 others",
    "7 scale-free twin",
    "8 noise",
    "9 adjusted p",
)

LEGEND = Terms(
    (
        ("1 as usually reported", "Spearman's rho of feature and loss over the run's checkpoints, its p, and the "
         "interval of 1,000 resamples of single checkpoints. All three assume independent checkpoints, which these are "
         "not."),
        ("2 dependence", "the interval of a moving-block bootstrap and its block length; the number of independent "
         "checkpoints the series is worth (n eff.), and the p of rho with that number; the p of a permutation by "
         "circular shifts."),
        ("3 clocks", "rho of the step, of the learning rate of the moment, of its sum and of the weight norm with the "
         "same loss, and of the feature with the step. A feature that only follows a clock has that clock's rho."),
        ("4 given the clocks", "partial rho given the step, and given all known clocks: step, learning rate of the "
         "moment and weight norm."),
        ("5 differences", "rho of the changes from checkpoint to checkpoint; the same given the step and the change of "
         "the learning rate; and given these and the change of the weight norm."),
        ("6 others", "cross-pairing: of the study's other comparable runs, the share whose feature correlates with "
         "this run's loss at least as strongly, and the same given the step; p of pairings: over the whole study, the "
         "share of all pairings of features with losses of the runs that correlate as strongly. Then the same of the "
         "changes given the clocks."),
        ("7 scale-free twin", "the same feature divided by the scale of the weights."),
        ("8 noise", "the feature's standard deviation over draws or batches, over its median change from checkpoint to "
         "checkpoint; empty for exact features."),
        ("9 adjusted p", "p-values adjusted for all rows with the same target: of rho, of partial correlations, and "
         "of those of the changes."),
        ("verdict", "item 10, by the rule in the methods. If it cannot be told, the cells beside it name the missing "
         "test and what that needs."),
        ("power", "how often the tests find a feature planted in this run with a partial correlation of 0.45, and the "
         "smallest such correlation that they find 4 times in 5; where a verdict rests on it."),
        ("–", "not defined, mostly because a clock orders the checkpoints exactly as the feature or the loss does."),
    )
)  # fmt: skip

SCALE_LEGEND = Terms(
    (
        ("scale of hidden states", "rho of the top eigenvalue of the same states with the loss; partial rho of the "
         "feature given the step and this eigenvalue, its p, and that adjusted."),
    )
)  # fmt: skip

SPECS: tuple[Spec, ...] = (
    feature_of(),
    text_of("run", "run", names_row=True),
    text_of("verdict", "verdict"),
    text_of("missing test", "untested"),
    text_of("needs", "needs"),
    number_of("at 0.45", "power", share, group=_POWER),
    number_of("found 4 in 5", "detectable", group=_POWER),
    number_of("n", "n", whole),
    number_of("rho", "rho", group=_RAW),
    number_of("p", "p", p_value, group=_RAW),
    interval_of("95% interval", "low", "high", group=_RAW),
    interval_of("95% interval", "block_low", "block_high", group=_BLOCKS),
    number_of("block", "block_length", whole, group=_BLOCKS),
    number_of("n eff.", "n_eff", tenths, group=_BLOCKS),
    number_of("p", "p_n_eff", p_value, group=_BLOCKS),
    number_of("shift p", "p_shift", p_value, group=_BLOCKS),
    number_of("step", "rho_step", group=_CLOCKS),
    number_of("rate", "rho_learning_rate", group=_CLOCKS),
    number_of("sum of rates", "rho_cumulative_learning_rate", group=_CLOCKS),
    number_of("norm", "rho_weight_norm", group=_CLOCKS),
    number_of("with step", "rho_with_step", group=_CLOCKS),
    number_of("step", "rho_given_step", group=_GIVEN),
    number_of("p", "p_given_step", p_value, group=_GIVEN),
    number_of("all", "rho_given_all", group=_GIVEN),
    number_of("p", "p_given_all", p_value, group=_GIVEN),
    number_of("rho", "rho_differences", group=_DIFFERENCES),
    number_of("p", "p_differences", p_value, group=_DIFFERENCES),
    number_of("given step", "rho_differences_given_step", group=_DIFFERENCES),
    number_of("p", "p_differences_given_step", p_value, group=_DIFFERENCES),
    number_of("given all", "rho_differences_given_all", group=_DIFFERENCES),
    number_of("p", "p_differences_given_all", p_value, group=_DIFFERENCES),
    number_of("runs", "n_others", whole, group=_OTHERS),
    number_of("as well", "share_others", share, group=_OTHERS),
    number_of("given step", "share_others_given_step", share, group=_OTHERS),
    number_of("p of pairings", "p_pairing", p_value, group=_OTHERS),
    number_of("runs, changes", "n_others_differences", whole, group=_OTHERS),
    number_of("as well, changes", "share_others_differences", share, group=_OTHERS),
    number_of("p of pairings, changes", "p_pairing_differences", p_value, group=_OTHERS),
    number_of("rho", "rho_twin", group=_TWIN),
    number_of("given step", "rho_twin_given_step", group=_TWIN),
    number_of("p", "p_twin_given_step", p_value, group=_TWIN),
    number_of("ratio", "noise", tenths, group=_NOISE),
    number_of("rho", "p_adjusted", p_value, group=_ADJUSTED),
    number_of("given step", "p_given_step_adjusted", p_value, group=_ADJUSTED),
    number_of("given all", "p_given_all_adjusted", p_value, group=_ADJUSTED),
    number_of("changes", "p_differences_adjusted", p_value, group=_ADJUSTED),
    number_of("changes given all", "p_differences_given_all_adjusted", p_value, group=_ADJUSTED),
)  # fmt: skip

_SCALE = "scale of hidden states"
SCALE_SPECS: tuple[Spec, ...] = (
    number_of("top eigenvalue", SCALED, group=_SCALE),
    number_of("given step and it", "rho_given_scale", group=_SCALE),
    number_of("p", "p_given_scale", p_value, group=_SCALE),
    number_of("p adjusted", "p_given_scale_adjusted", p_value, group=_SCALE),
)
"""Further columns where features of hidden states are among the rows."""

SHORT: tuple[Spec, ...] = (
    feature_of(),
    text_of("run", "run", names_row=True),
    text_of("verdict", "verdict"),
    number_of("feature", "rho", group="rho with the loss"),
    number_of("step", "rho_step", group="rho with the loss"),
    interval_of("block interval", "block_low", "block_high", group="dependence"),
    number_of("n eff.", "n_eff", tenths, group="dependence"),
    number_of("rho", "rho_given_step", group="given the step"),
    number_of("p, adjusted", "p_given_step_adjusted", p_value, group="given the step"),
    number_of("rho", "rho_given_all", group="given all clocks"),
    number_of("p, adjusted", "p_given_all_adjusted", p_value, group="given all clocks"),
    number_of("rho", "rho_differences_given_step", group="changes given step"),
    number_of("p, adjusted", "p_differences_adjusted", p_value, group="changes given step"),
    number_of("as well", "share_others_given_step", share, group="other runs"),
)


def primary(material: Material) -> pl.DataFrame:
    """Return the association rows of each run's first, most reliable target, over all layer groups."""
    first = {t.run: next(iter(t.targets)) for t in material.trajectories if t.targets}
    rows = pl.DataFrame(list(first.items()), schema={"run": pl.String, "target": pl.String}, orient="row")
    return material.tables["association"].join(rows, on=["run", "target"], how="semi", maintain_order="left")


def measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows where a correlation is defined."""
    return rows.filter(pl.col("rho").is_finite())


SHORT_SCALE: tuple[Spec, ...] = (
    number_of("rho", "rho_given_scale", group="given step and top eigenvalue"),
    number_of("p, adjusted", "p_given_scale_adjusted", p_value, group="given step and top eigenvalue"),
)


def has_scales(rows: pl.DataFrame) -> bool:
    """Return whether any row is of a feature of hidden states, whose scale is a clock of its own."""
    return SCALED in rows.columns and bool(rows.get_column(SCALED).is_finite().any())


def legend(rows: pl.DataFrame) -> Terms:
    """Return the legend of the full table's columns."""
    return Terms((*LEGEND.items[:-3], *SCALE_LEGEND.items, *LEGEND.items[-3:])) if has_scales(rows) else LEGEND


def short_table(network: pl.DataFrame) -> Table | None:
    """Return a table of the features that the report names, with the most important columns."""
    rows = headline_rows(measured(network))
    specs = (*SHORT, *SHORT_SCALE) if has_scales(network) else SHORT
    return table("association-short", "Association with the loss, main features", specs, rows)


def full_table(name: str, caption: str, network: pl.DataFrame) -> Table | None:
    """Return every feature with all ten items: the main features first, then other topology, then controls."""
    associations = measured(network)
    features = associations.get_column("feature").unique(maintain_order=True)
    places = {feature: place for place, feature in enumerate(headline_features(features))}
    control = {row["feature"]: row["kind"] != TOPOLOGY for row in associations.iter_rows(named=True)}
    runs = {run: place for place, run in enumerate(associations.get_column("run").unique(maintain_order=True))}
    rows = sorted(
        associations.to_dicts(),
        key=lambda r: (
            places.get(r["feature"], len(places)), control[r["feature"]], r["feature"], runs[r["run"]],
        ),
    )  # fmt: skip
    specs = (*SPECS, *SCALE_SPECS) if has_scales(network) else SPECS
    return table(name, caption, specs, rows, sortable=True)


BLOCKS, WILLIAMS, FISHER = "block bootstrap", "Williams", "Fisher z"


@dataclass(frozen=True)
class SpectralComparisonCounts:
    """Counts of the comparisons of a topological feature with a spectral measure, by outcome."""

    # comparisons; those in which topology correlates more strongly, less strongly, or neither, by the block bootstrap's
    # 95% interval
    total: int
    # comparisons; those in which topology correlates more strongly, less strongly, or neither, by the block bootstrap's
    # 95% interval
    stronger: int
    # comparisons; those in which topology correlates more strongly, less strongly, or neither, by the block bootstrap's
    # 95% interval
    weaker: int
    # comparisons; those in which topology correlates more strongly, less strongly, or neither, by the block bootstrap's
    # 95% interval
    undecided: int
    fisher: int  # comparisons that each test would call significant, in either direction
    williams: int  # comparisons that each test would call significant, in either direction

    @classmethod
    def of(cls, comparisons: pl.DataFrame) -> "SpectralComparisonCounts":
        """Count the comparisons in each of these classes."""
        rows = spectral_comparisons(comparisons)
        if not len(rows):
            return cls(0, 0, 0, 0, 0, 0)
        blocks = rows.filter(pl.col("low").is_finite(), test=BLOCKS)
        stronger, weaker = len(blocks.filter(pl.col("low") > 0)), len(blocks.filter(pl.col("high") < 0))
        claimed = [len(rows.filter(pl.col("p").fill_nan(1.0) < LEVEL, test=test)) for test in (FISHER, WILLIAMS)]
        return cls(len(blocks), stronger, weaker, len(blocks) - stronger - weaker, *claimed)

    def sentence(self) -> str:
        """State the counts in a sentence."""
        return (
            f"Of {self.total:,} comparisons of a topological feature with a spectral measure of the same hidden "
            f"states, topology correlates with the loss more strongly in {self.stronger:,}, less strongly in "
            f"{self.weaker:,}, and {self.undecided:,} are undecided, by a block bootstrap; Fisher's z would call "
            f"{self.fisher:,} significant and Williams' test {self.williams:,}, but both assume independent "
            "checkpoints."
        )


def spectral_comparisons(comparisons: pl.DataFrame) -> pl.DataFrame:
    """Return the comparisons with spectral measures; the others are with the step."""
    return comparisons.filter(pl.col("other") != STEP) if len(comparisons) else comparisons
