"""Small studies: checkpoints written by hand, runs that train in a fraction of a second, and what a study left."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl
import safetensors.torch
import torch
from small_runs import SIZE, small_corpus
from torch import Tensor

from toposcope.family import TrainingOptions
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.tables import Unit

TRAINING: dict[str, Any] = {
    "steps": 30,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 4,
    "checkpoint_every": 10,
}
NEURAL_PERSISTENCE: dict[str, Any] = {"name": "neural_persistence"}
RIPS: dict[str, Any] = {"name": "rips"}
POOLED: dict[str, Any] = {"name": "rips", "pooled": True}
GRADIENTS: dict[str, Any] = {"name": "gradient_rips"}
CONTROLS: dict[str, Any] = {"name": "controls"}
DISTANCES: dict[str, Any] = {"name": "distances"}
WEIGHT_PROBES = [NEURAL_PERSISTENCE, RIPS, POOLED, CONTROLS, DISTANCES]
ALL_PROBES = [*WEIGHT_PROBES, GRADIENTS]

SHAPES = {"token_emb.weight": (20, 6), "layers.0.mlp.fc1.weight": (14, 6), "layers.0.mlp.fc2.weight": (6, 14)}


def some_weights(seed: int, shapes: dict[str, tuple[int, ...]] | None = None) -> dict[str, Tensor]:
    """Random matrices, and a vector that no probe measures."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in (shapes or SHAPES).items()}
    return {**drawn, "ln_f.weight": torch.ones(6)}


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """One checkpoint file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(weights, path)


def checkpoint_file(folder: Path, step: int) -> Path:
    """Where `write_series` keeps the weights of a step."""
    return folder / f"step_{step:06d}.safetensors"


def write_series(folder: Path, steps: list[int], seed: int = 0) -> Path:
    """A series whose weights differ from step to step."""
    for step in steps:
        write_weights(checkpoint_file(folder, step), some_weights(1000 * seed + step))
    return folder


def series_study(folder: Path, probes: list[dict[str, Any]], *, steps: list[int] | None = None) -> Declaration:
    """A study of one series that exists."""
    return Declaration(name="small", series=[DeclaredSeries(path=str(folder), steps=steps or [])], probes=probes)


def family_study(
    folder: Path, names: list[str], probes: list[dict[str, Any]], series: list[Path] | None = None, **training: Any
) -> Declaration:
    """A study that trains a run for each name, each with a seed of its own."""
    runs = [DeclaredRun(size=SIZE, name=name, training={"seed": seed}) for seed, name in enumerate(names)]
    return Declaration(
        name="small",
        corpus=small_corpus(folder),
        training=TrainingOptions(**{**TRAINING, **training}),
        runs=runs,
        series=[DeclaredSeries(path=str(path)) for path in series or []],
        probes=probes,
    )


def frame(directory: Path) -> pl.DataFrame:
    """The features of a study on disk."""
    return Study.load(directory).frame()


def measurement_ids(directory: Path) -> dict[tuple[Any, ...], int]:
    """The id of every stored measurement: what was measured again has another."""
    # Opened to read only: another process may be about to make it.
    with closing(sqlite3.connect(f"file:{directory / 'study.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT run, step, layer, probe, options, id FROM measurements").fetchall()
    return {tuple(row[:-1]): row[-1] for row in rows}


def n_measured(directory: Path) -> int:
    """How many measurements are stored so far; none before there is a table."""
    try:
        return len(measurement_ids(directory))
    except sqlite3.OperationalError:
        return 0


def file_bytes(directory: Path, *folders: str) -> dict[str, bytes]:
    """Files under some folders of a study; hidden ones are locks, and what a kill left of a file being written."""
    files = [p for f in folders for p in sorted((directory / f).rglob("*")) if p.is_file() and p.name[0] != "."]
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}


def diagram_contents(directory: Path, part: str = "") -> dict[str, bytes]:
    """The diagrams that a study stores, as rows or as files, with a part in their name."""
    with closing(sqlite3.connect(directory / "study.db")) as connection:
        rows = dict(connection.execute("SELECT file, content FROM diagrams"))
    found = {**file_bytes(directory, "diagrams"), **rows}
    return {file: found[file] for file in sorted(found) if part in file}


def differing(first: dict[str, bytes], second: dict[str, bytes]) -> list[str]:
    """Names of files that one of two folders lacks, or has with another content."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def assert_same_study(first: Path, second: Path) -> None:
    """Two studies hold the same, to the last bit: frames, trained runs, diagrams."""
    a, b = Study.load(first), Study.load(second)
    assert len(a.frame()) > 0
    # Equal as lists: no tolerance, and the order counts.
    for name in ("runs", "log", "errors", "frame"):
        rows, others = getattr(a, name)().rows(), getattr(b, name)().rows()
        assert rows == others, (
            f"{name}: first difference {next((p for p in zip_longest(rows, others) if p[0] != p[1]), None)}"
        )
    stored = [file_bytes(directory, "runs") | diagram_contents(directory) for directory in (first, second)]
    names = differing(*stored)
    assert not names, f"these files differ: {names}"


def run(declaration: Declaration, directory: Path) -> dict[Unit, str]:
    """Run a study in this process; what failed."""
    errors = run_study(declaration, directory, workers=1)
    for message in errors.values():
        assert "\n" not in message
    stored = {tuple(row) for row in Study.load(directory).errors().rows()}
    assert stored == {(u.run, u.step, u.layer, u.probe, message) for u, message in errors.items()}
    return errors


def run_well(declaration: Declaration, directory: Path) -> pl.DataFrame:
    """Run a study in this process, without a failure; its frame."""
    assert run(declaration, directory) == {}
    return frame(directory)


def assert_like_new(declaration: Declaration, directory: Path) -> None:
    """What a rerun left equals what a study begun anew would have found, numbers and diagrams."""
    fresh = directory.with_name("fresh")
    run(declaration, fresh)
    assert frame(directory).rows() == frame(fresh).rows()
    assert Study.load(directory).errors().rows() == Study.load(fresh).errors().rows()
    # Diagrams of other options may lie beside; those of the declared ones are the same to the last bit.
    new = diagram_contents(fresh)
    old = diagram_contents(directory)
    assert {path: old.get(path) for path in new} == new


class Trap:
    """An object whose unpickling leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)
