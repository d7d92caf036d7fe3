"""What is known of the runs of evaluations: from tables beside them, and from their names."""

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import polars as pl

from toposcope.logs.evaluations.evaluations import SCHEMA, RawEvaluations, short_number
from toposcope.logs.evaluations.names import PublicModel, public_model, read_name
from toposcope.logs.raw import join_names, plural

MIN_LARGEST = 1e5  # parameters or tokens; all of a table in millions and billions stay below


def known_runs(table: pl.DataFrame, facts: Sequence[RawEvaluations], remarks: list[str]) -> pl.DataFrame:
    """Return the table with N, D, step, seed and recipe from tables of runs, then from the names."""
    nameless = table["run"].null_count()
    if nameless:
        remarks.append(f"{plural(nameless, 'row names', 'rows name')} no run: ignored")
        table = table.filter(pl.col("run").is_not_null())
    table = _without_common_folder(table)
    for fact in facts:
        _unmatched(table, fact, remarks)
        table = _joined(table, fact.table)
    table = table.with_columns(D=pl.coalesce("D", pl.col("step") * pl.col("tokens_per_step")))
    table = _from_names(table, remarks).with_columns(recipe=pl.col("recipe").fill_null(""))
    table = _apart(table, "recipe", pl.format("{} {}", pl.col("recipe"), pl.col("run")), "recipes", remarks)
    table = _apart(table, "N", pl.format("{} N={}", pl.col("run"), short_number("N")), "sizes N", remarks)
    table = _apart(table, "seed", pl.format("{} seed {}", pl.col("run"), pl.col("seed")), "seeds", remarks)
    return _along_steps(table, remarks)


def _apart(table: pl.DataFrame, column: str, renamed: pl.Expr, what: str, remarks: list[str]) -> pl.DataFrame:
    """Return the table with runs that differ in a column under names that differ."""
    several = table.group_by("run").agg(pl.col(column).drop_nulls().n_unique()).filter(pl.col(column) > 1)["run"].sort()
    if several.is_empty():
        return table
    remarks.append(f"run {several[0]} has several {what}: each is a run of its own")
    again = pl.col("run").is_in(several.implode()) & pl.col(column).is_not_null()
    return table.with_columns(run=pl.when(again).then(renamed).otherwise("run"))


