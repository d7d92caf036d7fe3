"""When a page is opened in the browser."""

import sys
import webbrowser
from pathlib import Path

import pytest

from toposcope.cli.output import DISPLAYS, REMOTE, open_page

AT_A_SCREEN = {"DISPLAY": ":0"}


class Terminal:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("platform", "is_terminal", "environment", "opens"),
    [
        ("linux", True, AT_A_SCREEN, True),
        ("linux", True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", True, {}, False),
        ("linux", False, AT_A_SCREEN, False),
        ("linux", True, AT_A_SCREEN | {"CI": "true"}, False),
        ("linux", True, AT_A_SCREEN | {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False),
        ("darwin", True, {}, True),
        ("win32", True, {}, True),
        ("darwin", True, {"SSH_TTY": "/dev/ttys000"}, False),
        ("darwin", False, {}, False),
    ],
)
def test_only_where_somebody_sits_before_a_screen(
    platform: str,
    is_terminal: bool,
    environment: dict[str, str],
    opens: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys, "stdout", Terminal(is_terminal))
    for name in (*REMOTE, *DISPLAYS, "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    page = tmp_path / "a study" / "index.html"
    open_page(page)
    assert opened == ([page.as_uri()] if opens else [])
