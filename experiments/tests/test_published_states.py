"""Studies of hidden states: the published one to its digits, and verdicts that ask for more than the scale."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from named_features import by_feature, by_group

from toposcope.analysis.association import COLUMNS
from toposcope.analysis.association_verdict import with_verdicts
from toposcope.analysis.phases import phase_table
from toposcope.analysis.table import association_table, comparison_table
from toposcope.analysis.trajectory import Trajectory, trajectories
from toposcope.probes.point_clouds import kind_of_cloud
from toposcope_experiments.published_study.feature_file import read_features

SPECTRAL = ("effective_rank", "participation_ratio", "eigenspectrum_decay", "stable_rank", "top_eigenvalue")


@pytest.fixture(scope="module")
def pythia(published_study: Path) -> list[Trajectory]:
    """The published hidden states, as an import hands them on."""
    ((name, run),) = read_features(published_study / "pythia-70m-hidden-states.json").items()
    rows = [(step, key, value) for step, told in run.features.items() for key, value in told.items()]
    place = {"run": name, "layer": "network", "role": "network", "probe": "published", "options": "{}", "flag": ""}
    features = pl.DataFrame(rows, schema=["step", "statistic", "value"], orient="row")
    features = features.with_columns(
        kind=pl.col("statistic").map_elements(kind_of_cloud, return_dtype=pl.String),
        **{column: pl.lit(text) for column, text in place.items()},
    )
    labels = pl.DataFrame({"probe": ["published"], "options": ["{}"], "label": ["published"]})
    log = pl.DataFrame({"run": name, "step": run.log.steps, **run.log.values})
    return trajectories(features, labels, log)


@pytest.mark.reference
def test_published_hidden_states(pythia: list[Trajectory]) -> None:
    """What the methods page asks for beside H1 entropy: step and scale correlate with perplexity as strongly."""
    rows = {row["feature"].removeprefix("published "): row for row in association_table(pythia).iter_rows(named=True)}
    entropy = rows["H1.entropy"]
    assert entropy["target"] == "validation_loss"  # the logarithm of the perplexity, of the same ranks
    assert entropy["rho_step"] == pytest.approx(-0.984, abs=5e-4)
    assert entropy["rho"] == pytest.approx(0.859, abs=5e-4)
    assert entropy["rho_given_step"] == pytest.approx(-0.17, abs=5e-3)
    assert entropy["rho_top_eigenvalue"] == rows["top_eigenvalue"]["rho"] == pytest.approx(-0.860, abs=5e-4)
    assert rows["effective_rank"]["rho"] == pytest.approx(0.556, abs=5e-4)
    assert np.isfinite(entropy["rho_given_scale"])
    assert np.isnan(rows["top_eigenvalue"]["rho_given_scale"])
    assert "beyond trend" not in {row["verdict"] for row in rows.values()}


@pytest.mark.reference
def test_published_topology_is_set_beside_published_spectra(pythia: list[Trajectory]) -> None:
    rows = comparison_table(pythia).filter(pl.col("other") != "step", feature="published H1.entropy")
    assert set(rows.get_column("other")) == {f"published {s}" for s in (*SPECTRAL, "eigenvalue_ratio_1_10")}
    told = rows.filter(other="published effective_rank")
    assert told.get_column("test").to_list() == ["Williams", "block bootstrap", "Fisher z"]
    assert told.get_column("difference").to_list() == [pytest.approx(0.859 - 0.556, abs=1e-3)] * 3
    features = set(comparison_table(pythia).filter(pl.col("other") != "step").get_column("feature"))
    assert "published wasserstein_h1_from_prev" in features
    assert "published pca_variance_explained" not in features


@pytest.mark.reference
def test_published_hidden_states_have_phases(pythia: list[Trajectory]) -> None:
    expected = {f"published {s}" for s in ("effective_rank", "H0.total", "H1.total", "H1.entropy")}
    assert set(phase_table(pythia).get_column("feature")) - {"validation_loss", "loss_per_step"} == expected


def test_clouds_are_compared_with_their_own_spectra() -> None:
    rng = np.random.default_rng(5)
    steps = np.arange(20) * 10
    labels = ("hidden_states", "hidden_states:points=texts", "rips")
    features = {f"{label} {s}": rng.normal(size=20) for label in labels for s in ("H0.total", "rankme", "two_nn")}
    features["distances:of=hidden_states H0.wasserstein_2"] = np.where(steps > 0, rng.normal(size=20), np.nan)
    clouds = {label: label for label in labels[:2]} | {"distances:of=hidden_states": "hidden_states"}
    loss = rng.normal(size=20).cumsum()
    run = Trajectory(
        "a", steps, by_feature(features), {"text_loss": loss}, {"step": steps.astype(float)}, clouds=clouds
    )
    found = comparison_table([run])
    pairs = found.filter(pl.col("other") != "step").select("feature", "other").unique(maintain_order=True).rows()
    assert set(pairs) == {
        (feature, f"{cloud} {spectral}")
        for feature, cloud in (
            ("hidden_states H0.total", "hidden_states"),
            ("distances:of=hidden_states H0.wasserstein_2", "hidden_states"),
            ("hidden_states:points=texts H0.total", "hidden_states:points=texts"),
        )
        for spectral in ("rankme", "two_nn")
    }
    assert set(found.filter(other="step").get_column("feature")) == set(features)
    assert set(found.filter(other="step").get_column("test")) == {"Williams", "block bootstrap"}


def test_the_clock_of_a_group_is_its_own() -> None:
    rng = np.random.default_rng(6)
    steps = np.arange(20) * 10
    names = ("hidden_states H0.total", "hidden_states top_eigenvalue")
    network, layers = ({name: rng.normal(size=20) for name in names} for _ in range(2))
    run = Trajectory(
        "a", steps, by_feature(network), {"text_loss": rng.normal(size=20)}, {"step": steps.astype(float)},
        groups=by_group({"hidden": layers}), clouds={"hidden_states": "hidden_states"},
    )  # fmt: skip
    table = association_table([run])
    rows = {(r["group"], r["feature"]): r for r in table.iter_rows(named=True)}
    for group in ("network", "hidden"):
        assert rows[group, names[0]]["rho_top_eigenvalue"] == pytest.approx(rows[group, names[1]]["rho"])
    assert rows["network", names[0]]["rho_top_eigenvalue"] != rows["hidden", names[0]]["rho_top_eigenvalue"]


def _passing(**other: float) -> pl.DataFrame:
    """A row that passes all else."""
    values = dict.fromkeys(COLUMNS, np.nan) | {
        **{"rho": 0.9, "block_low": 0.5, "block_high": 0.95, "p_shift": 0.02, "n_others": 4.0},
        **{"rho_given_step": 0.8, "rho_given_all": 0.8, "p_given_all": 1e-4, "share_others": 0.0, "p_pairing": 0.008},
        **other,
    }
    place = {"target": ["text_loss"], "group": ["network"], "feature": ["f"], "block": [0]}
    return pl.DataFrame({**place, "n": [50], **{name: [value] for name, value in values.items()}})


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        ({}, "beyond trend"),  # no scale is known: of weights
        ({"n_scale": 20}, "beyond trend"),
        ({"n_scale": 20, "rho_given_all": 0.0, "p_given_all": 1.0}, "trend only"),  # nothing is left: the scale itself
        ({"n_scale": 3, "rho_given_all": np.nan, "p_given_all": np.nan}, "cannot be told"),  # known too rarely
    ],
)
def test_a_verdict_on_hidden_states_asks_for_more_than_their_scale(scale: dict[str, float], verdict: str) -> None:
    table = with_verdicts(_passing(**scale))
    assert table.get_column("verdict").to_list() == [verdict]
    assert "p_given_scale_adjusted" in table.columns
