"""``median``: the middle one of three laws of the annealing, step by step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecast import Run
from toposcope.forecasting.forecasters.annealing import ANNEALING
from toposcope.forecasting.forecasters.cooldown import COOLDOWN
from toposcope.forecasting.forecasters.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecasting.forecasters.s1_anneal import S1_ANNEAL
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log

LAWS = (S1_ANNEAL, ANNEALING, COOLDOWN)


class Median(LawForecaster):
    """Where ``s1_anneal``, ``annealing`` and ``cooldown`` disagree, the one in the middle."""

    name = "median"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> FittedLaw:
        """Fit the three."""
        laws = [each.law(log, schedule, siblings) for each in LAWS]

        def loss(steps: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.asarray(np.median([law.loss(steps) for law in laws], axis=0), dtype=np.float64)

        told = {each.name: law.final() for each, law in zip(LAWS, laws, strict=True)}
        # each says as much of its own coefficient
        return FittedLaw(loss, schedule, told, laws[0].remarks)
