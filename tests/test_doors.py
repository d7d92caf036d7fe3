"""The other distributions import the public doors of the core alone: what it exports by name."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(file for name in ("experiments", "downstream") for file in (ROOT / name / "src").rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and name of every import of the core."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "toposcope":
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "toposcope")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_public_names_are_imported(path: Path) -> None:
    for module, name in imports(path):
        assert module.count(".") < 2, f"{module}: no door; import from toposcope.extend"
        assert name in import_module(module).__all__, f"{module} does not export {name}"
