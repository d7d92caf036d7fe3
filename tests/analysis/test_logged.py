"""The covariates that a training log gives at checkpoints."""

import numpy as np
import polars as pl

from toposcope.analysis.logged import Logged


def test_the_rate_of_the_moment_is_the_last_one_logged() -> None:
    rates = [0.1, None, 0.3, 0.2]
    log = pl.DataFrame({"step": [10, 20, 30, 40], "loss": [3.0] * 4, "learning_rate": rates})
    covariates = Logged(log).covariates(np.array([0, 10, 20, 35, 40]))
    assert covariates["learning_rate"].tolist() == [0.1, 0.1, 0.1, 0.3, 0.2]  # before the first one logged, that
    np.testing.assert_allclose(covariates["cumulative_learning_rate"], [0, 0.1, 0.1, 0.4, 0.6])


def test_without_rates_there_is_no_such_clock() -> None:
    log = pl.DataFrame(
        {"step": [10, 20], "loss": [3.0, 2.0], "learning_rate": pl.Series([None, None], dtype=pl.Float64)}
    )
    assert Logged(log).covariates(np.array([10, 20])) == {}
