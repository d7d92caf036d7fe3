"""Tables of the pages of experiments: runs measured at the same steps, and columns of tests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from toposcope.extend import Matrix, Spec, Steps, number_of, p_value, text_of

P_VALUES: tuple[Spec, ...] = (number_of("p-value", "p", p_value), number_of("p, adjusted", "p_adjusted", p_value))


def reasons(verdicts: pl.DataFrame) -> list[Spec]:
    """Return the column that says why a verdict is undetermined, if one is."""
    return [text_of("why", "reason", prose=True)] if verdicts["reason"].str.len_chars().sum() else []


def final_values(names: Sequence[str], values: Mapping[str, Matrix], place: int) -> dict[str, float]:
    """Return the values of one run at the last step, by name."""
    return {name: float(values[name][-1, place]) for name in names}


def measurement_table(runs: Iterable[Mapping[str, Any]], steps: Steps, values: Mapping[str, Matrix]) -> pl.DataFrame:
    """Return every measurement: a row for each run and step."""
    return pl.DataFrame(
        [
            {**run, "step": int(step), **{name: float(each[t, i]) for name, each in values.items()}}
            for i, run in enumerate(runs)
            for t, step in enumerate(steps)
        ]
    )
