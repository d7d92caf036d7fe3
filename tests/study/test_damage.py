"""A store or a diagram file that changed without being written is noticed, and made again by the next run."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from diagram_damage import change_diagrams, diagram_source
from small_studies import (
    CONTROLS,
    NEURAL_PERSISTENCE,
    RIPS,
    assert_same_study,
    diagram_contents,
    measurement_ids,
    series_study,
    write_series,
)

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, Study, run_study
from toposcope.study.diagrams import is_readable, read_diagrams


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Declaration, Path]:
    folder = tmp_path_factory.mktemp("measured")
    write_series(folder / "run", [0, 10, 20])
    (folder / "run/log.csv").write_text("step,loss\n0,4.5\n10,4.0\n20,3.5\n")
    declared = series_study(folder / "run", [NEURAL_PERSISTENCE, RIPS, CONTROLS])
    assert run_study(declared, folder / "study", workers=1) == {}
    return declared, folder / "study"


@pytest.fixture
def study(measured: tuple[Declaration, Path], tmp_path: Path) -> tuple[Declaration, Path]:
    shutil.copytree(measured[1], tmp_path / "study")
    return measured[0], tmp_path / "study"


def changed(directory: Path, statement: str) -> None:
    """Change rows as damage would: nothing else is written."""
    with closing(sqlite3.connect(directory / "study.db")) as connection:
        connection.executescript(statement)
        assert connection.total_changes


CHANGES = {
    "a value": "UPDATE features SET value = value + 1e-12 WHERE measurement = 1 AND value > 0.01",
    "the name of a statistic": "UPDATE features SET statistic = statistic || 'x' WHERE measurement = 2",
    "a feature is gone": "DELETE FROM features WHERE measurement = 3",
    "all of a probe at a step is gone": "DELETE FROM measurements WHERE step = 10 AND probe = 'rips'",
    "the step of a row": "UPDATE measurements SET step = 11 WHERE id = 4",
    "the flag of a row": "UPDATE measurements SET flag = 'degenerate' WHERE id = 5",
    "features of another row": "UPDATE features SET measurement = 99999 WHERE measurement = 1",
    "a loss": "UPDATE log SET loss = 4.25 WHERE step = 10",
    "a row of the log is gone": "DELETE FROM log WHERE step = 20",
    "the hash of a layer": "UPDATE layers SET content_hash = 'x' WHERE step = 10",
    "a checkpoint is gone": "DELETE FROM checkpoints WHERE step = 10",
    "evidence": "UPDATE evidence SET content = x'c0' WHERE step = 10",
    "the status of a run": "UPDATE runs SET status = 'diverged'",
    "a fact": "UPDATE meta SET value = '1' WHERE key LIKE 'examined%'",
    "a kind": "UPDATE kinds SET kind = 'control'",
    "a checksum": "UPDATE checksums SET checksum = checksum + 1 WHERE kind = 'checkpoints'",
    "all checksums": "DELETE FROM checksums",
    "no table of checksums": "DROP TABLE checksums; UPDATE log SET loss = 4.25 WHERE step = 10",
}


@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES)
def test_changed_rows_are_refused_and_made_again(
    statement: str, study: tuple[Declaration, Path], measured: tuple[Declaration, Path]
) -> None:
    declared, directory = study
    ids = measurement_ids(directory)
    changed(directory, statement)
    _, message = read_all(directory)
    assert "study.db: damaged since it was written (" in message
    assert "run the study again" in message
    for command in (["study", "status"], ["report"], ["export"]):
        result = CliRunner().invoke(toposcope, [*command, str(directory)])
        assert isinstance(result.exception, ToposcopeError)
    assert run_study(declared, directory, workers=1) == {}
    assert_same_study(directory, measured[1])
    assert Study.load(directory).meta("dropped")
    if "features" in statement:
        now = measurement_ids(directory)
        kept = [key for key in ids if now[key] == ids[key]]
        assert len(kept) > len(ids) / 2  # one group alone was measured again


def flipped(content: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def cut(content: bytes, seed: int) -> bytes:
    return content[: len(content) * (seed % 9 + 1) // 10]


def read_all(directory: Path) -> tuple[dict[str, Any], str]:
    """Return the rows of a study, and the error if they cannot be read."""
    try:
        study = Study.load(directory)
        return {name: getattr(study, name)().rows() for name in ("frame", "log", "runs", "checkpoints")}, ""
    except ToposcopeError as error:
        return {}, str(error)


@pytest.mark.parametrize("damage", [flipped, cut])
@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_gives_the_same_rows_or_an_error(
    damage: Callable[[bytes, int], bytes],
    seed: int,
    study: tuple[Declaration, Path],
    measured: tuple[Declaration, Path],
) -> None:
    directory = study[1]
    path = directory / "study.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(damage(path.read_bytes(), seed))
    rows, message = read_all(directory)
    assert (str(path) in message and "\n" not in message) or rows == read_all(measured[1])[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_diagram_file_is_noticed(
    seed: int, study: tuple[Declaration, Path], measured: tuple[Declaration, Path]
) -> None:
    declared, directory = study
    file = list(diagram_contents(directory))[seed % 3]
    change_diagrams(directory, file, lambda content: flipped(content, seed))
    damaged = diagram_source(directory, file)
    if is_readable(damaged):  # a bit of the padding
        assert read_diagrams(damaged)
        return
    with pytest.raises(ToposcopeError, match=r"damaged .*; run the study again"):
        read_diagrams(damaged)
    if seed < 4:
        assert run_study(declared, directory, workers=1) == {}
        assert_same_study(directory, measured[1])
