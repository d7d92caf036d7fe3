"""The log format of docs/extend.md works as it is printed there, from a package outside."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from extend_page import MODULES
from outside_package import install

from toposcope.errors import ToposcopeError
from toposcope.logs import formats, read_log


@pytest.fixture(autouse=True)
def nanogpt_output(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(
        tmp_path_factory.mktemp("outside"), monkeypatch, "toposcope.logs", "nanogpt_output", MODULES["nanogpt_output"]
    )
    formats._formats.cache_clear()
    yield
    formats._formats.cache_clear()


def test_printed_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.nanogpt").write_text(
        "compiling\niter 0: loss 4.5, time 1ms\niter 10: loss 4.25, time 1ms\niter 2"
    )
    log = read_log(tmp_path)
    assert (log.name, log.steps.tolist(), log.loss.tolist()) == ("train", [0, 10], [4.5, 4.25])


def test_a_file_without_such_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.nanogpt").write_text("compiling")
    with pytest.raises(ToposcopeError, match=r"train.nanogpt: cannot be read as a training log: no line in it such as"):
        read_log(tmp_path)
