"""Which runs of a folder are siblings, and what a forecast says that it borrowed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from toposcope.forecasting import forecast
from toposcope.forecasting.siblings import complete_runs, is_sibling
from toposcope.logs import Run
from toposcope.logs.anomalies import Divergence
from toposcope.logs.watched import FAILED, Watched

T = np.arange(0, 1201, 10)


def run(seed: int = 0, n: int = len(T), **facts: Any) -> Run:
    loss = 2 + 4 * (T + 20.0) ** -0.4 + 0.01 * np.random.default_rng(seed).normal(size=len(T))
    rate = 3e-4 * np.minimum(1, (T + 1) / 50) * (1 - T / 1250)
    known: dict[str, Any] = {"parameters": 1.24e8, "tokens_per_step": 2**19, "last_step": 1200} | facts
    return Run(f"run{seed}", T[:n], loss[:n], rate[:n], **known)


MINE = run(0, 40, last_step=None)
BARE = {"parameters": np.nan, "tokens_per_step": np.nan, "learning_rate": np.full(len(T), np.nan)}


@pytest.mark.parametrize(
    ("changes", "sibling"),
    [
        ({}, True),
        ({"parameters": 1.2e8}, True),  # "0.12B parameters"
        ({"parameters": 3.5e8}, False),
        ({"tokens_per_step": 2**18}, False),
        ({"learning_rate": 2 * run().learning_rate}, False),
        ({"parameters": np.nan, "learning_rate": run().learning_rate}, True),
        ({"parameters": np.nan, "tokens_per_step": np.nan}, True),  # by their rates
        ({"parameters": np.nan, "tokens_per_step": np.nan, "learning_rate": 3e-4 * np.ones(len(T))}, False),
        (BARE, False),
        ({"loss": 2 * run().loss}, False),
        ({"unit": "bits"}, False),
        ({"target": "val_loss"}, False),
        ({"last_step": 1500}, False),
        ({"last_step": None}, False),
        ({"last_step": None, "finished": True}, True),
        ({"diverged": Divergence(1200, "it rose")}, False),
    ],
)
def test_siblings_of_a_folder_are_complete_and_equal_in_what_both_log(changes: dict[str, Any], sibling: bool) -> None:
    assert is_sibling(MINE, replace(run(1), **changes)) == sibling


def test_broken_runs_are_no_siblings_however_declared() -> None:
    logs = [run(1), run(2, 60), run(3, diverged=Divergence(1200, "it rose")), run(4, watched=Watched(FAILED))]
    found = complete_runs(logs)
    assert [each.log.name for each in found.runs] == ["run1"]
    assert [remark.split(": ")[0] for remark in found.remarks] == ["run2", "run3", "run4"]


def test_what_is_borrowed_stands_in_the_first_sentence() -> None:
    siblings = complete_runs([run(k) for k in range(1, 7)])
    line = forecast(replace(MINE, learning_rate=np.full(40, np.nan)), siblings=siblings).headline()
    assert "at step 1,200 (its end, learning rate and coefficients are taken from 6 siblings)." in line
    few = complete_runs([run(1)])
    line = forecast(MINE, siblings=few).headline()
    assert "at step 1,200 (its end and coefficients are taken from 1 sibling)." in line
    assert "taken from" not in forecast(replace(MINE, last_step=1200)).headline()
