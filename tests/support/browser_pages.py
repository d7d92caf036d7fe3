"""A page in a browser: what it wrote to the console, what it asked for, and what stands on it."""

from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

HOSTILE_NAMES = (
    '<img src=x onerror="window.attacked=1"><script>window.attacked=2; --> ]]> <!--',
    "\"'`${window.attacked=3} {{ run }} {% raw %} &lt;b&gt; datum['x'] " + "x" * 130,
    "constructor",
)
"""Names of runs that would do something if they were not text, or that JavaScript's objects have."""

DRAWING_MS = 20_000


class OpenPage:
    """A page that is open and drawn.

    Attributes
    ----------
    page : playwright.sync_api.Page
    complaints : list of str
        Errors and warnings of the console, and exceptions.
    requests : list of str
        Addresses that the page asked for, besides itself and data within it.
    """

    def __init__(self, page: "Page", address: str) -> None:
        self.page, self.complaints, self.requests = page, list[str](), list[str]()
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._note)
        self.address = address
        page.goto(address)
        page.wait_for_selector("body[data-drawn]", timeout=DRAWING_MS)

    def _note(self, request: Any) -> None:
        if not request.url.startswith(("data:", "blob:")) and request.url != self.address.partition("#")[0]:
            self.requests.append(request.url)

    def open_all(self) -> None:
        """Open every section, and wait until its charts have the width they get."""
        self.page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        self.settle()

    def settle(self) -> None:
        """Wait until what the page puts off, such as drawing, is done."""
        self.page.wait_for_timeout(300)

    def chart(self, name: str) -> "Locator":
        """Return the place of a chart."""
        return self.page.locator(f'[data-chart="{name}"]')

    def drawing(self, name: str) -> list[str]:
        """Return what is seen of a chart: shapes with place and colour, and texts, in no order."""
        seen = """(svg) => [...svg.querySelectorAll("path, text, line")].map((each) => {
            const look = ["d", "transform", "stroke", "fill"].map((name) => each.getAttribute(name));
            return [each.tagName === "text" ? each.textContent : "", ...look].join(" ");
        })"""
        return sorted(self.chart(name).locator("svg.marks").first.evaluate(seen))

    def text(self, selector: str) -> str:
        """Return the text of the first element that is selected."""
        return self.page.locator(selector).first.inner_text()

    def axe(self) -> list[str]:
        """Return what axe-core finds serious or critical: the rule, and the elements."""
        source = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.page.evaluate(source)
        found = self.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        bad = [each for each in found if each["impact"] in ("serious", "critical")]
        return [
            f"{each['id']}: {node['target']} {node.get('failureSummary', '')}" for each in bad for node in each["nodes"]
        ]
