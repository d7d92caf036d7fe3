"""Opens a page in the browser, where somebody sits before a screen."""

import os
import sys
import webbrowser
from pathlib import Path

REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def open_page(page: Path) -> None:
    """Open a page if this machine has a screen and the command was typed at it; otherwise do nothing."""
    if is_at_a_screen():
        webbrowser.open(page.resolve().as_uri())


def is_at_a_screen() -> bool:
    """Return whether the output goes to a terminal on this machine, which has a screen; never in CI or over SSH."""
    if not sys.stdout.isatty() or os.environ.get("CI") or any(os.environ.get(name) for name in REMOTE):
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in DISPLAYS)
