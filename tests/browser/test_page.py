"""The page of a study in a real browser: offline, drawn, readable in every light and width."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_pages import HOSTILE_NAMES, OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opener = Callable[..., OpenPage]


def test_it_opens_without_an_error_and_asks_for_nothing(report: Path, open_page: Opener) -> None:
    opened = open_page(report)
    opened.open_all()
    assert opened.complaints == []
    assert opened.requests == []


def test_its_policy_forbids_requests(report: Path, open_page: Opener) -> None:
    refused = """new Promise((done) => {
        addEventListener("securitypolicyviolation", (event) => done(event.violatedDirective));
        fetch("https://example.org/").then(() => done("it went out"), () => {});
    })"""
    assert open_page(report).page.evaluate(refused) == "connect-src"


def test_every_chart_is_drawn_and_has_a_text_alternative(report: Path, open_page: Opener) -> None:
    opened = open_page(report)
    opened.open_all()
    places = opened.page.locator("[data-chart]").all()
    assert len(places) > 10
    for place in places:
        name = place.get_attribute("data-chart")
        svg = place.locator("svg.marks")
        assert svg.count() == 1, name
        box = svg.bounding_box()
        assert box, name
        assert box["width"] > 100, name
        assert box["height"] > 30, name
        assert svg.locator("[class*=mark-] path, [class*=mark-] text, [class*=mark-] line").count(), name
        assert len(place.get_attribute("aria-label") or "") > 15, name


def test_the_data_under_a_chart_have_names_and_numbers_for_people(report: Path, open_page: Opener) -> None:
    opened = open_page(report)
    opened.open_all()
    folds = opened.page.locator(".rows").filter(visible=True).all()
    assert len(folds) > 10
    for fold in folds:
        fold.evaluate("fold => { fold.open = true; }")
        fold.locator("td").first.wait_for(state="attached")
        heads, cells = fold.locator("th").all_text_contents(), fold.locator("td").all_text_contents()
        assert all(len(head) > 1 and "_" not in head for head in heads), heads
        assert all(len(digits) <= 4 for cell in cells for digits in re.findall(r"^[−-]?0\.0*(\d+)", cell)), heads


def test_keys_reach_the_charts(report: Path, open_page: Opener) -> None:
    page = open_page(report).page
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement?.dataset?.chart ?? ''"))
    assert len(reached - {""}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["wide-light", "narrow-dark"])
def test_axe_finds_nothing_serious(report: Path, open_page: Opener, width: int, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed: pip install axe-playwright-python")
    opened = open_page(report, width, dark=dark)
    opened.open_all()
    assert opened.axe() == []


def test_a_phone_does_not_scroll_sideways(report: Path, hostile_report: Path, open_page: Opener) -> None:
    for path in (report, hostile_report):
        opened = open_page(path, 390)
        opened.open_all()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_dark_screen_has_a_dark_page_and_light_text(report: Path, open_page: Opener) -> None:
    lightness = """(selector) => {
        const style = getComputedStyle(document.querySelector(selector));
        const brightest = (colour) => Math.max(...colour.match(/[0-9.]+/g).slice(0, 3).map(Number));
        return [style.backgroundColor, style.color].map(brightest);
    }"""
    for dark in (False, True):
        page = open_page(report, dark=dark).page
        paper, ink = page.evaluate(lightness, "body")
        assert (paper < 80 and ink > 180) if dark else (paper > 220 and ink < 80)


def test_print_shows_every_section(report: Path, open_page: Opener) -> None:
    opened = open_page(report)
    opened.page.emulate_media(media="print")
    assert opened.page.pdf()[:4] == b"%PDF"
    hidden = opened.page.evaluate(
        "[...document.querySelectorAll('details.part')].filter((p) => !p.open).map((p) => p.id)"
    )
    assert hidden == []


def test_hostile_names_stay_text(hostile_report: Path, open_page: Opener) -> None:
    opened = open_page(hostile_report)
    opened.open_all()
    places = opened.page.locator("[data-chart]").filter(visible=True).all()
    assert places
    for place in places:
        place.hover(force=True)
    opened.settle()
    assert opened.page.evaluate("window.attacked") is None
    assert opened.page.locator("img[src=x]").count() == 0
    assert opened.complaints == []
    assert opened.requests == []
    assert HOSTILE_NAMES[0] in opened.page.locator("body").inner_text()
