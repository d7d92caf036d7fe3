"""Associations with something else than the loss: the gradient norm, the score on a task."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from small_studies import write_series

import toposcope as ts
from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, run_study
from toposcope.study.declaration import DeclaredSeries

STEPS = list(range(0, 240, 10))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ts.Study:
    """A run with a log of every step, and one without a log."""
    folder, rng = tmp_path_factory.mktemp("targets"), np.random.default_rng(0)
    for name in ("logged", "bare"):
        write_series(folder / name, STEPS)
    rows = zip(range(1, 240), rng.normal(3, 1, 239), rng.random(239), rng.random(239), strict=True)
    lines = [f"{step},{loss:.6f},{norm:.6f},{score:.6f}" for step, loss, norm, score in rows]
    (folder / "log.csv").write_text("\n".join(["step,loss,grad_norm,eval_accuracy", *lines]))
    series = [
        DeclaredSeries(path=str(folder / "logged"), log=str(folder / "log.csv")),
        DeclaredSeries(path=str(folder / "bare")),
    ]
    run_study(Declaration(name="tried", series=series, probes=[{"name": "controls"}]), folder / "study", workers=1)
    return ts.Study.load(folder / "study")


@pytest.mark.parametrize("target", ["grad_norm", "eval_accuracy"])
def test_another_target_takes_the_place_of_the_loss(target: str, study: ts.Study) -> None:
    log = study.log().filter(run="logged")
    scores = study.targets().filter(target="eval_accuracy")
    values = {
        "grad_norm": [log.filter(log["step"].is_between(s - 9, s))["grad_norm"].mean() or np.nan for s in STEPS],
        "eval_accuracy": [scores.filter(step=s)["value"].sum() or np.nan for s in STEPS],
    }[target]
    norm = study.frame().filter(run="logged", layer="network", statistic="frobenius_norm").sort("step")["value"]
    table = ts.correlations(study, target=target)
    assert set(table["target"]) == {target}
    assert set(table["run"]) == {"logged"}
    assert not [name for name in table["feature"] if "grad_norm" in name and target == "grad_norm"]
    (row,) = table.filter(feature="controls frobenius_norm", group="network").to_dicts()
    assert row["rho"] == pytest.approx(spearmanr(norm, values, nan_policy="omit").statistic)
    assert row["n"] == 23
    assert not table["needs"].str.contains("loss").any()


def test_a_target_that_nobody_logged_is_refused_by_name(study: ts.Study) -> None:
    with pytest.raises(ToposcopeError, match=r"no run has logged it; did you mean 'eval_accuracy'\? Choose from"):
        ts.correlations(study, target="eval_acuracy")
