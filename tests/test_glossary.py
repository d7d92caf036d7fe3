"""The glossary has the words that the first screens take from lists in the code."""

import re
from pathlib import Path
from typing import get_args

import pytest

from toposcope.analysis import verdict
from toposcope.analysis.health.check import WORDS
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.sweeps.rule import Risk
from toposcope.report.headline import HEADLINES, TARGETS

GLOSSARY = re.sub(r"[\s*`]+", " ", (Path(__file__).parents[1] / "docs" / "glossary.md").read_text("utf-8")).lower()
QUANTITIES = {re.sub(r" of gradients| change|, pooled| \(.*\)", "", each.name) for each in HEADLINES}
SCREENS = {
    "health": WORDS,
    "verdicts": (verdict.BEYOND, verdict.UNDETERMINED, verdict.TREND, verdict.NONE),
    "forecasters": [each.name for each in forecasters()],
    "risks": get_args(Risk),
    "quantities": sorted(QUANTITIES),
    "losses": TARGETS.values(),
}


@pytest.mark.parametrize("screen", SCREENS)
def test_the_glossary_has_every_word_of(screen: str) -> None:
    assert [word for word in SCREENS[screen] if not re.search(rf"\b{re.escape(word.lower())}\b", GLOSSARY)] == []
