"""The hypotheses on hidden states are judged by what is true of a study, and say what they lack."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from named_features import by_feature

from toposcope.analysis.trajectory import Trajectory
from toposcope.extend import UNDETERMINED
from toposcope_experiments.published_study.case import EXPLAINED, FALLS, STANDS, StudyEvidence
from toposcope_experiments.published_study.hypotheses import hypotheses
from toposcope_experiments.published_study.published import Published

RUNS = {"a-1m": 10**6, "b-10m": 10**7, "c-100m": 10**8, "d-1b": 10**9, "e-10b": 10**10}
NAMES = ("H1.count", "H1.total", "H1.entropy", "effective_rank")
PUBLISHED = Published(subject="hidden_states", correlations={"H1.entropy": dict.fromkeys(RUNS, 0.8)})


def judged(
    *, count: float = -1, total: float = 1, rho: float = 0.9, rank: float = 0.5, rho_step: float = 0.3,
    verdict: str = "beyond trend", p_size: float = 0.001, directions: str = "down up",
    p_turn: float = 0.01, lacking: str = "",
) -> list[tuple[str, str]]:  # fmt: skip
    """Return verdict and reason of each hypothesis on a made-up study that lacks one of its inputs."""
    moves = np.arange(20.0) + 0.01 * np.random.default_rng(0).normal(size=20)
    values = {"H1.count": 100 + count * moves, "H1.total": 50 + total * moves, "H1.entropy": 3 - 0.01 * moves}
    values |= {"effective_rank": 50 - moves}
    features = by_feature({f"published {n}": v for n, v in values.items() if n != lacking})
    known = {run: Trajectory(run, np.arange(20), features, {"text_loss": 9 - moves}, {}) for run in RUNS}
    rows = [
        {"run": run, "group": "network", "target": "text_loss", "feature": f"published {name}",
         "rho": rho if name == "H1.entropy" else rank, "rho_step": rho_step, "verdict": verdict, "n": 20}
        for run in RUNS for name in NAMES if name != lacking
    ]  # fmt: skip
    association = pl.DataFrame(rows).clear() if lacking == "association" else pl.DataFrame(rows)
    scaling = pl.DataFrame([{"quantity": "published H1.entropy", "rho": 0.9, "p_exact": p_size, "min_p": 0.001}])
    turns = [{"run": run, "feature": "published H1.total", "n_turns": directions.count(" "),
              "directions": directions, "p_1": p_turn} for run in RUNS]  # fmt: skip
    sizes = {} if lacking == "sizes" else RUNS
    none = pl.DataFrame()
    case = StudyEvidence(
        association, scaling.clear() if lacking == "scaling" else scaling, known, subject="hidden_states",
        published=PUBLISHED, sizes=sizes, named=[] if lacking == "runs" else list(RUNS), phases=none,
        change_points=none, predictions=none,
    )  # fmt: skip
    found = hypotheses(case, None if lacking == "turns" else pl.DataFrame(turns))
    return [(verdict, why) for _, verdict, why in found]


@pytest.mark.parametrize(
    ("number", "changed", "expected"),
    [
        *((number, {}, STANDS) for number in (1, 2, 3, 4)),
        (1, {"count": 1}, FALLS),
        (1, {"count": 0, "total": 0}, UNDETERMINED),
        (2, {"p_size": 0.5}, FALLS),
        (3, {"rank": 0.95}, FALLS),
        (3, {"rho_step": -0.98}, EXPLAINED),
        (3, {"verdict": "cannot be told"}, UNDETERMINED),
        (4, {"p_turn": 0.4}, UNDETERMINED),
        (4, {"directions": "up"}, UNDETERMINED),
    ],
)
def test_each_is_judged_by_its_own_measure(number: int, changed: dict[str, Any], expected: str) -> None:
    verdict, why = judged(**changed)[number - 1]
    assert verdict == expected, why


@pytest.mark.parametrize(
    ("lacking", "numbers"),
    [
        ("runs", {1, 3, 4}), ("sizes", {2}), ("scaling", {2}), ("association", {3}), ("H1.entropy", {3}),
        ("effective_rank", {3}), ("turns", {4}), ("H1.total", {4}), ("H1.count", set()),
    ],
)  # fmt: skip
def test_what_is_not_judged_says_what_it_needs(lacking: str, numbers: set[int]) -> None:
    whys = {n: why for n, (verdict, why) in enumerate(judged(lacking=lacking), 1) if verdict == UNDETERMINED}
    assert {n for n, why in whys.items() if why.startswith("Not judged: needs ")} >= numbers