def _without_common_folder(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with runs that are folders on a disk named without the part of their path that all share."""
    runs = [run for run in table["run"].unique() if run.startswith(("/", "./", "../"))]
    if not runs:
        return table
    folder = os.path.commonpath([str(PurePosixPath(run).parent) for run in runs])
    short = {run: str(PurePosixPath(run).relative_to(folder)) for run in runs}
    if not set(short.values()).isdisjoint(set(table["run"]) - set(runs)):
        return table
    if any(public_model(name) and not public_model(run) for run, name in short.items()):
        return table
    return table.with_columns(run=pl.col("run").replace(short))


def _joined(table: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Return the table with what a table of runs says, where it says something; of a checkpoint, if it has steps."""
    facts = facts.filter(pl.col("run").is_not_null())
    names = _matches(table["run"].unique().to_list(), facts["run"].unique().to_list())
    matched = pl.col("run").replace_strict(names, default=None, return_dtype=pl.String)
    table = table.with_columns(matched=matched)
    of_run, of_step = ["recipe", "N", "tokens_per_step", "seed"], ["D"]
    if facts["step"].null_count():
        of_run, of_step = [*of_run, *of_step], []
    for key, said in ((["run"], of_run), (["run", "step"], of_step)):
        unique = facts.group_by(key, maintain_order=True).agg(pl.col(said).drop_nulls().first())
        unique = unique.rename({"run": "matched", **{name: f"{name}_said" for name in said}})
        on = ["matched", *key[1:]]
        table = table.join(unique, on=on, how="left", maintain_order="left")
        table = table.with_columns(pl.coalesce(f"{name}_said", name).alias(name) for name in said)
    return table.drop("matched", pl.selectors.ends_with("_said"))


def _unmatched(table: pl.DataFrame, facts: RawEvaluations, remarks: list[str]) -> None:
    """Add a remark on runs that a table of runs does not name."""
    runs, names = sorted(table["run"].unique()), sorted(facts.table["run"].drop_nulls().unique())
    matched = _matches(runs, names)
    where, others = facts.source.name, [run for run in runs if run not in matched]
    unused = [name for name in names if name not in matched.values()]
    if not matched:
        remarks.append(
            f"{where} matches no run: it names {join_names(unused, 3)}, the evaluations {join_names(runs, 3)}; write "
            "its column run as the evaluations do"
        )
    elif others:
        rest = f"; {where} names {join_names(unused, 3)} besides" if unused else ""
        remarks.append(f"{len(matched)} of {len(runs)} runs are in {where}, without {join_names(others, 4)}{rest}")
    elif unused:
        remarks.append(f"{plural(len(unused), 'run', 'runs')} of {where} without evaluations: {join_names(unused, 4)}")


def _matches(runs: list[str], names: list[str]) -> dict[str, str]:
    """Return which name in a table of runs is each run's: the same, or the only one that ends like it.

    Ends are what stands behind the last ``/``, or ``__`` in its place.
    """

    def by_end(texts: list[str]) -> dict[str, list[str]]:
        ends: dict[str, list[str]] = {}
        for text in texts:
            ends.setdefault(text.replace("__", "/").rpartition("/")[2].lower(), []).append(text)
        return ends

    same = {run: run for run in runs if run in names}
    ends = by_end(names)
    others = by_end([run for run in runs if run not in same])
    alike = {found[0]: ends[end][0] for end, found in others.items() if len(found) == len(ends.get(end, [])) == 1}
    return {**same, **alike}


def _from_names(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with what the names of runs say, where nothing else does."""
    runs = table.group_by("run").agg(pl.col("step").unique()).sort("run")
    names = [read_name(run) for run in runs["run"]]
    schema = {field: SCHEMA.get(field, pl.String) for field in ("run", "N", "D", "step", "family")}
    rows = [(run, n.N, n.D, n.step, n.family) for run, n in zip(runs["run"], names, strict=True)]
    said = pl.DataFrame(rows, schema, orient="row")
    joined = table.join(said, on="run", how="left", suffix="_said", maintain_order="left")
    public = {
        run: name.public
        for run, name, steps in zip(runs["run"], names, runs["step"], strict=True)
        if name.public and all(step is None or name.public.has_step(step) for step in steps)
    }
    joined = _from_publishers(joined.with_columns(step=pl.coalesce("step", "step_said")), public, remarks)
    for field, what in (("N", "parameters N are"), ("D", "tokens D are")):
        used = joined.filter(pl.col(field).is_null() & pl.col(f"{field}_said").is_not_null())["run"].unique().sort()
        if len(used):
            remarks.append(f"{what} read from the names of {plural(len(used), 'run', 'runs')} such as {used[0]}")
    families = (joined["named"] | joined["family_public"].is_not_null()) & joined["recipe"].is_null()
    members = joined.filter(families).select("family", size=pl.coalesce("N", "N_said")).unique()
    # a family of one size each would leave no ladder at all
    if len(members) > members["family"].n_unique() and not members["family"].null_count():
        joined = joined.with_columns(recipe=pl.when(families).then("family").otherwise("recipe"))
    return joined.with_columns(pl.coalesce(f, f"{f}_said").alias(f) for f in ("N", "D")).select(table.columns)


def _from_publishers(table: pl.DataFrame, models: Mapping[str, PublicModel], remarks: list[str]) -> pl.DataFrame:
    """Return the table with sizes, tokens and families of public models, where neither file nor name states them."""
    keys = [(run, step) for run, step in table.select("run", "step").unique().rows() if run in models]
    rows = [(run, step, (of := models[run]).N, of.tokens_at(step), of.family) for run, step in keys]
    types = {**dict.fromkeys(("N_public", "D_public"), pl.Float64), "family_public": pl.String}
    declared = pl.DataFrame(rows, {"run": SCHEMA["run"], "step": SCHEMA["step"], **types}, orient="row")
    joined = table.join(declared, on=["run", "step"], how="left", nulls_equal=True, maintain_order="left")
    joined = joined.with_columns(D_public=pl.when(pl.col("D_said").is_null()).then("D_public"))
    used = joined.filter(pl.any_horizontal(pl.col(f).is_null() & pl.col(f"{f}_public").is_not_null() for f in "ND"))
    if runs := sorted(used["run"].unique()):
        what = f"sizes and tokens of {plural(len(runs), 'run', 'runs')} such as {runs[0]}"
        remarks.append(f"{what} are those that their publishers declare")
    if tuned := [run for run in runs if models[run].fine_tuned]:
        what = f"{plural(len(tuned), 'run', 'runs')} such as {tuned[0]}"
        remarks.append(f"N of {what}, trained further by the publisher, is the base model's; tokens D are unknown")
    return joined.with_columns(
        N=pl.coalesce("N", "N_public"), D=pl.coalesce("D", "D_public"), family=pl.coalesce("family_public", "family")
    )


def _along_steps(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with tokens by step, where a run states those of its end alone."""
    last, several = pl.col("step").max().over("run"), pl.col("step").n_unique().over("run") > 1
    same = (pl.col("D").n_unique().over("run") == 1) & pl.col("D").is_not_null().all().over("run")
    of_end = several & same & (last > 0) & pl.col("step").is_not_null().all().over("run")
    runs = table.filter(of_end)["run"].unique().sort()
    if len(runs):
        remarks.append(
            f"tokens D of {join_names([*runs], 4)} are stated for the run as a whole: taken at its last step, and in "
            "proportion before"
        )
    return table.with_columns(D=pl.when(of_end).then(pl.col("D") * pl.col("step") / last).otherwise("D"))


def missing_sizes(table: pl.DataFrame, remarks: list[str]) -> None:
    """Add a remark on runs without parameters or tokens, and on sizes that look like millions and billions."""
    largest = [float(known.max()) for name in ("N", "D") if len(known := table[name].drop_nulls().to_numpy())]
    if len(largest) == 2 and max(largest) < MIN_LARGEST:
        remarks.append(
            f"N up to {largest[0]:.4g} and D up to {largest[1]:.4g} look like millions and billions; give parameters "
            "and tokens themselves"
        )
    elif len(sizes := table["N"].drop_nulls().to_numpy()) and sizes.max() < MIN_LARGEST:
        remarks.append(f"N up to {sizes.max():.4g} looks like millions or billions; give parameters themselves")
    for column, what in (("N", "parameters N"), ("D", "tokens D")):
        runs = table.filter(pl.col(column).is_null())["run"].unique().sort()
        if len(runs):
            remarks.append(
                f"{plural(len(runs), 'run states', 'runs state')} no {what} ({join_names([*runs], 4)}): give a table "
                f"runs.csv (run, N, D) beside the files"
            )
