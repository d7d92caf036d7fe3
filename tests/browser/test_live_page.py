"""The live page in a real browser: rows appear, zoom shows each, a restarted server is found again."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_pages import HOSTILE_NAMES, OpenPage
from live_server import LiveServer, served
from live_studies import LiveStudy, live_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opener = Callable[..., OpenPage]
N_LOOKS, WAIT_MS = 300, 30_000
"""What arrives within a second on a machine at rest may take longer on a busy one."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def study(tmp_path: Path) -> LiveStudy:
    return live_study(tmp_path / "mine", steps=200, every=40)


@pytest.fixture
def server(study: LiveStudy, cache: Path) -> Iterator[LiveServer]:
    with served(study.directory, cache) as running:
        yield running


@pytest.fixture
def open_live(browser: "Browser") -> Iterator[Opener]:
    contexts = []

    def opened(address: str, width: int = 1280, *, dark: bool = False) -> OpenPage:
        size: Any = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        contexts.append(context)
        return OpenPage(context.new_page(), address)

    yield opened
    for context in contexts:
        context.close()


def wait(opened: OpenPage, expression: str) -> None:
    """Look again and again; the page's policy forbids it to compile an expression that it would watch itself."""
    from playwright.sync_api import Error

    for _ in range(N_LOOKS):
        with suppress(Error):  # the page is just being loaded anew
            if opened.page.evaluate(expression):
                return
        opened.page.wait_for_timeout(WAIT_MS // N_LOOKS)
    raise AssertionError(f"it did not become true: {expression}")


def listed(name: str) -> str:
    """The steps that a chart's list of data holds, as an expression of the page."""
    rows = f"""document.querySelector('[data-chart="{name}"]').nextElementSibling"""
    return f"""(() => {{ const part = {rows}; part.open = false; part.ontoggle({{ target: part }});
        part.open = true; part.ontoggle({{ target: part }});
        return [...part.querySelectorAll('tr')].map((row) => row.cells[1].textContent); }})()"""


def test_the_first_screen_says_how_training_goes(server: LiveServer, open_live: Opener) -> None:
    opened = open_live(server.address)
    assert opened.complaints == []
    wait(opened, "document.querySelector('#age').textContent.includes('last written')")
    text = opened.text("#status")
    for words in (
        *(
            "Healthy. Training loss ends at 2.40 (90%: 2.02",
            "10% done",
            "200 of 2,000 steps",
            "1 alert",
            "0.81%",
            "step 100",
        ),
        *("Is it healthy?", "Loss spike at step 100; over", "Learning rate", "Gradient norm"),
    ):
        assert words in text, words
    assert opened.chart("explore-loss").locator("svg.marks").count() == 1
    bottom = opened.chart("explore-loss").bounding_box()
    assert bottom
    assert bottom["y"] + bottom["height"] <= 800
    assert all(request.startswith(server.root) for request in opened.requests)


def test_a_row_appears_while_the_page_is_open(study: LiveStudy, server: LiveServer, open_live: Opener) -> None:
    opened = open_live(server.address)
    wait(opened, "document.querySelector('#age').className === 'good'")
    before = opened.drawing("explore-loss")
    study.log([201])
    wait(opened, "document.querySelector('#now').textContent.includes('201 of')")
    opened.settle()
    assert opened.drawing("explore-loss") != before
    study.measure(240)
    wait(opened, f"{listed('explore-feature')}.includes('240')")
    wait(opened, f"{listed('layer-map')}.includes('240')")
    study.alert(240, "the gradient norm is not a number")
    wait(opened, "document.querySelector('#runs').textContent.includes('not a number')")
    assert opened.complaints == []


def test_a_closer_look_shows_every_row(tmp_path: Path, cache: Path, open_live: Opener) -> None:
    study = LiveStudy(tmp_path / "mine")
    study.log(range(1, 2001))
    with served(study.directory, cache) as running:
        opened = open_live(running.address)
        wait(opened, "document.querySelector('#thinned').textContent.includes('zoom in to see single steps')")
        box = opened.chart("explore-loss").locator(".marks").bounding_box()
        assert box
        opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        opened.page.keyboard.down("Shift")
        for _ in range(16):
            opened.page.mouse.wheel(0, -200)
        opened.page.keyboard.up("Shift")
        # the list shows the first rows; the file has them all
        part = """document.querySelector('[data-chart="explore-loss"]').nextElementSibling"""
        rows = f"decodeURIComponent({part}.querySelector('a').href).split('mine').map((row) => parseInt(row.slice(3)))"
        single = f"{rows}.filter((step, i, all) => step - all[i - 1] === 1).length > 20"
        wait(opened, f"{listed('explore-loss')} && {single}")
        assert opened.complaints == []


def test_a_restarted_server_is_found_again(study: LiveStudy, cache: Path, open_live: Opener) -> None:
    with served(study.directory, cache) as running:
        opened = open_live(running.address)
        wait(opened, "document.querySelector('#age').className === 'good'")
        port = str(running.port)
    wait(opened, "document.querySelector('#age').textContent.includes('not connected')")
    study.log(range(201, 206))
    with served(study.directory, cache, "--port", port):
        wait(opened, "document.querySelector('#now').textContent.includes('205 of')")
        wait(opened, f"{listed('explore-loss')}.slice(-3).includes('205')")
        steps = opened.page.evaluate(listed("explore-loss"))[1:]
        by_step = sorted(steps, key=lambda step: int(step.replace(",", "")))
        # last, the forecast's path, for twice the steps seen
        assert by_step == [*map(str, range(1, 206)), "205", "615"]


def test_another_run_in_the_folder_joins_the_page(study: LiveStudy, cache: Path, open_live: Opener) -> None:
    with served(study.directory.parent, cache) as running:
        opened = open_live(running.address)
        assert opened.page.locator("#bar [name=run]").count() == 1
        live_study(study.directory.parent / "other", steps=50, every=10)
        wait(opened, "document.querySelectorAll('#bar [name=run]').length === 2")
        wait(opened, "document.querySelectorAll('#runs tbody tr').length === 2")
        opened.page.locator("#runs a", has_text="other").click()
        wait(opened, "document.querySelectorAll('#bar [name=run]').length === 1")


def test_the_axis_fits_the_recent_part_and_the_forecast_joins_its_line(
    tmp_path: Path, cache: Path, open_live: Opener
) -> None:
    study = LiveStudy(tmp_path / "mine", last_step=1000)
    study.log(range(1, 251))
    study.store.put_forecast("mine", 250, 1000, 2.4, 0.1, 9.0, "go on", "training loss")
    with served(study.directory, cache) as running:
        opened = open_live(running.address)
        note = opened.page.locator("figure:has([data-chart=explore-loss]) .outside")
        wait(opened, "document.querySelector('.outside').textContent.includes('The start is above')")
        assert "The axis cuts the interval of the forecast, 2.400 (0.100 to 9.000)" in note.inner_text()
        labels = "#status [data-chart=explore-loss] .role-axis-label text"
        ticks = [float(text.replace(",", "")) for text in opened.page.locator(labels).all_text_contents()]
        assert max(ticks) <= 750, "the first part of a forecast of three times the steps seen"
        rows = "[...document.querySelectorAll('[data-chart=explore-loss] + .rows tr')].map((row) => row.innerText)"
        opened.page.evaluate(listed("explore-loss"))
        ahead = [row.split("\t") for row in opened.page.evaluate(rows) if "forecast" in row][1:]
        assert [row[1] for row in ahead] == ["250", "750"]
        line = [row.split("\t") for row in opened.page.evaluate(rows) if "\t250\t" in row and "forecast" not in row]
        assert ahead[0][2] == line[0][-1], "the dashes begin where the smoothed line ends"
        note.locator("button").click()
        wait(opened, "document.querySelector('.outside').textContent.includes('All values are shown')")
        assert opened.page.locator("#feature").count() == 0
        assert opened.complaints == []


def test_a_notification_is_asked_for_by_a_click_and_sent_when_a_run_comes_to_need_a_person(
    study: LiveStudy, server: LiveServer, open_live: Opener
) -> None:
    opened = open_live(server.address)
    sent = """window.sent = []; window.Notification = class { static permission = "default";
        static requestPermission = async () => (window.asked = 1, window.Notification.permission = "granted");
        constructor(title, { body }) { window.sent.push(`${title}: ${body}`); } }; 0"""
    opened.page.evaluate(sent)
    study.store.append_log("mine", {201: {"loss": math.nan}})
    wait(opened, "document.querySelector('#now').textContent.includes('Diverged')")
    assert opened.page.evaluate("[window.asked, ...window.sent]") == [None]
    opened.page.locator("#notify").click()
    study.store.cut("mine", 200)
    wait(opened, "document.querySelector('#now').textContent.includes('Healthy')")
    study.store.append_log("mine", {201: {"loss": math.nan}})
    wait(opened, "window.sent.length === 1")
    assert opened.page.evaluate("window.sent[0]").startswith("mine needs a person: mine: Diverged.")


@pytest.mark.parametrize("name", [HOSTILE_NAMES[0], "constructor", "__proto__"], ids=["markup", "member", "prototype"])
def test_hostile_names_and_messages_stay_text(tmp_path: Path, cache: Path, open_live: Opener, name: str) -> None:
    study = LiveStudy(tmp_path / "mine", name)
    study.log(range(1, 50))
    study.measure(40)
    study.alert(40, HOSTILE_NAMES[1])
    study.cost(skipped=[HOSTILE_NAMES[0]])
    with served(study.directory, cache) as running:
        opened = open_live(running.address)
        wait(opened, "document.querySelector('#age').className === 'good'")
        assert opened.page.evaluate("window.attacked") is None
        assert opened.page.locator("img[src=x]").count() == 0
        assert name in opened.text("#bar")
        assert opened.chart("explore-loss").locator("path").count() > 5
        assert opened.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_can_be_read_on_any_screen(server: LiveServer, open_live: Opener, width: int, dark: bool) -> None:
    opened = open_live(server.address, width, dark=dark)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    lightness = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)[0]"
    assert (opened.page.evaluate(lightness) < 80) is dark


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(server: LiveServer, open_live: Opener, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed: pip install axe-playwright-python")
    for width in (1280, 390):
        opened = open_live(server.address, width, dark=dark)
        wait(opened, "document.querySelector('#age').className === 'good'")
        assert opened.axe() == []


def test_another_sites_page_cannot_read_it(server: LiveServer, open_live: Opener, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text("<body data-drawn='yes'>")
    opened = open_live(other.as_uri())
    read = f"fetch('{server.root}').then((a) => a.text(), () => 'refused')"
    assert opened.page.evaluate(read) == "refused"
    assert opened.page.goto(server.root.replace("127.0.0.1", "localhost"))


def test_nobody_is_asked_while_the_page_is_hidden(server: LiveServer, open_live: Opener) -> None:
    opened = open_live(server.address)
    wait(opened, "document.querySelector('#age').className === 'good'")
    hide = """(is) => { Object.defineProperty(document, 'hidden', { value: is, configurable: true });
        document.dispatchEvent(new Event('visibilitychange')); }"""
    opened.page.evaluate(hide, True)
    wait(opened, "document.querySelector('#age').className === 'warn'")
    opened.page.evaluate(hide, False)
    wait(opened, "document.querySelector('#age').className === 'good'")
