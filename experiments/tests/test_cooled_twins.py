"""Cooled twins: what they are averages of, which runs have none and why, and that no other analysis sees them."""

from pathlib import Path

import polars as pl
import pytest
import safetensors.torch
import torch
from commands import called

import toposcope as ts
from toposcope.checkpoints import Series
from toposcope.errors import ToposcopeError
from toposcope.family import corpus as corpora
from toposcope.family.batches import validation_sequences
from toposcope.family.evaluation import mean_loss
from toposcope.family.model import GPT
from toposcope.forecasting import cooldown as rule
from toposcope.forecasting.cooldown import MAX_RATE_CHANGE
from toposcope.logs import LogTable
from toposcope.report.live import cool_down as live_cool_down
from toposcope.study import Study, load_declaration
from toposcope_experiments.cooled_twins import twins as cooled_twins
from toposcope_experiments.cooled_twins.twins import NEVER, NO_RATES, cooled_twin

TOML = """
name = "small"
corpus = { source = "prose.txt" }
training = { steps = 120, batch_size = 4, warmup_steps = 4, schedule = "constant", checkpoint_every = 4 }
probes = [{ name = "neural_persistence" }, { name = "controls" }]
[[runs]]
name = "held"
size = { hidden = 4, layers = 1, heads = 1, context = 16 }
[[runs]]
name = "ended"
size = { hidden = 4, layers = 1, heads = 1, context = 16 }
training = { schedule = "wsd", steps = 100, decay_steps = 20, final_learning_rate = 0.0, checkpoint_fractions = [1.0] }
"""
STEP, MEMBERS = 100, {92: 1 / 4, 96: 1 / 2, 100: 1 / 4}  # of the checkpoints from 90 on


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("cooled")
    (folder / "prose.txt").write_text("The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 400)
    (folder / "small.toml").write_text(TOML)
    done = called("study", "run", folder / "small.toml", "--out", folder / "study", "--workers", "1")
    assert done.code == 0, done.err
    done = called("study", "cool", folder / "study", "--workers", "1")
    assert done.code == 0, done.err
    assert "no cooled twin of ended: at no checkpoint was the learning rate constant" in done.err
    assert called("report", folder / "study").code == 0
    return Study.load(folder / "study")


def of_twins(study: Study) -> Study:
    return Study.load(study.directory / "cooled")


def averaged(study: Study) -> dict[str, torch.Tensor]:
    """The twin's weights, by hand."""
    read = [(c.tensors(), MEMBERS[c.step]) for c in ts.series(study.directory / "runs" / "held") if c.step in MEMBERS]
    return {
        name: torch.stack([tensors[name].double() * weight for tensors, weight in read]).sum(0).float()
        for name in read[0][0]
    }


@pytest.mark.slow
def test_a_twin_is_the_measured_average_of_the_checkpoints_before(study: Study) -> None:
    twins = of_twins(study).frame().filter(step=STEP, layer="network")
    place = study.directory / "runs" / "held"
    by_hand = ts.measure(f"merged:{place}@{min(MEMBERS)}..{STEP}", probes=["neural_persistence"])
    assert set(twins["run"]) == {"held"}
    np_mean = by_hand.filter(layer="network", statistic="np_mean")["value"].item()
    assert twins.filter(statistic="np_mean")["value"].item() == np_mean
    assert study.frame().filter(run="held", step=STEP, layer="network", statistic="np_mean")["value"].item() != np_mean


@pytest.mark.slow
def test_its_loss_is_that_of_the_averaged_model(study: Study) -> None:
    run = study.declaration.resolved_runs()[0]
    model = GPT(run.size)
    model.load_state_dict(averaged(study))
    sequences = validation_sequences(run, corpora.load(study.directory / "corpus.safetensors"))
    expected = mean_loss(model, sequences, run.training.batch_size)
    found = of_twins(study).log().filter(step=STEP)["validation_loss"].item()
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_no_analysis_of_the_runs_sees_it(study: Study) -> None:
    assert study.runs()["run"].to_list() == ["held", "ended"]
    for frame in (study.frame(), study.log(), study.checkpoints(), study.findings()):
        assert set(frame["run"]) <= {"held", "ended"}
    tables = study.directory / "report" / "tables"
    assert set(pl.read_csv(tables / "association.csv")["run"]) <= {"held", "ended"}
    assert set(pl.read_csv(tables / "cooled.csv")["run"]) == {"held"}
    assert set(pl.read_csv(tables / "cooled_phases.csv")["weights"]) == {"raw", "cooled"}


@pytest.mark.slow
def test_real_cool_downs_stand_beside_it(study: Study) -> None:
    real = pl.read_csv(study.directory / "report" / "tables" / "real_cooldowns.csv")
    assert set(real.select("run", "cooled_run", "start", "end").rows()) == {("held", "ended", 80, 100)}
    loss = real.filter(feature="loss").row(0, named=True)
    log = study.log()
    assert loss["raw"] == log.filter(run="held", step=80)["validation_loss"].item()
    assert loss["held"] == log.filter(run="held", step=100)["validation_loss"].item()
    assert loss["real"] == log.filter(run="ended", step=100)["validation_loss"].item()
    assert loss["merged_end"] == of_twins(study).log().filter(step=100)["validation_loss"].item()


@pytest.mark.slow
def test_nothing_is_measured_again(study: Study) -> None:
    before = of_twins(study).digest()
    done = called("study", "cool", study.directory, "--workers", "1")
    assert done.code == 0, done.err
    assert of_twins(study).digest() == before
    assert "cooled losses" not in done.err


def series_of(folder: Path, steps: list[int]) -> Series:
    for step in steps:
        safetensors.torch.save_file({"w": torch.full((3, 3), float(step))}, folder / f"step_{step:04d}.safetensors")
    return ts.series(folder)


def log_of(rates: dict[int, float]) -> LogTable:
    return LogTable.from_rows({step: {"learning_rate": rate} for step, rate in rates.items()})


HELD = dict.fromkeys(range(1, 201), 1e-3)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (HELD, [100, 105, 200]),
        ({step: rate for step, rate in HELD.items() if step % 50 == 0}, [100, 105, 200]),  # logged rarely
        (HELD | {step: 1e-3 * step / 15 for step in range(1, 15)}, [200]),  # warmed up until step 14 or 15
        (HELD | dict.fromkeys(range(102, 201), 5e-4), [100, 200]),
        (HELD | {step: 1e-3 * (1 - step / 1000) for step in range(1, 201)}, [100, 105, 200]),  # by 2% in a window
        ({step: 1e-3 * (1 - step / 250) for step in range(1, 201)}, []),
    ],
)
def test_where_the_rate_was_held(tmp_path: Path, rates: dict[int, float], expected: list[int]) -> None:
    twin = cooled_twin("x", series_of(tmp_path, [50, 90, 95, 100, 105, 180, 190, 200]), log_of(rates))
    assert list(twin.checkpoints) == expected
    assert twin.reason == ("" if expected else NEVER)


