"""Fixtures of several rooms, and of the experiments."""

import os
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process per core: threads of the libraries imported below would only get in the way.
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")

import pytest
from hypothesis import HealthCheck, settings
from property_examples import examples

from toposcope.checkpoints import Access
from toposcope.checkpoints.sources import remote

# No property depends on how fast the machine is.
settings.register_profile("untimed", examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def published_study() -> Path:
    """Checkpoints and features of the published study."""
    folder = SHARED / "published-study"
    if not folder.is_dir():
        pytest.skip("the published study's data is not beside this repository")
    return folder


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """A cache of remote files of the test's own."""
    return Access(folder=tmp_path / "kept")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a server of a test, which is waited for shortly.

    Neither what another test read nor the credentials of whoever runs the tests are seen.
    """
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    remote.memory.clear()
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def compiled_probes() -> None:
    """The kernels are compiled, so that monitors measure from the first step on."""
    from toposcope.monitor.measuring import marker, warm_up
    from toposcope.monitor.monitor import DEFAULT_PROBES

    if not marker("float32").exists():
        warm_up(DEFAULT_PROBES, "float32")


@pytest.fixture(autouse=True)
def _small_computations_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests pretend that there is little memory, and compute little."""
    monkeypatch.setattr("toposcope.homology.memory.MIN_CHECKED_BYTES", 0)


@pytest.fixture(autouse=True)
def _tables_are_as_wide_as_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's workers say that they have a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "200")
