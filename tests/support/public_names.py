"""What `toposcope` and its packages export, one name a line; then each command with its options and arguments.

After a change that is meant: ``python tests/support/public_names.py > tests/cli/public_names.txt``.
"""

import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module

import click

import toposcope
from toposcope.cli import toposcope as program


def public_names() -> list[str]:
    """Every name in ``__all__`` of `toposcope` and of the packages directly below it, sorted."""
    packages = ["toposcope", *(f"toposcope.{found.name}" for found in pkgutil.iter_modules(toposcope.__path__))]
    return sorted(
        f"{package}.{name}" for package in packages for name in getattr(import_module(package), "__all__", ())
    )


def commands() -> list[tuple[click.Command, click.Context]]:
    """Every command of this distribution, with its context."""
    return list(_walk(program, click.Context(program, info_name="toposcope", **program.context_settings)))


def surface() -> list[str]:
    """The lines of the file."""
    return [*public_names(), *(_with_options(*each) for each in commands())]


def _with_options(command: click.Command, context: click.Context) -> str:
    options = [
        name
        for parameter in command.get_params(context)
        for name in (parameter.opts if isinstance(parameter, click.Option) else [str(parameter.name).upper()])
    ]
    return " ".join([f"{context.command_path}:", *sorted(options, key=lambda name: (name.isupper(), name))])


def _walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        # those of another package that is installed are left out
        if below is not None and (below.callback is None or below.callback.__module__.startswith("toposcope.")):
            yield from _walk(below, click.Context(below, info_name=name, parent=context))


if __name__ == "__main__":
    sys.stdout.write("\n".join(surface()) + "\n")
