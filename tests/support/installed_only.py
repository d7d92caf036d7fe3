"""Hides packages from Python, as if they were not installed; a plugin of pytest that leaves those of one extra.

``pytest -p installed_only --extra torch`` runs tests as in an environment with ``toposcope[torch]`` and pytest alone;
``--extra plain`` without any extra. A test that imports what is hidden is skipped; if the library does, it fails.
"""

import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Generator, Iterable, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("platlib"))
TESTS = ["pytest", "pytest-xdist", "hypothesis"]
"""What tests need besides."""


class Hidden:
    """A finder of modules that does not find some packages."""

    def __init__(self, finder: Any, packages: Iterable[str]) -> None:
        self._finder, self._packages = finder, frozenset(packages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the finder finds, but for those packages; a copy that another package brings is found."""
        found: ModuleSpec | None = self._finder.find_spec(name, path, target)
        return None if found and name.partition(".")[0] in self._packages and _is_installed(found) else found

    def find_distributions(self, context: metadata.DistributionFinder.Context) -> Iterator[metadata.Distribution]:
        """Yield what the finder finds, but for those packages, whose entry points would not load."""
        find = getattr(self._finder, "find_distributions", lambda _: ())
        yield from (found for found in find(context) if found.name.replace("-", "_") not in self._packages)


def _is_installed(found: ModuleSpec) -> bool:
    """Return whether a module lies in a package of its own name among those that pip installed."""
    places = [found.origin] if found.has_location else list(found.submodule_search_locations or ())
    at = Path(str(places[0])) if places else Path()
    return at.is_relative_to(SITE) and at.relative_to(SITE).parts[0].startswith(found.name.partition(".")[0])


def hide(packages: Iterable[str]) -> None:
    """Hide packages from now on."""
    hidden = frozenset(packages)
    sys.meta_path[:] = [Hidden(finder, hidden) for finder in sys.meta_path]
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        del sys.modules[name]


def others_than(extra: str) -> set[str]:
    """Return the installed packages that an install with one extra, or none, does not bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *TESTS, *(extras[extra] if extra != "plain" else ())]
    brought = set[str]()
    _add(wanted, extras, brought)
    modules = metadata.packages_distributions()
    return {
        module
        for module, names in modules.items()
        if module not in ("toposcope", "_pytest") and brought.isdisjoint(map(canonicalize_name, names))
    }


def _add(requirements: Iterable[str], extras: dict[str, list[str]], brought: set[str], of: Iterable[str] = ()) -> None:
    """Add the distributions that requirements bring, with what those require."""
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        applies = (
            any(requirement.marker.evaluate({"extra": each}) for each in ("", *of)) if requirement.marker else True
        )
        if not applies:
            continue
        if name == "toposcope":
            for extra in requirement.extras:
                _add(extras[extra], extras, brought)
        elif name not in brought:
            brought.add(name)
            try:
                _add(metadata.requires(name) or (), extras, brought, requirement.extras)
            except metadata.PackageNotFoundError:  # an optional driver, or one for another system
                continue


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--extra", default="", help="Hide what an install with this extra alone does not bring.")


def pytest_configure(config: pytest.Config) -> None:
    """Hide the packages, before any test is imported."""
    if extra := config.getoption("--extra"):
        hide(others_than(extra))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a module of tests that imports what is hidden."""
    report: Any = yield
    error = report.call.excinfo.value if report.failed else None
    if isinstance(error, pytest.Collector.CollectError) and (reason := _reason(error.__cause__)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Skip a test whose fixture imports what is hidden."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        _skip(error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that imports what is hidden."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        _skip(error)


def _skip(error: ModuleNotFoundError) -> NoReturn:
    if reason := _reason(error):
        pytest.skip(reason)
    raise error


def _reason(error: BaseException | None) -> str:
    """Return why a test is skipped; nothing where it is not the test itself that imports what is missing."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    return "" if any(file.is_relative_to(ROOT / "src") for file in files) else f"{error.name} is not installed"
