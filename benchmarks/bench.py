"""What the benchmarks share: interleaved timing, comparisons, the machine, and the files the results go to."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import wraps
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import click
import numpy as np
from rich.console import Console
from rich.table import Column as Heading
from rich.table import Table

from result_files import Results, Spread, cell

R = TypeVar("R")

RESULTS = Path(__file__).parent / "results"
QUICK_RESULTS = Path(__file__).parents[1] / ".bench" / "quick"
"""The tables of the documentation are not for quick runs to overwrite."""
BEGIN = perf_counter()
SHORTEST_SAMPLE = 0.05
SUSTAINED = 0.3
"""Seconds of a sample with several threads: a core that slept takes a while to wake."""


def command(name: str, quick: str, repeats: int | None = 7) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a benchmark, with the options that all have: ``quick``, ``repeats`` and ``out``.

    `quick` says what little the option of that name measures, `repeats` how many samples are usual; None leaves
    that option out.
    """
    least = f"Show that it works: {quick}."
    options = [
        click.option("--quick", is_flag=True, help=least),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help=f"Folder of the result files; {_from_root(RESULTS)}, with --quick {_from_root(QUICK_RESULTS)}.",
        ),
    ]
    if repeats is not None:
        kind, of_each = click.IntRange(min=1), "Samples of each contestant."
        options.append(click.option("--repeats", type=kind, default=repeats, show_default=True, help=of_each))
    make = click.command(
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=f"Example: python benchmarks/{name}.py --quick",
    )

    def made(run: Callable[..., None]) -> click.Command:
        @wraps(run)
        def main(quick: bool, out: Path | None, **others: object) -> None:
            run(quick=quick, out=out or (QUICK_RESULTS if quick else RESULTS), **others)

        for option in reversed(options):
            main = option(main)
        return make(main)

    return made


def _from_root(folder: Path) -> str:
    return folder.relative_to(RESULTS.parents[1]).as_posix()


@dataclass(frozen=True)
class Column:
    """A column of a result table: its title and where in a row its value is."""

    title: str
    key: str


