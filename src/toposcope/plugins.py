"""Registries: the modules of a package of this library, and those that other installed packages add to it."""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TypeVar

from toposcope.errors import ToposcopeError, message_of

Item = TypeVar("Item")


def collect(package: str, group: str, items_of: Callable[[ModuleType], Mapping[str, Item]]) -> dict[str, Item]:
    """Collect the named items of a registry: from the package's own modules, then from entry points.

    An entry point names a module that is written like a module of the package. Registries cache the result.
    """
    collected: dict[str, Item] = {}
    owners: dict[str, str] = {}
    for owner, items in _contributions(package, group, items_of):
        for name, item in items.items():
            if name in collected:
                raise ToposcopeError(
                    f"{owner}: the name {name!r} is taken by {owners[name]}; uninstall one, or have it renamed"
                )
            collected[name], owners[name] = item, owner
    return collected


def collect_modules(package: str, group: str, *needed: str) -> list[ModuleType]:
    """Collect the modules that hold all of some names, such as ``claims``, or ``claims|ENDINGS`` for one of the two."""

    def by_name(module: ModuleType) -> dict[str, ModuleType]:
        is_whole = all(any(hasattr(module, name) for name in names.split("|")) for names in needed)
        return {module.__name__.rpartition(".")[2]: module} if is_whole else {}

    return list(collect(package, group, by_name).values())


def _contributions(
    package: str, group: str, items_of: Callable[[ModuleType], Mapping[str, Item]]
) -> Iterator[tuple[str, Mapping[str, Item]]]:
    """Yield the owner and the items of each module."""
    for name in _modules_of(package):
        yield package.partition(".")[0], items_of(import_module(name))
    for entry in sorted(entry_points(group=group), key=lambda e: (e.name, e.value)):
        owner = _owner(entry)
        try:
            items = items_of(entry.load())
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ToposcopeError(f"{owner}: cannot be loaded ({reason}); update or uninstall the package") from error
        if not items:
            raise ToposcopeError(f"{owner}: holds nothing to add to {group}; correct, update or uninstall the package")
        yield owner, items


def fault_of_package(error: Exception) -> str:
    """Return in one line what went wrong in which installed package and line, if it went wrong in one; else nothing."""
    every = (entry for distribution in distributions() for entry in distribution.entry_points)
    entries = [entry for entry in every if entry.group.startswith("toposcope.")]
    frames = list(walk_tb(error.__traceback__))
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    for (frame, line), module in zip(reversed(frames), reversed(modules), strict=True):
        of_package = [e for e in entries if e.module.partition(".")[0] == module.partition(".")[0]]
        if of_package:
            entered = next((entry for entry in of_package if entry.module in modules), None)
            owner = _owner(entered) if entered else _distribution(of_package[0])
            reason = f"{type(error).__name__}: {message_of(error)}"
            return f"{owner}: {reason} ({Path(frame.f_code.co_filename).name}, line {line})"
    return ""


def _modules_of(package: str) -> list[str]:
    """Return the full names of the modules of a package, none for a plain module."""
    path = getattr(import_module(package), "__path__", [])
    return [f"{package}.{info.name}" for info in pkgutil.iter_modules(path)]


def _owner(entry: EntryPoint) -> str:
    return f"{_distribution(entry)}, entry point {entry.name} = {entry.value} of {entry.group}"


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unknown package"
