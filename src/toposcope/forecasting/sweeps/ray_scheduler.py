"""Ray Tune's door: stops trials by their losses at shares of their own planned steps."""

import operator
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.reported import reported_run, rule_of, stops_now
from toposcope.forecasting.sweeps.rule import Risk
from toposcope.forecasting.sweeps.sweep import SweepRun


class SweepScheduler(FIFOScheduler):  # type: ignore[misc]
    """Stops a trial whose loss, at a share of its own planned steps, is not among the best recorded there.

    The configuration of each trial says how many steps it is planned for (``last_step``), and may say how many of them
    are warm-up (``warm_up``). Trials of equal configurations but for a seed count as one.

    Parameters
    ----------
    risk : "low", "medium" or "high"
        Of losing the best trial: ``docs/sweeps.md`` has the share lost, as measured.
    metric : str, optional
        Name of the reported loss; else that of Tune's configuration.
    time_attr : str
        Name of the reported step.
    """

    def __init__(self, risk: Risk = "low", metric: str | None = None, time_attr: str = "training_iteration") -> None:
        super().__init__()
        rule_of(risk)
        self.risk: Risk = risk
        self._metric = metric
        self.time_attr: str = time_attr
        self._losses: dict[str, dict[int, float]] = {}
        self._runs: dict[str, SweepRun] = {}
        self._warned: set[str] = set()

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take metric and mode from Tune; a loss is minimised."""
        if mode not in (None, "min"):
            raise ToposcopeError('SweepScheduler compares losses: choose mode="min"')
        return bool(super().set_search_properties(metric, mode, **spec))

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]) -> str:
        """Return whether a trial stops with what it reported."""
        if self._metric is None:
            raise ToposcopeError("SweepScheduler: which reported number is the loss? name it with metric=")
        for name in (self._metric, self.time_attr):
            if name not in result:
                raise ToposcopeError(f"SweepScheduler: {name} is not among what {trial} reports; name it")
        step, loss = result[self.time_attr], result[self._metric]
        losses = self._losses.setdefault(trial.trial_id, {})
        try:
            losses[operator.index(step)] = float(loss)
        except (TypeError, ValueError):
            raise ToposcopeError(
                f"SweepScheduler: {trial} reports {self.time_attr} {step!r} and {self._metric} {loss!r}; "
                "a step is a whole number, and a loss a number"
            ) from None
        plan = trial.config.get("last_step"), trial.config.get("warm_up")
        own = self._runs[trial.trial_id] = reported_run(str(trial), losses, trial.config, *plan)
        others = [other for name, other in self._runs.items() if name != trial.trial_id]
        return str(TrialScheduler.STOP if stops_now(own, others, self.risk, self._warned) else TrialScheduler.CONTINUE)
