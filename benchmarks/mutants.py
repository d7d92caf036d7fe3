"""Small mistakes in the source, and which share of them the fast tests catch.

    pytest -m "not slow" --cov --cov-context=test      # once: which test runs which line
    python benchmarks/mutants.py --coverage .coverage --out mutants.csv

Draws mutants from rooms of the source and applies one at a time, in a copy of the repository; only tests that run its
line run. After an interruption the same command goes on where its CSV ends. The tests of a mutant run in a fork of a
process that has imported the heavy libraries; the package itself is imported after the fork.
"""

import ast
import csv
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from coverage import CoverageData

ROOMS = "forecasting,logs,report,cli,study,analysis,probes,models,homology,experiments"
HEAVY = ("numpy", "scipy.stats", "scipy.optimize", "polars", "torch", "numba", "altair", "rich.console", "msgspec")
NOT_COPIED = (".git", ".venv", ".*_cache", ".coverage*", "_build", "dist", "node_modules")
SWAPS = "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, Add Sub, Mult Div, And Or"
SWAPPED = [[getattr(ast, name) for name in pair.split()] for pair in SWAPS.split(",")]
OPERATORS: dict[type[ast.AST], Any] = {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
OPERATORS |= dict(SWAPPED) | {b: a for a, b in SWAPPED}
OUTCOMES = ("killed", "timeout", "survived", "not covered")
"""A mutant is caught by one of the first two."""


@dataclass(frozen=True)
class Mutant:
    """A change of one expression or statement."""

    file: str  # from the root of the repository
    line: int
    mutation: str
    statement: int  # where the innermost statement around it begins
    start: int  # what it replaces, in bytes of the file
    stop: int
    text: str


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    """Yield every mutant of a file: not of annotations, f-strings, ``__all__``, what types alone need, or kernels."""
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))

    def walk(node: ast.AST, statement: int, field: str) -> Iterator[Mutant]:
        if is_left_out(node):
            return
        if isinstance(node, ast.expr | ast.stmt):
            statement = node.lineno if isinstance(node, ast.stmt) else statement
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            for new in changed(node, is_condition=field == "test"):
                text = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
                words = f"{ast.unparse(node)} -> {text} (column {node.col_offset})"
                yield Mutant(file, node.lineno, words, statement, start, stop, text)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from walk(child, statement, name)

    yield from walk(ast.parse(source), 1, "")


def is_left_out(node: ast.AST) -> bool:
    """Return whether nothing under a node is changed."""
    if isinstance(node, ast.FunctionDef):  # compiled by Numba
        return any("jit" in ast.unparse(each) for each in node.decorator_list)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))


