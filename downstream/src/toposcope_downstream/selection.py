"""What is predicted, and from what: models by size or by the name of a run, and the runs of the ladder."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import escape

import numpy as np
import polars as pl

from toposcope.extend import ToposcopeError, choices, size_of
from toposcope_downstream.evaluations import Evaluations
from toposcope_downstream.predicted import Model, unnamed

MAX_LISTED = 12  # names in a message
EXPECTED = "expected N=7B,D=4T with a name before it if you like, or the name of a run"


def models_of(texts: Sequence[str], evaluations: Evaluations) -> list[Model]:
    """Read models to predict."""
    models = [_model_of(text, evaluations) for text in texts]
    names = [model.name for model in models]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ToposcopeError(f"model {twice}: named twice; drop one, or name them differently")
    return models


def select_runs(
    evaluations: Evaluations, ladder: Sequence[str] = (), exclude: Sequence[str] = (), models: Sequence[Model] = ()
) -> Evaluations:
    """Return the evaluations of some runs; those that are named as a ladder count as one recipe."""
    runs = [str(run) for run in evaluations.table["run"].unique().sort()]
    for pattern in (*ladder, *exclude):
        if not any(_is_named(run, pattern) for run in runs):
            raise ToposcopeError(f"no run is named {pattern}; {_near(pattern, runs)}")

    def matched(run: str, patterns: Sequence[str]) -> bool:
        return any(_is_named(run, pattern) for pattern in patterns)

    own = {model.name for model in models}
    kept = [run for run in runs if (not ladder or matched(run, ladder)) and not matched(run, exclude)]
    if not {*kept} - own:
        raise ToposcopeError("no run is left for the ladder; name fewer runs to exclude, or more for the ladder")
    table = evaluations.table.filter(pl.col("run").is_in([*kept, *own]))
    if ladder:
        shared = table.group_by("run").agg(pl.col("recipe").n_unique()).filter(pl.col("recipe") > 1)["run"].sort()
        if len(shared):
            raise ToposcopeError(f"run {shared[0]}: runs of several recipes have this name; name one with --recipe")
        table = table.with_columns(recipe=pl.lit(""))
    return Evaluations(table, evaluations.targets, evaluations.remarks)


def _is_named(run: str, pattern: str) -> bool:
    """Return whether a run has a name, in full or after its last ``/``."""
    return fnmatchcase(run, pattern) or fnmatchcase(run.rpartition("/")[2], pattern)


def _model_of(text: str, evaluations: Evaluations) -> Model:
    runs = [str(run) for run in evaluations.table["run"].unique().sort()]
    parts = [text] if text in runs else [part.strip() for part in text.split(",")]
    sizes = {"N": np.nan, "D": np.nan}
    names = []
    for part in parts:
        key, equals, value = (each.strip() for each in part.partition("="))
        if part in runs or not equals:
            names.append(part)
        elif key not in sizes:
            raise ToposcopeError(f"model {text}: {key}=; {EXPECTED}")
        else:
            sizes[key] = size_of(value)
            if not np.isfinite(sizes[key]):
                raise ToposcopeError(f"model {text}: {part}; expected a positive number, such as {key}=7e9 or {key}=7B")
    if len(names) > 1 or "" in names:
        raise ToposcopeError(f"model {text}: {EXPECTED}")
    name = names[0] if names else ""
    alike = [run for run in runs if _is_named(run, escape(name))]
    name = alike[0] if len(alike) == 1 else name
    if name in runs:
        own = evaluations.table.filter(pl.col("run") == name).select(pl.col("N", "D").max()).row(0)
        sizes = {key: sizes[key] if np.isfinite(sizes[key]) else known for key, known in zip("ND", own, strict=True)}
    for key, what in (("N", "parameters"), ("D", "tokens")):
        if sizes[key] is None or not np.isfinite(sizes[key]):
            run = f"the run states no {what}" if name in runs else f"no run is named {name}"
            run = run if name else f"{what} missing"
            hint = (
                f"add {'N=7B' if key == 'N' else 'D=4T'}"
                if name in runs or not name
                else f"state N=7B,D=4T, or {_near(name, runs)}"
            )
            raise ToposcopeError(f"model {text}: {run}; {hint}")
    return Model(name or unnamed(sizes["N"], sizes["D"]), sizes["N"], sizes["D"])


def _near(name: str, runs: Sequence[str]) -> str:
    """Return the runs that may be meant: all if they are few."""
    from difflib import get_close_matches

    listed = runs if len(runs) <= MAX_LISTED else get_close_matches(name, runs, MAX_LISTED)
    return choices(name, listed or runs[:MAX_LISTED])
