"""Work kept several pieces at a time: each once, in order, soon, and a group of it whole or not at all."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from small_studies import NEURAL_PERSISTENCE, RIPS, assert_same_study, frame, series_study, write_series

from toposcope.errors import ToposcopeError
from toposcope.files import write_all_bytes
from toposcope.study import run_study, store, survey


def test_what_is_put_together_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    opened = store.Store(tmp_path / "study.db")

    def stopped() -> None:
        with opened.one_transaction():
            opened.set_meta("a", "1")
            opened.set_meta("b", "1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert (opened.meta("a"), opened.meta("b")) == (None, None)
    with opened.one_transaction():
        opened.set_meta("a", "2")
        opened.set_meta("b", "2")
    opened.set_meta("c", "3")
    assert [opened.meta(key) for key in "abc"] == ["2", "2", "3"]
    opened.close()


def test_files_that_cannot_all_be_written_leave_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ToposcopeError, match="b: cannot be written"):
        write_all_bytes({tmp_path / "folder" / "a": b"1", tmp_path / "file" / "b": b"2"})
    assert list((tmp_path / "folder").iterdir()) == []
    write_all_bytes({tmp_path / "folder" / "a": b"1", tmp_path / "other" / "b": b"2"})
    assert [path.read_bytes() for path in (tmp_path / "folder" / "a", tmp_path / "other" / "b")] == [b"1", b"2"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a", "b", "file"]


def test_a_stop_between_diagrams_and_rows_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagrams are there and no row points to them: as after a crash, what is missing is measured again."""
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, [NEURAL_PERSISTENCE, RIPS])

    def write_and_stop(directory: Path, contents: Mapping[str, bytes]) -> None:
        store.write_large_diagrams(directory, contents)
        assert store.Store(directory / "study.db").measured("found", [0, 5, 20]) == {}
        raise ToposcopeError("stopped")

    monkeypatch.setattr(store, "MAX_ROW_BYTES", 0)
    monkeypatch.setattr(survey, "write_large_diagrams", write_and_stop)
    with pytest.raises(ToposcopeError, match="stopped"):
        run_study(declaration, tmp_path / "study", workers=1)
    assert list((tmp_path / "study" / "diagrams").rglob("*.safetensors"))
    assert frame(tmp_path / "study").is_empty()
    monkeypatch.undo()
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert run_study(declaration, tmp_path / "fresh", workers=1) == {}
    assert_same_study(tmp_path / "study", tmp_path / "fresh")


def test_the_size_of_groups_shows_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", list(range(0, 50, 5)))
    declaration = series_study(found, [NEURAL_PERSISTENCE, RIPS])
    assert run_study(declaration, tmp_path / "grouped", workers=1) == {}
    monkeypatch.setattr(survey, "MAX_GROUPED", 1)
    assert run_study(declaration, tmp_path / "single", workers=1) == {}
    assert_same_study(tmp_path / "grouped", tmp_path / "single")
