"""What is asked for: models by size or by run, and the runs of the ladder."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.wording import short
from toposcope_downstream.evaluations import COLUMNS, Evaluations
from toposcope_downstream.predicted import Model
from toposcope_downstream.selection import models_of, select_runs


def evaluations(**runs: tuple[float | None, float | None]) -> Evaluations:
    """Two evaluations of each run, at half of its tokens and at all."""
    names = {name.replace("_", "-"): sizes for name, sizes in runs.items()}
    rows = [
        {"run": name, "recipe": "", "N": N, "D": None if D is None else D * share, "task": "t", "metric": "acc",
         "role": "score", "value": 0.5}
        for name, (N, D) in names.items()
        for share in (0.5, 1.0)
    ]  # fmt: skip
    return Evaluations(pl.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], schema=COLUMNS))


RUNS = evaluations(small_1=(1e8, 2e9), small_2=(2e8, 4e9), now=(7e9, 1e11), nameless=(None, None))


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("N=7e9,D=4e12", Model("7B on 4T tokens", 7e9, 4e12)),
        (" D=4T , N=190M ", Model("190M on 4T tokens", 1.9e8, 4e12)),
        ("large,N=7b,D=4t", Model("large", 7e9, 4e12)),
        ("now", Model("now", 7e9, 1e11)),
        ("now,D=1T", Model("now", 7e9, 1e12)),
        ("nameless,N=1e9,D=2e10", Model("nameless", 1e9, 2e10)),
    ],
)
def test_a_model_is_named_by_its_size_or_by_a_run(text: str, model: Model) -> None:
    assert models_of([text], RUNS) == [model]


def test_a_run_may_have_commas_in_its_name() -> None:
    table = RUNS.table.with_columns(pl.col("run").replace("now", "lr=3e-4,warm"))
    assert models_of(["lr=3e-4,warm"], Evaluations(table)) == [Model("lr=3e-4,warm", 7e9, 1e11)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("N=7e9", "tokens missing; add D=4T"),
        ("D=7e9", "parameters missing; add N=7B"),
        ("N=-7e9,D=1e12", "N=-7e9; expected a positive number"),
        ("N=nan,D=1e12", "N=nan; expected a positive number"),
        ("N=seven,D=1e12", "N=seven; expected a positive number"),
        ("N=7e9,D=1e12,steps=5", "steps=; expected N=7B,D=4T"),
        ("a,b,N=7e9,D=1e12", "expected N=7B,D=4T"),
        ("", "expected N=7B,D=4T"),
        ("nameless", "the run states no parameters; add N=7B"),
        ("nwo,D=1T", "no run is named nwo; state N=7B,D=4T, or did you mean 'now'?"),
    ],
)
def test_a_text_that_is_no_model_is_refused_in_a_line(text: str, complaint: str) -> None:
    with pytest.raises(ToposcopeError) as error:
        models_of([text], RUNS)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_named_twice_is_refused() -> None:
    with pytest.raises(ToposcopeError, match="named twice"):
        models_of(["now", "now,D=1T"], RUNS)


@given(N=st.floats(1, 1e15), D=st.floats(1, 1e18))
@examples(30)
def test_any_positive_size_is_read_as_it_was_written(N: float, D: float) -> None:
    (model,) = models_of([f"N={N!r},D={D!r}"], RUNS)
    assert (model.N, model.D) == (N, D)
    assert model.name == f"{short(N)} on {short(D)} tokens"


def test_runs_in_folders_are_named_without_them() -> None:
    inside = Evaluations(RUNS.table.with_columns(run="models/" + pl.col("run")))
    assert models_of(["now,D=1T"], inside) == [Model("models/now", 7e9, 1e12)]
    assert set(select_runs(inside, ["small-*"], ["models/small-2"]).table["run"]) == {"models/small-1"}
    twice = Evaluations(pl.concat([inside.table, RUNS.table.with_columns(run="others/" + pl.col("run"))]))
    with pytest.raises(ToposcopeError, match="no run is named now"):
        models_of(["now,D=1T"], twice)


def test_runs_are_chosen_and_left_out_by_pattern() -> None:
    def runs(*, ladder: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> set[str]:
        return set(select_runs(RUNS, ladder, exclude, [Model("now", 7e9, 1e12)]).table["run"])

    assert runs() == {"small-1", "small-2", "now", "nameless"}
    assert runs(ladder=("small-*",)) == {"small-1", "small-2", "now"}, "what is predicted stays"
    assert runs(exclude=("small-1", "name*")) == {"small-2", "now"}
    assert runs(ladder=("small-*",), exclude=("small-2",)) == {"small-1", "now"}
    families = Evaluations(RUNS.table.with_columns(recipe=pl.col("run")))
    assert select_runs(families).table["recipe"].n_unique() == 4
    assert select_runs(families, ["small-*"]).table["recipe"].unique().to_list() == [""]
    with pytest.raises(ToposcopeError, match="no run is named smal-1; did you mean 'small-1'"):
        runs(exclude=("smal-1",))
    with pytest.raises(ToposcopeError, match="no run is left for the ladder"):
        runs(exclude=("small-*", "nameless"))


def test_runs_of_one_name_are_not_mixed() -> None:
    other = RUNS.table.with_columns(recipe=pl.lit("another"))
    both = Evaluations(pl.concat([RUNS.table, other]), RUNS.targets)
    with pytest.raises(ToposcopeError, match="runs of several recipes have this name; name one with --recipe"):
        select_runs(both, ["*"])
    assert len(select_runs(both).table) == len(both.table)
