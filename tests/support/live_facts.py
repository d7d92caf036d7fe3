"""Facts on runs as the live page reads them, without a database."""

import random
from typing import Any

from toposcope.report.live.database import Row
from toposcope.report.live.facts import Facts, LayerFacts

NOW = 10_000.0


def rows(losses: list[float], every: int = 1) -> list[Row]:
    return [Row(every * (i + 1), loss, loss, loss) for i, loss in enumerate(losses)]


def power_law(n: int, noise: float = 0.03, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [2 + 6 * (i + 20) ** -0.35 + draw.gauss(0, noise) for i in range(n)]


def alert(check: str, step: int, place: str = "") -> dict[str, Any]:
    return {"step": step, "since": step, "check": check, "place": place, "message": f"{check}: it is so."}


GOOD = Facts(
    step=1000, last_step=2000, training=rows(power_law(1000)), n_rows=1000, judged=("loss", "grad_norm"),
    layers=LayerFacts(n_layers=13, n_updated=13, n_measured=20), step_seconds=0.5, updated=NOW - 1,
)  # fmt: skip
FEW: dict[str, Any] = {"training": rows(power_law(3)), "n_rows": 3, "step": 3, "judged": (), "layers": LayerFacts()}
TURNED = rows([3.0, 2.5, 2.2, 2.0, 1.92, *(1.92 + 0.03 * i for i in range(1, 9))], every=75)
