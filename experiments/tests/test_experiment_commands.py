"""What the experiments add to the command line, and what the command line says where they are not installed."""

import dataclasses
from pathlib import Path

import click
import pytest
from commands import called
from made_up_material import material
from section_tools import CORE

import toposcope
import toposcope_experiments
from toposcope.cli import toposcope as commands
from toposcope.elsewhere import elsewhere, install
from toposcope.report.composing import Page
from toposcope.report.sections import methods
from toposcope.study import Declaration

COMMANDS = (
    *("backtest", "early-warnings", "grokking", "induction", "intervene", "regularisation", "scaling-decision"),
    *("stopping", "stopping-rules", "study import", "weight-loops"),
)


def command(path: str) -> click.Command:
    found: click.Command = commands
    for name in path.split():
        assert isinstance(found, click.Group)
        below = found.get_command(click.Context(found), name)
        assert below is not None
        found = below
    return found


def group_of(path: str) -> click.Group:
    """The group that a command belongs to."""
    found = command(path.rpartition(" ")[0])
    assert isinstance(found, click.Group)
    return found


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_an_example(path: str) -> None:
    assert f"Example:\n      toposcope {path} " in str(command(path).help)


@pytest.mark.parametrize("path", COMMANDS)
def test_without_the_experiments_one_line_says_what_to_install(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = path.split()[-1]
    assert command(path).name == name  # from here on the group has all commands
    monkeypatch.delitem(group_of(path).commands, name)
    done = called(*path.split(), "somewhere")
    assert done.code == 2
    place = f"{group_of(path).name} {name}"
    assert done.err == f"Error: {place}: it comes with toposcope-experiments; {install('toposcope-experiments')}\n"


def test_a_study_with_published_numbers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "Published numbers are declared; toposcope-experiments, if installed, sets them next to what was found."
    assert Page([methods.SECTION], material(2)).summary() == []
    monkeypatch.setattr("toposcope.report.sections.report_sections", lambda: CORE)
    assert Page([methods.SECTION], material(2)).summary() == [told]
    silent = dataclasses.replace(material(2), declaration=Declaration(name="x"))
    assert Page([methods.SECTION], silent).summary() == []


def test_the_core_names_every_command_of_the_experiments() -> None:
    assert all("comes with toposcope-experiments" in elsewhere(path.split()[-1]) for path in COMMANDS)


def test_both_distributions_have_one_version() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{toposcope.__version__}"\n' in text
    assert f"=={toposcope.__version__}" in text
    assert toposcope_experiments.__all__ == ["shipped_study"]
