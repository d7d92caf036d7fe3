"""What a page owes those who cannot see it, use no mouse, print it or have no network: checks that any page passes."""

import re
from itertools import pairwise

from read_page import Element, contrast, style_rules


def check_the_page_needs_no_network(page: Element) -> None:
    assert not page.all("link", "iframe", "object", "embed", "base")
    for element in page.all():
        for name in ("src", "srcset", "poster", "data", "action"):
            assert element.attributes.get(name, "data:").startswith("data:"), element.attributes
    (style,) = page.all("style")
    assert not re.search(r"url\(|@import|https?:", style.text())
    (script,) = page.all("script")
    assert not re.search(r"fetch|XMLHttp|import\(|https?:", script.text())


def check_language_landmarks_and_headings(page: Element) -> None:
    assert page.all("html")[0].attributes["lang"] == "en"
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1
    skip = page.all("a")[0]
    assert skip.attributes["href"] == f"#{page.all('main')[0].attributes['id']}"
    levels = [int(h.tag[1]) for h in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def check_contents_name_every_section(page: Element) -> None:
    (contents,) = page.all("nav")
    listed = [(a.attributes["href"], a.text()) for a in contents.all("a")]
    assert listed == [(f"#{h.attributes['id']}", h.text()) for h in page.all("main")[0].all("h2")]


def check_ids_are_unique(page: Element) -> None:
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))


def check_images_are_described(page: Element) -> None:
    images = page.all("img")
    assert images
    assert all(len(image.attributes["alt"]) > 30 for image in images)
    assert all(image.under("figure") for image in images)
    assert len(page.all("figcaption")) == len(images)


def check_tables_can_be_read_aloud(page: Element) -> None:
    tables = page.all("table")
    assert tables
    for table in tables:
        assert table.all("caption")[0].text()
        heads = table.all("th")
        assert all(head.attributes["scope"] in ("col", "colgroup", "row") for head in heads)
        columns = [head for head in heads if head.attributes["scope"] == "col"]
        for row in table.all("tbody")[0].all("tr"):
            assert len(row.children) == len(columns)
            assert row.children[0].tag == "th" or "claim" in table.all("caption")[0].text()
        box = table.parent
        assert box is not None
        assert (box.attributes["tabindex"], box.attributes["role"]) == ("0", "region")
        assert box.attributes["aria-label"]


def check_text_has_enough_contrast(page: Element) -> None:
    rules = style_rules(page.all("style")[0].text())
    colours = {name: value for _, body in rules for name, value in body.items() if name.startswith("--")}

    def resolved(value: str) -> str:
        found = re.fullmatch(r"var\((--\w+)\)", value)
        return colours[found.group(1)] if found else ""

    grounds = {resolved(body["background"]) for _, body in rules if "background" in body and "color" not in body} - {""}
    inks = {resolved(body["color"]) for _, body in rules if "color" in body and "background" not in body} - {""}
    assert len(grounds) >= 1
    assert len(inks) >= 2
    pairs = {(ink, ground) for ink in inks for ground in (*grounds, colours["--paper"])}
    pairs |= {
        (resolved(b["color"]), resolved(b["background"])) for _, b in rules if {"color", "background"} <= b.keys()
    }
    for ink, ground in pairs - {("", "")}:
        if ink and ground:
            assert contrast(ink, ground) >= 4.5, (ink, ground)
    for _, body in rules:  # and no colour goes by another way
        assert all(
            resolved(body[name]) or body[name] in ("inherit", "none")
            for name in ("color", "background")
            if name in body
        )


def check_keyboard_motion_and_print(page: Element) -> None:
    style = page.all("style")[0].text()
    assert re.search(r":focus-visible \{ outline: 3px solid", style)
    assert "outline: none" not in style
    assert "outline: 0" not in style
    assert "@media (prefers-reduced-motion: reduce)" in style
    printed = style[style.index("@media print") :]
    for needed in (".filter", "details::details-content", "attr(href)", "break-inside: avoid", "page: wide"):
        assert needed in printed


PAGE_CHECKS = (
    check_the_page_needs_no_network,
    check_language_landmarks_and_headings,
    check_contents_name_every_section,
    check_ids_are_unique,
    check_images_are_described,
    check_tables_can_be_read_aloud,
    check_text_has_enough_contrast,
    check_keyboard_motion_and_print,
)
