"""A run in an ``mlruns`` folder of MLflow: one text file a metric, one a parameter."""

from pathlib import Path

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog, plural
from toposcope.logs.splitting import pivot_long


def claims(path: Path) -> bool:
    """Return whether the path is the folder of one run."""
    return (path / "meta.yaml").is_file() and (path / "metrics").is_dir()


def runs(path: Path) -> list[RawLog]:
    """Return the metrics of a run, with its parameters as facts."""
    if "lifecycle_stage: deleted" in _text(path / "meta.yaml"):
        raise ToposcopeError("the run was deleted in MLflow")
    metrics = path / "metrics"
    files = sorted(file for file in metrics.rglob("*") if file.is_file())
    remarks: list[str] = []
    tables = [_metric(file, file.relative_to(metrics).as_posix(), remarks) for file in files]
    if not tables:
        raise ToposcopeError("no metric was logged")
    parameters = path / "params"
    facts: dict[str, object] = {f.name: _text(f) for f in sorted(parameters.glob("*")) if f.is_file()}
    name = path / "tags" / "mlflow.runName"
    run = _text(name) if name.is_file() else path.name
    return [RawLog(path, run, pivot_long(pl.concat(tables), "key"), facts=facts, remarks=tuple(remarks))]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace").strip()


def _metric(file: Path, name: str, remarks: list[str]) -> pl.DataFrame:
    """Return the lines of a metric, ``timestamp value step``."""
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.split("\n") if line.strip()]
    if lines and not text.endswith("\n"):
        # a step that was cut has fewer digits than the one before
        before = len(lines[-2][-1]) if len(lines) > 1 else 0
        if len(lines[-1]) < 3 or len(lines[-1][2]) < before:
            lines.pop()
            remarks.append(f"metric {name}: the last line was cut in the middle: ignored")
    rows = [(name, line[1], line[2]) for line in lines if len(line) == 3]
    if len(rows) < len(lines):
        remarks.append(
            f"metric {name}: {plural(len(lines) - len(rows), 'line has', 'lines have')} not 3 parts: ignored"
        )
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String, "step": pl.String}, orient="row")
