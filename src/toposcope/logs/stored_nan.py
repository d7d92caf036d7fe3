"""Where the logs in a study's database hold NaN, which SQLite stores as NULL; imports no frames, for the live page."""

import sqlite3
from itertools import pairwise

from toposcope.databases import has_table


def nan_steps(c: sqlite3.Connection, run: str) -> dict[str, list[int]]:
    """Return the steps at which a run logged NaN, by column of ``log`` or further target."""
    if not has_table(c, "log_nan"):  # of version 6
        lost = lost_losses(c, run)
        return {"loss": lost} if lost else {}
    found: dict[str, list[int]] = {}
    for name, step in c.execute("SELECT name, step FROM log_nan WHERE run = ? ORDER BY step", (run,)):
        found.setdefault(name, []).append(step)
    return found


def lost_losses(c: sqlite3.Connection, run: str) -> list[int]:
    """Return the last steps of a run whose loss was NaN, in a study of a version that stored these as NULL.

    They are those after the last loss, if the run is known to have had losses that are not finite: its monitor raised
    the alert, or its training ended for it. They must be more than the rows without a loss between two losses, and a
    row of them has nothing that was not logged with a loss before.
    """
    if not _was_not_finite(c, run):
        return []
    logged = _logged_names(c, run)
    steps = sorted(logged)
    with_loss = [place for place, step in enumerate(steps) if "loss" in logged[step]]
    if not with_loss:
        return []
    known = set().union(*(logged[steps[place]] for place in with_loss))
    tail = [step for step in steps[with_loss[-1] + 1 :] if logged[step] <= known]
    longest = max(with_loss[0], *(b - a - 1 for a, b in pairwise(with_loss)), 0)
    return tail if len(tail) > longest else []


def _was_not_finite(c: sqlite3.Connection, run: str) -> bool:
    if c.execute("SELECT 1 FROM runs WHERE run = ? AND status = 'diverged'", (run,)).fetchone():
        return True
    return bool(c.execute("SELECT 1 FROM alerts WHERE run = ? AND check_name = 'non-finite'", (run,)).fetchone())


def _logged_names(c: sqlite3.Connection, run: str) -> dict[int, set[str]]:
    rows = c.execute("SELECT * FROM log WHERE run = ?", (run,))
    names = [name for name, *_ in rows.description]
    logged = {}
    for values in rows:
        row = dict(zip(names, values, strict=True))
        logged[row["step"]] = {name for name, value in row.items() if value is not None} - {"run", "step"}
    for step, target in c.execute("SELECT step, target FROM log_targets WHERE run = ?", (run,)):
        logged.setdefault(step, set()).add(target)
    return logged
