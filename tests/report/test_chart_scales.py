"""The scales of lines on the page: what smoothing, ranges and thinning keep, whatever the lines."""

from typing import Any

import numpy as np
import pytest
from javascript import called

RNG = np.random.default_rng(40)


def run(*calls: tuple[str, list[Any]]) -> list[Any]:
    return called("scales.js", list(calls))


def noisy(n: int, scale: float = 0.05) -> list[float]:
    """A loss that falls as a power law."""
    return [2 + 6 * (i + 20) ** -0.35 + float(RNG.normal(0, scale)) for i in range(n)]


def uneven(n: int) -> list[int]:
    return [int(step) for step in np.cumsum(RNG.integers(1, 400, n))]


@pytest.mark.parametrize("half_life", [1, 50, 10_000])
def test_a_constant_stays_and_a_line_starts_at_its_first_value(half_life: float) -> None:
    steps, losses = uneven(60), noisy(60)
    constant, smooth, one = run(
        ("smoothed", [steps, [3.25] * 60, half_life]),
        ("smoothed", [steps, losses, half_life]),
        ("smoothed", [[7], [1.5], half_life]),
    )
    assert constant == pytest.approx([3.25] * 60)
    assert smooth[0] == pytest.approx(losses[0])
    assert min(losses) <= min(smooth)
    assert max(smooth) <= max(losses)
    assert one == [1.5]


def test_smoothing_is_the_average_it_claims_to_be_over_uneven_steps() -> None:
    steps, losses, half_life = uneven(40), noisy(40), 300.0
    gaps = np.diff(steps, prepend=steps[0] - (steps[1] - steps[0]))
    (smooth,) = run(("smoothed", [steps, losses, half_life]))
    for i in (0, 1, 17, 39):
        ages = (steps[i] - np.array(steps[: i + 1])) / half_life
        weights = 2.0**-ages * (1 - 2.0 ** (-gaps[: i + 1] / half_life))
        assert smooth[i] == pytest.approx(np.average(losses[: i + 1], weights=weights))


def test_a_value_that_is_logged_more_often_weighs_no_more() -> None:
    steps, values = [0, 100, 200, 300], [5.0, 4.0, 3.0, 2.0]
    often = [0, 100, *range(110, 201, 10), 300]
    again = [5.0, 4.0, *[3.0] * 10, 2.0]
    once, repeated = run(("smoothed", [steps, values, 80]), ("smoothed", [often, again, 80]))
    assert (once[2], once[3]) == pytest.approx((repeated[-2], repeated[-1]))


def inside(values: list[float], within: list[float]) -> float:
    return sum(within[0] <= value <= within[1] for value in values) / len(values)


@pytest.mark.parametrize("n", [1, 2, 19, 20, 39, 40, 1000])
def test_a_range_holds_nearly_all_values_and_the_last(n: int) -> None:
    families = {
        "falling": noisy(n),
        "heavy tails": RNG.standard_cauchy(n).tolist(),
        "spikes": [1e6 if i % 25 == 24 and i < n - 1 else value for i, value in enumerate(noisy(n))],
        "constant": [4.0] * n,
        "rising at its end": [*noisy(n)[: n - 1], 4.0],
        "warm-up": [min(1.0, i / 50) for i in range(n)],
    }
    for name, found in zip(families, run(*(("robustRange", [[values]]) for values in families.values())), strict=True):
        assert inside(families[name], found) >= 0.95, name
        if name != "heavy tails":
            assert found[0] <= families[name][-1] <= found[1], name


@pytest.mark.parametrize("n_runs", [2, 3, 40])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.6])
def test_one_run_that_explodes_flattens_no_other(n_runs: int, share: float) -> None:
    lines = [noisy(500) for _ in range(n_runs)]
    healthy = [value for line in lines[1:] for value in line]
    start = int(500 * (1 - share))
    lines[0][start:] = (10 ** np.linspace(1, 12, 500 - start)).tolist()
    (found,) = run(("robustRange", [lines]))
    assert found[0] <= min(healthy)
    assert max(healthy) <= found[1] <= 10


def test_runs_of_other_sizes_are_no_explosions() -> None:
    levels = [[level * (2 + 0.1 * value) for value in noisy(100)] for level in (1, 10, 100, 1000)]
    (found,) = run(("robustRange", [levels]))
    assert found == [min(map(min, levels)), max(map(max, levels))]


@pytest.mark.parametrize("most", [8, 100, 5000])
def test_thinned_lines_keep_their_extremes_and_ends(most: int) -> None:
    values: list[float | None] = [*noisy(3000)]
    values[1234], values[77], values[500] = 99.0, -5.0, None
    (kept,) = run(("thinned", [values, most]))
    assert kept == sorted(set(kept))
    assert {0, 77, 1234, 2999} <= set(kept)
    assert most > 2000 or 500 not in kept
    assert len(kept) <= max(most, 4)


def test_steps_between_known_ones_have_places_on_another_axis() -> None:
    steps, tokens = [10, 20, 60], [100.0, 200.0, 1000.0]
    at = [0, 10, 15, 60, 70]
    places = run(*(("interpolated", [steps, tokens, each]) for each in at), ("interpolated", [[1], [5.0], 1]))
    assert places == [0.0, 100.0, 150.0, 1000.0, 1200.0, None]


@pytest.mark.parametrize(
    ("typed", "names", "literal"),
    [
        ("", ["lr-1", "LR-2 (b)", "x[1"], False),
        ("lr", ["lr-1", "LR-2 (b)"], False),
        ("^lr.*1$", ["lr-1"], False),
        ("x[", ["x[1"], True),
        ("(b", ["LR-2 (b)"], True),
    ],
)
def test_runs_are_found_by_an_expression_or_by_the_text_itself(typed: str, names: list[str], literal: bool) -> None:
    filtered = "(typed, names) => [names.filter(matcher(typed).matches), matcher(typed).literal]"
    assert run((filtered, [typed, ["lr-1", "LR-2 (b)", "x[1"]])) == [[names, literal]]