def interleaved(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time contestants in turn, A B A B and so on, so that a slow moment of the machine meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            begin = perf_counter()
            run()
            seconds[name].append(perf_counter() - begin)
    return seconds


def milliseconds(
    contestants: Mapping[str, Callable[[], object]], repeats: int, shortest: float = SHORTEST_SAMPLE
) -> dict[str, list[float]]:
    """Time contestants in turn, in milliseconds a call; calls are repeated within one sample of some seconds."""
    sampled = {name: _long_enough(run, shortest) for name, run in contestants.items()}
    taken = interleaved({name: sample for name, (sample, _) in sampled.items()}, repeats)
    return {name: [1000 * seconds / sampled[name][1] for seconds in samples] for name, samples in taken.items()}


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divide neighbouring samples."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def alone(run: Callable[..., R], *arguments: object) -> R:
    """Call a function of a module in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def with_memory(run: Callable[[], R]) -> tuple[float, float, R]:
    """Return the seconds a call takes, by how many MB the resident set grows at most, and what it returns; on Linux."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _resident("VmRSS")
    begin = perf_counter()
    found = run()
    return perf_counter() - begin, (_resident("VmHWM") - before) / 1000, found


def _resident(field: str) -> float:
    """Return a line of the process's memory account, in kB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field)))


def distance_pass(points: np.ndarray, height: int = 512) -> None:
    """Compute all squared distances, a block of rows at a time, and drop them."""
    narrow = points.astype(np.float32)
    norms = np.einsum("ij,ij->i", narrow, narrow)
    block = np.empty((height, len(narrow)), np.float32)
    for begin in range(0, len(narrow), height):
        rows = narrow[begin : begin + height]
        part = np.matmul(rows, narrow.T, out=block[: len(rows)])
        part *= -2
        part += norms
        part += norms[begin : begin + height, None]


AGAINST = (
    Column("work", "work"),
    Column("contestant", "contestant"),
    Column("its ms", "theirs"),
    Column("toposcope ms", "ours"),
    Column("ratio", "ratio"),
)
"""The columns of `against`."""


def against(
    work: str,
    ours: Callable[[], object],
    theirs: Mapping[str, Callable[[], object]],
    repeats: int,
    bounds: tuple[float, float] | None = (1 - 1e-6, 1 + 1e-6),
    shortest: float = SHORTEST_SAMPLE,
) -> list[dict[str, object]]:
    """Check that all give the same result, then time them; above 1, toposcope is faster.

    Parameters
    ----------
    work : str
        What is done.
    ours : callable
        Returns an array, or a number.
    theirs : mapping of callable
        The same from each contestant, in any order.
    repeats : int
    bounds : (low, high), optional
        Allowed result / toposcope's result; None where what is timed has no common result.
    shortest : float
        Seconds of one sample, at least.
    """
    rows: list[dict[str, object]] = []
    for name, run in theirs.items():
        if bounds is not None:
            exact, answer = (np.sort(np.asarray(f(), dtype=np.float64).ravel()) for f in (ours, run))
            if exact.shape != answer.shape or not _within(answer, exact, bounds):
                raise click.ClickException(f"{work}: {name} does not agree with toposcope; nothing was timed")
        taken = milliseconds({"theirs": run, "ours": ours}, repeats, shortest)
        rows.append(
            {
                "work": work,
                "contestant": name,
                "theirs": Spread.of(taken["theirs"]),
                "ours": Spread.of(taken["ours"]),
                "ratio": ratio(taken["theirs"], taken["ours"]),
            }
        )
    return rows


def _within(answer: np.ndarray, exact: np.ndarray, bounds: tuple[float, float]) -> bool:
    return bool(((answer >= exact * bounds[0]) & (answer <= exact * bounds[1])).all())


def _long_enough(run: Callable[[], object], shortest: float) -> tuple[Callable[[], object], int]:
    """Repeat a short call within one sample; return the sample and how many calls it holds."""
    run()
    begin = perf_counter()
    run()
    calls = max(1, math.ceil(shortest / (perf_counter() - begin)))

    def sample() -> None:
        for _ in range(calls):
            run()

    return sample, calls


def machine(packages: Sequence[str]) -> dict[str, str | int]:
    """Describe the machine and the versions of what is compared."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def show(rows: Sequence[Mapping[str, object]], columns: Sequence[Column], title: str) -> None:
    """Print a table."""
    table = Table(*(Heading(column.title, overflow="fold") for column in columns), title=title)
    for row in rows:
        table.add_row(*(cell(row[column.key]) for column in columns))
    Console().print(table)


def write(
    name: str,
    folder: Path,
    facts: Mapping[str, object],
    tables: Mapping[str, tuple[Sequence[Mapping[str, object]], Sequence[Column]]],
    packages: Sequence[str],
) -> None:
    """Write ``<name>-<cpu>.csv``, with the ``gpu`` for the CPU where `facts` name one; the documentation shows it.

    Parameters
    ----------
    name : str
        Of the benchmark.
    folder : Path
    facts : mapping
        How it was measured, by name.
    tables : mapping
        Rows and columns, by title.
    packages : sequence of str
        Whose versions are stated.
    """
    about = machine(packages)
    facts = {**facts, "took": f"{(perf_counter() - BEGIN) / 60:.1f} minutes"}
    stem = f"{name}-{re.sub(r'[^a-z0-9]+', '-', str(facts.get('gpu', about['cpu'])).lower()).strip('-')}"
    results = Results(
        name,
        {key: str(value) for key, value in about.items()},
        {key: str(value) for key, value in facts.items()},
        {title: [dict(row) for row in rows] for title, (rows, _) in tables.items()},
        {title: {column.key: column.title for column in columns} for title, (_, columns) in tables.items()},
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.csv"
    results.to_csv(path)
    print(path)


def _cpu_model() -> str:
    """Return the name the processor gives itself."""
    try:
        if platform.system() == "Darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        return found.group(1).strip() if found else platform.machine()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
