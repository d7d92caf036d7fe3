"""Where the logs in a study's database hold NaN, which SQLite stores as NULL; imports no frames, for the live page."""

import sqlite3


def nan_steps(c: sqlite3.Connection, run: str) -> dict[str, list[int]]:
    """Return the steps at which a run logged NaN, by column of ``log`` or further target."""
    found: dict[str, list[int]] = {}
    for name, step in c.execute("SELECT name, step FROM log_nan WHERE run = ? ORDER BY step", (run,)):
        found.setdefault(name, []).append(step)
    return found
