"""The examples of pages and docstrings give what they show."""

import doctest
from pathlib import Path

import pytest

from toposcope.homology import cycles, loop_births

DOCS = Path(__file__).parents[2] / "docs" / "methods"


@pytest.mark.parametrize("page", ["loops.md", "topology-divergence.md"])
def test_examples_of_pages(page: str) -> None:
    result = doctest.testfile(str(DOCS / page), module_relative=False)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("module", [cycles, loop_births])
def test_examples_of_docstrings(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted
    assert not result.failed
