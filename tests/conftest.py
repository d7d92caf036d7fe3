"""Fixtures of several rooms, and how the tests are spread over processes."""

import os
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process per core: threads of the libraries imported below would only get in the way.
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")

import pytest

from toposcope.checkpoints.sources import cached_reads, retry

pytest_plugins = ["browser_fixtures"]
pytest.register_assert_rewrite("cpu_time", "page_checks")

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a module that has a fixture of its own in one process, so that the fixture is made once."""
    has_fixture: dict[Path, bool] = {}
    for item in items:
        if item.path not in has_fixture:
            has_fixture[item.path] = item.path.suffix == ".py" and 'scope="module"' in item.path.read_text("utf-8")
        if has_fixture[item.path]:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    # A group that is begun last keeps one process busy while the others wait.
    items.sort(key=lambda item: not has_fixture[item.path])


@pytest.fixture(scope="session")
def published_study() -> Path:
    """Checkpoints and features of the published study."""
    folder = SHARED / "published-study"
    if not folder.is_dir():
        pytest.skip("the published study's data is not beside this repository")
    return folder


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a server of a test, which is waited for shortly.

    Neither what another test read nor the credentials of whoever runs the tests are seen.
    """
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cached_reads.memory_cache.clear()
    folder = tmp_path / "served"
    folder.mkdir()
    return folder
