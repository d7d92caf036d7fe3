"""``toposcope layers``."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.shared import Opening, print_table, series_options

if TYPE_CHECKING:
    from toposcope.checkpoints import Checkpoint, Layer

FIRST_NAMES = 5


@click.command()
@click.argument("spec")
@click.option("--step", type=click.IntRange(min=0), help="Of the checkpoint; the last if left out.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@series_options
def layers(spec: str, step: int | None, as_json: bool, opening: Opening) -> None:
    """Show the layers of one checkpoint and what was recognised in their names. No weights are read.

    SPEC is a series or one checkpoint, as for `toposcope measure`. A layer is a two-dimensional weight. Those whose
    name is in no table have the role "other" and are measured too; --role, as often as needed, names their role, and
    comes before the table.

    \b
    Example:
      toposcope layers checkpoints/ --step 1000
      toposcope layers checkpoints/ --role 'att.key=attn.k' --role 'ffn.key=mlp.in'
    """
    found = (opening if step is None else replace(opening, steps=[step])).open(spec)
    told = _told(found[-1])
    if as_json:
        click.echo(json.dumps(told))
    else:
        _show(told)


def _told(checkpoint: Checkpoint) -> dict[str, Any]:
    from toposcope.checkpoints.roles import UNKNOWN, is_buffer

    found = checkpoint.layers()
    rows = [_row(checkpoint, layer) for layer in found]
    names = {layer.name for layer in found}
    stored = [entry for entry in checkpoint.entries if entry.is_float and not is_buffer(entry.name)]
    return {
        "checkpoint": checkpoint.location,
        "step": checkpoint.step,
        "tokens": checkpoint.tokens,
        "layers": rows,
        "bytes": sum(layer.n_bytes for layer in found),
        "parameters": sum(math.prod(entry.shape) for entry in stored),
        "roles": dict(sorted(Counter(layer.role for layer in found).items())),
        "unknown": [row["name"] for row in rows if row["recognised"] == UNKNOWN],
        "others": [{"name": e.name, "shape": e.shape} for e in checkpoint.entries if e.name not in names],
        "notes": sorted({layer.note for layer in found if layer.note}),
    }


def _row(checkpoint: Checkpoint, layer: Layer) -> dict[str, Any]:
    from toposcope.checkpoints.roles import NOT_ANALYSED, recognised

    return {
        "name": layer.name,
        "role": layer.role,
        "recognised": recognised(layer.name, checkpoint.roles)[1],
        "shape": layer.shape,
        "dtype": layer.dtype,
        "bytes": layer.n_bytes,
        "measured": layer.role not in NOT_ANALYSED,
        "transposed": layer.transposed,
    }


def _show(told: dict[str, Any]) -> None:
    from rich.filesize import decimal

    rows = [
        (
            row["name"],
            row["role"],
            row["recognised"],
            " x ".join(map(str, row["shape"])),
            row["dtype"],
            decimal(row["bytes"]),
            "yes" if row["measured"] else "no",
            "transposed" if row["transposed"] else "",
        )
        for row in told["layers"]
    ]
    columns = ("layer", "role", "recognised by", "shape", "dtype", "size", "measured", "stored")
    print_table(columns, rows, f"Layers of step {told['step']}")
    click.echo(told["checkpoint"])
    click.echo(f"{len(rows)} layers, {decimal(told['bytes'])}; {told['parameters']:,} parameters stored in all")
    if told["roles"]:
        click.echo("roles: " + ", ".join(f"{role} {count}" for role, count in told["roles"].items()))
    if told["others"]:
        click.echo("not layers: " + _by_axes(told["others"]))
    if told["unknown"]:
        click.echo(
            f"unknown: {len(told['unknown'])}, measured as other: {_some(told['unknown'])}; "
            "give a role with --role REGEX=ROLE"
        )
    for note in told["notes"]:
        click.echo(f"note: {note}", err=True)


def _by_axes(others: list[dict[str, Any]]) -> str:
    """Count what is no matrix by its number of axes; what has more than one is named."""
    by_axes: dict[int, list[str]] = {}
    for other in others:
        by_axes.setdefault(len(other["shape"]), []).append(other["name"])
    return "; ".join(
        f"{len(names)} with {axes} {'axis' if axes == 1 else 'axes'}" + (f" ({_some(names)})" if axes > 1 else "")
        for axes, names in sorted(by_axes.items())
    )


def _some(names: list[str]) -> str:
    more = len(names) - FIRST_NAMES
    return ", ".join(names[:FIRST_NAMES]) + (f" and {more} more" if more > 0 else "")
