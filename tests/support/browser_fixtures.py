"""Chromium, and pages written once for all tests that need them.

Every test module loads this file, so what is heavy is imported where it is used.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import HOSTILE_NAMES, OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """A Chromium without a window: of the system, or the one that Playwright has installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        installed = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        if not Path(installed).exists():
            pytest.skip("no Chromium on this machine: install one, or run `playwright install chromium`")
        chromium = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Any]:
    """A function that opens a file: (path, width=, height=, dark=, address=) -> OpenPage."""
    with ExitStack() as stack:

        def opened(path: Path, width: int = 1280, height: int = 800, *, dark: bool = False, address: str = "") -> Any:
            size: Any = {"width": width, "height": height}
            context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
            stack.callback(context.close)
            return OpenPage(context.new_page(), path.as_uri() + address)

        yield opened


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study of two runs, trained and measured."""
    from small_studies import ALL_PROBES, family_study

    from toposcope.report import write_report
    from toposcope.study import Study, run_study

    folder = tmp_path_factory.mktemp("browser")
    declaration = family_study(folder, ["first", "second"], ALL_PROBES, steps=48, checkpoint_every=4)
    errors = run_study(declaration, folder / "study", workers=1)
    assert not errors
    path, _ = write_report(Study.load(folder / "study"))
    return path


@pytest.fixture(scope="session")
def hostile_report(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study of the same runs under names that try to be markup and scripts."""
    from small_studies import RIPS

    from toposcope.report import write_report
    from toposcope.study import Declaration, Study, run_study
    from toposcope.study.declaration import DeclaredSeries

    runs = report.parents[1] / "runs"
    series = [
        DeclaredSeries(path=str(runs / run), name=name)
        for run, name in zip(("first", "second", "first"), HOSTILE_NAMES, strict=True)
    ]
    folder = tmp_path_factory.mktemp("hostile")
    errors = run_study(Declaration(name="hostile", series=series, probes=[RIPS]), folder, workers=1)
    assert not errors
    return write_report(Study.load(folder))[0]
