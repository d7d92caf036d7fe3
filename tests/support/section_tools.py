"""Charts and sections of a report by name, for tests: of the core, whatever else is installed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.report.composing import Page
from toposcope.report.document import Picture, Section, section
from toposcope.report.section import collect_sections, makers_of
from toposcope.report.sections import report_sections
from toposcope.report.study_data import StudyData

CORE = collect_sections("toposcope.report.sections", "toposcope.sections_of_nobody")
"""The sections of the core alone."""


def charts_of(draw: Callable[[StudyData], Any], material: StudyData) -> dict[str, Chart]:
    """Return what one function draws, by name."""
    drawn = draw(material)
    return {chart.name: chart for chart in (drawn if isinstance(drawn, list | tuple) else [drawn]) if chart}


def section_of(anchor: str, material: StudyData, pictures: Sequence[Any] = ()) -> Section | None:
    """Return one section as it stands on the page; None if it is left out."""
    (part,) = (part for part in report_sections() if part.anchor == anchor)
    return section(anchor, part.title_of(material), *part.blocks(material, list[Picture](pictures)))


def summary(material: StudyData) -> list[str]:
    """Return the sentences at the top of the page."""
    return Page(CORE, material).summary()


def all_tables(**tables: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return a table for every name a report has; those that are not given are empty."""
    return {name: tables.get(name, pl.DataFrame()) for name in makers_of(report_sections())}


def with_tables(material: StudyData, tables: Mapping[str, pl.DataFrame]) -> StudyData:
    """Return the material with some tables exchanged."""
    return dataclasses.replace(material, tables={**material.tables, **tables})
