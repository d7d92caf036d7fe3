"""What the distribution adds to the command line, and what the command line says where it is not installed."""

from pathlib import Path

import click
import pytest
from commands import called

import toposcope
import toposcope_downstream
from toposcope.cli import toposcope as commands
from toposcope.elsewhere import install
from toposcope.errors import ToposcopeError

OF_A_LAW = (
    "--budget --cool-down --extra --family --log --measured --parameters --points --siblings --tokens --help -h".split()
)
OF_SCORES = ["--json", "--loss", "--out", "--recipe", "--task", "evaluations"]
COMMANDS = {
    "decide-tasks": [*OF_A_LAW, *OF_SCORES],
    "downstream": [
        *("--chance", "--column", "--exclude", "--help", "--ladder", "--method", "--model", "--seed", "-h"),
        *OF_SCORES,
    ],
    "forecast-tasks": [
        *("--column", "--help", "--measured", "--run", "--schedule", "--siblings", "--steps", "--unit", "-h", "log"),
        *OF_SCORES,
    ],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_their_options(name: str) -> None:
    found = commands.get_command(click.Context(commands), name)
    assert found is not None
    context = click.Context(found, **commands.context_settings)
    assert sorted(opt for parameter in found.get_params(context) for opt in parameter.opts) == sorted(COMMANDS[name])
    assert f"Example:\n      toposcope {name} " in str(found.help)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_the_package_one_line_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands.get_command(click.Context(commands), name) is not None  # from here on the group has all commands
    monkeypatch.delitem(commands.commands, name)
    done = called(name, "somewhere")
    assert done.code == 2
    assert (
        done.err == f"Error: toposcope {name}: it comes with toposcope-downstream; {install('toposcope-downstream')}\n"
    )


def test_the_function_says_where_it_is() -> None:
    with pytest.raises((ToposcopeError, AttributeError), match="it comes with toposcope-downstream; pip install "):
        _ = toposcope.downstream


def test_the_distributions_have_one_version() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{toposcope.__version__}"\n' in text
    assert f'"toposcope=={toposcope.__version__}"' in text
    assert all(getattr(toposcope_downstream, name) is not None for name in toposcope_downstream.__all__)
