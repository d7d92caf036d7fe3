"""Trained arms: paired by seed, steered to one dose, resumed without a difference."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import CliRunner

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, prepare, train
from toposcope_experiments.interventions.design import CHAOS_SHARE, KINDS, STEERED, Design, Optimizer, Pack
from toposcope_experiments.interventions.experiment import PUSHES, run_experiment
from toposcope_experiments.interventions.results import CHAOS, DESIGN, PLAIN, RANDOM, RESULTS
from toposcope_experiments.interventions.training import COSINE, LOSS, NORM, SHARE, VALUE, PackTrainer, steered
from toposcope_experiments.interventions.training import train as train_pack

SMALL = Design(size="tiny-3k", context=16, steps=16, batch_size=4, seeds=2, corpus="text.txt")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of words, with the file of its tokens beside it."""
    folder = tmp_path_factory.mktemp("words")
    words = np.random.default_rng(0).choice(["a tree ", "of rows\n", "joins ", "all points "], 4000)
    (folder / "text.txt").write_text("".join(words))
    prepare(Corpus(source=str(folder / "text.txt")), folder / "corpus.safetensors")
    return folder


@pytest.fixture(scope="session")
def whole(text: Path) -> dict[str, np.ndarray]:
    """The log of a pack with all arms."""
    return train_pack(Pack(SMALL, "scale_free_h0", (0, 1)), text / "corpus.safetensors", text / "whole")


def runs_of(kind: str) -> list[int]:
    """Places of the runs of an arm in a pack of two seeds."""
    return [2 * i + j for i, arm in enumerate(SMALL.arms) if arm.kind == kind for j in range(2)]


def test_base_runs_are_unpushed_runs(whole: dict[str, np.ndarray], text: Path) -> None:
    unpushed = PackTrainer(Pack(SMALL, "scale_free_h0", (0, 1)), text / "corpus.safetensors", text / "unpushed")
    unpushed.design = replace(SMALL, push_until=1e-9)
    unpushed.train()
    for name, column in ((VALUE, 0), (LOSS, 4)):
        found = unpushed.log[..., column].numpy().reshape(len(unpushed.steps), -1, 2)
        assert np.array_equal(whole[name][:, :2], found[:, 0], equal_nan=True)
        assert all(np.array_equal(found[:, 0], found[:, i], equal_nan=True) for i in range(len(SMALL.arms)))
    for seed in range(2):
        corpus = Corpus(source=str(text / "text.txt"))
        run = FamilyRun(name=f"seed-{seed}", size=SMALL.model_size, corpus=corpus, training=SMALL.training(seed))
        train(run, text / "corpus.safetensors", text / run.name)
        losses = pl.read_csv(text / run.name / "log.csv")["validation_loss"].drop_nulls()
        assert whole[LOSS][-1, seed] == pytest.approx(losses[-1], rel=1e-5)


def test_arms_of_a_seed_begin_alike_and_part(whole: dict[str, np.ndarray]) -> None:
    values = whole[VALUE].reshape(len(SMALL.measured_steps), -1, 2)
    assert (values[0] == values[0, 0]).all()
    assert len(np.unique(values[-1, :, 0])) == len(SMALL.arms)


def test_shares_are_what_was_declared(whole: dict[str, np.ndarray]) -> None:
    assert np.isnan(whole[NORM][0]).all()
    for kind, share in {"base": 0.0, CHAOS: CHAOS_SHARE, "statistic": SMALL.share, RANDOM: SMALL.share}.items():
        np.testing.assert_allclose(whole[NORM][1:, runs_of(kind)], share, rtol=1e-3)
    for kind in STEERED:
        np.testing.assert_allclose(whole[NORM][1, runs_of(kind)], SMALL.share, rtol=1e-3)
        assert whole[SHARE][1:, runs_of(kind)].max() <= 10.001 * SMALL.share
    assert np.abs(whole[COSINE][1:, runs_of("statistic")]).max() <= 1
    assert (whole[COSINE][1:, runs_of("base")] == 0).all()