def changed(node: ast.AST, *, is_condition: bool) -> Iterator[ast.AST]:
    """Yield what an expression or a statement is replaced by."""
    match node:
        case ast.Compare(left, [op, *others], comparators):
            yield ast.Compare(left, [OPERATORS[type(op)](), *others], comparators)
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(OPERATORS[type(operator)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool() as flag):
            yield ast.Constant(not flag)
        case ast.Constant(int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
    if is_condition and isinstance(node, ast.expr):
        yield ast.UnaryOp(ast.Not(), node)


def draw(repo: Path, rooms: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Draw mutants of the rooms, each as likely as any other."""
    folders = [repo / "src" / "toposcope" / room for room in rooms] + [repo / room / "src" for room in rooms]
    files = sorted(str(path.relative_to(repo)) for folder in folders for path in folder.rglob("*.py"))
    every = [mutant for file in files for mutant in mutants_of(file, (repo / file).read_bytes())]
    click.echo(f"{len(every):,} mutants of {len(files):,} files in {', '.join(rooms)}; {number} drawn, seed {seed}")
    return random.Random(seed).sample(every, min(number, len(every)))


class Tests:
    """Which tests run a line, by a file of coverage.py; those that run the fewest lines of these files first."""

    def __init__(self, coverage: Path, repo: Path, files: Sequence[str]) -> None:
        data = CoverageData(str(coverage))
        data.read()
        self.by_line: dict[str, dict[int, set[str]]] = {}
        for file in files:
            lines = data.contexts_by_lineno(str(repo / file))
            self.by_line[file] = {n: {c.rpartition("|")[0] for c in each if "::" in c} for n, each in lines.items()}
        self.sizes = Counter(test for lines in self.by_line.values() for tests in lines.values() for test in tests)

    def of(self, mutant: Mutant, most: int) -> list[str]:
        """Return the tests of a line; of one that runs when its module is imported, those of the file."""
        lines = self.by_line[mutant.file]
        found = next((lines[n] for n in (mutant.line, mutant.statement) if n in lines), None)
        tests = set[str]().union(*lines.values()) if found == set() else found or ()
        return sorted(tests, key=lambda test: (self.sizes[test], test))[:most]


class Copy:
    """A copy of the repository, in which mutants are tested."""

    def __init__(self, repo: Path, folder: Path, limit: float) -> None:
        self.original, self.root, self.log, self.limit = repo, folder / "repo", folder / "failed.txt", limit
        shutil.copytree(repo, self.root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        (folder / "shared").symlink_to(repo.parent / "shared")
        self.passes: dict[str, bool] = {}  # without a mutant

    def outcome(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Return what the tests say of a mutant, without those that fail in the copy as it is."""
        tests = [test for test in tests if self.passes.get(test, True)]
        if not tests:
            return "not covered"
        path, source = self.root / mutant.file, (self.original / mutant.file).read_bytes()
        try:
            path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.stop :])
            found = self.run(tests)
        finally:
            shutil.copy2(self.original / mutant.file, path)  # its time too: compiled files go by it
        if found != "killed":
            return found
        failed = self.log.read_text().splitlines() or tests
        unknown = [test for test in failed if test not in self.passes]
        if unknown and self.run(unknown) == "survived":
            self.passes |= dict.fromkeys(unknown, True)
        else:
            self.passes |= {test: self.run([test]) == "survived" for test in unknown}
        return found if all(self.passes[test] for test in failed) else self.outcome(mutant, tests)

    def run(self, tests: Sequence[str]) -> str:
        """Run tests in a fork of this process."""
        self.log.write_text("")
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setsid()
                code = self.tested(tests)
            finally:
                os._exit(code)
        deadline, ended, status = time.monotonic() + self.limit, 0, 0
        while not ended and time.monotonic() < deadline:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what the tests started
        if not ended:
            os.waitpid(child, 0)
            return "timeout"
        return "killed" if status else "survived"

    def tested(self, tests: Sequence[str]) -> int:
        """Run tests in this process, which has not imported the package; the test that fails goes into the log."""
        os.chdir(self.root)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        sys.path[:0] = [str(path) for path in (self.root / "src", *self.root.glob("*/src"))]
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
        log = self.log

        class Failures:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    log.write_text(f"{report.nodeid}\n")

        words = ["-x", "-p", "no:cacheprovider", "-m", "not slow", f"--basetemp={self.root.parent / 'tmp'}"]
        return int(pytest.main([*words, *tests], plugins=[Failures()]))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each room and one for all: the share of its mutants that is caught."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        first, _, third, *_ = Path(row["file"]).parts
        for room in (third if first == "src" else first, "all"):
            counts.setdefault(room, Counter())[row["outcome"]] += 1
    lines = []
    for room, n in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
        words = ", ".join(f"{n[outcome]} {outcome}" for outcome in OUTCOMES)
        lines.append(f"{room:<12} {(n['killed'] + n['timeout']) / n.total():4.0%} of {n.total()} caught: {words}")
    return "\n".join(lines)


@click.command()
@click.option("--coverage", type=click.Path(exists=True, path_type=Path), required=True, help="With contexts.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="CSV, a row for each mutant.")
@click.option("--repo", type=click.Path(path_type=Path), default=Path(__file__).parents[1], help="What is changed.")
@click.option("--rooms", default=ROOMS, show_default=True, help="Rooms of the package, and other distributions.")
@click.option("--number", default=200, show_default=True, help="Mutants to draw.")
@click.option("--seed", default=0, show_default=True)
@click.option("--tests", "most", default=40, show_default=True, help="Most tests for one mutant.")
@click.option("--limit", default=300.0, show_default=True, help="Seconds for them.")
@click.option("--also-in", type=click.Path(path_type=Path), help="Count also those of files that this folder has too.")
def main(
    coverage: Path, out: Path, repo: Path, rooms: str, number: int, seed: int, most: int, limit: float,
    also_in: Path | None,
) -> None:  # fmt: skip
    """Draw mutants, test each, and print the share that is caught."""
    drawn = draw(repo := repo.resolve(), rooms.split(","), number, seed)
    tests = Tests(coverage, repo, sorted({mutant.file for mutant in drawn}))
    for name in HEAVY:
        import_module(name)
    out.touch()
    with tempfile.TemporaryDirectory() as folder, out.open("r+", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
        done = {(row["file"], row["line"], row["mutation"]) for row in rows}
        writer = csv.DictWriter(file, ("file", "line", "mutation", "outcome"), lineterminator="\n")
        copy = Copy(repo, Path(folder), limit)
        if not rows:
            writer.writeheader()
        for mutant in [each for each in drawn if (each.file, str(each.line), each.mutation) not in done]:
            begun, chosen = time.monotonic(), tests.of(mutant, most)
            row = {"file": mutant.file, "line": mutant.line, "mutation": mutant.mutation}
            rows.append({**row, "outcome": copy.outcome(mutant, chosen)})
            writer.writerow(rows[-1])
            file.flush()
            took = f"{len(chosen)} tests, {time.monotonic() - begun:.0f} s"
            what = f"{mutant.file}:{mutant.line} {mutant.mutation[:80]}"
            click.echo(f"{len(rows)}/{len(drawn)} {rows[-1]['outcome']}: {what} ({took})")
    click.echo(summary(rows))
    if also_in:
        both = [row for row in rows if (also_in / row["file"]).exists()]
        click.echo(f"of files that {also_in} has too:\n{summary(both)}")


if __name__ == "__main__":
    main()
