"""The points of one family, from a table or from the logs of complete runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.points import Points, points_of, read_points
from toposcope.logs import read_logs


def points_of_family(points: Points | str | Path, family: str | None = None) -> Points:
    """Return the points of one family, read from a table if a path is given.

    Raises
    ------
    ToposcopeError
        If the table cannot be read, there are several families and none is chosen, or none of that name.
    """
    if not isinstance(points, Points):
        points = read_points(points)
    names = np.unique(points.family).tolist()
    if family is not None:
        if family not in names:
            known = ", ".join(filter(None, names)) or "an unknown one"
            raise ToposcopeError(f"family {family}: no such points; they are of {known}")
        return points.where(points.family == family)
    if len(names) > 1:
        raise RefusedError(f"points are of {len(names)} families ({', '.join(names)}); choose one with --family NAME")
    return points


def points_of_runs(path: str | Path, family: str | None = None) -> Points:
    """Read logs and return a point from the end of each; only of the family, if there are any logs of it."""
    logs, remarks = read_logs(path)
    points = points_of([log for log in logs if log.family == family] or logs)
    return replace(points, remarks=(*points.remarks, *remarks))
