import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import copied, made_up_family, made_up_run, seen
from numpy.typing import NDArray
from property_examples import examples
from scipy.stats import theilslopes

from toposcope.forecasting.forecaster import LoggedRun, RefusedError
from toposcope.forecasting.forecasters.sibling_template import MIN_LEVEL_SPREAD, Template, _line

Vector = NDArray[np.float64]


def of_affine_ends(offset: float, slope: float, n: int = 6, kind: str = "cosine") -> list[LoggedRun]:
    """Runs whose log loss at 0.3 is mapped to that at the end by a line."""
    runs = []
    for i in range(n):
        run = made_up_run(f"run {i}", kind, size=1e7 * (i + 1))
        now = 1.0 + 0.1 * i
        log_loss = np.where(run.log.steps <= 600, now, offset + slope * now)
        runs.append(copied(run, loss=np.exp(log_loss)))
    return runs


@examples(50)
@given(st.lists(st.integers(0, 100), min_size=4, max_size=30, unique=True), st.integers(0, 1000))
def test_the_line_is_theil_and_sens(places: list[int], seed: int) -> None:
    x = np.array(places) * MIN_LEVEL_SPREAD
    y = 0.7 * x + np.random.default_rng(seed).normal(size=len(x))
    slope, offset = _line(x, y)
    expected = theilslopes(y, x, method="joint")
    assert slope == pytest.approx(expected.slope)
    assert offset == pytest.approx(expected.intercept)


@pytest.mark.parametrize(("offset", "slope"), [(-0.1, 1.0), (0.2, 0.7), (-0.5, 1.3)])
def test_an_affine_map_is_found(offset: float, slope: float) -> None:
    *siblings, run = of_affine_ends(offset, slope)
    found = Template().fit(seen(run, 0.3), run.schedule, siblings)
    assert found.diagnostics["slope"] == pytest.approx(slope)
    assert found.diagnostics["offset"] == pytest.approx(offset)
    assert found.loss == pytest.approx(run.final())
    assert found.curve.tolist() == pytest.approx([np.exp(1.5), run.final()])


def test_one_sibling_cannot_turn_it() -> None:
    *siblings, run = of_affine_ends(-0.1, 1.0, 9)
    siblings[0] = copied(siblings[0], loss=np.where(siblings[0].log.steps > 600, 30.0, siblings[0].log.loss))
    assert Template().fit(seen(run, 0.3), run.schedule, siblings).loss == pytest.approx(run.final(), rel=1e-6)


def test_the_unit_of_the_loss_does_not_matter() -> None:
    runs = made_up_family(noise=0.01)
    scaled = [copied(run, loss=7 * run.log.loss) for run in runs]
    one = Template().fit(seen(runs[-1], 0.3), runs[-1].schedule, runs[:-3])
    two = Template().fit(seen(scaled[-1], 0.3), scaled[-1].schedule, scaled[:-3])
    assert two.loss == pytest.approx(7 * one.loss)


def test_only_the_same_schedule_of_the_same_family_counts() -> None:
    *siblings, run = of_affine_ends(-0.1, 1.0)
    misleading = [
        *(copied(made_up_run(f"wsd {i}", "wsd", scale=2.0), parameters=i) for i in range(5)),
        *(copied(sibling, family="others", loss=sibling.log.loss[::-1]) for sibling in siblings),
        *(copied(sibling, unit="bits", loss=sibling.log.loss[::-1]) for sibling in siblings),
    ]
    found = Template().fit(seen(run, 0.3), run.schedule, [*siblings, *misleading])
    assert found.loss == pytest.approx(run.final())
    assert found.diagnostics["siblings"] == 5
    assert found.relatives.all()


@pytest.mark.parametrize("n", [0, 3])
def test_fewer_than_four_are_refused(n: int) -> None:
    *siblings, run = of_affine_ends(-0.1, 1.0)
    with pytest.raises(RefusedError, match=f"^{n} siblings of the family follow the same schedule; .* at least 4$"):
        Template().fit(seen(run, 0.3), run.schedule, siblings[:n])


def test_a_sibling_not_logged_yet_does_not_count() -> None:
    *siblings, run = of_affine_ends(-0.1, 1.0)
    late = copied(
        siblings[0],
        steps=siblings[0].log.steps[100:],
        loss=siblings[0].log.loss[100:],
        learning_rate=siblings[0].log.learning_rate[100:],
    )
    with pytest.raises(RefusedError, match=r"^3 siblings"):
        Template().fit(seen(run, 0.3), run.schedule, [late, *siblings[1:4]])


def test_errors_are_of_siblings_without_their_size() -> None:
    """Compared with a loop; two runs of each size."""
    runs = made_up_family(sizes=5, each=2, noise=0.02)
    run = made_up_run("run", noise=0.01, size=1e12)
    found = Template().fit(seen(run, 0.3), run.schedule, runs)
    now = [
        float(np.log(log.loss[log.steps >= 0.95 * log.steps[-1]].mean())) for log in (seen(run, 0.3) for run in runs)
    ]
    end = [float(np.log(run.final())) for run in runs]
    expected = []
    for i, each in enumerate(runs):
        others = [k for k, other in enumerate(runs) if other.log.parameters != each.log.parameters]
        line = _line(np.array([now[k] for k in others]), np.array([end[k] for k in others]))
        expected.append(line[1] + line[0] * now[i] - end[i])
    np.testing.assert_allclose(found.errors, expected, atol=1e-12)