def test_plain_quantities_reach_the_dose_of_the_statistic(text: Path) -> None:
    design = replace(SMALL, steps=80, kinds=("base", "statistic", *PLAIN))
    run_experiment(replace(design, corpus=str(text / "text.txt")), text / "dose", workers=1)
    rows = pl.read_csv(text / "dose" / RESULTS)
    doses = rows.filter(arm="statistic").select(pl.col("direction") * pl.col("dose"))["direction"]
    assert (doses > 0.02).all()
    reached = rows.filter(pl.col("arm").is_in(PLAIN)).with_columns(ratio=pl.col("dose") / pl.col("target_dose"))
    assert len(reached) == 12
    assert reached["ratio"].is_between(0.75, 1.25).all(), reached
    moved = rows.filter(arm="pairwise_spread").select("direction", "dose_pairwise_spread")
    assert (moved["direction"] * moved["dose_pairwise_spread"] > 0).all()


def test_the_controller_closes_a_gap_and_keeps_its_bounds() -> None:
    share, targets = 0.02, torch.linspace(0.01, 0.4, 40)
    for strength in (0.2, 1.0, 3.0):  # what a share does, against that of the statistic
        shares, errors, dose = torch.tensor([share]), torch.zeros(1), torch.zeros(1)
        for target in targets:
            dose = dose + strength * shares / share * 0.01
            shares, errors = steered(shares, errors, dose, target[None], share)
            assert 0.05 * share - 1e-6 <= shares <= 10 * share + 1e-6
        assert dose.item() == pytest.approx(targets[-1].item(), rel=0.1)
    shares, _ = steered(torch.tensor([share]), torch.zeros(1), torch.tensor([torch.nan]), torch.tensor([0.1]), share)
    assert shares == share  # a run that diverged


