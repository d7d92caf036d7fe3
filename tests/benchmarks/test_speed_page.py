"""The page on speed shows what `make bench` measures: every benchmark, and the results of each."""

import re
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


def test_the_page_lists_what_make_bench_runs() -> None:
    assert re.findall(r"^\| `python benchmarks/(\w+)\.py` \|", PAGE, re.MULTILINE) == benchmarks("SPEED")


def test_the_page_includes_results_of_every_benchmark_that_has_some() -> None:
    included = re.findall(r"include\} benchmarks/(\S+)\.md", PAGE)
    shown = {measured(RESULTS / f"{stem}.csv") for stem in included}
    assert shown == {measured(path) for path in RESULTS.glob("*.csv")} & set(benchmarks("SPEED"))
