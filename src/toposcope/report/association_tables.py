"""The association tables of the page, with a legend of their columns (docs/methods/association.md)."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from toposcope.analysis.given_covariates import STEP
from toposcope.analysis.topology_verdict import SCALED, has_scales
from toposcope.analysis.verdict import LEVEL
from toposcope.probes.feature import TOPOLOGY
from toposcope.report.document import Terms
from toposcope.report.headline import headline_features
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Spec, Table, feature_of, headline_rows, interval_of, numbers, table, text_of

LEGEND = Terms(
    (
        ("1 as usually reported", "Spearman's rho of feature and loss over the run's checkpoints, its p, and the "
         "interval of 1,000 resamples of single checkpoints. All three assume independent checkpoints, which these are "
         "not."),
        ("2 dependence", "the interval of a moving-block bootstrap and its block length; the effective "
         "number of checkpoints (n eff.), and the p of rho with that number; the p of a permutation by "
         "circular shifts."),
        ("3 covariates", "rho of the step, of the learning rate of the moment, of its sum and of the weight norm with "
         "the same loss, and of the feature with the step. A feature that only follows a covariate has that "
         "covariate's rho."),
        ("4 given the covariates", "partial rho given the step; and the correlation of what all known covariates leave "
         "of feature and loss: polynomials of the step and of the sum of the learning rates, the learning rate and its "
         "past, the weight norm, of hidden states also their top eigenvalue."),
        ("5 differences", "rho of the changes from checkpoint to checkpoint; the same given the step and the change of "
         "the learning rate."),
        ("6 others", "cross-pairing: of the study's other comparable runs, the share whose feature correlates with "
         "this run's loss at least as strongly, given the covariates of both; p of pairings: over the whole study, the "
         "share of all pairings of features with losses of the runs that correlate as strongly."),
        ("7 scale-free twin", "the same feature divided by the scale of the weights."),
        ("8 noise", "the feature's standard deviation over draws or batches, over its median change from checkpoint to "
         "checkpoint; empty for exact features."),
        ("9 adjusted p", "p-values adjusted for all rows with the same target: of rho, of partial correlations, and "
         "of those of the changes."),
        ("verdict", "item 10, by the rule in the methods. If it cannot be told, the cells next to it name the missing "
         "test and what that needs."),
        ("power", "how often the tests find a feature planted in this run with a partial correlation of 0.45, and the "
         "smallest such correlation that they find 4 times in 5; where a verdict rests on it."),
        ("–", "not defined, mostly because the feature or the loss is perfectly rank-correlated with the step."),
    )
)  # fmt: skip

SCALE_LEGEND = Terms(
    (
        ("scale of hidden states", "rho of the top eigenvalue of the same states with the loss; partial rho of the "
         "feature given the step and this eigenvalue, its p, and that adjusted."),
    )
)  # fmt: skip


def _tests(group: str, columns: Mapping[str, str]) -> list[Spec]:
    """Return under one heading the columns of correlations, each with that of its p-value."""
    pairs = (numbers(group, signed={title: f"rho_{column}"}, p_value={"p-value": f"p_{column}"})
             for title, column in columns.items())  # fmt: skip
    return [spec for pair in pairs for spec in pair]


SPECS: tuple[Spec, ...] = (
    feature_of(),
    text_of("run", "run", names_row=True),
    text_of("verdict", "verdict"),
    text_of("missing test", "untested"),
    text_of("needs", "needs"),
    *numbers("power", share={"at 0.45": "power"}, signed={"found 4 in 5": "detectable"}),
    *numbers(whole={"checkpoints": "n"}),
    *numbers("1 as usually reported", signed={"rho": "rho", "Pearson": "pearson"}, p_value={"p-value": "p"}),
    interval_of("95% interval", "low", "high", group="1 as usually reported"),
    interval_of("95% interval", "block_low", "block_high", group="2 dependence"),
    *numbers("2 dependence", whole={"block": "block_length"}, tenths={"n eff.": "n_eff"}),
    *numbers("2 dependence", p_value={"p-value": "p_n_eff", "shift p": "p_shift"}),
    *numbers("3 covariates", signed={
        "step": "rho_step", "rate": "rho_learning_rate", "sum of rates": "rho_cumulative_learning_rate",
        "norm": "rho_weight_norm", "with step": "rho_with_step",
    }),
    *_tests("4 given the covariates", {"step": "given_step", "all": "given_all"}),
    *_tests("5 differences", {"rho": "differences", "given step": "differences_given_step"}),
    *numbers("6 others", whole={"runs": "n_others"}, share={"share as strong": "share_others"}),
    *numbers("6 others", p_value={"p of pairings": "p_pairing"}),
    *numbers("7 scale-free twin", signed={"rho": "rho_twin", "given step": "rho_twin_given_step"}),
    *numbers("7 scale-free twin", p_value={"p-value": "p_twin_given_step"}),
    *numbers("8 noise", tenths={"ratio": "noise"}),
    *numbers("9 adjusted p", p_value={
        "rho": "p_adjusted", "given step": "p_given_step_adjusted", "given all": "p_given_all_adjusted",
        "changes": "p_differences_adjusted",
    }),
)  # fmt: skip
SCALE_SPECS = numbers(
    "scale of hidden states",
    signed={"top eigenvalue": SCALED, "given step and it": "rho_given_scale"},
    p_value={"p-value": "p_given_scale", "p adjusted": "p_given_scale_adjusted"},
)
"""Further columns where features of hidden states are among the rows."""
SHORT: tuple[Spec, ...] = (
    feature_of(),
    text_of("run", "run", names_row=True),
    text_of("verdict", "verdict"),
    *numbers("rho with the loss", signed={"feature": "rho", "step": "rho_step"}),
    interval_of("block interval", "block_low", "block_high", group="dependence"),
    *numbers("dependence", tenths={"n eff.": "n_eff"}),
    *(
        spec
        for group, rho, p in (
            ("given the step", "given_step", "given_step"),
            ("given all covariates", "given_all", "given_all"),
            ("changes given step", "differences_given_step", "differences"),
        )
        for spec in numbers(group, signed={"rho": f"rho_{rho}"}, p_value={"p, adjusted": f"p_{p}_adjusted"})
    ),
    *numbers("other runs", share={"share as strong": "share_others"}),
)
SHORT_SCALE = numbers(
    "given step and top eigenvalue",
    signed={"rho": "rho_given_scale"},
    p_value={"p, adjusted": "p_given_scale_adjusted"},
)


def primary(data: StudyData) -> pl.DataFrame:
    """Return the association rows of each run's first, most reliable target, over all layer groups."""
    first = {t.run: next(iter(t.targets)) for t in data.trajectories if t.targets}
    rows = pl.DataFrame(list(first.items()), schema={"run": pl.String, "target": pl.String}, orient="row")
    return data.tables["association"].join(rows, on=["run", "target"], how="semi", maintain_order="left")


def measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows where a correlation is defined."""
    return rows.filter(pl.col("rho").is_finite())


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

    total: int
    stronger: int  # topology correlates more strongly, by the block bootstrap's 95% interval
    weaker: int  # it correlates less strongly
    undecided: int
    fisher: int  # comparisons that each test would call significant, in either direction
    williams: int

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
