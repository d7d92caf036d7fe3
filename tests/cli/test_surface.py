"""The public surface, frozen: whoever changes a name or an option changes it here too, and means it."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from fields import fields
from public_names import public_names

from toposcope.cli import toposcope as commands

PUBLIC_NAMES = Path(__file__).with_name("public_names.txt")
FIELDS = Path(__file__).with_name("fields.txt")

COMMANDS = {
    "toposcope": ["--help", "--version", "-h"],
    "toposcope demo": ["--help", "--out", "-h"],
    "toposcope train": ["--corpus", "--help", "--out", "--set", "--workers", "-h", "SIZES"],
    "toposcope layers": [
        *("--help", "--json", "--keep", "--offline", "--role", "--step", "--step-pattern", "-h", "SPEC"),
    ],
    "toposcope landscape": [
        *("--directions", "--help", "--json", "--keep", "--offline", "--out", "--resolution", "--role", "--seeds"),
        *("--span", "--step", "--step-pattern", "--text", "--tokenizer", "-h", "CHECKPOINT"),
    ],
    "toposcope cooldown": [
        *("--all", "--at", "--column", "--constant", "--decay", "--every", "--help", "--json", "--keep"),
        *(
            "--log",
            "--offline",
            "--out",
            "--pattern",
            "--role",
            "--save",
            "--step-pattern",
            "--steps",
            "--text",
            "--tokenizer",
            "--tokens",
            "--unit",
        ),
        *("-h", "SERIES"),
    ],
    "toposcope doctor": [
        *("--deep", "--help", "--json", "--keep", "--offline", "--role", "--step-pattern", "-h", "SPEC"),
    ],
    "toposcope measure": [
        *("--engine", "--every", "--help", "--json", "--keep", "--log-spaced", "--offline", "--out", "--probe"),
        *("--role", "--step-pattern", "--steps", "--text", "--tokenizer", "--workers", "-h", "SERIES"),
    ],
    "toposcope study": ["--help", "-h"],
    "toposcope study init": [
        *("--every", "--help", "--keep", "--log-spaced", "--offline", "--out", "--role", "--step-pattern", "--steps"),
        *("-h", "SERIES"),
    ],
    "toposcope study plan": [
        *("--every", "--help", "--json", "--keep", "--log-spaced", "--offline", "--role", "--step-pattern", "--steps"),
        *("-h", "PLACES"),
    ],
    "toposcope study run": [
        *("--engine", "--every", "--help", "--keep", "--log-spaced", "--offline", "--out", "--role"),
        *("--step-pattern", "--steps", "--workers", "-h", "PLACES"),
    ],
    "toposcope study status": ["--help", "--json", "-h", "DIRECTORY"],
    "toposcope report": ["--adjust", "--figures", "--help", "--out", "-h", "DIRECTORIES"],
    "toposcope check": ["--help", "--json", "--watch", "-h", "PATH"],
    "toposcope mcp": ["--help", "-h", "FOLDERS"],
    "toposcope sweep": ["--help", "--json", "--risk", "--schedule", "--steps", "-h", "PATH"],
    "toposcope show": ["--help", "--host", "--port", "--webhook", "-h", "PATH"],
    "toposcope forecast": [
        *(
            "--all",
            "--column",
            "--every",
            "--help",
            "--json",
            "--measured",
            "--out",
            "--pattern",
            "--run",
            "--schedule",
            "--siblings",
        ),
        *("--steps", "--unit", "-h", "LOG"),
    ],
    "toposcope decide": [
        *(
            "--budget",
            "--cool-down",
            "--extra",
            "--family",
            "--help",
            "--json",
            "--log",
            "--measured",
        ),
        *("--out", "--parameters", "--points", "--siblings", "--tokens"),
        "-h",
    ],
    "toposcope export": ["--format", "--help", "--out", "-h", "DIRECTORY"],
}


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[str, list[str]]]:
    """Every command below one, with its options and arguments."""
    options = [
        name
        for parameter in command.get_params(context)
        for name in (parameter.opts if isinstance(parameter, click.Option) else [str(parameter.name).upper()])
    ]
    yield context.command_path, sorted(options, key=lambda name: (name.isupper(), name))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if below.callback is not None and not below.callback.__module__.startswith("toposcope."):
                continue  # of another package that is installed
            yield from walk(below, click.Context(below, info_name=name, parent=context))


def surface() -> dict[str, list[str]]:
    return dict(walk(commands, click.Context(commands, info_name="toposcope", **commands.context_settings)))


def test_the_names_of_the_library() -> None:
    # To change it: python tests/support/public_names.py > tests/cli/public_names.txt
    assert public_names() == PUBLIC_NAMES.read_text(encoding="utf-8").split()


def test_every_name_of_the_library_is_there() -> None:
    for line in public_names():
        package, name = line.rsplit(".", 1)
        assert getattr(import_module(package), name) is not None, line


def test_packages_list_their_public_names_and_nothing_else() -> None:
    for package in {line.rpartition(".")[0] for line in public_names()}:
        module = import_module(package)
        assert sorted(dir(module)) == sorted(module.__all__), package


def test_commands_and_their_options() -> None:
    assert surface() == COMMANDS


@pytest.mark.slow
def test_fields_of_json_and_columns_of_csv(tmp_path: Path) -> None:
    # To change them: python tests/support/fields.py > tests/cli/fields.txt
    assert fields(tmp_path) == FIELDS.read_text(encoding="utf-8").splitlines()


def test_every_command_says_what_it_does_with_an_example() -> None:
    for path in COMMANDS:
        command: click.Command = commands
        for name in path.split()[1:]:
            assert isinstance(command, click.Group)
            below = command.get_command(click.Context(command), name)
            assert below is not None
            command = below
        assert command.help, path
        if not isinstance(command, click.Group):
            assert f"Example:\n      {path} " in command.help or f"Example:\n  {path} " in command.help, path
