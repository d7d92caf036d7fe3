"""Sweeps in the tools that run them: Optuna with eight workers, Ray Tune with eight, and what each is not told."""

import math
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

import toposcope
from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.reported import reported_run, stops_now
from toposcope.forecasting.sweeps.rule import Risk
from toposcope.forecasting.sweeps.sweep import SweepRun

optuna.logging.set_verbosity(optuna.logging.ERROR)
STEPS = 60


def loss_of(rate: float, step: int, last: int = STEPS) -> float:
    """Fall by a power of the share of training that is done, and least at a rate of a hundredth."""
    return 1 + 2 * abs(math.log10(rate) + 2) + float((last / step) ** 0.3)


def objective(**attributes: Any) -> Callable[[optuna.Trial], float]:
    def train(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-4, 1, log=True)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        for step in range(1, STEPS + 1):
            trial.report(loss_of(rate, step), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss_of(rate, STEPS)

    return train


def spent(study: optuna.Study) -> float:
    """Return the share of the steps that were made."""
    return sum(len(trial.intermediate_values) for trial in study.trials) / (STEPS * len(study.trials))


@pytest.mark.parametrize("risk", ["low", "medium", "high"])
def test_eight_workers_of_optuna_save_compute_and_keep_the_best(risk: Risk, tmp_path: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    for keep in (None, storage):
        sampler = optuna.samplers.RandomSampler(seed=1)
        study = optuna.create_study(pruner=toposcope.SweepPruner(risk), sampler=sampler, storage=keep)
        study.optimize(objective(last_step=STEPS, warm_up=3), n_trials=24, n_jobs=8)
        rates = {trial.number: trial.params["rate"] for trial in study.trials}
        best = min(rates, key=lambda number: loss_of(rates[number], STEPS))
        assert study.best_trial.number == best
        assert spent(study) < 0.9
        assert {trial.state for trial in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_what_runs_in_parallel_is_compared_before_anything_has_finished() -> None:
    """A pruner that looks at finished trials only saves nothing where all start at once."""

    def together(pruner: optuna.pruners.BasePruner) -> float:
        study = optuna.create_study(pruner=pruner)
        trials = [study.ask({"rate": optuna.distributions.FloatDistribution(1e-4, 1, log=True)}) for _ in range(8)]
        going = dict(enumerate(trials))
        for trial in trials:
            trial.set_user_attr("last_step", STEPS)
        for step in range(1, STEPS + 1):
            for number, trial in list(going.items()):
                trial.report(loss_of(10 ** (-4 + number / 2), step), step)
                if trial.should_prune():
                    study.tell(going.pop(number), state=TrialState.PRUNED)
        return spent(study)

    assert together(optuna.pruners.MedianPruner()) == 1
    assert together(toposcope.SweepPruner()) < 0.8


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({}, "last_step"),
        ({"last_step": "60"}, "last_step"),
        ({"last_step": -1}, "last_step"),
        ({"last_step": STEPS, "warm_up": 0.1}, "warm_up"),
        ({"last_step": 7}, "beyond the 7 steps"),
    ],
)
def test_what_optuna_is_not_told_is_warned_of_once_and_nothing_stops(attributes: dict[str, Any], told: str) -> None:
    study = optuna.create_study(pruner=toposcope.SweepPruner())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(objective(**attributes), n_trials=4)
    (warning,) = (each for each in caught if "never stopped" in str(each.message))
    assert told in str(warning.message)
    assert spent(study) == 1


def test_what_is_no_loss_is_refused() -> None:
    study = optuna.create_study(direction="maximize", pruner=toposcope.SweepPruner())
    with pytest.raises(ToposcopeError, match="minimised"):
        study.optimize(objective(last_step=STEPS), n_trials=1)
    with pytest.raises(ToposcopeError, match="risk 'none'"):
        toposcope.SweepPruner("none")  # type: ignore[arg-type]


def test_seeds_of_equal_parameters_are_one() -> None:
    def run(name: str, loss: float, n: int = 2, **settings: Any) -> SweepRun:
        return reported_run(name, {6: loss, 7: loss} if n == 2 else {6: loss}, settings, 60, None)

    others = [run("a", 1.0, rate=1, seed=0), run("b", 1.0, rate=1, seed=1)]
    assert stops_now(run("c", 2.0, 1, rate=2, seed=0), others, "high", set())
    assert not stops_now(run("c", 2.0, 1, rate=1, seed=7), others, "high", set())


@pytest.mark.parametrize("key", ["data_seed", "seed_everything"])
def test_whatever_names_a_seed_is_one(key: str) -> None:
    first, second = (reported_run(str(i), {6: 1.0}, {key: i, "width": 3}, 60, None) for i in (0, 1))
    assert first.configuration == second.configuration
    wider = reported_run("wider", {6: 1.0}, {key: 0, "width": 4}, 60, None)
    assert wider.configuration != first.configuration


def test_a_study_made_anew_has_its_own_trials() -> None:
    pruner = toposcope.SweepPruner()
    for level, is_worse in ((9.0, False), (1.0, True)):
        study = optuna.create_study(study_name="one")
        for loss in [level] * 4 + [5.0]:
            reports = dict.fromkeys(range(1, 21), loss)
            study.add_trial(create_trial(value=loss, intermediate_values=reports, user_attrs={"last_step": 20}))
        assert pruner.prune(study, study.trials[-1]) == is_worse


def test_the_example_of_the_page_runs_as_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    code = next(each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "optuna" in each)
    names: dict[str, Any] = {"train": lambda rate: ((step, loss_of(rate, step, 1000)) for step in range(10, 1001, 10))}
    exec(code, names)
    states = [trial.state for trial in names["study"].trials]
    assert len(states) == 32
    assert 0 < states.count(TrialState.PRUNED) < 32  # 5 to 22 of 25 times: its rates are drawn anew


@pytest.mark.slow
def test_eight_workers_of_ray_tune(tmp_path: Path) -> None:
    tune = pytest.importorskip("ray.tune")
    import ray

    def train(config: dict[str, Any]) -> None:
        for step in range(1, STEPS + 1):
            time.sleep(0.02)
            tune.report({"loss": loss_of(config["rate"], step)})

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        rates = [10 ** (-4 + i / 4) for i in range(16)]
        space = {"rate": tune.grid_search(rates), "last_step": STEPS, "warm_up": 3}
        tuner = tune.Tuner(
            train,
            param_space=space,
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=toposcope.SweepScheduler("low")),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        )
        results = tuner.fit()
    finally:
        ray.shutdown()
    made = [result.metrics["training_iteration"] for result in results]
    assert len(made) == 16
    assert results.get_best_result().config["rate"] == 1e-2
    assert max(made) == STEPS
    assert sum(made) < 0.8 * 16 * STEPS
