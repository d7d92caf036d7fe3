"""Steps of one pass over the data, by the epochs that rows state."""

from pathlib import Path

import numpy as np
import pytest

from toposcope.logs import read_log


def log(path: Path, epochs: list[float], every: int = 10, first: int = 10) -> Path:
    rows = [f"{first + every * i},{2 - 0.001 * i},{epoch:g}\n" for i, epoch in enumerate(epochs)]
    path.write_text("step,loss,epoch\n" + "".join(rows))
    return path


def test_fractions_of_epochs(tmp_path: Path) -> None:
    path = log(tmp_path / "run.csv", [10 * (i + 1) / 250 for i in range(60)])
    assert read_log(path).steps_per_epoch == pytest.approx(250)


@pytest.mark.parametrize("first", [0, 1])
def test_counted_epochs(tmp_path: Path, first: int) -> None:
    """The log begins within an epoch: where the number changes, the next begins."""
    path = log(tmp_path / "run.csv", [first + (10 * i + 90) // 250 for i in range(80)])
    assert read_log(path).steps_per_epoch == pytest.approx(250, rel=0.05)


@pytest.mark.parametrize("epochs", [[1.0] * 30, [np.nan] * 30])
def test_what_does_not_tell(tmp_path: Path, epochs: list[float]) -> None:
    assert np.isnan(read_log(log(tmp_path / "run.csv", epochs)).steps_per_epoch)


def test_a_row_an_epoch_has_no_stairs(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("epoch,loss\n" + "".join(f"{i},{2 - 0.01 * i}\n" for i in range(1, 40)))
    assert np.isnan(read_log(path).steps_per_epoch)
