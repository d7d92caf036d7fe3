"""Which runs a forecast may borrow from, and how well a forecaster does on them."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.forecast import Run
from toposcope.logs import Log
from toposcope.typing import Vector

FEWEST_RELATIVES = 4
"""Runs of the family; with fewer of them those of other families are asked as well."""


def kin(log: Log, siblings: Sequence[Run]) -> list[Run]:
    """Return the siblings whose losses are in the log's unit: of its family, if there are at least 4, else all."""
    alike = [run for run in siblings if run.log.unit == log.unit]
    relatives = [run for run in alike if run.log.family == log.family]
    return relatives if len(relatives) >= FEWEST_RELATIVES else alike


def weights(runs: Sequence[Run]) -> Vector:
    """Return a weight for each run that gives each family the same, in sum 1."""
    families = [run.log.family for run in runs]
    each = np.array([1 / families.count(family) for family in families])
    return each / each.sum() if len(each) else each


def of_other_sizes(run: Run, siblings: Sequence[Run]) -> list[Run]:
    """Return the siblings that have another size than a run, or belong to another family."""
    return [other for other in siblings if other.size != run.size]
