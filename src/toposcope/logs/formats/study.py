"""A study of ours, with the training logs of all its runs."""

from pathlib import Path

import msgspec
import polars as pl

from toposcope.logs.formats.run_folder import facts_of
from toposcope.logs.raw import Raw

FILES = ("study.toml", "study.db")


def claims(path: Path) -> bool:
    """Tell whether it is a study's folder, or its database or declaration in there."""
    folder = path.parent if path.is_file() else path
    return (path.is_dir() or path.name in FILES) and all((folder / name).is_file() for name in FILES)


def runs(path: Path) -> list[Raw]:
    """Return the logs of a study; runs trained in it are one family."""
    from toposcope.study.study import Study

    study = Study.load(path.parent if path.is_file() else path)
    log = study.log()
    trained = {run.name: facts_of(msgspec.to_builtins(run)) for run in study.declaration.resolved_runs()}
    sizes = dict(study.runs().select("run", "n_parameters").iter_rows())
    return [
        Raw(
            study.directory,
            name,
            log.filter(pl.col("run") == name).drop("run"),
            facts={"n_parameters": size, **trained.get(name, {})}
            | ({"family": study.declaration.name} if name in trained else {}),
        )
        for name, size in sizes.items()
    ]
