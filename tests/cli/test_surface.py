"""The public surface, frozen: whoever changes a name or an option changes the files beside this one, and means it."""

from importlib import import_module
from pathlib import Path

import click
import pytest
from fields import fields
from public_names import commands, public_names, surface

PUBLIC_NAMES = Path(__file__).with_name("public_names.txt")
FIELDS = Path(__file__).with_name("fields.txt")


def test_the_names_of_the_library_the_commands_and_their_options() -> None:
    # To change them: python tests/support/public_names.py > tests/cli/public_names.txt
    assert surface() == PUBLIC_NAMES.read_text(encoding="utf-8").splitlines()


def test_every_name_of_the_library_is_there() -> None:
    for line in public_names():
        package, name = line.rsplit(".", 1)
        assert getattr(import_module(package), name) is not None, line


def test_packages_list_their_public_names_and_nothing_else() -> None:
    for package in {line.rpartition(".")[0] for line in public_names()}:
        module = import_module(package)
        assert sorted(dir(module)) == sorted(module.__all__), package


@pytest.mark.slow
def test_arguments_fields_of_json_and_columns_of_csv(tmp_path: Path) -> None:
    # To change them: python tests/support/fields.py > tests/cli/fields.txt
    assert fields(tmp_path) == FIELDS.read_text(encoding="utf-8").splitlines()


def test_every_command_says_what_it_does_with_an_example() -> None:
    for command, context in commands():
        path = context.command_path
        assert command.help, path
        if not isinstance(command, click.Group):
            assert f"Example:\n      {path} " in command.help or f"Example:\n  {path} " in command.help, path
