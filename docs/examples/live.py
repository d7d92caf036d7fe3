"""Write ``live.html``, a copy of the live page of the demo's runs: ``python docs/examples/live.py``.

It needs Chromium, Playwright, and the runs that `toposcope demo` has made.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

RUNS = Path("toposcope-demo/runs")
LOOK = ".chart svg { max-width: 100%; height: auto }"
NOTE = '<p style="margin: 0; max-width: none; padding: 0.5rem 1rem; background: #fff3c4; color: #222">{}</p>'
WORDS = "A copy of the live page of the five runs of the demo, as it was: nothing on it moves."


def main() -> None:
    """Serve the page, open it, and write what it shows, with its style and without its programs."""
    command = [sys.executable, "-c", "from toposcope.cli import main; main()", "show", str(RUNS), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout
        address = server.stdout.readline().split()[-1]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.goto(address)
        page.wait_for_selector("body[data-drawn]", timeout=60_000)
        page.wait_for_timeout(15_000)
        sheets = [page.request.get(address + name).text() for name in ("vega.css", "page.css")]
        shown = page.content()
        browser.close()
        server.terminate()
    shown = re.sub(r"<script\b.*?</script>|<link\b[^>]*>", "", shown, flags=re.DOTALL)
    shown = re.sub(r'\bd="[^"]*"', lambda d: re.sub(r"(\.\d)\d+", r"\1", d[0]), shown)
    shown = shown.replace("</head>", f"<style>{''.join(sheets)}{LOOK}</style></head>", 1)
    shown = re.sub(r"(<body\b[^>]*>)", r"\1" + NOTE.format(WORDS), shown, count=1)
    Path(__file__).with_name("live.html").write_text(shown, encoding="utf-8")


if __name__ == "__main__":
    main()
