"""Whether topology says when to scale, by the rules of the plan."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from toposcope.extend import Vector
from toposcope_experiments.scaling_decision.prediction import (
    LAW,
    NOISE,
    OF_CONTROLS,
    OF_LOSS,
    OTHER_SEED,
    OWN,
    SIZE_AND_STEP,
    TWIN,
    WITH_TOPOLOGY,
    Decisions,
    Predicted,
    predict_all,
)
from toposcope_experiments.scaling_decision.score import (
    MNAT,
    Gain,
    calibration,
    gain,
    regrets,
    scaling_points,
    stack,
)

HELPS, OF_CONDITION, EXPLAINED, NOT_FOUND = "topology helps", "only of the condition", "explained", "not found"
ALWAYS_ON, ALWAYS_UP, RULE, OTHER_MARGIN = "always go on", "always scale up", "published rule", "other seed's margin"
ORDER = (
    *(ALWAYS_ON, ALWAYS_UP, RULE, LAW, SIZE_AND_STEP, OF_LOSS, OF_CONTROLS, WITH_TOPOLOGY, OWN),
    *(OTHER_SEED, TWIN, NOISE, OTHER_MARGIN),
)
"""Of the table of predictors."""
TWIN_LEVEL = 0.95  # share of the twins whose gain topology's has to be above


@dataclass(frozen=True, eq=False)
class Outcome:
    """The decisions, what each predictor says of them, and the verdict."""

    table: Decisions
    found: dict[str, list[Predicted]]

    @classmethod
    def of(cls, decisions: pl.DataFrame) -> "Outcome":
        """Predict and judge decisions."""
        table = Decisions(decisions)
        unknown = np.full(len(decisions), np.nan)
        found = predict_all(decisions)
        ways = {
            ALWAYS_ON: np.zeros(len(decisions), bool),
            ALWAYS_UP: np.ones(len(decisions), bool),
            RULE: decisions["published_rule"].to_numpy().astype(bool),
            OTHER_MARGIN: table.margin[table.other_seed] < 0,
        }
        return cls(table, found | {name: [Predicted(unknown, unknown, way)] for name, way in ways.items()})

    @cached_property
    def regrets(self) -> dict[str, Vector]:
        """By predictor, each condition's, in nats."""
        return {name: regrets(self.table, self.found[name]) for name in ORDER}

    @property
    def primary(self) -> Gain:
        """What topology saves beside loss and controls."""
        return gain(self.regrets[OF_CONTROLS], self.regrets[OWN])

    @property
    def beside_loss(self) -> Gain:
        """What topology saves beside the loss alone."""
        return gain(self.regrets[OF_LOSS], self.regrets[WITH_TOPOLOGY])

    @property
    def of_controls(self) -> Gain:
        """What controls save beside the loss alone."""
        return gain(self.regrets[OF_LOSS], self.regrets[OF_CONTROLS])

    @property
    def of_other_seed(self) -> Gain:
        """What the other seed's topology saves beside loss and controls."""
        return gain(self.regrets[OF_CONTROLS], self.regrets[OTHER_SEED])

    @cached_property
    def beyond_twins(self) -> float:
        """Share of the twins whose gain is less than topology's."""
        gains = self.regrets[OF_CONTROLS].mean() - stack(self.found[TWIN], self.table).mean(axis=1)
        return float((gains < self.primary.mean).mean())

    @cached_property
    def verdict(self) -> str:
        """One of the four of the plan."""
        if self.primary.found and self.beyond_twins >= TWIN_LEVEL:
            return HELPS if self.primary.mean > self.of_other_seed.mean else OF_CONDITION
        return EXPLAINED if self.beside_loss.found else NOT_FOUND

    def predictor_table(self) -> pl.DataFrame:
        """Return a row for each predictor: regret, gain beside loss and controls, scaling point, Brier score."""
        true = scaling_points(self.table, self.table.margin)["log_compute"].to_numpy()
        base = self.regrets[OF_CONTROLS]
        rows = []
        for name in ORDER:
            own, first = gain(base, self.regrets[name]), self.found[name][0]
            says = np.isfinite(first.margin).all()
            margin = first.margin if says else np.where(first.scale, -1.0, 1.0)
            errors = np.abs(scaling_points(self.table, margin)["log_compute"].to_numpy() - true)
            wrong = np.mean([(each.scale != (self.table.margin < 0)).mean() for each in self.found[name]])
            rows.append({
                "predictor": name,
                "regret": MNAT * self.regrets[name].mean(),
                "gain": MNAT * own.mean,
                "gain_error": MNAT * own.error,
                "p": own.p if name != OF_CONTROLS else np.nan,
                "wrong": float(wrong),
                "scaling_point_error": float(np.median(errors)),
                "brier": calibration(self.table, first)[0] if says else np.nan,
            })  # fmt: skip
        return pl.DataFrame(rows)
