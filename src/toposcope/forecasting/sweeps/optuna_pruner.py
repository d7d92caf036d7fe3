"""Optuna's door: prunes trials by their losses at shares of their own planned steps."""

from datetime import datetime
from typing import Any

from optuna.pruners import BasePruner
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.reported import reported_run, rule_of, stops_now
from toposcope.forecasting.sweeps.rule import Risk
from toposcope.forecasting.sweeps.sweep import SweepRun


class SweepPruner(BasePruner):
    """Prunes a trial whose loss, at a share of its own planned steps, is not among the best recorded there.

    Each trial says with ``trial.set_user_attr`` how many steps it is planned for (``last_step``), and may say how many
    of them are warm-up (``warm_up``), before it reports its losses; step 0 is before training. Trials in progress and
    pruned ones are compared too; trials of equal parameters but for a seed count as one.

    Parameters
    ----------
    risk : "low", "medium" or "high"
        Of losing the best trial: ``docs/sweeps.md`` has the share lost, as measured.

    Raises
    ------
    ToposcopeError
        If the study maximises, or has several objectives.

    Examples
    --------
    >>> import optuna
    >>> import toposcope
    >>> study = optuna.create_study(pruner=toposcope.SweepPruner(risk="medium"))
    """

    def __init__(self, risk: Risk = "low") -> None:
        rule_of(risk)
        self.risk: Risk = risk
        self._warned: set[str] = set()
        self._ended: dict[tuple[str, int, datetime | None], SweepRun] = {}

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops with the loss that it reported last."""
        if study.directions != [StudyDirection.MINIMIZE]:
            raise ToposcopeError("SweepPruner compares losses: create the study with one objective that is minimised")
        others = [
            self._known(study, other) for other in study.get_trials(deepcopy=False) if other.number != trial.number
        ]
        return stops_now(self._known(study, trial), others, self.risk, self._warned)

    def _known(self, study: Study, trial: FrozenTrial) -> SweepRun:
        """Return what is known of a trial; of one that has ended, what was known before."""
        key = study.study_name, trial.number, trial.datetime_start  # a study may be made anew
        if key in self._ended:
            return self._ended[key]
        attributes: dict[str, Any] = trial.user_attrs
        plan = attributes.get("last_step"), attributes.get("warm_up")
        run = reported_run(f"trial {trial.number}", trial.intermediate_values, trial.params, *plan)
        if trial.state.is_finished():
            self._ended[key] = run
        return run
