"""What the judge of health finds, and whom it accuses: made-up runs broken on purpose, and published curves."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from broken_runs import BREAKS, MADE, RISEN_KINDS, ROUGH, SHAPES, SLOW, N, as_run, broken, risen, sound

from toposcope.analysis.health import health
from toposcope.analysis.health.check import EARLY, FINISHED, HEALTHY
from toposcope.analysis.health.levels import POWER_ROWS, levels
from toposcope.logs import Run

CURVES = Path(__file__).parents[3] / "shared" / "data" / "loss-curves" / "curves.parquet"
CUTS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
SPIKED, STEPPED, RESTARTED, RISES = "Loss spiked", "Loss stepped up", "Back at its start", "Loss rises"
OFF, STALLED, PAST = "Rate off its schedule", "Stalled", "Past its best"
FITTING = {
    "spike": {SPIKED}, "restart": {RESTARTED}, "rate x10": {OFF}, "rate back": {OFF}, "rate lost": {OFF},
    "flat": {STALLED}, "falls, then flat": {STALLED}, "repeated data": {PAST}, "creeping": {RISES, STEPPED, PAST},
    "wrong labels": {SPIKED, STEPPED, RESTARTED, PAST},
}  # fmt: skip
RISEN = {SPIKED, STEPPED, RESTARTED}
NAMED = {"flat": 16, "falls, then flat": 4}
"""Of 18, where the noise of the rows hides some; all other breaks are named in every run."""
TROUBLED = ("cos-zero-124m_slimpajama_llama_norm_nlayers12_nhead12_lr0.005", "ihp79346", "twostage")
"""In the names of published runs that do rise, or stand still for tens of thousands of steps."""


def against(run: Run) -> str:
    """The word that stands against a run; empty if none does."""
    found = health(run)
    return found.kept if found.word == FINISHED else "" if found.word in (HEALTHY, EARLY) else found.word


def test_sound_runs_are_not_accused() -> None:
    """At 6 cuts of 42 runs, of each shape and noise; every second has a validation loss."""
    accused = [
        (made, cut, word)
        for i, made in enumerate([*MADE, *((shape, ROUGH) for shape in SHAPES)])
        for cut in CUTS
        if (word := against(as_run(sound(0, *made), int(cut * N), validated=bool(i % 2))))
    ]
    assert len(accused) <= 1, accused


@pytest.mark.parametrize("kind", BREAKS)
def test_breaks_are_named(kind: str) -> None:
    """Within 5% of the plan, or 20% where it takes that long to show; every second shape and noise."""
    words = Counter[str]()
    for i, made in enumerate(MADE[::2]):
        row = 0 if kind == "flat" else N // 3 + 10 * i % 100
        run = broken(sound(100 + i, *made), kind, row)
        n = row + (N // 5 if kind in SLOW else N // 20)
        words[against(as_run(run, n, validated=kind == "repeated data"))] += 1
    fitting = FITTING.get(kind, RISEN)
    assert sum(words[word] for word in fitting) >= NAMED.get(kind, 18), words
    assert set(words) <= fitting | RISEN | {STALLED, ""}


@pytest.mark.parametrize(("kind", "is_sick"), RISEN_KINDS.items())
@pytest.mark.parametrize("n", [40, 100, 1000])
@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_no_run_whose_loss_rose_and_is_not_back_is_healthy(kind: str, is_sick: bool, n: int, noise: float) -> None:
    """Few evaluations that rise, a training loss that does while evaluations fall, one that came half the way back."""
    words = Counter(against(risen(seed, kind, noise, n)) for seed in range(10))
    accused = words[RISES] + words[PAST] + words[STEPPED] + words[SPIKED]
    assert accused == (10 if is_sick else 0), words


def test_the_stated_power_is_true() -> None:
    """A rise of the height that no tick would hide is found in nine runs of ten, at their end."""
    found, n_runs = Counter[int](), 0
    for i, made in enumerate(MADE):
        run = as_run(sound(200 + i, *made), N // 2)
        quiet = levels(run.steps, run.loss, run.learning_rate)
        if quiet is None or quiet.rises:
            continue
        n_runs += 1
        for rows, height in ((1, quiet.spike_power), (POWER_ROWS, quiet.power), (2 * POWER_ROWS, quiet.power)):
            risen = run.loss.copy()
            risen[-rows:] += height
            seen = levels(run.steps, risen, run.learning_rate)
            found[rows] += seen is not None and len(seen.rises) > 0
    assert n_runs >= 30
    assert all(n >= 0.9 * n_runs for n in found.values()), (found, n_runs)


def published() -> Iterator[tuple[str, Run]]:
    """The published runs of 60 rows and more."""
    for name, rows in pl.read_parquet(CURVES).group_by("family", "run", maintain_order=True):
        rows = rows.unique("step").sort("step")
        if len(rows) >= 60:
            rates = rows["lr"].cast(pl.Float64).fill_null(np.nan).to_numpy()
            steps, losses = rows["step"].cast(pl.Int64).to_numpy(), rows["loss"].to_numpy()
            yield "/".join(map(str, name)), Run("run", steps, losses, rates, int(rows["T"][0]))


@pytest.mark.slow
@pytest.mark.skipif(not CURVES.exists(), reason="no published curves next to the repository")
def test_published_runs() -> None:
    """None is accused at any cut unless it is troubled; with a lasting step of a tenth, four of five are at once."""
    accused, named, n_runs = set[str](), 0, 0
    for i, (name, run) in enumerate(published()):
        n = len(run.steps)
        accused |= {name for cut in CUTS if (seen := run.until(run.steps[int(cut * n) - 1])) and against(seen)}
        at = n // 3 + 7 * i % (n // 3)
        end = min(n, at + max(5, n // 20))
        losses = np.where(np.arange(end) < at, 1, 1.1) * run.loss[:end]
        named += against(Run("run", run.steps[:end], losses, run.learning_rate[:end], run.last_step)) in RISEN
        n_runs += 1
    assert n_runs > 200
    assert not [name for name in accused if not any(part in name for part in TROUBLED)]
    assert named >= 0.8 * n_runs
