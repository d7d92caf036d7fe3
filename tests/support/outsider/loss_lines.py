"""A log format: a step, a learning rate and a loss in each line of a file that ends in ``.losses``."""

from pathlib import Path

import polars as pl

from toposcope.logs.raw import RawLog

ENDINGS = (".losses",)


def runs(path: Path) -> list[RawLog]:
    """Return the rows, and as many parameters as the file's name says."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    facts = {"n_params": float(path.stem.partition("-")[0])}
    return [RawLog(path, "", pl.DataFrame(rows, schema=["step", "lr", "loss"], orient="row"), facts)]
