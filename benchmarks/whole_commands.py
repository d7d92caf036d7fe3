"""Whole commands as a shell starts them: a first `measure` and `rips` without compiled kernels, `layers`, `doctor`.

    python benchmarks/whole_commands.py [--quick]

The checkpoints are made here: 51 of one of the published sizes. Seconds are what a user waits, and count on two
idle cores only. CPU seconds are of the command and the processes it starts.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from time import perf_counter

import toposcope
from bench import Column, command, show, write
from published_shapes import make_family
from result_files import Spread

Row = dict[str, object]
Sample = tuple[float, float]

STEPS = 51
BARE = [sys.executable, "-c", "import numpy, polars, click"]
"""What any command with a table costs."""
RIPS = "import numpy as np, toposcope.homology as h; h.rips(np.random.default_rng(0).normal(size=(300, 20)))"

COLUMNS = (
    Column("command", "command"),
    Column("seconds", "seconds"),
    Column("CPU seconds", "cpu"),
)


@command("whole_commands", "6 checkpoints, 2 repeats", 7)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Time whole commands in processes of their own, in turn."""
    repeats, steps = (2, 6) if quick else (repeats, STEPS)
    with tempfile.TemporaryDirectory(prefix="toposcope-bench-") as temporary:
        folder = Path(temporary)
        run = make_family(folder / "family", steps)["safetensors"][0]
        rows = [*_timed(_measurements(run, folder), repeats), *_timed(_short_commands(run), repeats)]
    title = f"Commands on {steps} small checkpoints"
    show(rows, COLUMNS, title)
    facts = {
        "samples": f"{repeats} of each command in turn; median (lowest-highest)",
        "first": "no kernel is compiled, as after the installation; measure with the default probes",
        "rips": "of 300 points in 20 dimensions, H0 and H1, with the start of Python",
        "bare start": "python -c 'import numpy, polars, click'",
    }
    write("whole-commands", out, facts, {title: (rows, COLUMNS)}, ("toposcope", "numpy", "numba", "polars"))


def _measurements(run: Path, folder: Path) -> dict[str, Callable[[], Sample]]:
    """Measure by a copy of the package without compiled kernels, then by the same copy; each time into a new table."""
    packages, tables = (map(folder.joinpath, map(f"{name} {{}}".format, count())) for name in ("package", "table"))
    package = folder

    def first(again: Callable[[], Sample]) -> Sample:
        nonlocal package
        package = next(packages)
        without = shutil.ignore_patterns("*.nb[ic]", "*.lock", "monitor.*")
        shutil.copytree(Path(toposcope.__file__).parent, package / "toposcope", ignore=without)
        return again()

    def measure() -> Sample:
        return _sample(_toposcope("measure", run, "--out", next(tables).with_suffix(".parquet")), package)

    def rips() -> Sample:
        return _sample([sys.executable, "-c", RIPS], package)

    firsts = {"measure, first": lambda: first(measure), "measure, again": measure}
    return {**firsts, "rips, first": lambda: first(rips), "rips, again": rips}


def _short_commands(run: Path) -> dict[str, Callable[[], Sample]]:
    return {
        "layers": lambda: _sample(_toposcope("layers", run)),
        "doctor": lambda: _sample(_toposcope("doctor", run)),
        "doctor --deep": lambda: _sample(_toposcope("doctor", run, "--deep")),
        "bare start": lambda: _sample(BARE),
    }


def _toposcope(*arguments: object) -> list[str]:
    return [str(Path(sys.executable).with_name("toposcope")), *map(str, arguments)]


def _sample(arguments: list[str], package: Path | None = None) -> Sample:
    """Run a command; return the seconds it took, and those of CPU."""
    environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
    before, begin = os.times(), perf_counter()
    subprocess.run(arguments, env=environment, capture_output=True, check=True)
    seconds, after = perf_counter() - begin, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, used


def _timed(commands: Mapping[str, Callable[[], Sample]], repeats: int) -> list[Row]:
    """Run commands in turn, after once without a clock for what the system keeps in memory."""
    for run in commands.values():
        run()
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, run in commands.items():
            samples[name].append(run())
    return [
        {
            "command": name,
            "seconds": Spread.of([seconds for seconds, _ in taken]),
            "cpu": Spread.of([cpu for _, cpu in taken]),
        }
        for name, taken in samples.items()
    ]


if __name__ == "__main__":
    main()
