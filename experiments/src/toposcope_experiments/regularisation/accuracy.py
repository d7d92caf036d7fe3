"""Whether features go with the test accuracy: between conditions, and between runs of one condition."""

import numpy as np
import polars as pl

from toposcope.extend import Indices, Matrix, Vector, adjusted, correlate_across_runs
from toposcope_experiments.regularisation.features import FEATURES, KINDS
from toposcope_experiments.regularisation.measured import MeasuredRuns
from toposcope_experiments.regularisation.training import TEST_ACCURACY


def accuracy_table(measured: MeasuredRuns) -> pl.DataFrame:
    """Correlate every feature with the test accuracy at the last step."""
    accuracy = measured.final(TEST_ACCURACY)
    features = np.array([measured.final(name) for name in FEATURES])
    members = [measured.places(condition) for condition in measured.conditions]
    strata = np.zeros(len(measured.runs), dtype=np.int64)
    for number, places in enumerate(members):
        strata[places] = number
    means = np.stack([features[:, places].mean(axis=1) for places in members], axis=1)
    mean_accuracy = np.array([accuracy[places].mean() for places in members])
    table = {"feature": list(FEATURES), "kind": [KINDS[name] for name in FEATURES]}
    columns: dict[str, Vector] = {}
    between = _correlated(means, mean_accuracy, np.zeros(len(members), dtype=np.int64))
    for name, (rho, p) in {"conditions": between, "runs": _correlated(features, accuracy, strata)}.items():
        columns |= {f"rho_{name}": rho, f"p_{name}": p, f"p_{name}_adjusted": adjusted(p)}
    return pl.DataFrame({**table, **columns})


def _correlated(features: Matrix, target: Vector, strata: Indices) -> tuple[Vector, Vector]:
    """Return rank correlations within strata and their permutation p."""
    found = correlate_across_runs(features[:, None], target, np.empty((0, 1, len(target))), strata)
    return found.rho[:, 0], found.p
