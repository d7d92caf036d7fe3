"""Every control of the page changes what it should, as a reader sees it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_pages import OpenPage

from toposcope.report.naming import feature_words

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opener = Callable[..., OpenPage]


@pytest.fixture
def opened(report: Path, open_page: Opener) -> OpenPage:
    """The page of a study, at a width where the bar is one line."""
    return open_page(report)


def other_option(opened: OpenPage, selector: str) -> str:
    """Return a value that a list offers and that is not chosen."""
    options = f"{selector} option"
    values = opened.page.locator(options).evaluate_all("(all) => all.filter((o) => !o.selected).map((o) => o.value)")
    return str(values[0])


def test_a_run_is_switched_off_and_on_in_every_chart(opened: OpenPage) -> None:
    box = opened.page.locator("#bar input[name=run]").first
    lines = opened.chart("explore-loss").locator(".mark-line path")
    before = opened.drawing("explore-loss")
    assert lines.count() == 2
    box.uncheck()
    opened.settle()
    assert lines.count() == 1
    box.check()
    opened.settle()
    assert lines.count() == 2
    assert opened.drawing("explore-loss") == before


def test_the_x_axis_is_that_of_all_charts_over_training(opened: OpenPage) -> None:
    charts = ("explore-loss", "explore-feature")
    seen = {name: [opened.drawing(name)] for name in charts}
    for value in ("log", "tokens"):
        opened.page.select_option("#x-axis", value)
        opened.settle()
        for name in charts:
            assert opened.drawing(name) not in seen[name], (value, name)
            seen[name].append(opened.drawing(name))
    assert "tokens" in (opened.chart("explore-feature").locator("svg.marks").text_content() or "")


def test_a_feature_has_its_title_its_lines_and_its_notes(opened: OpenPage) -> None:
    before = opened.text("#feature-title"), opened.drawing("explore-feature"), opened.text("#given-note")
    chosen = other_option(opened, "select#feature")
    opened.page.select_option("select#feature", chosen)
    opened.settle()
    name = opened.page.locator("select#feature option:checked").text_content()
    assert opened.text("#feature-title").startswith(str(name))
    assert opened.drawing("explore-feature") != before[1]
    assert opened.text("#feature-title") != before[0]


def test_a_role_changes_the_lines_of_the_feature(opened: OpenPage) -> None:
    before = opened.drawing("explore-feature")
    role = other_option(opened, "select#role")
    opened.page.select_option("select#role", role)
    opened.settle()
    assert role in opened.text("#feature-title")
    assert opened.drawing("explore-feature") != before


def test_arrow_keys_move_the_cursor_of_all_charts(opened: OpenPage) -> None:
    opened.chart("explore-loss").focus()
    opened.page.keyboard.press("ArrowRight")
    opened.settle()
    first = opened.text("output#at")
    assert first.startswith("step ")
    opened.page.keyboard.press("ArrowRight")
    opened.settle()
    assert opened.text("output#at") != first
    at = opened.text("output#at")
    readout = opened.page.locator("figure:has([data-chart=explore-feature]) .readout").inner_text()
    assert readout.startswith(at), "the other charts follow"


def test_a_cell_of_the_layer_map_opens_its_layer_and_step(opened: OpenPage) -> None:
    opened.chart("layer-map").scroll_into_view_if_needed()
    opened.chart("layer-map").locator("path[aria-label*='fc1']").last.click(force=True)
    opened.settle()
    assert "fc1" in opened.text("#layer-title")
    assert opened.text("output#at") == "step 48"
    assert "48" in opened.text("#diagram-note")


def test_reset_takes_everything_back(opened: OpenPage) -> None:
    before = [opened.text("#feature-title"), opened.drawing("explore-feature"), opened.text("output#at")]
    opened.page.select_option("#x-axis", "log")
    opened.page.select_option("select#feature", other_option(opened, "select#feature"))
    opened.page.locator("#bar input[name=run]").first.uncheck()
    opened.settle()
    assert opened.drawing("explore-feature") != before[1]
    opened.page.click("button#reset")
    opened.settle()
    assert [opened.text("#feature-title"), opened.drawing("explore-feature"), opened.text("output#at")] == before
    assert opened.page.locator("#bar input[name=run]:not(:checked)").count() == 0


def test_the_theme_changes_paper_and_charts(opened: OpenPage) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    before = opened.page.evaluate(paper), opened.drawing("explore-loss")
    opened.page.click("button#theme")
    opened.settle()
    assert opened.page.evaluate(paper) != before[0]
    assert opened.drawing("explore-loss") != before[1]


def test_the_association_table_filters_sorts_and_leads_to_the_explorer(opened: OpenPage) -> None:
    opened.open_all()
    box = opened.page.locator("div.filter input[type=search]").first
    rows = opened.page.locator("table.sortable").first.locator("tbody tr:visible")
    everything = rows.count()
    box.fill("H1")
    assert 0 < rows.count() < everything
    assert all("H1" in text for text in rows.all_inner_texts())
    box.fill("")
    assert rows.count() == everything
    head = opened.page.locator("table.sortable").first.locator("thead button").first
    head.click()
    ascending = rows.all_inner_texts()
    head.click()
    assert rows.all_inner_texts() != ascending
    row = opened.page.locator("table.sortable tr[data-feature]:has-text('H1') button").first
    name = row.inner_text()
    row.click()
    opened.settle()
    assert opened.text("#feature-title").startswith(feature_words(name))


def test_an_address_restores_what_was_chosen(opened: OpenPage, report: Path, open_page: Opener) -> None:
    opened.page.select_option("select#feature", other_option(opened, "select#feature"))
    opened.page.select_option("#x-axis", "log")
    opened.page.locator("#bar input[name=run]").first.uncheck()
    opened.settle()
    opened.settle()
    again = open_page(report, address=opened.page.evaluate("location.hash"))
    assert again.text("#feature-title") == opened.text("#feature-title")
    assert again.page.locator("#x-axis").input_value() == "log"
    assert again.page.locator("#bar input[name=run]:not(:checked)").count() == 1
    assert again.drawing("explore-feature") == opened.drawing("explore-feature")


def test_smoothing_draws_a_line_before_the_raw_one(opened: OpenPage) -> None:
    lines = opened.chart("explore-loss").locator(".mark-line path")
    before = lines.count()
    opened.page.select_option("#smooth", "strong")
    opened.settle()
    assert lines.count() == 2 * before
    opened.chart("explore-loss").focus()
    opened.page.keyboard.press("ArrowRight")
    opened.settle()
    assert "(smooth " in opened.page.locator("figure:has([data-chart=explore-loss]) .readout").inner_text()


def test_what_a_logarithmic_axis_has_no_place_for_is_said(opened: OpenPage) -> None:
    before = opened.drawing("explore-loss")
    opened.page.select_option("#y-axis", "log")
    opened.settle()
    assert opened.drawing("explore-loss") != before
    opened.page.evaluate("document.querySelectorAll('details.part').forEach((part) => (part.open = true))")
    notes = opened.page.locator(".outside").all_inner_texts()
    assert all("logarithmic axis" in note or "linear" in note for note in notes if "0" in note)
    assert opened.complaints == []


def test_a_click_pins_the_step_and_a_pointer_that_passes_leaves_it(opened: OpenPage) -> None:
    opened.chart("explore-loss").scroll_into_view_if_needed()
    box = opened.chart("explore-loss").locator(".marks").bounding_box()
    assert box
    at = {part: (box["x"] + part * box["width"], box["y"] + box["height"] / 2) for part in (0.3, 0.5, 0.7)}
    pinned = "new URLSearchParams(location.hash.slice(1)).get('step')"
    opened.page.mouse.move(*at[0.3])
    opened.settle()
    assert opened.text("output#at").startswith("step ")
    assert opened.page.evaluate(pinned) is None
    opened.page.mouse.click(*at[0.5])
    opened.settle()
    step = opened.page.evaluate(pinned)
    assert opened.text("output#at") == f"step {step}"
    opened.page.mouse.move(*at[0.7])
    opened.settle()
    assert opened.text("output#at") != f"step {step}"
    opened.page.mouse.move(2, 400)
    opened.settle()
    assert opened.text("output#at") == f"step {step}"
    assert opened.page.evaluate(pinned) == step
    opened.page.keyboard.press("Escape")
    opened.settle()
    assert opened.page.evaluate(pinned) is None
    for _ in range(2):
        opened.page.mouse.click(*at[0.5])
        opened.settle()
    assert opened.page.evaluate(pinned) is None, "the second click takes the first back"


def test_runs_are_filtered_by_name_and_expression(opened: OpenPage) -> None:
    lines = opened.chart("explore-loss").locator(".mark-line path")
    for typed, said, n in (("^fir", "1 of 2 runs", 1), ("fir[", "0 of 2 runs; not an expression", 0), ("", "", 2)):
        opened.page.fill("#filter", typed)
        opened.page.wait_for_timeout(600)
        assert opened.text("#filtered").startswith(said)
        assert lines.count() == n


def test_back_and_forward_go_through_what_was_chosen(opened: OpenPage) -> None:
    opened.settle()
    for selector, value in (("#smooth", "light"), ("#y-axis", "log")):
        opened.page.select_option(selector, value)
        opened.settle()
    chosen = "[document.getElementById('smooth').value, document.getElementById('y-axis').value]"
    seen = []
    for go in (opened.page.go_back, opened.page.go_back, opened.page.go_forward):
        go()
        opened.settle()
        seen.append(opened.page.evaluate(chosen))
    assert seen == [["light", ""], ["", ""], ["light", ""]]
