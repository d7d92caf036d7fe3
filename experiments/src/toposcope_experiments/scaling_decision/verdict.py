"""Whether topology says when to scale, by the rules of the plan."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from toposcope.extend import Vector
from toposcope_experiments.scaling_decision.prediction import (
    ALWAYS_ON,
    ALWAYS_UP,
    LAW,
    NOISE,
    OF_CONTROLS,
    OF_LOSS,
    OTHER_MARGIN,
    OTHER_SEED,
    OWN,
    RULE,
    SIZE_AND_STEP,
    TWIN,
    WITH_TOPOLOGY,
    Decisions,
    Predictors,
)
from toposcope_experiments.scaling_decision.score import (
    Gain,
    points_as_said,
    probabilities,
    regrets,
    scaling_points,
)

HELPS, OF_CONDITION, EXPLAINED, NOT_FOUND = "topology helps", "only of the condition", "explained", "not found"
ORDER = (
    *(ALWAYS_ON, ALWAYS_UP, RULE, LAW, SIZE_AND_STEP, OF_LOSS, OF_CONTROLS, WITH_TOPOLOGY, OWN),
    *(OTHER_SEED, TWIN, NOISE, OTHER_MARGIN),
)
"""Of the table of predictors."""
MNAT = 1e3  # in a nat
TWIN_LEVEL = 0.95  # share of the twins whose gain topology's has to be above


@dataclass(frozen=True, eq=False)
class Outcome:
    """The decisions, what each predictor says of them, and the verdict."""

    decisions: Decisions
    predictors: Predictors

    @classmethod
    def of(cls, table: pl.DataFrame) -> "Outcome":
        """Judge the decisions of a table."""
        decisions = Decisions(table)
        return cls(decisions, Predictors(decisions))

    def regret(self, name: str) -> Vector:
        """Return a predictor's regret in nats by condition, the mean over draws."""
        return np.asarray(regrets(self.decisions.margin, self.predictors[name]).mean(axis=0))

    def gain(self, name: str, over: str = OF_CONTROLS) -> Gain:
        """Return what a predictor saves on another."""
        return Gain(self.regret(over) - self.regret(name))

    @cached_property
    def primary(self) -> Gain:
        """What topology saves beside loss and controls."""
        return self.gain(OWN)

    @cached_property
    def beside_loss(self) -> Gain:
        """What topology saves beside the loss alone."""
        return self.gain(WITH_TOPOLOGY, OF_LOSS)

    @cached_property
    def beyond_twins(self) -> float:
        """Share of the twins that save less than topology does."""
        each = regrets(self.decisions.margin, self.predictors[TWIN]).mean(axis=1)
        return float((each > self.regret(OWN).mean()).mean())

    @cached_property
    def verdict(self) -> str:
        """One of the four of the plan."""
        if self.primary.found and self.beyond_twins >= TWIN_LEVEL:
            return HELPS if self.primary.mean > self.gain(OTHER_SEED).mean else OF_CONDITION
        return EXPLAINED if self.beside_loss.found else NOT_FOUND

    def table(self) -> pl.DataFrame:
        """Return a row for each predictor.

        Returns
        -------
        DataFrame
            Columns ``predictor``; ``regret`` and what it ``saved`` on loss and controls, in mnat, with its standard
            error ``saved_error`` and ``p``; the share of ``wrong`` decisions; the median error of the scaling point
            in ln FLOP, ``point_error``; the ``brier`` score of its probabilities.
        """
        margin, log_compute = self.decisions.margin, self.decisions["log_compute"]
        true = np.array([each.log_compute for each in scaling_points(log_compute, margin)])
        rows = []
        for name in ORDER:
            found, saved = self.predictors[name], self.gain(name)
            brier = [((probabilities(each) - (margin < 0)) ** 2).mean() for each in found if each.margin is not None]
            errors = [np.median(np.abs(points_as_said(log_compute, each) - true)) for each in found]
            rows.append({
                "predictor": name,
                "regret": MNAT * self.regret(name).mean(),
                "saved": MNAT * saved.mean,
                "saved_error": MNAT * saved.error,
                "p": None if name == OF_CONTROLS else saved.p,
                "wrong": np.mean([(each.scale != (margin < 0)).mean() for each in found]),
                "point_error": np.mean(errors),
                "brier": np.mean(brier) if brier else None,
            })  # fmt: skip
        return pl.DataFrame(rows)