def test_why_there_is_none(tmp_path: Path) -> None:
    found = series_of(tmp_path, [90, 95, 100])
    assert cooled_twin("x", found, None).reason == NO_RATES
    assert cooled_twin("x", found, LogTable.from_rows({100: {"loss": 3.0}})).reason == NO_RATES
    assert cooled_twin("x", found[1:], log_of(HELD)).reason == NEVER


@pytest.mark.parametrize(("written", "refused"), [("true", True), ("false", False)])
def test_a_declaration_that_names_them_says_where_they_went(tmp_path: Path, written: str, refused: bool) -> None:
    (tmp_path / "study.toml").write_text(TOML.replace("corpus = ", f"cooled = {written}\ncorpus = "))
    if not refused:  # stored studies of older versions have it written out
        assert load_declaration(tmp_path / "study.toml").name == "small"
        return
    with pytest.raises(ToposcopeError, match="leave it out: toposcope study cool DIR, of toposcope-experiments"):
        load_declaration(tmp_path / "study.toml")


def test_they_have_the_bounds_of_the_rule_of_cool_downs() -> None:
    assert cooled_twins.MIN_MERGED == rule.MIN_MERGED
    assert live_cool_down.MIN_SAVED == 3 * (rule.MIN_MERGED - 1) + 1  # evenly over three tenths
    assert cooled_twins.MIN_WARM_UPS == rule.MIN_WARM_UPS
    assert cooled_twins.MAX_RATE_CHANGE == live_cool_down.MAX_CHANGE == MAX_RATE_CHANGE
    assert pytest.approx(3 * rule.FALL) == live_cool_down.WINDOW
