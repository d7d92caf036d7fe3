"""The ridge on blocks against least squares with a penalty, and its held-out errors against fitting again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.analysis.between_runs.ridge import (
    INTERCEPT_STRENGTH,
    STRENGTHS,
    Block,
    RidgeModel,
    fit_ridge,
    standardised,
)
from toposcope.typing import Indices, Matrix, Vector


def by_least_squares(blocks: list[Block], strengths: list[float], target: Vector) -> Vector:
    """Predict the held-out rows by least squares on rows augmented by the penalty."""
    n, m = len(target), len(blocks[0].held_out)
    every = [Block(np.ones((n, 1)), np.ones((m, 1))), *blocks]
    penalties = [np.full(b.train.shape[1], s) for b, s in zip(every, [INTERCEPT_STRENGTH, *strengths], strict=True)]
    X = np.hstack([b.train for b in every])
    augmented = np.vstack([X, np.diag(np.sqrt(np.concatenate(penalties)))])
    beta = np.linalg.lstsq(augmented, np.append(target, np.zeros(X.shape[1])), rcond=None)[0]
    return np.asarray(np.hstack([b.held_out for b in every]) @ beta)


def made(rng: np.random.Generator, n: int, m: int, widths: list[int]) -> tuple[list[Block], Vector]:
    blocks = [standardised(rng.normal(size=(n, p)), rng.normal(size=(m, p))).scaled() for p in widths]
    target = rng.normal(size=n) + sum(b.train.sum(axis=1) for b in blocks)
    return blocks, (target - target.mean()) / target.std()


def predicted(model: RidgeModel, target: Vector) -> Vector:
    return np.asarray(model.prediction(model.residuals(target[:, None]))[:, 0])


@examples(60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(8, 30),
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(STRENGTHS.tolist())), min_size=1, max_size=3),
)
def test_predictions_are_those_of_least_squares_with_a_penalty(
    seed: int, n: int, widths: list[tuple[int, float]]
) -> None:
    blocks, y = made(np.random.default_rng(seed), n, 5, [p for p, _ in widths])
    strengths = [s for _, s in widths]
    np.testing.assert_allclose(
        predicted(RidgeModel.of(blocks, strengths), y), by_least_squares(blocks, strengths, y), rtol=1e-6, atol=1e-6
    )


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(12, 30), st.integers(1, 40), st.booleans())
def test_a_further_block_is_added_with_the_strength_that_errs_least(
    seed: int, n: int, width: int, in_groups: bool
) -> None:
    rng = np.random.default_rng(seed)
    (first, second), y = made(rng, n, 4, [3, width])
    groups = [np.flatnonzero(np.arange(n) % 4 == g) for g in range(4)] if in_groups else None
    model = RidgeModel.of([first], [0.1], groups)
    targets = np.column_stack([y, rng.permutation(y)])
    strength, found = model.with_block(second, model.residuals(targets))
    errors = [held_out_error([first], [0.1], y, groups)]
    errors += [held_out_error([first, second], [0.1, s], y, groups) for s in STRENGTHS]
    strengths = [np.inf, *STRENGTHS.tolist()]
    assert errors[strengths.index(strength[0])] == pytest.approx(min(errors), rel=1e-5)
    for chosen, target, prediction in zip(strength, targets.T, found.T, strict=True):
        used = 1 + int(np.isfinite(chosen))
        expected = by_least_squares([first, second][:used], [0.1, chosen][:used], target)
        np.testing.assert_allclose(prediction, expected, rtol=1e-5, atol=1e-5)


def held_out_error(blocks: list[Block], strengths: list[float], y: Vector, groups: list[Indices] | None) -> float:
    total = 0.0
    for group in groups or [np.array([i]) for i in range(len(y))]:
        kept = np.setdiff1d(np.arange(len(y)), group)
        apart = [Block(b.train[kept], b.train[group]) for b in blocks]
        total += float(np.abs(by_least_squares(apart, strengths, y[kept]) - y[group]).sum())
    return total / len(y)


def test_a_block_of_noise_hardly_changes_a_prediction_and_one_of_the_target_takes_it_over() -> None:
    rng = np.random.default_rng(0)
    (known,), y = made(rng, 80, 40, [3])
    noise = standardised(rng.normal(size=(80, 30)), rng.normal(size=(40, 30))).scaled()
    model = fit_ridge([known], y)
    before, residuals = predicted(model, y), model.residuals(y[:, None])
    assert np.abs(model.with_block(noise, residuals)[1][:, 0] - before).mean() < 0.3 * np.abs(before).mean()
    informed = Block(y[:, None], np.linspace(-2, 2, 40)[:, None])
    assert np.corrcoef(model.with_block(informed, residuals)[1][:, 0], informed.held_out[:, 0])[0, 1] > 0.99


def test_unknown_and_constant_columns() -> None:
    learned: Matrix = np.array([[1.0, 5.0, np.nan], [2.0, 5.0, np.nan], [3.0, 5.0, np.nan], [np.nan, 5.0, np.nan]])
    block = standardised(learned, np.array([[np.nan, 7.0, 1.0], [1e9, 5.0, 2.0]]))
    assert block.train.shape == (4, 1)
    np.testing.assert_allclose(block.train[:, 0], np.array([-1, 0, 1, 0]) * np.sqrt(1.5))
    np.testing.assert_allclose(block.held_out[:, 0], [0, 3])
    nothing = standardised(np.ones((4, 2)), np.ones((2, 2)))
    assert nothing.train.shape == (4, 0)
    y = np.array([-1.0, 1.0, -1.0, 1.0])
    assert predicted(fit_ridge([nothing.scaled(), nothing.products()], y), y) == pytest.approx([0, 0], abs=1e-3)
