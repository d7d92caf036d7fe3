"""Arguments of public functions, fields of JSON and columns of CSV that commands write, one a line.

What commands write is that of small runs.

After a change that is meant: ``python tests/support/fields.py > tests/cli/fields.txt``. A star stands for names that
are data: of forecasters, roles, statistics. The JSON of `check` and `sweep` has a schema in ``docs/``.
"""

import csv
import inspect
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from commands import called
from small_models import save, some_lines
from three_checkpoints import write_series

from toposcope.family.model import build
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.report.section import makers_of
from toposcope.report.sections import report_sections
from toposcope.report.writing import study_page
from toposcope.study import Study

OPEN = {
    "approaches",
    "refused",
    "evidence",
    "roles",
    "forecasts",
    "diagnostics",
    "statistics",
    "standard_errors",
    "options",
}
"""Fields whose keys are data."""
PACKAGES = ("toposcope", "toposcope.homology", "toposcope.torch")


def fields(folder: Path) -> list[str]:
    """List the arguments of functions; run every command that prints JSON or writes CSV, and list what it wrote."""
    found = {line for package in PACKAGES for line in _signatures(package)}
    found |= {line for name, value in _answers(folder) for line in _paths(value, f"{name} --json ")}
    for path in sorted((folder / "csv").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found |= {f"{path.stem}.csv {column}" for column in next(csv.reader(file))}
    makers = makers_of(report_sections())
    tables = study_page(Study.load(folder / "study")).compose(()).tables
    own = {name for name in tables if makers[name].__module__.startswith("toposcope.")}
    found |= {f"report/tables/{name}.csv {column}" for name in own for column in tables[name].columns}
    return sorted(line for line in found if not any(other.startswith(f"{line}.") for other in found))


def _signatures(package: str) -> Iterator[str]:
    """Yield the public functions and classes of a package with their arguments."""
    module = import_module(package)
    for name in module.__all__:
        if callable(item := getattr(module, name)) and name != "ToposcopeError":
            yield f"{package}.{name}({', '.join(inspect.signature(item).parameters)})"


def _answers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name of a command and what it printed."""
    series, log, points, text = folder / "run", folder / "log.csv", folder / "points.csv", folder / "text.txt"
    siblings = [_log(folder / "siblings" / f"{k}.csv", 400, 3 + 0.1 * k) for k in range(5)]
    write_series(series)
    (series / "step_030.safetensors").write_bytes((series / "step_020.safetensors").read_bytes())  # a finding
    _log(log, 200, 3.05)
    points.write_text(_points())
    text.write_text(some_lines(12))
    held = _held(folder / "held")
    place, out, study = held / "checkpoints", folder / "csv", folder / "study"
    small = ("--resolution", "5", "--seeds", "2")
    yield "layers", _asked("layers", series)
    yield "doctor", _asked("doctor", series)
    yield "study plan", _asked("study", "plan", series)
    yield "measure", _asked("measure", series, "--probe", "controls", "--workers", "1", "--out", out / "measure.csv")
    _asked("study", "run", series, "--out", study, "--workers", "1", as_json=False)
    yield "study status", _asked("study", "status", study)
    _asked("export", study, "--format", "csv", "--out", out, as_json=False)
    yield "forecast", _asked("forecast", log, "--siblings", folder / "siblings")
    yield "forecast", _asked("forecast", siblings[0])
    yield "decide", _asked("decide", "--points", points, "--parameters", "1e8", "--tokens", "1e10", "--extra", "1e17")
    yield "cooldown", _asked("cooldown", held, "--text", text, "--all")
    yield "landscape", _asked("landscape", place, "--text", text, *small)


def _asked(*words: str | Path, as_json: bool = True) -> Any:
    done = called(*words, *(["--json"] if as_json else []))
    assert done.code in (0, 1), done.out + done.err  # 1: it found a fault
    return json.loads(done.out) if as_json else None


def _paths(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        is_open = at.rpartition(".")[2].rpartition(" ")[2] in OPEN
        for key, each in value.items():
            name = "*" if is_open else key
            yield from _paths(each, f"{at}{name}" if at.endswith(" ") else f"{at}.{name}")
    elif isinstance(value, list):
        for each in value or [None]:
            yield from _paths(each, f"{at}[]")
    else:
        yield at


def _log(path: Path, last: int, level: float) -> Path:
    """A run of 400 steps, as far as it has come."""
    draw = np.random.default_rng(round(100 * level))
    path.parent.mkdir(exist_ok=True)
    rows = [f"{10 * k},{level + 8 * (10 * k) ** -0.45 + 0.004 * draw.normal()},0.001,4000" for k in range(1, last + 1)]
    path.write_text("\n".join(["step,loss,lr,max_steps", *rows]) + "\n")
    return path


def _points() -> str:
    """Points on a scaling law, nearly."""
    law, draw = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36), np.random.default_rng(0)
    rows = [
        (n, d, law.loss(n, d) * np.exp(0.003 * draw.normal())) for n in (5e7, 1e8, 2e8, 4e8) for d in (5e9, 2e10, 8e10)
    ]
    return "N,D,loss\n" + "".join(f"{n},{d},{loss}\n" for n, d, loss in rows)


def _held(folder: Path) -> Path:
    """A run at constant rate that learned nothing."""
    model = build("tiny-3k", initial_scale=4.0)
    for step in range(0, 97, 4):
        save(model, folder / "checkpoints", step)
    rows = [f"{step},{5 - step / 100},0.01" for step in range(1, 97)]
    (folder / "log.csv").write_text("\n".join(["step,loss,learning_rate", *rows]) + "\n")
    return folder


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        sys.stdout.write("\n".join(fields(Path(place))) + "\n")
