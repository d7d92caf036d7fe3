"""Several series by one path with braces: which they are, what they are called, and what is refused."""

from pathlib import Path

import pytest

from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, Study, load_declaration, run_study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.declared_runs import expanded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ["plain"]),
        ("a{1..3}b", ["a1b", "a2b", "a3b"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{x,y}-{1..2}", ["x-1", "x-2", "y-1", "y-2"]),
        ("run{, -again}", ["run", "run-again"]),
        ("{name}/{a,b}", ["{name}/a", "{name}/b"]),
        ("{x}", ["{x}"]),
        ("open{1..2", ["open{1..2"]),
    ],
)
def test_braces_are_those_of_a_shell(text: str, expected: list[str]) -> None:
    assert expanded(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{a,{b,c}}", "braces within braces"),
        ("{a..c}", r"\{a..c\} is no range of whole numbers, such as \{1..9\}"),
        ("{1..9..2}", "no range of whole numbers"),
        ("{1..100000000000}", "more than 1,000 series"),
        ("{1..100}{1..100}", "more than 1,000 series"),
    ],
)
def test_what_no_shell_would_read_is_refused_in_a_line(text: str, told: str) -> None:
    with pytest.raises(ToposcopeError, match=told) as caught:
        expanded(text)
    assert "\n" not in str(caught.value)


def load(folder: Path, content: str) -> Declaration:
    path = folder / "declared.toml"
    path.write_text(f'name = "x"\n{content}')
    return load_declaration(path)


def test_each_has_the_name_of_its_path_and_keeps_it_when_stored(tmp_path: Path) -> None:
    declared = load(tmp_path, '[[series]]\npath = "runs/{a,b}"\nlog = "logs/{name}.csv"\nevery = 2')
    assert [(s.resolved_name(), s.log) for s in declared.series] == [
        (name, str(tmp_path / "logs" / f"{name}.csv")) for name in ("a", "b")
    ]
    assert all(s.every == 2 for s in declared.series)
    assert load(tmp_path, declared.to_toml().replace('name = "x"\n', "", 1)) == declared


def test_a_folder_that_has_such_a_name_is_itself(tmp_path: Path) -> None:
    (tmp_path / "{a,b}").mkdir()
    declared = load(tmp_path / "{a,b}", '[[series]]\npath = "."\nname = "x1"')
    assert [s.path for s in declared.series] == [str(tmp_path / "{a,b}")]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ('path = "{a,b}"\nname = "both"', "stands for several, and name is 'both'; leave it out"),
        ('path = "{a,a}"', "2 runs or series are called 'a'"),
        ('path = "{a..b}"', "no range of whole numbers"),
        ('path = "a"\nlog = "https://example.org/log.csv"', "a training log is a file of this machine"),
    ],
)
def test_mistakes_are_named_with_the_file(fields: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=told) as caught:
        load(tmp_path, f"[[series]]\n{fields}")
    assert str(caught.value).startswith(f"{tmp_path / 'declared.toml'}: ")


def checkpoints(folder: Path, steps: list[int]) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for step in steps:
        save_file({"weight": torch.full((3, 4), 1.0 + step)}, folder / f"step_{step}.safetensors")


def study_of(folder: Path, **fields: object) -> Study:
    both = DeclaredSeries(path=str(folder / "{a,b}"), **fields)  # type: ignore[arg-type]
    declared = Declaration(name="x", series=[both], probes=[{"name": "controls"}])
    assert run_study(declared, folder / "study", workers=1) == {}
    return Study.load(folder / "study")


def test_steps_that_an_optional_series_lacks_are_a_note(tmp_path: Path) -> None:
    checkpoints(tmp_path / "a", [0, 1, 2])
    checkpoints(tmp_path / "b", [0, 2])
    study = study_of(tmp_path, steps=[0, 1, 2], optional=True)
    steps = study.checkpoints().group_by("run", maintain_order=True).agg("step")
    assert steps.rows() == [("a", [0, 1, 2]), ("b", [0, 2])]
    assert study.notes() == ["b: no checkpoint at step 1"]
    # Where it must be there, it is an error.
    declared = Declaration(
        name="x", series=[DeclaredSeries(path=str(tmp_path / "b"), steps=[0, 1])], probes=[{"name": "controls"}]
    )
    (message,) = run_study(declared, tmp_path / "other", workers=1).values()
    assert "no checkpoint at step 1" in message


def test_a_log_elsewhere_is_of_the_series_by_its_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        checkpoints(tmp_path / name, [0, 10])
        (tmp_path / f"{name}.jsonl").write_text("\n".join(f'{{"step": {s}, "loss": {3 - s / 10}}}' for s in (0, 5, 10)))
    study = study_of(tmp_path, log=str(tmp_path / "{name}.jsonl"))
    assert study.log().select("run", "step", "loss").rows() == [
        (name, step, 3 - step / 10) for name in ("a", "b") for step in (0, 5, 10)
    ]


def test_of_a_log_of_several_runs_the_one_of_its_name_counts(tmp_path: Path) -> None:
    checkpoints(tmp_path / "a", [0, 10])
    checkpoints(tmp_path / "b", [0, 10])
    rows = [f"{run},{step},{loss + step}" for run, loss in (("a", 1), ("b", 2)) for step in (0, 10)]
    (tmp_path / "runs.csv").write_text("\n".join(["run,step,loss", *rows]))
    study = study_of(tmp_path, log=str(tmp_path / "runs.csv"))
    assert study.log().select("run", "loss").rows() == [("a", 1), ("a", 11), ("b", 2), ("b", 12)]


def test_a_log_that_is_not_there_is_an_error_of_that_run_alone(tmp_path: Path) -> None:
    checkpoints(tmp_path / "a", [0, 10])
    declared = Declaration(
        name="x",
        series=[DeclaredSeries(path=str(tmp_path / "a"), log=str(tmp_path / "absent.csv"))],
        probes=[{"name": "controls"}],
    )
    errors = run_study(declared, tmp_path / "study", workers=1)
    assert [(unit.run, unit.probe) for unit in errors] == [("a", "log")]
    assert "absent.csv: no such file" in next(iter(errors.values()))
    assert len(Study.load(tmp_path / "study").frame())
