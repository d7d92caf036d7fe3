"""``toposcope layers``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from toposcope.cli.options import Count, Opening, json_option, series_options
from toposcope.cli.output import print_lines, print_notes, print_table

if TYPE_CHECKING:
    from toposcope.checkpoints.inventory import ListedLayer


def _read_as(row: ListedLayer) -> str:
    stored = ("transposed" if row.transposed else "") if row.orientation else "as stored, orientation unknown"
    return ", ".join(filter(None, (row.how, stored)))


@click.command()
@click.argument("spec")
@click.option("--step", type=Count(min=0), help="Step of the checkpoint (default: the last).")
@json_option
@series_options
def layers(spec: str, step: int | None, as_json: bool, opening: Opening) -> None:
    """Show the layers of one checkpoint, how each was recognised, and what the other tensors are.

    SPEC is a series or one checkpoint, as for `toposcope measure`. A layer is a weight matrix. Layers that are not
    recognised have the role "other" and are measured too; --role, repeated as needed, gives them a role and takes
    precedence over the built-in rules.

    \b
    Example:
      toposcope layers checkpoints/ --step 1000
      toposcope layers checkpoints/ --role 'att.key=attn.k' --role 'ffn.key=mlp.in'
    """
    import msgspec
    from rich.filesize import decimal

    from toposcope.checkpoints.inventory import Inventory

    opened = (opening if step is None else replace(opening, steps=[step])).open(spec)
    inventory = Inventory.of(opened[-1])
    if as_json:
        click.echo(msgspec.json.encode(inventory).decode())
        return
    columns = ("layer", "role", "recognised by", "shape", "dtype", "size", "measured", "read as")
    rows = [
        (
            *(row.name, row.role, row.recognised, " x ".join(map(str, row.shape)), row.dtype, decimal(row.bytes)),
            *("yes" if row.measured else "no", _read_as(row)),
        )
        for row in inventory.layers
    ]
    print_table(columns, rows, f"Layers of step {inventory.step}")
    click.echo(inventory.checkpoint)
    click.echo(f"{len(rows)} layers, {decimal(inventory.bytes)}; {inventory.parameters:,} parameters stored in all")
    print_lines(inventory.summary())
    print_notes((*opened.notes, *inventory.notes))
