"""What a monitor stored of a run besides its log: how the run is, its alerts, and looks at its layers."""

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

TRAINING, COMPLETE, DIVERGED, FAILED = "running", "complete", "diverged", "failed"
"""Status of a run, as its writer stores it."""
MONITORED = "live"  # kind of the runs in a store that a monitor watches
MAX_LOOKED_AT = 8  # last measured steps in which the last gradient and update of each layer are found


@dataclass(frozen=True)
class LayerLooks:
    """What was seen of the layers: the last gradient and update of each, and at how many steps they were looked at.

    Attributes
    ----------
    n_layers, n_updated : int
        Layers with a measured gradient, and with a measured update.
    idle : sequence of str
        Layers whose last gradient, or last update, was 0.
    n_nonfinite : int
        Weights and gradients that were NaN or infinite.
    n_looks : int
        Steps at which each layer was looked at, at the least.
    first, last : int
        The first and the last of these steps.
    """

    n_layers: int = 0
    n_updated: int = 0
    idle: Sequence[str] = ()
    n_nonfinite: int = 0
    n_looks: int = 0
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Watched:
    """What a monitor stored of a run.

    Attributes
    ----------
    status : str
        `TRAINING`, `COMPLETE`, `DIVERGED` or `FAILED`.
    alerts : sequence of mapping
        Newest first: ``step``, ``since``, ``check``, ``place``, ``message``.
    layers : LayerLooks
    forecasts : sequence of mapping
        Oldest first: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``advice``, ``target``. Forecasts of two
        targets are not one series.
    n_examined, n_faults : int
        Saved checkpoints that the doctor examined, and faults that it found.
    updated : float, optional
        When its writer last wrote, in seconds since 1970.
    step_seconds : float, optional
        Time of a step.
    """

    status: str = TRAINING
    alerts: Sequence[Mapping[str, Any]] = ()
    layers: LayerLooks = field(default_factory=LayerLooks)
    forecasts: Sequence[Mapping[str, Any]] = ()
    n_examined: int = 0
    n_faults: int = 0
    updated: float | None = None
    step_seconds: float | None = None


def read_watched(store: sqlite3.Connection, run: str) -> Watched | None:
    """Return what a monitor stored of a run; None if nobody monitored it.

    Parameters
    ----------
    store : sqlite3.Connection
        The database of a study.
    run : str

    Returns
    -------
    Watched or None
    """
    row = store.execute("SELECT kind, status FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None or row[0] != MONITORED:
        return None
    monitor, examined = monitor_facts(store, run), _meta(store, f"examined {run}")
    faults = "SELECT COUNT(*) FROM findings WHERE run = ? AND severity = 'fault'"
    alerts = "SELECT step, since, check_name AS 'check', place, message FROM alerts WHERE run = ? ORDER BY seq DESC"
    forecasts = "SELECT step, last_step, loss, low, high, advice, target FROM forecasts WHERE run = ? ORDER BY step"
    return Watched(
        status=row[1],
        alerts=_rows(store, alerts, run),
        layers=_looks(store, run, monitor.get("looks")),
        forecasts=[
            f for f in _rows(store, forecasts, run) if all(map(math.isfinite, (f["loss"], f["low"], f["high"])))
        ],
        n_examined=int(examined) if examined.isdigit() else 0,
        n_faults=store.execute(faults, (run,)).fetchone()[0],
        updated=_number(monitor.get("updated")),
        step_seconds=_number(monitor.get("step_seconds")),
    )


def monitor_facts(store: sqlite3.Connection, run: str) -> dict[str, Any]:
    """Return what the writer of a run stored of itself (``docs/methods/monitor.md``); empty if nothing."""
    try:
        facts = json.loads(_meta(store, f"monitor {run}") or "{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _looks(store: sqlite3.Connection, run: str, own: Any) -> LayerLooks:
    """Return the looks at layers: those of the measured steps and, where newer or more, the monitor's own."""
    measured = (
        "FROM checkpoints c JOIN measurements m ON m.run = c.run AND m.step = c.step AND m.probe = 'training' "
        "JOIN features f ON f.measurement = m.id WHERE c.run = ?"
    )
    query = (
        f"SELECT COUNT(*), MIN(m.step), MAX(m.step) {measured} AND layer = 'network' AND statistic = 'gradient_norm'"
    )
    n, first, last = store.execute(query, (run,)).fetchone()
    since = store.execute(
        f"SELECT MIN(step) FROM (SELECT step FROM checkpoints WHERE run = ? ORDER BY step DESC LIMIT {MAX_LOOKED_AT})",
        (run,),
    ).fetchone()[0]
    query = f"SELECT statistic, layer, value {measured} AND c.step >= ? AND layer <> 'network' ORDER BY m.step"
    found: dict[str, dict[str, float]] = {}
    for statistic, layer, value in store.execute(query, (run, since)):
        found.setdefault(statistic, {})[layer] = value
    gradients, updates = found.get("gradient_norm", {}), found.get("update_ratio", {})
    looks = LayerLooks(
        n_layers=len(gradients),
        n_updated=len(updates),
        idle=tuple(layer for layer, gradient in gradients.items() if not gradient or not updates.get(layer, 1.0)),
        n_nonfinite=int(sum(sum(found.get(name, {}).values()) for name in ("nonfinite", "nonfinite_gradients"))),
        n_looks=n,
        first=first or 0,
        last=last or 0,
    )
    if not isinstance(own, dict) or own["last"] < looks.last:
        return looks
    first = min(own["first"], first or own["first"])
    return replace(looks, **{**own, "idle": tuple(own["idle"]), "first": first})


def _meta(store: sqlite3.Connection, key: str) -> str:
    row = store.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def _rows(store: sqlite3.Connection, query: str, run: str) -> list[dict[str, Any]]:
    cursor = store.execute(query, (run,))
    names = [name for name, *_ in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
