"""Registries: found by file and by entry point; a broken plug-in and a name that is taken are refused in one line."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from outside_package import install

from toposcope.errors import ToposcopeError
from toposcope.plugins import collect

GROUP = "toposcope.test_things"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "inside" / f"things_{tmp_path.name}"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "b.py").write_text("THINGS = {'first': 1, 'second': 2}")
    (folder / "c.py").write_text("THINGS = {'third': 3}")
    (folder / "a_helper.py").write_text("")
    monkeypatch.syspath_prepend(folder.parent)
    return folder.name


def things(module: ModuleType) -> Mapping[str, int]:
    return dict(getattr(module, "THINGS", {}))


def test_files_first_then_entry_points(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "2", monkeypatch, GROUP, "zebra", "THINGS = {'another': 5}", "outsider-two")
    install(tmp_path / "1", monkeypatch, GROUP, "ape", "THINGS = {'zero': 4}")
    install(tmp_path / "3", monkeypatch, "toposcope.other_things", "cat", "THINGS = {'no': 6}", "outsider-three")
    found = collect(package, GROUP, things)
    assert list(found.items()) == [("first", 1), ("second", 2), ("third", 3), ("zero", 4), ("another", 5)]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("def", "SyntaxError"),
        ("THINGS = 5", "TypeError"),
        ("", "holds nothing to add"),
        ("THINGS = {'second': 7}", "the name 'second' is taken by "),
    ],
)
def test_one_line_for_a_plug_in_at_fault(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    declared = install(tmp_path, monkeypatch, GROUP, "bad", code)
    with pytest.raises(ToposcopeError) as caught:
        collect(package, GROUP, things)
    message = str(caught.value)
    assert message.startswith(f"outsider, entry point {declared} of {GROUP}: ")
    assert reason in message
    assert "\n" not in message


def test_two_packages_with_one_name(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in ("1", "2"):
        install(tmp_path / number, monkeypatch, GROUP, "thing", "THINGS = {'zero': 1}", f"outsider-{number}")
    with pytest.raises(ToposcopeError, match=r"^outsider-2, .*'zero' is taken by outsider-1, entry point thing"):
        collect(package, GROUP, things)
