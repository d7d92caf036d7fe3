"""Logs whose steps, numbers or rows are written in unusual ways: each is understood, or refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from toposcope.errors import ToposcopeError
from toposcope.logs import Run, read_log, read_logs
from toposcope.logs.raw import parse_numbers

STEPS = np.arange(50, 8001, 50)
LOSS = 2.5 + 18 * STEPS**-0.5 + np.random.default_rng(0).normal(0, 0.01, len(STEPS))
RATE = 3e-4 * np.minimum(1, STEPS / 500) * (0.55 + 0.45 * np.cos(np.pi * STEPS / 20_000))
ROWS = list(zip(STEPS.tolist(), LOSS.tolist(), RATE.tolist(), strict=True))


def table(row: Callable[[int, float, float], str], header: str = "step,loss,lr") -> str:
    return "\n".join([header, *(row(*each) for each in ROWS), ""])


def plain(t: int, x: float, r: float) -> str:
    return f"{t},{x:.4f},{r:.6g}"


def comma(number: float, digits: int = 4) -> str:
    return f"{number:.{digits}f}".replace(".", ",")


def grouped(t: int, sign: str) -> str:
    return f"{t:,d}".replace(",", sign)


LINES = table(plain).split("\n")
UNDERSTOOD = {
    "1,000": table(lambda t, x, r: f'"{t:,d}",{x:.4f},{r:.6g}'),
    "1_000": table(lambda t, x, r: f"{t:_d},{x:.4f},{r:.6g}"),
    "1'000": table(lambda t, x, r: f"{grouped(t, chr(39))},{x:.4f},{r:.6g}"),
    "1 000": table(lambda t, x, r: f"{grouped(t, chr(0x202F))},{x:.4f},{r:.6g}"),
    "1.000;3,14": table(lambda t, x, r: f"{grouped(t, '.')};{comma(x)};{comma(r, 7)}", "step;loss;lr"),
    "3,14 in quotes": table(lambda t, x, r: f'{t},"{comma(x)}","{comma(r, 7)}"'),
    "3,142 in quotes": table(lambda t, x, r: f'{t},"{comma(x, 3)}","{comma(r, 7)}"'),
    "3,14 and tabs": table(lambda t, x, r: f"{t}\t{comma(x)}\t{comma(r, 7)}", "step\tloss\tlr"),
    "3.2k": table(lambda t, x, r: f"{t / 1000:.2f}k,{x:.4f},{r:.6g}"),
    "1e3": table(lambda t, x, r: f"{t:.3e},{x:.4f},{r:.6g}"),
    "100/20000": table(lambda t, x, r: f"{t}/20000,{x:.4f},{r:.6g}"),
    "spaces between columns": table(lambda t, x, r: f"{t}  {x:.4f}  {r:.6g}", "step loss lr"),
    "units in the header": table(plain, "step (iterations),loss [nats],lr"),
    "comments": "# a run\n" + table(plain),
    "a header in a comment": "# step loss lr\n" + table(lambda t, x, r: f"{t} {x:.4f} {r:.6g}").split("\n", 1)[1],
    "old line ends": table(plain).replace("\n", "\r"),
    "header repeated": "\n".join([*LINES[:60], LINES[0], *LINES[60:]]),
    "epochs": table(lambda t, x, r: f"{(t - 1) % 1000 + 1},{x:.4f},{r:.6g}"),
    "epochs from 0": table(lambda t, x, r: f"{(t - 50) % 1000 + 50},{x:.4f},{r:.6g}"),
    "short epochs": table(lambda t, x, r: f"{(t - 1) % 300 + 1},{x:.4f},{r:.6g}"),
    "epochs named": table(
        lambda t, x, r: f"{(t - 1) // 4000},{(t - 1) % 4000 + 1},{x:.4f},{r:.6g}", "epoch,batch,loss,lr"
    ),
    "ranks": table(
        lambda t, x, r: "\n".join(f"{t},{k},{x + (k - 1.5) / 10:.4f},{r:.6g}" for k in range(4)), "step,rank,loss,lr"
    ),
    "ranks without a name": table(lambda t, x, r: "\n".join(f"{t},{x + (k - 1.5) / 10:.4f},{r:.6g}" for k in range(4))),
    "ranks, one after the other": "step,local_rank,loss,lr\n"
    + "".join(f"{t},{k},{x + k / 10 - 0.05:.4f},{r:.6g}\n" for k in (0, 1) for t, x, r in ROWS),
}


@pytest.mark.parametrize("way", UNDERSTOOD)
def test_a_log_written_in_another_way_is_understood(way: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(UNDERSTOOD[way].encode())
    log = read_log(path)
    assert log.steps.tolist() == STEPS.tolist()
    np.testing.assert_allclose(log.loss, LOSS, atol=6e-4)
    np.testing.assert_allclose(log.learning_rate, RATE, atol=1e-7)


def test_utf_16_and_json_texts(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_bytes(table(plain).encode("utf-16"))
    rows = [json.dumps({"step": f"{t:,d}", "loss": x, "lr": r}) for t, x, r in ROWS]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    for name in ("wide.csv", "texts.jsonl"):
        assert read_log(tmp_path / name).steps.tolist() == STEPS.tolist()


REFUSED = {
    "times": (table(lambda t, x, r: f"{1_730_000_000 + 2 * t},{x:.4f},{r:.6g}"), "column 'step' .* these are times"),
    "milliseconds": (
        table(lambda t, x, r: f"{1_730_000_000_000 + 2000 * t},{x:.4f},{r:.6g}"),
        "column 'step' .* these are times",
    ),
    "dates": (
        table(lambda t, x, r: f"2026-01-01 00:{t // 1000:02d}:{t % 60:02d},{x:.4f},{r:.6g}"),
        "column 'step' holds no number but '2026-01-01 00:00:50'",
    ),
    "fractions of an epoch": (
        table(lambda t, x, r: f"{t / 1000:.3f},{x:.4f},{r:.6g}"),
        "column 'step' has no whole step in 152 rows of 160, such as '0.050'",
    ),
    "another header": (
        "\n".join([*LINES[:60], "step,lr,loss", *LINES[60:]]),
        r"row 60 is another header \(step, lr, loss\)",
    ),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_steps_is_refused_in_one_line(way: str, tmp_path: Path) -> None:
    text, message = REFUSED[way]
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ToposcopeError, match=message) as error:
        read_log(path)
    assert "\n" not in str(error.value)
    if way not in ("another header",):
        assert "--column step=NAME" in str(error.value)


def test_a_compressed_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(b"\x1f\x8b")
    with pytest.raises(ToposcopeError, match="compressed; unpack it first"):
        read_log(path)


def test_a_run_begun_again_is_no_epoch(tmp_path: Path) -> None:
    """Its loss begins again too: these are two runs, between which the caller chooses."""
    path = tmp_path / "run.csv"
    again = "".join(f"{t},{x + 0.3:.4f},{r:.6g}\n" for t, x, r in ROWS[:100])
    path.write_text(table(plain) + again)
    first, second = read_logs(path).logs
    assert (first.steps.tolist(), second.steps.tolist()) == (STEPS.tolist(), STEPS[:100].tolist())
    assert second.loss[99] == pytest.approx(LOSS[99] + 0.3, abs=1e-4)
    assert (
        "steps, loss and learning rate go back to their beginning in row 161: 2 runs, one after the other"
        in first.remarks
    )
    with pytest.raises(ToposcopeError, match=r"2 runs; choose one with --run NAME .*: part 1, part 2"):
        read_log(path)


def test_a_resumed_run_that_ends_earlier_is_remarked(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    resumed = "".join(f"{t},{x:.4f},{r:.6g}\n" for t, x, r in ROWS[80:100])
    path.write_text(table(plain) + resumed)
    log = read_log(path)
    assert log.steps.tolist() == STEPS.tolist()
    assert any("goes back to step 4050 and ends at step 5000" in remark for remark in log.remarks)


@pytest.mark.slow
def test_rows_out_of_order_are_no_run_begun_again(tmp_path: Path) -> None:
    """Nor do 100,000 of them take long: every row is a part of its own."""
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n" + "".join(f"{t},{2 + t / 1e6:.6f}\n" for t in range(100_000, 0, -1)))
    log = read_log(path)
    assert log.steps.tolist() == list(range(1, 100_001))
    assert not any("earlier part" in remark for remark in log.remarks)


def test_what_is_ignored_is_remarked(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(table(lambda t, x, r: f"{t},{x:.4f},{r:.6g}%,{x:.4f}", "step,loss,lr,loss"))
    remarks = read_log(path).remarks
    assert "several columns are called loss: the first of each is read" in remarks
    assert "column 'lr' holds no number in 160 rows: ignored there" in remarks


def test_a_comma_is_judged_by_its_column() -> None:
    import polars as pl

    def read(*texts: str) -> list[float]:
        return [float(value) for value in parse_numbers(pl.Series("x", texts)).values]

    assert read("950", "1,000", "1,050") == [950, 1000, 1050]
    assert read("1,000", "2,000", "12,000") == [1000, 2000, 12000]
    assert read("1,000,000", "2,000,000") == [1e6, 2e6]
    assert read("3,142", "3,077", "2,998") == [3.142, 3.077, 2.998]
    assert read("3,1", "3", "2,998") == [3.1, 3, 2.998]
    assert read("0,0003", "2,9e-4") == [0.0003, 0.00029]
    assert read("1.234,5", "2.000,25") == [1234.5, 2000.25]
    assert read("3.142", "2.998", "2.5") == [3.142, 2.998, 2.5]
    assert read("1.5M", "12k") == [1.5e6, 12e3]


def test_the_final_loss_of_a_short_log() -> None:
    """It is of five rows, not of one, and follows a loss that falls."""
    steps = np.arange(50, 2001, 50)
    falling, noise = 3 - steps / 4000, 0.01
    found = []
    for seed in range(400):
        losses = falling + np.random.default_rng(seed).normal(0, noise, 40)
        found.append(Run("short", steps, losses, np.full(40, np.nan)).final_loss())
    values, errors = np.array(found).T
    assert values.mean() == pytest.approx(falling[-1], abs=0.002)
    assert values.std() == pytest.approx(np.sqrt(0.6) * noise, rel=0.15)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.15)
    assert np.isnan(Run("tiny", steps[:10], falling[:10], np.full(10, np.nan)).final_loss()[1])
