"""What is known of a feature, and the cheapest study that would tell: both on made-up runs whose truth is known."""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import SPACING, synthetic_study

from toposcope.analysis.association_verdict import MIN_POWER, PLANTED
from toposcope.analysis.power import MAX_RUNS, cheapest_design
from toposcope.analysis.table import association_table
from toposcope.analysis.topology_verdict import BY_COVARIATES, BY_STEP, EXPLANATIONS, FOLLOWS, KEPT, explanations
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED

N_FEATURES = 10


@pytest.mark.parametrize(("n_runs", "phi"), [(2, 0.0), (4, 0.5), (5, 0.8)])
def test_the_cheapest_design_finds_what_it_should(n_runs: int, phi: float) -> None:
    coarse = synthetic_study("clock and information", n_runs, N_FEATURES, phi, 0.1, 1, n=21, correlation=PLANTED)
    design = cheapest_design(coarse, N_FEATURES, 4)
    assert design is not None
    assert 4 <= design.n_runs <= MAX_RUNS
    assert design.n_checkpoints == (20 * SPACING) // design.every + 1
    # Noise that neighbours share is shared the more the nearer they are.
    finer = phi ** (21 / design.n_checkpoints)
    found = [
        association_table(
            synthetic_study(
                "clock and information",
                *(design.n_runs, N_FEATURES, finer, 0.1, seed),
                n=design.n_checkpoints,
                correlation=0.5,
            )
        )
        for seed in range(4)
    ]
    share = float((pl.concat(found).get_column("verdict") == BEYOND).mean())  # type: ignore[arg-type]
    assert share >= MIN_POWER - 0.1


def test_more_features_and_more_dependent_checkpoints_need_no_cheaper_design() -> None:
    costs = []
    for n_features, phi in ((1, 0.0), (30, 0.0), (30, 0.9)):
        design = cheapest_design(synthetic_study("clock", 4, 1, phi, 0.1, 0, n=31), n_features)
        costs.append(np.inf if design is None else design.n_runs * 1000 + design.n_checkpoints)
    assert all(less <= more for less, more in pairwise(costs))


def test_there_is_no_design_where_nothing_is_known_or_a_run_has_too_few_steps() -> None:
    runs = synthetic_study("clock", 2, 1, 0.0, 0.1, 0, n=8)
    assert cheapest_design([], 3) is None
    for t in runs:
        object.__setattr__(t, "steps", np.arange(8))
    assert cheapest_design(runs, 3) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([BEYOND, UNDETERMINED, TREND, NONE]),
            st.sampled_from([1.0, -1.0, 0.99, float("nan")]),
            st.sampled_from([0.001, 0.3, float("nan")]),
            st.sampled_from([0.001, 0.3, float("nan")]),
        ),
        min_size=1,
        max_size=7,
    )
)
def test_a_feature_is_explained_by_what_holds_in_most_runs(runs: list[tuple[str, float, float, float]]) -> None:
    def one(verdict: str, with_step: float, p: float, p_all: float) -> str:
        if verdict == BEYOND:
            return BEYOND
        if abs(with_step) == 1:
            return FOLLOWS
        return verdict if verdict != TREND else KEPT if p_all < 0.05 else BY_COVARIATES if p < 0.05 else BY_STEP

    each = [one(*run) for run in runs]
    names = ("verdict", "rho_with_step", "p_given_step_adjusted", "p_given_all_adjusted")
    rows = pl.DataFrame(runs, schema=names, orient="row").with_columns(feature=pl.lit("f"))
    how, n, of = explanations(rows)["f"]
    assert (each.count(how), len(each)) == (n, of)
    if BEYOND in each:
        assert how == BEYOND
    else:
        first = min((e for e in each if each.count(e) == max(map(each.count, each))), key=EXPLANATIONS.index)
        assert how == first
