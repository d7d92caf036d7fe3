"""Names of a package whose modules are imported when a name is first used (PEP 562)."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from toposcope.errors import ToposcopeError, public, unknown_name
from toposcope.extras import missing


def lazy_imports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package for what it imports for type checkers alone.

    The names and their modules are read from its source, so that no second list of them is kept.
    """
    imports = (node for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))) if isinstance(node, ast.ImportFrom))
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise unknown_name(f"module {package!r}", name, homes)
        is_module = homes[name] == package  # `from toposcope import homology`
        try:
            home = import_module(f"{package}.{name}" if is_module else homes[name])
        except ModuleNotFoundError as error:
            if advice := missing(error):
                raise ToposcopeError(f"{package}.{name}: {advice}") from error
            raise
        value = home if is_module else getattr(home, name)
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            value = public(value, package)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(sys.modules[package].__all__)
