"""Which loss of a log is forecast: one, by rules that do not depend on how much of the run was seen."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.errors import ToposcopeError
from toposcope.logs import Run
from toposcope.logs.cleaning import clean_log
from toposcope.logs.raw import RawLog


def log_from(table: Mapping[str, Sequence[float | None]], **facts: object) -> Run:
    return clean_log(RawLog(Path("log"), "run", pl.DataFrame(table, strict=False), facts=facts), {})


def table_of(n: int, every: int, validations: Mapping[str, int], first: int = 0) -> dict[str, list[float | None]]:
    """Return a log of every `every`-th step up to n, and validation losses at the multiples of their own intervals."""
    steps = sorted({*range(0, n, every), *(s for k in validations.values() for s in range(first, n, k))})
    table: dict[str, list[float | None]] = {"step": [*steps]}
    table["loss"] = [3.0 + 1 / (1 + s) if s % every == 0 else None for s in steps]
    for name, interval in validations.items():
        table[name] = [4.0 + 1 / (1 + s) if s >= first and s % interval == 0 else None for s in steps]
    return table


@pytest.mark.parametrize(("every", "target"), [(5, "val_loss"), (6, "loss")])
def test_the_validation_loss_if_it_is_logged_twenty_times_in_the_planned_steps(every: int, target: str) -> None:
    log = log_from(table_of(100, 1, {"val_loss": every}), max_steps=100)
    assert log.target == target
    assert any(f"the loss is column '{target}'" in remark for remark in log.remarks)


def test_the_validation_loss_if_it_is_logged_as_often_as_the_training_loss() -> None:
    assert log_from(table_of(100, 10, {"val_loss": 10})).target == "val_loss"
    assert log_from(table_of(100, 10, {"val_loss": 20})).target == "loss"


@pytest.mark.parametrize(("every", "between", "target"), [(1, 75, "loss"), (50, 75, "val_loss"), (1, 15, "val_loss")])
def test_two_validations_do_not_displace_many_training_losses(every: int, between: int, target: str) -> None:
    table = table_of(150, every, {"val_loss": between})
    log = log_from(table, max_steps=1500)
    assert log.target == target
    assert log.evidence["target"].startswith(
        f"column '{target}' (the {'validation' if 'val' in target else 'training'}"
    )
    assert log.evidence["last_step"] == "'max_steps', which is kept with the log"


def test_a_running_sum_is_no_loss() -> None:
    sums: dict[str, list[float | None]] = {"step": [*range(30)], "total_loss": [2.0 * (i + 1) for i in range(30)]}
    with pytest.raises(ToposcopeError, match="column 'total_loss' grows from row to row: a running sum"):
        log_from(sums)
    assert log_from({**sums, "train_loss": [2.0] * 30}).target == "train_loss"
    assert log_from({**sums, "total_loss": [5 - i / 10 for i in range(30)]}).target == "total_loss"


def test_of_several_losses_without_a_known_name_one_is_asked_for() -> None:
    table = {"step": [*range(9)], "d_loss": [1.0] * 9, "g_loss": [2.0] * 9}
    with pytest.raises(ToposcopeError, match=r"2 losses, .* as in --column loss=d_loss \(of d_loss, g_loss\)"):
        log_from(table)
    del table["d_loss"]
    assert log_from({**table, "eval_g_loss": [2.5] * 9}).target == "eval_g_loss"


@given(
    n=st.integers(200, 3000),
    every=st.sampled_from([1, 2, 5, 10]),
    between=st.integers(1, 60),
    planned=st.booleans(),
    late=st.booleans(),
    share=st.sampled_from([0.2, 0.3, 0.5, 0.7]),
)
def test_the_target_of_a_log_that_grows_stays(
    n: int, every: int, between: int, planned: bool, late: bool, share: float
) -> None:
    first = n // 4 // every * every if late else 0
    table = table_of(n, every, {"eval_loss": between * every}, first)
    facts: dict[str, object] = {"max_steps": n} if planned else {}
    rows = sum(step < share * n for step in table["step"] if step is not None)
    seen = {name: column[:rows] for name, column in table.items()}
    assert log_from(seen, **facts).target == log_from(table, **facts).target


def test_a_summary_and_means_of_epochs_are_not_the_target() -> None:
    table = table_of(50, 1, {})
    table["total_loss"] = table.pop("loss")
    table["train_loss"] = [*[None] * 49, 3.3]
    table["loss_epoch"] = [3.2 if i % 10 == 9 else None for i in range(50)]
    assert log_from(table).target == "total_loss"


def test_several_validation_losses_are_asked_for_all_at_once() -> None:
    table = table_of(100, 10, {"eval_web_loss": 10, "eval_code_loss": 10})
    with pytest.raises(ToposcopeError, match=r"2 validation losses.*--column loss=eval_code_loss \(of eval_code_loss"):
        log_from(table)


def test_the_runs_own_text_and_the_part_to_choose_by_are_favoured() -> None:
    assert log_from(table_of(100, 10, {"eval_wiki_loss": 10, "eval_loss": 10})).target == "eval_loss"
    assert log_from(table_of(100, 10, {"test_loss": 10, "valid_loss": 10})).target == "valid_loss"
    # one text in two units is one loss
    assert log_from(table_of(100, 10, {"val_bpb": 10, "val_loss": 10})).target == "val_loss"


def test_epochs_are_the_steps_where_nothing_else_is() -> None:
    log = log_from({"epoch": [0, 1, 2], "loss": [3, 2, 1], "val_loss": [4.0, 3.0, 2.0]})
    assert (log.target, log.steps.tolist()) == ("val_loss", [0, 1, 2])
    assert any("epochs of column 'epoch' are the steps" in remark for remark in log.remarks)


def test_a_column_of_fractions_gives_way_to_one_of_whole_steps() -> None:
    log = log_from({"update": [0.1, 0.2, 0.3], "num_updates": [100, 200, 300], "loss": [3, 2, 1]})
    assert log.steps.tolist() == [100, 200, 300]
