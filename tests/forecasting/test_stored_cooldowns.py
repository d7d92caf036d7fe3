"""What ``toposcope cooldown --json`` writes is read as it was."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from toposcope.checkpoints import Series
from toposcope.cli.output import finite_or_null
from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown, Course, Merged
from toposcope.forecasting.cooldown_report import CoolDownReport
from toposcope.forecasting.stored_cooldowns import nearest, read_cool_downs
from toposcope.logs.table import ByStep

WINDOWS = (
    Merged((600, 700, 800), 2.92, (0.25, 0.5, 0.25)),
    Merged((800, 900, 1000), 2.94, (0.25, 0.5, 0.25)),
    Merged((900, 1000), 2.93, (0.5, 0.5)),
)
ANSWERS = (
    CoolDown(1000, 50, "linear", 2.95, 2.93, 2.97, 2.99, 3.0, 0.03, WINDOWS[2], ("few",)),
    CoolDown(1000, 100, "1-sqrt", 2.92, 2.9, 2.94, 2.98, 3.0, 0.05, WINDOWS[2]),
    CoolDown(1000, 200, "cosine", 2.9, 2.88, 2.92, 2.97, 3.0, 0.06, WINDOWS[2]),
)


def report(answers: tuple[CoolDown, ...] = ANSWERS) -> CoolDownReport:
    losses = ByStep(np.array([500, 1000]), np.array([3.1, 3.0]))
    series = cast("Series", SimpleNamespace(spec="made", name="made"))
    refused = {} if answers else {100: "the rate varies"}
    return CoolDownReport(series, "a text", answers, refused, 100, Course(losses, 1000), WINDOWS)


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "cooldown.json").write_text(json.dumps(finite_or_null(report().to_dict())))
    assert read_cool_downs(tmp_path / "cooldown.json") == ANSWERS


def test_the_nearest_length_is_taken_as_a_ratio() -> None:
    assert [nearest(ANSWERS, length).length for length in (1, 60, 72, 140, 150, 900)] == [50, 50, 100, 100, 200, 200]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (report(()).to_dict(), "it holds no cool-down. No answer: the rate varies"),
        ([], "not what `toposcope cooldown SERIES --json` writes"),
        ({**report().to_dict(), "merged": []}, "not what `toposcope cooldown SERIES --json` writes"),
        ({"step": 3}, "not what `toposcope cooldown SERIES --json` writes"),
        ({**report().to_dict(), "step": 0}, "not what `toposcope cooldown SERIES --json` writes"),
        ({**report().to_dict(), "step": "many"}, "not what `toposcope cooldown SERIES --json` writes"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(tmp_path: Path, content: Any, told: str) -> None:
    (tmp_path / "cooldown.json").write_text(json.dumps(content))
    with pytest.raises(ToposcopeError, match=r"cooldown\.json: ") as caught:
        read_cool_downs(tmp_path / "cooldown.json")
    assert told in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=r"none\.json: not what"):
        read_cool_downs(tmp_path / "none.json")
