"""Tables of commands at any width: no word is cut, no line is longer than it has to be, and nothing is coloured."""

import re

import pytest

from toposcope.cli.output import MAX_FRAMED_ROWS, print_table
from toposcope.cli.progress_bars import progress_bars

LAYER = "base_model.model.transformer.h.10.attn.c_attn.lora_A.default.weight"
PROSE = "every weight is as in the checkpoint before, which training does not do, so the series repeats itself"
TABLES: dict[str, tuple[tuple[str, ...], list[tuple[object, ...]]]] = {
    "doctor": (("check", "severity", "steps", "layer", "message"), [("same_weights", "fault", "10-30", LAYER, PROSE)]),
    "layers": (("layer", "role", "recognised by"), [(f"h.{i}.attn", "attn.k", "its name") for i in range(4)]),
    "landscape": (
        ("statistic", "mean", "sd over planes", "change at half resolution"),
        [("saddle-minimum distance", 0.123456789, None, 2.5)],
    ),
    "forecast": (("forecaster", "no forecast because"), [("template", PROSE), ("stack", f"{PROSE}; {LAYER}")]),
    "measure": (("run", "step", "rips H0.total", "rips H1.max"), [("wide-model-with-a-long-name", 1000, 1.5, None)]),
    "script": (("run", "说明"), [("一个很长的名字没有空格", "每个词 都完整 " * 12)]),
    "empty": (("run", "step"), []),
}


@pytest.mark.parametrize("width", [40, 60, 80, 200, None])
@pytest.mark.parametrize("name", TABLES)
def test_no_word_is_cut(
    name: str, width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.cells import cell_len

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    columns, rows = TABLES[name]
    print_table(columns, rows, f"title of {LAYER}")
    printed = capsys.readouterr().out
    cells = [f"{v:.6g}" if isinstance(v, float) else str(v) for row in rows for v in row if v is not None]
    names = [name for name, *column in zip(columns, *rows, strict=True) if any(v is not None for v in column)]
    words = {word for text in (*cells, *names) for word in text.split()}
    shown = set(re.split(r"[\s│┃]+|:\s", printed))
    assert not {word for word in words if word not in shown}
    assert "\x1b" not in printed
    longest = max((cell_len(word) for word in (*words, LAYER)), default=0)
    limit = max(width or 200, longest + 4)
    assert all(cell_len(line) <= limit for line in printed.splitlines())
    # no column is so narrow that sentences become ladders
    assert len(printed.splitlines()) <= 6 + len(cells) * (2 + len(PROSE) // min(limit - 20, 20))


def test_a_long_table_is_in_plain_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table(("layer", "n"), [(f"layer {i}", i) for i in range(MAX_FRAMED_ROWS + 1)], "many")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["many", "layer       n", "layer 0     0"]
    assert len(lines) == MAX_FRAMED_ROWS + 3


@pytest.mark.parametrize(
    ("setting", "bars", "colours"),
    [
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"COLUMNS": "40"}, False, False),
        ({}, True, True),
    ],
)
def test_bars_have_colours_where_they_are_wanted(
    setting: dict[str, str],
    bars: bool,
    colours: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TTY_COMPATIBLE": "1", "TERM": "xterm-256color", "COLUMNS": "100"} | setting).items():
        monkeypatch.setenv(name, value)
    with progress_bars() as progress:
        progress("measure", 0, 2000)
        progress("measure", 1000, 2000)
    printed = capsys.readouterr().err
    assert ("started" in printed) != bars
    assert bool(re.search(r"\x1b\[[0-9;]+m", printed)) == colours
    assert bars or "\x1b" not in printed
