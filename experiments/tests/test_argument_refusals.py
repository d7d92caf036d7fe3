"""Arguments of the measures and estimators that are no numbers of their kind, and what would not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from argument_mistakes import mistakes

from toposcope.errors import ToposcopeError
from toposcope.homology import loops, memory
from toposcope_experiments.learning_coefficient.learning_coefficient import local_learning_coefficient
from toposcope_experiments.similarity.similarity import cross_barcode, linear_cka, procrustes, rtd

POINTS = np.random.default_rng(0).normal(size=(12, 3))
VALID: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "linear_cka": (linear_cka, {"X": POINTS, "Y": POINTS}),
    "procrustes": (procrustes, {"X": POINTS, "Y": POINTS}),
    "rtd": (rtd, {"first": POINTS, "second": POINTS}),
    "local_learning_coefficient": (
        local_learning_coefficient,
        {"loss": lambda w: (0.5 * float(w @ w), w), "point": np.zeros(2), "n": 10, "n_draws": 9, "n_warmup": 9},
    ),
}


@pytest.mark.parametrize(("name", "parameter", "value"), mistakes(VALID))
def test_what_is_no_number_is_refused_with_its_name(name: str, parameter: str, value: Any) -> None:
    call, valid = VALID[name]
    with pytest.raises(ToposcopeError, match=rf"\A{parameter}: [^\n]*\Z"):
        call(**{**valid, parameter: value})


@pytest.mark.parametrize("name", VALID)
def test_the_same_calls_are_valid_without_a_mistake(name: str) -> None:
    call, valid = VALID[name]
    call(**valid)


def test_a_divergence_that_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)
    distances = np.abs(np.subtract.outer(np.arange(100.0), np.arange(100.0)))
    with pytest.raises(
        ToposcopeError, match=r"divergence of 100 points in a batch: H1 of 201 points: needs .* GB .*batch_size"
    ):
        cross_barcode(distances, distances)


def test_a_divergence_of_too_many_points_or_of_infinite_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.where(np.arange(9)[:, None] % 3 == np.arange(9) % 3, 1.0, np.inf)
    np.fill_diagonal(matrix, 0)
    with pytest.raises(ToposcopeError, match="first: distances are infinite"):
        rtd(matrix, matrix, metric="precomputed")
    monkeypatch.setattr(loops, "MAX_POINTS", 50)
    with pytest.raises(ToposcopeError, match=r"divergence of 25 points in a batch: H1 of 51 points, and at most 50"):
        rtd(np.random.default_rng(0).normal(size=(25, 2)), np.random.default_rng(1).normal(size=(25, 2)))


def test_a_divergence_is_shown_in_one_short_line() -> None:
    assert repr(rtd(POINTS, POINTS)) == "TopologyDivergence(value=0, spread=0, n_batches=1, batch_size=12)"