def test_pushes_end_where_they_are_told_to(text: Path) -> None:
    half = replace(SMALL, push_until=0.5, kinds=("base", "statistic"))
    found = train_pack(Pack(half, "scale_free_h0", (0, 1)), text / "corpus.safetensors", text / "half")
    pushed = np.flatnonzero(np.isfinite(found[NORM][:, 2]))
    assert np.array(half.measured_steps)[pushed].tolist() == list(range(1, 9))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_killed_and_resumed_is_never_killed(optimizer: Optimizer, text: Path, tmp_path: Path) -> None:
    design = replace(SMALL, steps=12, optimizer=optimizer, kinds=("base", "statistic", CHAOS, *STEERED))
    pack = Pack(design, "scale_free_h0", (0, 1))

    class Killed(Exception):
        pass

    def kill(_: str, done: int, __: int) -> None:
        if done == 9:
            raise Killed

    seen: list[int] = []
    expected = train_pack(pack, text / "corpus.safetensors", tmp_path / "whole")
    with pytest.raises(Killed):
        train_pack(pack, text / "corpus.safetensors", tmp_path / "cut", kill)
    found = train_pack(pack, text / "corpus.safetensors", tmp_path / "cut", lambda _, done, __: seen.append(done))
    assert 0 < seen[0] <= 9
    assert all(np.array_equal(expected[name], found[name], equal_nan=True) for name in expected)
    files = [(tmp_path / name / f"{pack.name}.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


def test_results_do_not_depend_on_what_else_is_trained(text: Path, tmp_path: Path) -> None:
    design = replace(SMALL, steps=8, corpus=str(text / "text.txt"), kinds=("base", "statistic", "effective_rank"))
    run_experiment(design, tmp_path / "few", workers=1)
    run_experiment(replace(design, seeds=4), tmp_path / "many", workers=1)
    run_experiment(replace(design, seeds=4), tmp_path / "few", workers=1)  # more seeds of the same design
    for name in (RESULTS, PUSHES, DESIGN):
        assert (tmp_path / "few" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
    pushes = pl.read_csv(tmp_path / "few" / PUSHES)
    assert len(pushes) == 4 * 4 * 8
    assert json.loads((tmp_path / "few" / DESIGN).read_text())["seeds"] == 4
    with pytest.raises(ToposcopeError, match=r"share is 0\.02 there and 0\.1 here; choose another folder"):
        run_experiment(replace(design, share=0.1), tmp_path / "few", workers=1)
    with pytest.raises(ToposcopeError, match=r"corpus .*absent\.txt"):
        run_experiment(replace(design, corpus=str(tmp_path / "absent.txt")), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_run_that_diverges_is_marked_and_changes_no_other(whole: dict[str, np.ndarray], text: Path) -> None:
    trainer = PackTrainer(Pack(SMALL, "scale_free_h0", (0, 1)), text / "corpus.safetensors", text / "diverged")
    place = runs_of("effective_rank")[0]
    with torch.no_grad():
        trainer.weights[place] = torch.nan
    trainer.train()
    others = [i for i in range(2 * len(SMALL.arms)) if i != place]
    assert torch.isnan(trainer.log[-1, place, 4])
    assert np.array_equal(trainer.log[:, others, 0].numpy(), whole[VALUE][:, others])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"statistics": ("pairwise_spread",)}, "of topology"), ({"kinds": ("base",)}, "base and statistic are needed"),
     ({"kinds": (*KINDS, "x")}, "arm 'x' is not known"), ({"size": "huge"}, "size 'huge' is not known"),
     ({"seeds": 1}, "seeds is 1"), ({"push_until": 0.0}, "push_until is 0.0"), ({"optimizer": "lion"}, "'lion'")],
)  # fmt: skip
def test_a_design_out_of_range_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ToposcopeError, match=message):
        replace(SMALL, **wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_command_ends_with_a_verdict_whatever_the_workers(text: Path, tmp_path: Path) -> None:
    options = [
        "--quick",
        "--seeds",
        "3",
        "--steps",
        "8",
        "--context",
        "16",
        "--corpus",
        str(text / "text.txt"),
        "--batch-size",
        "2",
    ]
    printed = []
    for name, workers in (("one", "1"), ("one", "1"), ("two", "2")):
        done = CliRunner().invoke(
            toposcope, ["intervene", *options, "--out", str(tmp_path / name / "out"), "--workers", workers]
        )
        assert done.exit_code == 0, done.output
        printed.append(done.stdout.replace(str(tmp_path / name), ""))
    assert printed[0] == printed[1] == printed[2]
    assert "page: " in printed[0]
    one, two = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two")
    )
    assert one == two
    assert {Path("out", name) for name in (RESULTS, PUSHES, DESIGN, "index.html")} <= set(one)
    rows = pl.read_csv(tmp_path / "one" / "out" / RESULTS)
    assert rows.group_by("arm", "direction").len()["len"].to_list() == [3] * 14


@pytest.mark.slow
def test_conditions_are_trained_within_the_folder(text: Path, tmp_path: Path) -> None:
    options = ["--quick", "--seeds", "2", "--steps", "4", "--context", "16", "--corpus", str(text / "text.txt")]
    arms = ["--batch-size", "2", "--arm", "pairwise_spread", "--conditions", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(toposcope, ["intervene", *options, *arms])
    assert done.exit_code == 0, done.output
    folders = {path.parent.name for path in (tmp_path / "out").glob(f"*/{RESULTS}")}
    assert folders == {"med", "large-initial-weights", "pushed-for-half", "sgd", "long", "long-sgd"}
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in folders)


def test_mistakes_on_the_command_line_exit_with_2(tmp_path: Path) -> None:
    for wrong in (["--statistic", "h0"], ["--seeds", "1"], ["--size", "big"]):
        done = CliRunner().invoke(toposcope, ["intervene", *wrong, "--out", str(tmp_path)])
        assert done.exit_code == 2
        assert done.output.count("\n") == 1
    assert not list(tmp_path.iterdir())
