"""Measuring a population beside measuring one checkpoint at a time.

    python benchmarks/population_measuring.py [--quick]

The checkpoints have the shapes of tiny-3k and small-7k and are made here: 200 runs, 8 of each. One at a time, a sample
of them is measured, by calls in one process, and by a command each.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import safetensors.torch

import toposcope as ts
from bench import Column, command, ratio, show, write
from result_files import Spread
from toposcope.family import SIZES, build
from toposcope.study.declaration import Declaration, DeclaredSeries
from toposcope.study.runner import run_study

Row = dict[str, object]

RUNS, FRACTIONS = 200, 8
PROCESSES = 2
SAMPLE, COMMANDS = 40, 3
PROBES: dict[str, list[dict[str, object]]] = {
    "neural persistence and H0": [{"name": "neural_persistence"}, {"name": "rips", "max_dimension": 0}],
    "and H1, controls": [{"name": "neural_persistence"}, {"name": "rips"}, {"name": "controls"}],
}
COLUMNS = (
    Column("probes", "probes"),
    Column("one at a time", "contestant"),
    Column("its ms a checkpoint", "theirs"),
    Column("population, ms a checkpoint", "ours"),
    Column("ratio", "ratio"),
)


@command("population_measuring", "20 runs, 1 repeat", 3)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure the checkpoints of a population, on two processes, beside one at a time."""
    n_runs, repeats = (20, 1) if quick else (RUNS, repeats)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="toposcope-bench-") as temporary:
        folder = Path(temporary)
        files = make_population(folder / "runs", n_runs)
        for label, probes in PROBES.items():
            ours, calls, commands = [], [], []
            for repeat in range(repeats):
                ours.append(study_ms(folder, n_runs, len(files), probes))
                calls.append(call_ms(files[repeat :: max(1, len(files) // SAMPLE)][:SAMPLE], probes))
                commands.append(command_ms(files[repeat : repeat + COMMANDS], probes))
            for contestant, theirs in (("a call each", calls), ("a command each", commands)):
                spreads = {"theirs": Spread.of(theirs), "ours": Spread.of(ours), "ratio": ratio(theirs, ours)}
                rows.append({"probes": label, "contestant": contestant, **spreads})
    title = "Measuring a population"
    show(rows, COLUMNS, title)
    facts = {
        "checkpoints": f"{len(files)}: {n_runs} runs of tiny-3k and small-7k, {FRACTIONS} checkpoints each",
        "population": f"run_study on {PROCESSES} processes, their start, hashes, the doctor and the database included",
        "a call each": f"toposcope.measure of {SAMPLE} of them, one after another in one process",
        "a command each": f"toposcope measure of {COMMANDS} of them, start-up included",
        "samples": f"{repeats} of each contestant in turn; median (lowest-highest)",
    }
    write("population_measuring", out, facts, {title: (rows, COLUMNS)}, ("toposcope", "numpy", "numba", "torch"))


def make_population(folder: Path, n_runs: int) -> list[Path]:
    """Write checkpoints of runs of two sizes, alternating."""
    files = []
    for run in range(n_runs):
        place = folder / f"run-{run:04d}"
        place.mkdir(parents=True)
        for step in range(FRACTIONS):
            size = list(SIZES)[run % 2]
            weights = {n: t.clone() for n, t in build(size, seed=run * FRACTIONS + step).state_dict().items()}
            files.append(place / f"step_{step:03d}.safetensors")
            safetensors.torch.save_file(weights, files[-1])
    return files


def study_ms(folder: Path, n_runs: int, n_files: int, probes: list[dict[str, object]]) -> float:
    """Return the milliseconds a checkpoint that a study of all runs takes."""
    shutil.rmtree(folder / "study", ignore_errors=True)
    series = [DeclaredSeries(path=str(folder / "runs" / f"run-{run:04d}")) for run in range(n_runs)]
    declaration = Declaration(name="population", series=series, probes=list(probes))
    begin = perf_counter()
    errors = run_study(declaration, folder / "study", workers=PROCESSES)
    assert not errors
    return 1000 * (perf_counter() - begin) / n_files


def call_ms(files: list[Path], probes: list[dict[str, object]]) -> float:
    """Return the milliseconds of a call that measures one checkpoint."""
    begin = perf_counter()
    for file in files:
        ts.measure(file, probes=list(probes))
    return 1000 * (perf_counter() - begin) / len(files)


def command_ms(files: list[Path], probes: list[dict[str, object]]) -> float:
    """Return the milliseconds of a command that measures one checkpoint."""
    options = []
    for probe in probes:
        fields = ",".join(f"{name}={value}" for name, value in probe.items() if name != "name")
        options += ["--probe", f"{probe['name']}:{fields}" if fields else str(probe["name"])]
    begin = perf_counter()
    for file in files:
        arguments = [str(Path(sys.executable).with_name("toposcope")), "measure", str(file), *options, "--json"]
        subprocess.run(arguments, check=True, capture_output=True)
    return 1000 * (perf_counter() - begin) / len(files)


if __name__ == "__main__":
    main()
