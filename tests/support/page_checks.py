"""What a page owes those who cannot see it, use no mouse, print it or have no network: checks that any page passes."""

import re
from itertools import pairwise

from read_page import Element, contrast, style_rules

from toposcope.analysis.verdict import GLOSSES


def check_the_page_needs_no_network(page: Element) -> None:
    assert not page.all("link", "iframe", "object", "embed", "base")
    for element in page.all():
        for name in ("src", "srcset", "poster", "data", "action"):
            assert element.attributes.get(name, "data:").startswith("data:"), element.attributes
    (policy,) = [m.attributes["content"] for m in page.all("meta") if "http-equiv" in m.attributes]
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|connect-src|unsafe-eval|\*", policy)
    (style,) = page.all("style")
    assert not re.search(r"url\(|@import|https?:", style.text())
    own = page.all("script")[-1]  # before it: the data, and Vega
    assert not re.search(r"fetch|XMLHttp|import\(|https?:|innerHTML", own.text())
    assert len(own.text().encode()) < 45_000


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
    parts = [part for part in page.all("details") if part.attributes.get("class") == "part"]
    assert parts
    anchors = [next(e.attributes["id"] for e in part.all("div") if "id" in e.attributes) for part in parts]
    assert listed == [(f"#{id}", part.all("h2")[0].text()) for id, part in zip(anchors, parts, strict=True)]


def check_ids_are_unique(page: Element) -> None:
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))


def check_charts_are_described(page: Element) -> None:
    charts = [place for place in page.all("div") if "data-chart" in place.attributes]
    assert charts
    for place in charts:
        assert (place.attributes["tabindex"], place.attributes["role"]) == ("0", "group")
        assert len(place.attributes["aria-label"]) > 20
        assert place.under("figure")
    numbered = [caption.text() for caption in page.all("figcaption")]
    assert [int(text.split()[1].rstrip(".")) for text in numbered] == list(range(1, len(numbered) + 1))


def check_tables_are_written_for_people(page: Element) -> None:
    """Heads are names, not letters or identifiers; numbers have few digits; what is known nowhere has no column."""
    runs = {box.attributes["value"] for box in page.all("input") if box.attributes.get("name") == "run"}
    for table in page.all("table"):
        heads = [head.text().strip(" ↕") for head in table.all("th") if head.attributes.get("scope") == "col"]
        assert all((len(head) > 1 and "_" not in head) or head in runs for head in heads), heads
        rows = [[cell.text().strip() for cell in row.all("td", "th")] for row in table.all("tbody")[0].all("tr")]
        for cell in (cell for row in rows for cell in row):
            assert not re.search("– /|/ –", cell), cell
            assert all(len(digits) <= 4 for digits in re.findall(r"\d\.0*(\d+)", cell)), cell
        assert not any(set(column) == {"–"} for column in zip(*rows, strict=True)), heads


def check_verdicts_have_their_gloss(page: Element) -> None:
    for mark in page.all("abbr"):
        assert mark.attributes["title"] == GLOSSES[mark.text()]
    for table in page.all("table"):
        heads = [head.text().strip(" ↕") for head in table.all("th") if head.attributes.get("scope") == "col"]
        cells = [cell for row in table.all("tbody")[0].all("tr") for i, cell in enumerate(row.all("td", "th"))
                 if heads[i].startswith("verdict") and cell.text().strip() in GLOSSES]  # fmt: skip
        assert all(cell.all("abbr") for cell in cells)


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
    colours = {
        look: {n: v for selector, body in rules if selector == where for n, v in body.items() if n.startswith("--")}
        for look, where in (("light", ":root"), ("dark", ":root[data-theme=dark]"))
    }
    used = {name: {body[name] for _, body in rules if name in body} for name in ("color", "background")}
    inks, grounds = ({v[4:-1] for v in used[name] if v.startswith("var(--")} for name in ("color", "background"))
    grounds = {ground for ground in grounds if not ground.startswith("--run-")}  # of marks without text
    assert {v for v in used["color"] | used["background"] if not v.startswith("var(--")} <= {"inherit", "none"}
    assert len(inks) >= 3
    assert len(grounds) >= 2
    for theme in colours.values():
        for ink in inks - {"--paper"}:
            for ground in grounds - {"--accent"}:
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["--paper"], theme["--accent"]) >= 4.5


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
    check_charts_are_described,
    check_tables_can_be_read_aloud,
    check_tables_are_written_for_people,
    check_verdicts_have_their_gloss,
    check_text_has_enough_contrast,
    check_keyboard_motion_and_print,
)
