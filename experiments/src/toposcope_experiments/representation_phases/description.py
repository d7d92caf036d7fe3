"""The three phases of representations in words: in how many runs, and whether the diagrams turn with the rank."""

import polars as pl

from toposcope.extend import LEVEL, Material, cloud_named, clouds_of, joined, runs_of

THREE = "warm-up, entropy-seeking, compression-seeking"
MAX_NAMED = 3  # groups of runs that are named
CLOUD = r" [^ ]+( / scale)?$"  # what follows the cloud in the name of a feature


def rows_of_clouds(material: Material) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of the table of phases of the clouds that charts are of: the rank, one a run; and diagrams."""
    table, clouds = material.tables["representation_phases"], clouds_of(material.trajectories)
    rows = table.filter(pl.col("feature").str.replace(CLOUD, "").is_in(clouds), pl.col("n_turns").is_not_null())
    spectral = rows.filter(kind="spectral").unique("run", keep="first", maintain_order=True)
    return spectral, rows.filter(kind="diagram")


def describe_phases(spectral: pl.DataFrame, diagrams: pl.DataFrame) -> str:
    """Say in how many runs the three phases are found, and whether diagrams turn there more often than by chance."""
    exact = spectral.filter(pl.col("phases") == THREE)
    further = spectral.filter(pl.col("phases").str.starts_with(f"{THREE}, "))
    ended = " and with nothing after" if len(further) else ""
    found = f"The three phases of Li et al., in order{ended}, are found in {runs_of(len(exact), len(spectral))}"
    if len(further):
        found += f"; with a fourth stretch after, in {runs_of(len(further), len(spectral))}"
    others = spectral.filter(pl.col("phases") != THREE)
    if len(others):
        by_phases = others.group_by("phases", maintain_order=True).agg("run")
        summary = [f"{', '.join(runs)}: {phases or 'no turn'}" for phases, runs in by_phases.iter_rows()]
        found += f" ({'; '.join(summary)})" if len(summary) <= MAX_NAMED else ""
    asked = diagrams.filter(pl.col("follows").is_not_null())
    if not len(asked):
        return f"{found}; whether the diagrams turn with the rank cannot be asked."
    alone = (pl.col("follows") == "first") & (_n_targets(asked, spectral) == 1)
    whole = asked.filter(pl.col("follows").is_in(["both", "all"]) | alone)
    met = asked.filter(pl.col("follows") != "none")
    beyond = asked.filter(pl.col("follows") != "none", pl.col("chance") <= LEVEL)
    return (
        f"{found}. Of {len(asked)} statistics of the diagrams of {_clouds(asked)} beside a rank that turns, {len(met)} "
        f"turn at one of its turns at least, {len(whole)} at all of them. For {len(beyond)} of them turns placed at "
        f"random seldom meet as many (p of at most {LEVEL:g}); so it would be for up to {LEVEL * len(asked):.1f} by "
        "chance alone."
    )


def _clouds(rows: pl.DataFrame) -> str:
    """Name the clouds that the rows are of."""
    return joined(
        [cloud_named(label) for label in rows.get_column("feature").str.replace(CLOUD, "").unique(maintain_order=True)]
    )


def _n_targets(asked: pl.DataFrame, spectral: pl.DataFrame) -> pl.Series:
    turns = dict(spectral.select("run", "n_turns").iter_rows())
    return asked.get_column("run").replace_strict(turns, default=0, return_dtype=pl.Int64)
