"""What tests of several rooms share."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def published_study() -> Path:
    """Checkpoints and features of the published study."""
    folder = SHARED / "published-study"
    if not folder.is_dir():
        pytest.skip("the published study's data is not beside this repository")
    return folder
