"""The pictures of the docs page on charts."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 500_000


@pytest.mark.slow
def test_the_script_makes_every_picture_of_the_page() -> None:
    named = set(re.findall(r"\(images/charts/([\w-]+)\.svg\)", (DOCS / "charts.md").read_text(encoding="utf-8")))
    charts = runpy.run_path(str(DOCS / "charts.py"))["charts"]()
    kept = {path.stem: path for path in (DOCS / "images" / "charts").iterdir()}
    assert named == set(charts) == set(kept)
    assert sum(path.stat().st_size for path in kept.values()) < MAX_BYTES
    for name, chart in charts.items():
        assert chart.title.partition(" ")[0] in kept[name].read_text(encoding="utf-8")
