"""The decisions, each with the margin that training found, and the predictors' view of it."""

import numpy as np
import polars as pl

from toposcope_experiments.scaling_decision.design import FURTHER, Condition, Design, Pair, model_size, step_at
from toposcope_experiments.scaling_decision.features import FEATURES

KEYS = ("pair", "further", "point")
"""A cell: the decisions that differ in condition and seed alone."""


def decision_table(design: Design, ends: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each decision: its margin in nats, and what is known of the run that may be given up.

    Parameters
    ----------
    design : Design
    ends : DataFrame
        Columns ``condition``, ``pair``, ``width``, ``seed``, ``step``, ``loss``: losses after cool-downs, of all
        runs of the pairs that it has.
    known : DataFrame
        Of `known_at`.

    Returns
    -------
    DataFrame
        Columns ``condition``, ``seed``, ``pair``, ``further``, ``point``, ``more`` (further compute over
        that so far), logarithms of compute and of the parameters of both models, the losses of both ways (of the fresh
        model the mean of its seeds), ``margin`` (of the larger less that of going on), the features, and
        ``published_rule``. Conditions that diverged are left out.
    """
    losses: dict[tuple[object, ...], float] = {
        tuple(place): loss
        for *place, loss in ends.select("condition", "pair", "width", "seed", "step", "loss").iter_rows()
    }
    trained = set(ends["pair"])
    rows = [
        row
        for condition in design.conditions
        for pair in design.pairs
        if pair.name in trained
        for row in _of_pair(design, condition, pair, losses)
    ]
    table = pl.DataFrame(rows).join(
        known.select("condition", "width", "seed", "step", *FEATURES, "published_rule"),
        on=["condition", "width", "seed", "step"],
        how="left",
    )
    whole = table.group_by("condition").agg(pl.col("margin").is_finite().all()).filter("margin")["condition"]
    return table.filter(pl.col("condition").is_in(whole.implode())).sort("condition", "seed", *KEYS)


def _of_pair(
    design: Design, condition: Condition, pair: Pair, losses: dict[tuple[object, ...], float]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def loss(width: int, seed: int, compute: float) -> float:
        return losses[condition.name, pair.name, width, seed, step_at(compute, width, condition.batch)]

    for further, more in enumerate(FURTHER):
        for point, compute in enumerate(pair.computes):
            fresh = np.mean([loss(pair.large, seed, more * compute) for seed in range(design.seeds)])
            for seed in range(design.seeds):
                on = loss(pair.small, seed, (1 + more) * compute)
                rows.append({
                    "condition": condition.name, "seed": seed, "pair": pair.name, "further": further, "point": point,
                    "width": pair.small, "step": step_at(compute, pair.small, condition.batch),
                    "log_compute": float(np.log(compute)), "more": more,
                    "log_small": np.log(model_size(pair.small).n_parameters),
                    "log_large": np.log(model_size(pair.large).n_parameters), "continued": on, "fresh": float(fresh),
                    "margin": float(fresh - on),
                })  # fmt: skip
    return rows
