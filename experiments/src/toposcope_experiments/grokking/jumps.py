"""How many runs of each condition have a jump beyond a smooth trend, and how many while runs begin to generalise."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope_experiments.grokking.design import CONDITIONS, TREATED
from toposcope_experiments.grokking.measured import FOLLOWED, MeasuredRuns

JUMPS = {
    **dict.fromkeys(("architecture", "feature", "condition"), pl.String),
    **dict.fromkeys(("n_runs", "n_beyond_trend", "first_step", "last_step", "n_at_generalisation"), pl.Int64),
}


def jump_table(measured: Sequence[MeasuredRuns]) -> pl.DataFrame:
    """Count the runs with a change point that no smooth trend explains."""
    rows = [
        {
            "architecture": m.architecture,
            "feature": feature,
            "condition": condition.name,
            **_count(m, feature, condition.name),
        }
        for m in measured
        for feature in FOLLOWED
        for condition in CONDITIONS
    ]
    return pl.DataFrame(rows, schema=JUMPS)


def _count(measured: MeasuredRuns, feature: str, condition: str) -> dict[str, int | None]:
    places = measured.places(condition)
    beyond = [[c.step for c in measured.changes[int(i), feature] if not c.explained] for i in places]
    window = window_of(measured)
    first, last = window if window else (None, None)
    within = sum(any(window[0] < step <= window[1] for step in steps) for steps in beyond) if window else None
    return {
        "n_runs": len(places),
        "n_beyond_trend": sum(bool(steps) for steps in beyond),
        "first_step": first,
        "last_step": last,
        "n_at_generalisation": within,
    }


def window_of(measured: MeasuredRuns) -> tuple[int, int] | None:
    """Return the steps at which the first run with true labels has memorised, and the last has generalised."""
    treated = measured.places(TREATED.name)
    generalised = measured.generalised[treated]
    treated = treated[np.isfinite(generalised)]
    if not len(treated):
        return None
    memorised = measured.memorised[treated]
    return int(np.nanmin([*memorised, *measured.generalised[treated]])), int(measured.generalised[treated].max())
