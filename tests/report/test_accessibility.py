"""What a page owes those who cannot see it, use no mouse, print it or have no network."""

from collections.abc import Callable

import altair as alt
import polars as pl
import pytest
from page_checks import PAGE_CHECKS
from read_page import Element, read

from toposcope.charts.chart import Chart
from toposcope.report.document import (
    Block,
    Code,
    Details,
    Document,
    Heading,
    Link,
    Picture,
    Preformatted,
    Section,
    Terms,
    paragraph,
)
from toposcope.report.page import to_page
from toposcope.report.tables import Column, Table


@pytest.fixture(scope="module")
def page() -> Element:
    """A page of every kind of block there is, with names that look like markup."""
    nasty = '<img src=x onerror="alert(1)"> & | `x`'
    columns = (Column("run", True, names_row=True), *(Column(f"c{i}", group="<g>") for i in range(20)))
    table = Table("t", nasty, columns, tuple((nasty, *["−1"] * 20) for _ in range(3)), sortable=True)
    words = Table(
        "w", "words", (Column("first", True, names_row=True), Column("second", True, prose=True)), (("x", "y"),)
    )
    figure = alt.Chart(pl.DataFrame({"run": [nasty], "step": [1]})).mark_point().encode(x="step:Q", color="run:N")
    pictures = [Picture(Chart(name, nasty, nasty, "a line that falls, and then rises again", figure)) for name in "fgh"]
    blocks: tuple[Block, ...] = (
        paragraph("a ", Code(nasty), Link("b", "#s"), note=True), Heading(nasty), Terms(((nasty, "b"),)),
        Preformatted(nasty, "lines"), *pictures,
        Details("more", (table,)), words,
    )  # fmt: skip
    document = Document(nasty, [nasty, "second"], [Section("s", nasty, blocks)])
    text = to_page(document, "")
    assert "<img src=x" not in text
    return read(text)


@pytest.mark.parametrize("check", PAGE_CHECKS, ids=lambda check: check.__name__)
def test_every_kind_of_block_is_accessible(check: Callable[[Element], None], page: Element) -> None:
    check(page)
