"""Monitored training on two ranks: the same numbers as without a monitor, and no rank waits for ever."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import ranks
import watched_ranks
from watched_ranks import EVERY, STEPS

from toposcope.monitor.measuring import marker, warm_up
from toposcope.monitor.monitor import DEFAULT_PROBES
from toposcope.monitor.parameters import layout

pytestmark = pytest.mark.slow

TROUBLES = {
    "fsdp2": (
        *("the first rank is slow", "the second rank is slow", "the planner fails", "the thread dies"),
        *("the first rank's measurement fails", "the second rank's measurement fails", "the study cannot be made"),
        *("only the first rank has a monitor", "only the first rank closes"),
    ),
    "ddp": (
        *("the first rank is slow", "the planner fails", "the second rank's measurement fails"),
        *("only the first rank has a monitor", "only the first rank closes"),
    ),
}


def losses(folder: Path, *arguments: Any) -> list[Any]:
    folder.mkdir()
    return ranks.on_ranks(watched_ranks.train, 2, folder, *arguments)


def measured(directory: Path) -> dict[int, dict[str, float]]:
    """The norm of each layer's weights by step."""
    with sqlite3.connect(directory / "study.db") as store:
        rows = store.execute(
            "SELECT step, layer, value FROM measurements JOIN features ON measurement = id "
            "WHERE probe = 'training' AND statistic = 'weight_norm'"
        ).fetchall()
    found: dict[int, dict[str, float]] = {}
    for step, layer, value in rows:
        found.setdefault(step, {})[layer] = value
    return found


def hashes(directory: Path) -> dict[str, str]:
    """The hash of each layer before the first step."""
    with sqlite3.connect(directory / "study.db") as store:
        return dict(store.execute("SELECT layer, content_hash FROM layers WHERE step = 0").fetchall())


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Losses without a monitor; what the probes need is compiled, so that layers are gathered from the start."""
    if not marker("float64").exists():
        warm_up(DEFAULT_PROBES, "float64")
    folder = tmp_path_factory.mktemp("unwatched")
    return {kind: losses(folder / kind, kind, "") for kind in TROUBLES}


@pytest.mark.parametrize("kind", sorted(TROUBLES))
def test_two_ranks_have_one_study(kind: str, unwatched: dict[str, list[Any]], tmp_path: Path) -> None:
    assert losses(tmp_path / "ranks", kind, str(tmp_path / "run")) == unwatched[kind]
    norms = measured(tmp_path / "run")
    assert set(norms) >= {0, STEPS}
    assert set(norms) <= {*range(0, STEPS + 1, EVERY)}
    start = {name: float(p.norm()) for name, p in ranks.model_of().named_parameters() if p.ndim == 2}
    assert {name: norms[0][name] for name in start} == pytest.approx(start, rel=1e-6)
    assert hashes(tmp_path / "run") == {layer.name: layer.content_hash() for layer in layout(ranks.model_of())}


@pytest.mark.parametrize(("kind", "trouble"), [(kind, trouble) for kind, all_ in TROUBLES.items() for trouble in all_])
def test_training_ends_as_without_a_monitor(
    kind: str, trouble: str, unwatched: dict[str, list[Any]], tmp_path: Path
) -> None:
    assert losses(tmp_path / "ranks", kind, str(tmp_path / "run"), trouble) == unwatched[kind]
