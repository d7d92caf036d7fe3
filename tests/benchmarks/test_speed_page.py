"""The page on speed shows what `make bench` measures: every benchmark, and the results of each."""

import re
import subprocess
import warnings
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = (REPOSITORY / "docs" / "speed.md").read_text(encoding="utf-8")
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")


def benchmarks(variable: str) -> list[str]:
    found = re.search(rf"^{variable} := (.*)$", MAKEFILE, re.MULTILINE)
    assert found
    return found.group(1).split()


def measured(path: Path) -> str:
    found = re.search("^,,benchmark,fact,(.+),,$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1].replace("-", "_")


@pytest.mark.parametrize("variable", ["SPEED", "CALIBRATION"])
def test_benchmarks_of_the_verbs_exist(variable: str) -> None:
    assert [name for name in benchmarks(variable) if not (REPOSITORY / "benchmarks" / f"{name}.py").is_file()] == []


def test_the_page_includes_results_of_every_benchmark_that_has_some() -> None:
    included = re.findall(r"include\} benchmarks/(\S+)\.md", PAGE)
    shown = {measured(RESULTS / f"{stem}.csv") for stem in included}
    assert shown == {measured(path) for path in RESULTS.glob("*.csv")} & set(benchmarks("SPEED"))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout


IMPORT, WORD = re.compile(r"from (toposcope(?:\.\w+)*) import (\([^)]+\)|.+)"), re.compile(r"\w+")


def imported(path: Path) -> set[Path]:
    """Return the files of this package that a file takes names from, wherever in it."""
    found = IMPORT.findall(path.read_text(encoding="utf-8"))
    return {file for module, names in found for name in WORD.findall(names) if (file := defining(module, name))}


@cache
def defining(module: str, name: str) -> Path | None:
    """Return the file that a module has a name from; packages take theirs from elsewhere."""
    path = KERNELS.parents[1] / module.replace(".", "/")
    for file in (path / f"{name}.py", path.with_suffix(".py")):
        if file.exists():
            return file
    found = IMPORT.findall((path / "__init__.py").read_text(encoding="utf-8"))
    return next((defining(m, name) for m, names in found if m != module and name in WORD.findall(names)), None)


def code_of(benchmark: Path) -> set[Path]:
    """Return what a benchmark measures: what it imports, and what that imports of its own room and of kernels."""
    files, new = set[Path](), imported(benchmark)
    while new:
        files |= new
        new = {f for path in new for f in imported(path) if f.parent in (path.parent, KERNELS)} - files
    return files


KERNELS = REPOSITORY / "src" / "toposcope" / "kernels"


def changed(*paths: Path) -> int:
    """Return when any of some files was changed last, in seconds; what is not committed counts as changed now."""
    names = ("--", *map(str, paths))
    return 1 << 40 if git("status", "--porcelain", *names) else int(git("log", "-1", "--format=%ct", *names))


def test_results_that_are_older_than_the_code_they_measure_are_named() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: files have no dates")
    older = []
    for path in sorted(RESULTS.glob("*.csv")):
        code = code_of(REPOSITORY / "benchmarks" / f"{measured(path)}.py") or {KERNELS.parent}
        if changed(path) < changed(*code):
            older.append(path.stem)
    if older:
        warnings.warn(
            f"older than the code they measure; `make bench` makes them anew: {', '.join(older)}", stacklevel=1
        )
