"""What tests of several rooms share."""

from pathlib import Path

import pytest

from toposcope.checkpoints.sources import cached_reads, retry

SHARED = Path(__file__).parents[2] / "shared" / "data"


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
