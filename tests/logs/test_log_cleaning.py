"""Bad rows are left out, and remarks say so."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toposcope.errors import ToposcopeError
from toposcope.logs import Run, read_log, read_logs
from toposcope.logs.cleaning import clean_log
from toposcope.logs.raw import RawLog


def log_from(columns: dict[str, list[float | None]] | pl.DataFrame, **named: str) -> Run:
    return clean_log(RawLog(Path("here"), "run", pl.DataFrame(columns, strict=False)), named)


def has_remark(log: Run, text: str) -> bool:
    return any(text in remark for remark in log.remarks)


values = st.one_of(st.floats(0.1, 10), st.sampled_from([None, float("nan"), float("inf"), 0.0]))
written = st.lists(st.tuples(st.integers(0, 12), values), min_size=1, max_size=40)


@pytest.mark.slow
@given(written)
@example([(0, 3.0), (1, 2.0), (2, 1.0), (0, 1.0)])
@example([(0, 0.5), (0, 0.0), (0, 0.5), (1, 0.5)])
def test_any_rows(rows: list[tuple[int, float | None]]) -> None:
    """Against a dictionary: the last row of a step that holds a loss counts, in every epoch if there are several."""
    table: dict[str, list[float | None]] = {"step": [s for s, _ in rows], "loss": [x for _, x in rows]}
    finite = [(step, loss) for step, loss in rows if loss is not None and np.isfinite(loss)]
    if not any(loss > 0 for _, loss in finite):
        with pytest.raises(ToposcopeError):
            log_from(table)
        return
    log = log_from(table)
    if len({step for step, loss in rows if loss is not None}) == 1 < sum(loss is not None for _, loss in rows):
        assert has_remark(log, "rows with a loss are counted")
        return
    epochs = np.cumsum([0, *(after[0] < before[0] for before, after in pairwise(finite))])
    again = has_remark(log, "steps begin again")
    usable = [
        (int(epoch) if again else 0, step, loss)
        for epoch, (step, loss) in zip(epochs, finite, strict=True)
        if loss > 0 or log.need_not_fall
    ]
    expected = {(epoch, step): loss for epoch, step, loss in usable}
    assert log.loss.tolist() == [expected[key] for key in sorted(expected)]
    assert again or log.steps.tolist() == sorted({step for _, step, _ in usable})
    assert has_remark(log, "a step: the later row counts") == (len(usable) > len(expected))
    assert has_remark(log, "NaN or infinite") == any(x is not None and not np.isfinite(x) for _, x in rows)
    assert has_remark(log, "0 or below") == (not log.need_not_fall and any(loss <= 0 for _, loss in finite))


def test_remarks_count_the_rows_left_out() -> None:
    log = log_from({"step": [0, 10, 20, 30, 20, 30, 40, 50.5, -1], "loss": [5, 4, np.nan, 3, 3.5, 3.25, 0, 2, 2]})
    assert log.steps.tolist() == [0, 10, 20, 30]
    assert log.loss.tolist() == [5, 4, 3.5, 3.25]
    for text in (
        "2 rows with a loss but no whole step",
        "1 row has a loss that is NaN",
        "1 row has a loss of 0 or below",
    ):
        assert has_remark(log, text)
    assert has_remark(log, "steps go back once")
    assert has_remark(log, "1 row repeats a step")


def test_spikes_and_a_constant_loss_are_kept() -> None:
    spiked = [3.0] * 30
    spiked[10] = 300.0
    for loss in (spiked, [3.0] * 30, [3.0]):
        log = log_from({"step": list(range(len(loss))), "loss": list(loss)})
        assert log.loss.tolist() == loss
        assert not log.remarks


def test_missing_steps_and_a_late_start() -> None:
    steps = [float(s) for s in [*range(1000, 1200, 10), *range(1500, 1600, 10)]]
    log = log_from({"step": [*steps], "loss": [3.0] * len(steps)})
    assert has_remark(log, "steps are missing in one place from 1190 to 1500")
    assert has_remark(log, "the log begins at step 1000")
    spaced: list[float | None] = [float(s) for s in np.unique(np.geomspace(1, 1e5, 40).astype(int))]
    assert log_from({"step": spaced, "loss": [3.0] * len(spaced)}).remarks == ()


def test_the_learning_rate_of_other_rows() -> None:
    table = pl.DataFrame(
        {
            "step": [10, 20, 30, 40, 5, 25, 35, 45, 60],
            "loss": [4, 3, 2, 1, None, None, None, None, 0.5],
            "lr": [None] * 4 + [0.5, 2.5, 3.5, 4.5, None],
        },
        strict=False,
    )
    log = log_from(table)
    assert log.steps.tolist() == [10, 20, 30, 40, 60]
    # beyond what was logged it is not known
    np.testing.assert_allclose(log.learning_rate, [1, 2, 3, 4, np.nan])
    assert has_remark(log, "the learning rate is interpolated in 4 of 5 rows")


def test_a_negative_learning_rate() -> None:
    log = log_from({"step": [1, 2, 3], "loss": [3, 2, 1], "lr": [0.1, 0.05, -1e-12]})
    assert log.learning_rate.tolist() == [0.1, 0.05, 0.0]
    log = log_from({"step": [1, 2, 3], "loss": [3, 2, 1], "lr": [0.1, 0.05, -0.1]})
    assert log.learning_rate.tolist() == [0.1, 0.05, 0.05]
    assert has_remark(log, "else ignored")


def test_validation_of_the_first_half_is_not_the_target() -> None:
    table: dict[str, list[float | None]] = {
        "step": [*range(100)],
        "loss": [3.0] * 100,
        "eval_loss": [4.0] * 50 + [None] * 50,
    }
    assert log_from(table).target == "loss"


def test_nan_in_rows_of_another_loss_is_ignored_without_a_remark() -> None:
    nan = np.nan
    log = log_from({"step": [1, 1, 2, 2], "loss": [3, nan, 2, nan], "eval_loss": [nan, 4, nan, 4]})
    assert log.remarks == (
        "the loss is column 'eval_loss' (the validation loss: it is logged as often as the training loss)",
        "columns: loss = 'eval_loss'",
    )


def test_units(tmp_path: Path) -> None:
    log = log_from({"step": [1, 2], "ppl": [np.e, 1.0]})
    assert (log.unit, log.loss.tolist()) == ("nats", [1.0])
    assert has_remark(log, "natural logarithm")
    (tmp_path / "a.csv").write_text("step,bpb\n1,1.25\n")
    (tmp_path / "b.csv").write_text("step,loss\n1,3.25\n")
    logs, remarks = read_logs(tmp_path)
    assert [log.unit for log in logs] == ["bits per byte", "nats"]
    assert any("units differ" in remark for remark in remarks)
    assert read_log(tmp_path / "b.csv", unit="bits").unit == "bits"
    with pytest.raises(ToposcopeError, match="unit 'furlongs': choose from nats"):
        read_logs(tmp_path, unit="furlongs")
    (tmp_path / "c.csv").write_text("step,ppl\n1,20\n")
    with pytest.raises(ToposcopeError, match="perplexity"):
        read_log(tmp_path / "c.csv", unit="bits")


def test_facts_of_a_run() -> None:
    table = pl.DataFrame(
        {"step": [1, 3], "loss": [3.0, 2.0], "tokens": [100, 300], "T": [10.0, 10.0], "N": ["160M"] * 2}
    )
    log = log_from(table.with_columns(sched=pl.lit("wsd"), param_norm=pl.Series([5.0, None])))
    assert (log.last_step, log.parameters, log.tokens_per_step, log.schedule) == (10, 160e6, 100, "wsd")
    assert np.array_equal(log.norms["weight_norm"], [5.0, np.nan], equal_nan=True)
    short = log_from(table.with_columns(T=pl.lit(0.5)))
    assert short.last_step is None
    several = log_from(table.with_columns(N=pl.Series([1, 2])))
    assert np.isnan(several.parameters)
    assert has_remark(several, "column 'N' has 2 values")


def test_columns_named_by_the_caller(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("when,what,speed,loss\n1,3.5,0.1,9\n2,3.25,0.1,9\n")
    log = read_log(tmp_path / "x.csv", columns={"step": "when", "loss": "what", "learning_rate": "speed"})
    assert (log.loss.tolist(), log.learning_rate.tolist(), log.target) == ([3.5, 3.25], [0.1, 0.1], "what")
    assert has_remark(log, "step = 'when', loss = 'what', learning_rate = 'speed'")
    with pytest.raises(ToposcopeError, match="no column 'other'; it has when, what, speed, loss"):
        read_log(tmp_path / "x.csv", columns={"loss": "other"})
    with pytest.raises(ToposcopeError, match="named to be 'los'; did you mean 'loss'"):
        read_log(tmp_path / "x.csv", columns={"los": "what"})


def test_without_steps_rows_are_counted() -> None:
    log = log_from({"loss": [3.0, None, 2.0], "lr": [0.1, 0.1, 0.2]})
    assert (log.steps.tolist(), log.learning_rate.tolist()) == ([1, 2], [0.1, 0.2])
    assert has_remark(log, "no column of steps")
    assert has_remark(log_from({"step": [0, 0, 0], "loss": [3, 2, 1]}), "the same step everywhere")


def test_names_from_outside_are_shown_safely(tmp_path: Path) -> None:
    rows = [{"run": "a\n\x1b[31mred\u202e" + "x" * 500, "step": 1, "loss": 3, "N": {"a\nb": 1}}]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    log = read_log(tmp_path / "x.json")
    assert log.name.isprintable()
    assert len(log.name) == 200
    assert all(remark.isprintable() for remark in log.remarks)
