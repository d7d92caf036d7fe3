"""The shifted power law between two losses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import curve_fit

from toposcope.forecasting.forecaster import RefusedError
from toposcope_downstream.loss_to_loss import ShiftedPowerLaw, fit_shifted_power_law

LAW = ShiftedPowerLaw(K=0.7, E0=1.8, kappa=1.25, E1=1.4)
LOSSES = np.geomspace(2.1, 6.0, 25)


def noisy(error: float = 0.002, seed: int = 0) -> np.ndarray:
    return LAW(LOSSES) * np.exp(error * np.random.default_rng(seed).normal(size=len(LOSSES)))


@given(K=st.floats(0.2, 3.0), kappa=st.floats(0.5, 2.0), E0=st.floats(0.2, 1.9), E1=st.floats(0.2, 3.0))
@examples(30)
def test_parameters_of_exact_pairs_are_recovered(K: float, kappa: float, E0: float, E1: float) -> None:
    law = ShiftedPowerLaw(K, E0, kappa, E1)
    found = fit_shifted_power_law(LOSSES, law(LOSSES), E0=E0).law
    assert [found.K, found.kappa, found.E1] == pytest.approx([K, kappa, E1], rel=1e-4, abs=1e-4)
    free = fit_shifted_power_law(LOSSES, law(LOSSES)).law
    assert free(LOSSES) == pytest.approx(law(LOSSES), rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_the_least_squares_of_scipy(seed: int) -> None:
    losses = noisy(seed=seed)
    fitted = fit_shifted_power_law(LOSSES, losses, E0=LAW.E0)

    def logarithm(x: np.ndarray, K: float, kappa: float, E1: float) -> np.ndarray:
        return np.log(K * (x - LAW.E0) ** kappa + E1)

    theirs, covariance = curve_fit(logarithm, LOSSES, np.log(losses), (1.0, 1.0, 1.0))
    law, errors = fitted.law, fitted.standard_errors
    assert [law.K, law.kappa, law.E1] == pytest.approx(theirs, rel=1e-4)
    assert [errors["K"], errors["kappa"], errors["E1"]] == pytest.approx(np.sqrt(np.diag(covariance)), rel=1e-2)
    assert errors["E0"] == 0


def test_standard_errors_hold_what_noise_does() -> None:
    fits = [fit_shifted_power_law(LOSSES, noisy(seed=seed), E0=LAW.E0) for seed in range(60)]
    scores = np.array([(fit.law.kappa - LAW.kappa) / fit.standard_errors["kappa"] for fit in fits])
    assert 0.6 < scores.std() < 1.5
    assert abs(scores.mean()) < 0.5


@given(a=st.floats(0.1, 10.0), b=st.floats(0.1, 10.0), seed=st.integers(0, 10))
@examples(20)
def test_units_change_nothing_but_the_coefficients(a: float, b: float, seed: int) -> None:
    losses = noisy(seed=seed)
    one = fit_shifted_power_law(LOSSES, losses, E0=LAW.E0)
    other = fit_shifted_power_law(a * LOSSES, b * losses, E0=a * LAW.E0)
    assert [other.law.kappa, other.law.E1] == pytest.approx([one.law.kappa, b * one.law.E1], rel=1e-5)
    assert other.law(a * LOSSES) == pytest.approx(b * one.law(LOSSES), rel=1e-7)


def test_order_is_immaterial_and_the_law_rises() -> None:
    losses = noisy()
    shuffled = np.random.default_rng(5).permutation(len(LOSSES))
    one, other = fit_shifted_power_law(LOSSES, losses), fit_shifted_power_law(LOSSES[shuffled], losses[shuffled])
    assert one.law == other.law
    falling = fit_shifted_power_law(LOSSES, losses[::-1])
    assert (np.diff(falling.law(LOSSES)) >= 0).all()


def test_a_loss_from_itself_is_itself() -> None:
    fitted = fit_shifted_power_law(LOSSES, LOSSES, E0=1.8, E1=1.8)
    assert [fitted.law.K, fitted.law.kappa] == pytest.approx([1, 1], abs=1e-6)
    free = fit_shifted_power_law(LOSSES, LOSSES, E0=1.8)
    shift = free.law.E1 - free.law.E0
    assert shift == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ([2.0, 3.0], [2.0, 3.0], {}, "5 are needed"),
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0], [2.0, 2.1, 2.2, 2.3, 2.4, 2.5], {}, "1 different losses"),
        ([2.0, 3.0, np.nan], [2.0, 3.0, 4.0], {}, "not finite"),
        ([2.0, 3.0, 4.0], [2.0, 3.0, -4.0], {}, "not finite and positive"),
        ([2.0, 3.0, 4.0], [2.0, 3.0], {}, "give pairs"),
        ([2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0], {"E0": 2.5}, "E0 is 2.5, not below"),
        ([2.0, 3.0, 4.0], [2.0, 3.0, 4.0], {"E0": 1.0}, "4 are needed"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    source: list[float], target: list[float], options: dict[str, float], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        fit_shifted_power_law(source, target, **options)
