"""What the page of the experiment is made from, and the sentences at its top."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import polars as pl

from toposcope.extend import Tables, joined, p_value, plain, share, signed
from toposcope_experiments.early_stopping.stopping_rules import LOSS, NEURAL_PERSISTENCE
from toposcope_experiments.early_stopping.tried_rules import BETTER, WORSE, TriedRules
from toposcope_experiments.early_stopping.tried_rules import NOT_SHOWN as NO_DIFFERENCE
from toposcope_experiments.regularisation.comparison import (
    AGAINST,
    ALL_SHOWN,
    AS_PUBLISHED,
    AS_PUBLISHED_TOO,
    NOT_SHOWN,
    SEPARATOR,
    VIEWS,
    Comparison,
    compare,
)
from toposcope_experiments.regularisation.design import PLAIN
from toposcope_experiments.regularisation.experiment import MeasuredRuns
from toposcope_experiments.regularisation.features import NORM, NP
from toposcope_experiments.regularisation.stopping import CALLED, stop_early

LEAST_POINTS = 0.05  # percentage points of accuracy that are worth a word
RULE_PHRASES = {
    BETTER: "it is better than a fixed epoch",
    WORSE: "it is worse than a fixed epoch",
    NO_DIFFERENCE: "it is not shown to differ from a fixed epoch",
}


class RegularisationData:
    """The measured runs, how the conditions compare, what early stopping does, and the tables of the page."""

    def __init__(
        self, measured: MeasuredRuns, makers: "Mapping[str, Callable[[RegularisationData], pl.DataFrame]]"
    ) -> None:
        self.measured = measured
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers)

    @cached_property
    def comparison(self) -> Comparison:
        """The conditions compared."""
        return compare(self.measured)

    @cached_property
    def tried(self) -> TriedRules:
        """The rules of early stopping, tried."""
        return stop_early(self.measured)


def lead(data: RegularisationData) -> list[str]:
    """Return the sentences on the conditions."""
    verdicts = data.tables["verdicts"].filter(feature=NP)
    published = verdicts.filter(pl.col("published") != "")
    pairs = published.select("condition", "beside").unique(maintain_order=True).rows()
    return [
        *_overall(published),
        *(_on_pair(published.filter(condition=condition, beside=beside)) for condition, beside in pairs),
        *_on_others(verdicts.filter(published="")),
        *_on_structure(data.tables["verdicts"]),
    ]


def _overall(published: pl.DataFrame) -> list[str]:
    """Count the verdicts on the published pairs."""
    if not len(published):
        return []
    counts = Counter(published.get_column("verdict"))
    n_as = counts[AS_PUBLISHED] + counts[AS_PUBLISHED_TOO]
    alone = f" ({counts[AS_PUBLISHED] or 'none'} of them without a control that differs too)" if n_as else ""
    return [
        f"Of {len(published)} comparisons with a published direction neural persistence is as published in "
        f"{n_as or 'none'}{alone}, and the other way round in {counts[AGAINST] or 'none'}."
    ]


def _on_pair(rows: pl.DataFrame) -> str:
    """Say what is published on a pair and what is found, with the numbers."""
    first = rows.row(0, named=True)
    found = [_on_view(row) for row in rows.iter_rows(named=True)]
    return (
        f"Published: neural persistence is {first['published']} with {first['condition']} than "
        f"{_other(first['beside'])}. Found: {'; '.join(found)}."
    )


def _other(condition: str) -> str:
    return "in plain networks" if condition == PLAIN.name else f"with {condition}"


def _on_view(row: Mapping[str, Any]) -> str:
    if row["reason"]:
        return f"at {row['view']} it cannot be told, since {row['reason']}"
    phrases = {
        AS_PUBLISHED: "so it is, and no control differs",
        AS_PUBLISHED_TOO: f"so it is, and {joined(row['controls'].split(SEPARATOR))} differ as well",
        AGAINST: "it is the other way round",
        NOT_SHOWN: "no difference is shown",
    }
    numbers = f"{plain(row['mean'], 3)} against {plain(row['beside_mean'], 3)}, adjusted p {p_value(row['p_adjusted'])}"
    return f"at {row['view']} {phrases[row['verdict']]} ({numbers})"


def _on_others(rows: pl.DataFrame) -> list[str]:
    """Say how the conditions differ on which nothing is published."""
    found = [f"at {view} {_directions(rows.filter(view=view))}" for view in VIEWS]
    return [f"On the other pairs no direction is published. Found: {'; '.join(found)}."] if len(rows) else []


def _directions(rows: pl.DataFrame) -> str:
    """Say with which conditions neural persistence is higher or lower."""
    shown = rows.filter(pl.col("verdict").is_in(ALL_SHOWN))
    parts = [
        f"{word} with {joined(names)}"
        for word, sign in (("higher", 1), ("lower", -1))
        if (names := shown.filter(pl.col("difference").sign() == sign).get_column("condition").to_list())
    ]
    return f"it is {' and '.join(parts)}" if parts else "no difference is shown"


def _on_structure(verdicts: pl.DataFrame) -> list[str]:
    """Count the differences that no control shares."""
    shown = verdicts.filter(pl.col("verdict").is_in(ALL_SHOWN))
    n_alone = len(shown.filter(pl.col("controls") == ""))
    if not len(shown):
        return []
    alone = f"in {n_alone} of them neither norms nor spectrum nor the placebo differ"
    none = "in each of them a norm, the spectrum or the placebo differs too"
    return [
        f"Over all pairs, both views and three measures of neural persistence {len(shown)} of {len(verdicts)} "
        f"differences are shown; {alone if n_alone else none}."
    ]


def accuracy_lead(data: RegularisationData) -> list[str]:
    """Say whether neural persistence goes with the test accuracy."""
    rows = {row["feature"]: row for row in data.tables["accuracy"].to_dicts()}
    parts = [
        f"{name}: {signed(rows[feature]['rho_conditions'], 2)} over the means of the conditions (adjusted p "
        f"{p_value(rows[feature]['p_conditions_adjusted'])}), {signed(rows[feature]['rho_runs'], 2)} over runs of one "
        f"condition ({p_value(rows[feature]['p_runs_adjusted'])})"
        for feature, name in ((NP, "neural persistence"), (NORM, "weight norm"))
    ]
    return [f"Rank correlation with the test accuracy: {'; '.join(parts)}."]


def stopping_lead(data: RegularisationData) -> list[str]:
    """Say what patience on neural persistence saves and costs, compared with the other rules."""
    rules = {row["rule"]: row for row in data.tried.rules.to_dicts()}
    row, loss_rule = rules[NEURAL_PERSISTENCE], rules[LOSS]
    barycentre = data.tables["barycentres"].filter(rule=CALLED[NEURAL_PERSISTENCE], condition="")
    later = barycentre.row(0, named=True)
    return [
        f"Stopping when neural persistence rises no more saves {share(row['saved'])} of the epochs, mean over the "
        f"grid; the test accuracy is then {_than_at_the_end(row['paid'])}, at a fixed epoch that saves as much "
        f"{_than_at_the_end(row['paid_fixed'])} (adjusted p {p_value(row['p_adjusted'])}): "
        f"{RULE_PHRASES[row['verdict']]}.",
        f"Patience on the validation loss saves {share(loss_rule['saved'])}, and the test accuracy is then "
        f"{_than_at_the_end(loss_rule['paid'])}. Patience on neural persistence stops {plain(abs(later['epochs']), 3)} "
        f"epochs {'later' if later['epochs'] > 0 else 'earlier'} (95%: {signed(later['epochs_low'], 1)} to "
        f"{signed(later['epochs_high'], 1)}).",
    ]


def _than_at_the_end(lost: float) -> str:
    """Say how the accuracy at a stop differs from that at the end, in percentage points."""
    if abs(lost) < LEAST_POINTS:
        return "that at the end"
    return f"{abs(lost):.1f} points {'below' if lost > 0 else 'above'} that at the end"
