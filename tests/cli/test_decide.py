"""``toposcope decide``: what it prints, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from toposcope.cli import toposcope
from toposcope.forecasting.scaling.logged_points import points_of_runs
from toposcope.forecasting.scaling.planner import optimal_split
from toposcope.forecasting.scaling.scaling_law import ScalingLaw

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)
SIZES = (5e7, 1e8, 2e8, 4e8, 8e8, 1.6e9)
TOKENS = (5e9, 2e10, 8e10)


def table(sizes: tuple[float, ...] = SIZES, *, along: bool = False, family: str = "here", loss: str = "loss") -> str:
    """Points on the law, nearly; each a run, or three along each of two runs of a size."""
    draw = np.random.default_rng(0)
    lines = [f"N,D,{loss},run,family"]
    for n in sizes:
        for k, d in enumerate(TOKENS):
            for repeat in range(2):
                value = float(LAW.loss(n, d)) * np.exp(0.003 * draw.normal())
                run = f"{n:g}-{repeat}" if along else f"{n:g}-{k}-{repeat}"
                lines.append(f"{n},{d},{value},{run},{family}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("points") / "points.csv"
    path.write_text(table())
    return path


def log(path: Path, parameters: float = 1e8, loss: str = "loss", steps: int = 200, last: int = 400) -> Path:
    rows = [f"{i * 10},{4 - i * 0.005},0.001,{parameters},1000000,{last * 10}" for i in range(1, steps + 1)]
    path.write_text(f"step,{loss},lr,n_params,tokens_per_step,max_steps\n" + "\n".join(rows) + "\n")
    return path


def run(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(toposcope, ["decide", *map(str, arguments)])


def answer(*arguments: str | Path | float) -> dict[str, object]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    assert list(found) == sorted(found)
    return found


def test_a_budget_is_planned(points: Path) -> None:
    done = run("--points", points, "--budget", 1e21)
    assert done.exit_code == 0
    assert done.stdout.startswith("With 1e+21 FLOP train ")
    found = answer("--points", points, "--budget", 1e21)
    plan, law = found["plan"], found["law"]
    assert isinstance(plan, dict)
    assert isinstance(law, dict)
    N, D = optimal_split(ScalingLaw(**law), 1e21)
    assert (plan["N"]["value"], plan["D"]["value"]) == pytest.approx((N, D))
    assert pytest.approx(optimal_split(LAW, 1e21)[0], rel=0.3) == N
    assert found["decision"] is None


def test_a_run_in_progress(points: Path) -> None:
    run_in_progress = ("--points", points, "--parameters", 1e8, "--tokens", 1e10, "--extra")
    done = run(*run_in_progress, 1e17)
    first, second, third, *rest = done.stdout.splitlines()
    assert first.startswith("Continue: ")
    assert second.startswith("With 1e+17 FLOP more the run ends at ")
    assert third.startswith("By the law the answer flips at ")
    assert [line.split("│")[1].strip() for line in rest if line.startswith("│")] == [
        "continue the run",
        "best fresh run",
    ]
    assert rest[-1] == "The law and all reasons: --json has them."
    decision = answer(*run_in_progress, 1e24)["decision"]
    assert isinstance(decision, dict)
    assert decision["answer"] == "scale"
    assert decision["reasons"][0].startswith("Scale: ")
    at = answer(*run_in_progress, decision["break_even"][0])["decision"]
    assert isinstance(at, dict)
    assert at["answer"] == "undecided"
    assert at["margin"] == pytest.approx(0, abs=1e-6)


def test_where_a_run_stands_is_read_from_its_log(points: Path, tmp_path: Path) -> None:
    done = run("--points", points, "--log", log(tmp_path / "now.csv"), "--extra", 1e19, "--json")
    decision = json.loads(done.stdout)["decision"]
    assert "whether it shares data" in " ".join(json.loads(done.stdout)["notes"])
    assert decision["run"]["parameters"] == 1e8
    assert decision["run"]["tokens"] == 2000 * 1e6
    assert decision["run"]["cool_down"] == 0


def test_points_along_runs_make_room_for_a_cool_down(tmp_path: Path) -> None:
    path = tmp_path / "along.csv"
    path.write_text(table(along=True))
    arguments = ("--points", path, "--parameters", 1e8, "--tokens", 1e10, "--extra", 1e19)
    usual, declared = run(*arguments, "--json"), run(*arguments, "--cool-down", 0.1, "--json")
    shares = [json.loads(done.stdout)["decision"]["run"]["cool_down"] for done in (usual, declared)]
    assert shares == [0.2, 0.1]
    assert "20% of the steps of either arm are its cool-down" in usual.stdout


def test_cooling_down_now_is_a_third_way(points: Path, tmp_path: Path) -> None:
    found = {"length": 200, "decay": "linear", "loss": 2.9, "low": 2.8, "high": 3, "held": 3, "now": 3, "beyond": 0.1}
    merged = {"steps": [1800, 2000], "loss": 2.95, "weights": [0.5, 0.5]}
    stored = {"step": 2000, "answers": [found], "merged": [merged]}
    (tmp_path / "cooldown.json").write_text(json.dumps(stored))
    now = log(tmp_path / "now.csv")
    done = run("--points", points, "--log", now, "--extra", 1.3e17, "--measured", tmp_path / "cooldown.json")
    assert done.exit_code == 0, done.output
    first, _, _, third, fourth, *rest = done.stdout.splitlines()
    assert first.startswith("Cool down now: ")
    assert third.startswith(
        "Cooled down from now on over 200 steps, 92% of the budget, the run would end at 2.900 nats"
    )
    assert fourth.startswith("The other 8% of the budget")
    assert sum("cool down now" in line for line in rest) == 1


def test_points_come_from_logs(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for i, n in enumerate(SIZES):
        for k, d in enumerate(TOKENS):
            value = float(LAW.loss(n, d)) * (1 + 0.002 * np.sin(i + 5 * k))
            rows = "\n".join(f"{step},{value + (100 - step) / 500},{n},{d / 100}" for step in range(1, 101))
            (folder / f"run-{i}-{k}.csv").write_text(f"step,loss,n_params,tokens_per_step\n{rows}\n")
    found = answer("--siblings", folder, "--budget", 1e21)
    assert found["n_points"] == 18


def one_length(folder: Path, schedule: str, sizes: tuple[float, ...] = SIZES) -> Path:
    """Write logs of runs of one length on the law, a thousand steps of 20 M tokens each."""
    folder.mkdir()
    steps = np.arange(1, 1001)
    rates = {
        "constant": np.minimum(steps / 50, 1.0),
        "cosine": (1 + np.cos(np.pi * steps / 1000)) / 2,
        "cooled": np.minimum(1, (1000 - steps) / 250 + 1e-3),
    }.get(schedule)
    for n in sizes:
        loss = LAW.loss(n, steps * 2e7) - (0 if rates is None else 0.1 * (rates.max() - rates) * (steps > 50))
        columns = {"step": steps, "loss": loss, "n_params": np.full(1000, n)}
        columns |= {} if rates is None else {"lr": rates}
        rows = "\n".join(",".join(f"{value:.9g}" for value in row) for row in zip(*columns.values(), strict=True))
        (folder / f"run-{n:g}.csv").write_text(f"{','.join(columns)}\n{rows}\n")
    return folder


@pytest.mark.parametrize(("schedule", "reached"), [("constant", 2e10), ("cooled", 1.51e10), ("unlogged", 2e10)])
def test_runs_of_one_length_give_points_along_them(tmp_path: Path, schedule: str, reached: float) -> None:
    folder = one_length(tmp_path / "runs", schedule)
    found = answer("--siblings", folder, "--tokens", "*=2e10", "--tokens", 5e9, "--parameters", 1e8, "--extra", 1e19)
    assert found["n_points"] == 6 * len(SIZES)
    fitted = ScalingLaw(**found["law"])  # type: ignore[arg-type]
    assert fitted.loss(4e8, 6e10) == pytest.approx(LAW.loss(4e8, 6e10), abs=0.004)
    decision, notes = found["decision"], " ".join(found["notes"])  # type: ignore[arg-type]
    assert isinstance(decision, dict)
    assert decision["run"]["cool_down"] == 0.2
    assert "6 losses along each are its points" in notes
    assert ("no learning rate was logged; it is taken to be constant" in notes) == (schedule == "unlogged")
    points = points_of_runs(folder, tokens={"*": 2e10})
    assert points.D.max() == pytest.approx(reached, rel=0.01)
    assert points.D.min() == pytest.approx(0.3 * reached, rel=0.02)


def test_runs_of_one_length_that_determine_nothing_say_what_would(tmp_path: Path) -> None:
    folder = one_length(tmp_path / "cosine", "cosine")
    lacking = run("--siblings", folder, "--budget", 1e20)
    assert lacking.exit_code == 2
    assert lacking.stderr.count("tokens unknown from their logs") == 1
    assert "a star stands for all, as in --tokens '*=D'" in lacking.stderr
    falling = run("--siblings", folder, "--budget", 1e20, "--tokens", "*=2e10")
    assert falling.exit_code == 2
    assert "add runs of other lengths or at a constant rate" in falling.stderr
    few = run("--siblings", one_length(tmp_path / "few", "constant", SIZES[:2]), "--budget", 1e20, "--tokens", "*=2e10")
    assert few.exit_code == 2
    assert "it needs 5, of other sizes or lengths" in few.stderr
    named = run("--siblings", folder, "--budget", 1e20, "--tokens", "x*=2e10")
    assert "--tokens x*=...: no such run" in named.stderr


def test_the_figure_is_written(points: Path, tmp_path: Path) -> None:
    done = run("--points", points, "--budget", 1e20, "--json", "--out", tmp_path / "decision.svg")
    assert json.loads(done.stdout)["plan"]["budget_flops"] == 1e20
    assert (tmp_path / "decision.svg").read_bytes().startswith(b"<svg")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--budget", "1e21"), "either --points FILE or --siblings"),
        (("--points", "POINTS"), "either a budget, for what to train, or extra compute"),
        (("--points", "POINTS", "--budget", "1e21", "--extra", "1e20"), "either a budget"),
        (("--points", "POINTS", "--budget", "-1"), "budget -1: expected"),
        (("--points", "POINTS", "--budget", "nan"), "budget nan: expected"),
        (("--points", "POINTS", "--budget", "1e21", "--unique-tokens", "1e9"), "repeated data are no longer planned"),
        (("--points", "POINTS", "--budget", "1e21", "--tokens", "5"), "tokens: it belongs to a run in progress"),
        (("--points", "POINTS", "--extra", "1e20", "--tokens", "1e9"), "parameters of the run in progress missing"),
        (("--points", "POINTS", "--extra", "1e20", "--parameters", "1e9"), "tokens of the run in progress missing"),
        (
            ("--points", "POINTS", "--extra", "1e20", "--parameters", "-1", "--tokens", "1e9"),
            "--parameters -1: ",
        ),
        (
            ("--points", "POINTS", "--extra", "1e20", "--parameters", "1e8", "--tokens", "0"),
            "--tokens 0: ",
        ),
        (("--points", "POINTS", "--budget", "1e21", "--family", "there"), "no such points; they are of here"),
        (("--points", "absent.csv", "--budget", "1e21"), "does not exist"),
    ],
)
def test_mistakes_are_bad_use_in_one_line(points: Path, arguments: tuple[str, ...], told: str) -> None:
    done = run(*(str(points) if each == "POINTS" else each for each in arguments))
    assert done.exit_code == 2
    assert told in done.stderr
    assert "Traceback" not in done.output


def test_points_that_tell_no_law_are_bad_use(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("N,D,loss\n" + "".join(f"1e8,{d}e9,{4 - 0.1 * d}\n" for d in range(1, 10)))
    one_size = run("--points", path, "--budget", 1e21)
    assert (one_size.exit_code, "only 1 size" in one_size.stderr) == (2, True), one_size.stderr
    path.write_text(table() + table(family="there").split("\n", 1)[1])
    two = run("--points", path, "--budget", 1e21)
    assert two.exit_code == 2
    assert "choose one with --family NAME" in two.stderr
    assert run("--points", path, "--budget", 1e21, "--family", "there").exit_code == 0


def test_a_log_that_cannot_be_compared_is_bad_use(points: Path, tmp_path: Path) -> None:
    per_byte = run("--points", points, "--log", log(tmp_path / "a.csv", loss="bpb"), "--extra", 1e19)
    assert per_byte.exit_code == 2
    assert "cannot be compared" in per_byte.stderr
    nothing = tmp_path / "b.csv"
    nothing.write_text("step,loss\n1,4\n2,3.9\n")
    unknown = run("--points", points, "--log", nothing, "--extra", 1e19)
    assert unknown.exit_code == 2
    assert "give --parameters" in unknown.stderr
    assert (
        run("--points", points, "--log", nothing, "--extra", 1e19, "--parameters", 1e8, "--tokens", 1e9).exit_code == 0
    )
