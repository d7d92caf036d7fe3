"""Wrong names: each message names the one that was probably meant."""

import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from small_studies import RIPS, write_series

import toposcope as ts
from toposcope import homology
from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError, WrongCallError, checks_arguments
from toposcope.study import Declaration, run_study
from toposcope.study.declaration import DeclaredSeries, load_declaration

POINTS = np.random.default_rng(0).normal(size=(12, 3))
FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (ts, homology)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_public_function_answers_an_unknown_name(function: Callable[..., Any]) -> None:
    with pytest.raises(WrongCallError, match=f"{function.__name__}: no argument 'no_such_name'; choose from "):
        function(no_such_name=1)
    names = inspect.signature(function).parameters
    assert list(names) == list(inspect.signature(inspect.unwrap(function)).parameters)
    assert function.__doc__ == inspect.unwrap(function).__doc__
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301 - a pool of processes takes it


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxdim": 1}, "did you mean 'max_dimension'?"),
        ({"thresh": 2.0}, "did you mean 'threshold'?"),
        ({"distance_matrix": True}, 'metric="precomputed"'),
        ({"max_dimensoin": 1}, "did you mean 'max_dimension'?"),
    ],
)
def test_options_of_other_libraries(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError) as error:
        ts.rips(POINTS, **options)
    assert isinstance(error.value, ToposcopeError)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("show", "`toposcope show RUNS`"), ("plot", "plot_series(frame)"), ("read_logs", "did you mean 'read_log'?"),
        ("reports", "did you mean 'report'?"), ("correlation", "did you mean 'correlations'?"),
    ],
)  # fmt: skip
def test_names_that_people_try(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(words)):
        getattr(ts, name)
    assert set(dir(ts)) == set(ts.__all__)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two short series."""
    folder = tmp_path_factory.mktemp("names")
    series = []
    for name in ("first", "second"):
        write_series(folder / name, [0, 10, 20, 30, 40, 50])
        series.append(DeclaredSeries(path=str(folder / name)))
    run_study(Declaration(name="tried", series=series, probes=[RIPS]), folder / "study", workers=1)
    return folder / "study"


def test_a_study_is_reported_and_correlated_by_its_folder_or_itself(measured: Path) -> None:
    study = ts.Study.load(measured)
    with pytest.raises(
        AttributeError, match=r"a Study has no attribute 'correlations'; toposcope\.correlations\(study\)"
    ):
        study.correlations  # type: ignore[attr-defined]  # noqa: B018
    assert ts.correlations(study).equals(ts.correlations(measured))
    import toposcope.report

    assert ts.report is toposcope.report
    page = ts.report(study)  # type: ignore[operator]
    assert page == ts.report(str(measured))  # type: ignore[operator]
    assert "tried" in page.read_text()
    with pytest.raises(ToposcopeError, match="expected a Study or its folder, got int"):
        ts.report(3)  # type: ignore[operator]


def test_what_was_measured_is_drawn(measured: Path) -> None:
    frame = ts.Study.load(measured).frame()
    rows = frame.filter(layer="network", statistic="H0.total")
    drawn = next(rows for rows in ts.plot_series(frame, "H0.total").spec()["datasets"].values() if len(rows) == 12)
    expected = rows.select("run", "step", "value").rows()
    assert sorted((row["run"], row["step"], row["value"]) for row in drawn) == sorted(expected)
    with pytest.raises(ToposcopeError, match=r"did you mean 'H0\.total'"):
        ts.plot_series(frame, "H0.totl")
    with pytest.raises(ToposcopeError, match="did you mean 'network'"):
        ts.plot_series(frame, layer="net")
    with pytest.raises(ToposcopeError, match=r"frame: no column 'layer'; give what toposcope\.measure or"):
        ts.plot_series(frame.drop("layer"))


def test_arguments_without_a_name_are_counted() -> None:
    with pytest.raises(
        WrongCallError, match=r"rips: 2 arguments without a name, and it takes 1 \(points\); name the oth"
    ):
        ts.rips(POINTS, 1)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="missing 1 required"):
        ts.rips()  # type: ignore[call-arg]
    assert len(ts.rips(points=POINTS, max_dimension=1)) == 2


def test_what_takes_any_name_is_left_alone() -> None:
    def any_name(**options: int) -> int:
        return len(options)

    assert checks_arguments(any_name) is any_name


def test_names_of_modules() -> None:
    for module, name in ((ts, "ripser"), (homology, "wasserstein_distance")):
        with pytest.raises(AttributeError, match=r"did you mean '(rips|wasserstein)'"):
            getattr(module, name)
    assert not hasattr(ts, "__path_of_nothing__")


@pytest.mark.parametrize("probes", ["rips", {"name": "rips"}, ["rips"], ({"name": "rips"},)])
def test_one_probe_stands_for_a_sequence(probes: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "run").mkdir()
    for step in (1, 2):
        torch.save({"fc.weight": torch.eye(6) + step / 10}, tmp_path / "run" / f"step_{step}.pt")
    model = torch.nn.Linear(4, 6)
    assert set(ts.measure(tmp_path / "run", probes=probes)["probe"]) == {"rips"}
    assert ts.Monitor(model, tmp_path / "monitored", probes=probes, quiet=True)._probes == [{"name": "rips"}]
    written = (
        f'"{probes}"' if isinstance(probes, str) else '{name = "rips"}' if isinstance(probes, dict) else '["rips"]'
    )
    (tmp_path / "study.toml").write_text(f'name = "s"\nprobes = {written}\n[[series]]\npath = "{tmp_path / "run"}"\n')
    assert load_declaration(tmp_path / "study.toml").probes == [{"name": "rips"}]


def test_mistakes_in_probes(tmp_path: Path) -> None:
    for probes, words in (
        ("ripps", "did you mean 'rips'"),
        ({"name": "rips", "maxdim": 1}, "unknown option 'maxdim'; did you mean 'max_dimension'"),
        (3, "probes: 3 is none; give names"),
    ):
        for call in (lambda p: ts.measure(tmp_path, probes=p), lambda p: ts.Monitor(probes=p)):
            with pytest.raises(ToposcopeError, match=words):
                call(probes)
    with pytest.raises(WrongCallError, match="Monitor: no argument 'log_every'; did you mean 'every'"):
        ts.Monitor(log_every=10)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("measure", "runs", "--maxdim", "1"), "--probe rips:max_dimension=..."),
        (("study", "run", "x.toml", "--num-workers", "2"), "--workers"),
    ],
)
def test_options_of_commands(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(toposcope, list(arguments))
    assert done.exit_code == 2
    assert f"Did you mean '{words}'?" in done.stderr
