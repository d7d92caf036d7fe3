"""Groups of commands: listed with their whole first sentence, credentials refused, missing ones explained."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from toposcope.cli.options import BadUse
from toposcope.elsewhere import elsewhere
from toposcope.errors import ToposcopeError, nearest

MAX_SUMMARY = 200  # characters of the sentence that describes a command in a list


def _probe_option(name: str) -> str:
    """Return the option of a default probe that was probably meant, as ``--probe`` takes it; or nothing."""
    from toposcope.probes import probe_types
    from toposcope.study.declaration import DEFAULT_PROBES

    kinds = probe_types()
    for probe in (str(declared["name"]) for declared in DEFAULT_PROBES):
        if meant := nearest(name.lstrip("-"), kinds[probe].__struct_fields__):
            return f"probe {probe}:{meant}=..."
    return ""


class Commands(click.Group):
    """A group of commands; those that `collect` returns join it when a command is asked for.

    A module with one can then be imported by itself.
    """

    def __init__(
        self, *arguments: Any, collect: Callable[[], Mapping[str, click.Command]] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._collect = collect

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse credentials in an argument before any message can show or store them."""
        if any(":" in argument for argument in args):
            from toposcope.checkpoints.sources import refuse_credentials

            try:
                for argument in args:
                    refuse_credentials(argument)
            except ToposcopeError as error:
                raise click.UsageError(str(error)) from error
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an option that it does not have is answered with the one that was probably meant."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if advice := elsewhere(error.option_name):
                raise click.UsageError(f"{error.option_name}: {advice}", ctx=error.ctx) from error
            options = [name for each in error.ctx.command.params for name in each.opts] if error.ctx else []
            meant = nearest(error.option_name.lstrip("-"), [name.lstrip("-") for name in options if name[:2] == "--"])
            meant = meant or (_probe_option(error.option_name) if "--probe" in options else "")
            if not meant:
                raise
            message = f"No such option {error.option_name!r}. Did you mean '--{meant}'?"
            raise click.NoSuchOption(error.option_name, message, ctx=error.ctx) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        self._complete()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; underscores may be typed for dashes."""
        self._complete()
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, cmd_name.replace("_", "-"))

    def _complete(self) -> None:
        if self._collect is not None:
            self.commands.update(self._collect())
            self._collect = None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one of another distribution that is not installed says how to install it."""
        name = args[0]
        if self.get_command(ctx, name) is None and (advice := elsewhere(name)):
            raise BadUse(f"{self.name} {name}: {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        listed = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(MAX_SUMMARY)) for name, command in listed])
