"""Mistakes at the command line and in a declaration: one line each, which names what was probably meant."""

from pathlib import Path

import pytest
from commands import complaint_of
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from small_studies import write_series

from toposcope.cli.options import whole_number

ARGUMENTS = {
    "a command": (["mesure", "run"], "measure"),
    "a command of a group": (["study", "rum", "x.toml"], "run"),
    "an option": (["measure", "run", "--prob", "rips"], "--probe"),
    "a probe": (["measure", "run", "--probe", "neural-persistance"], "neural_persistence"),
    "an option of a probe": (["measure", "run", "--probe", "rips:max_point=3"], "max_points"),
    "a value of an option": (["measure", "run", "--probe", "neural_persistence:scale=netwrk"], "network"),
    "a role": (["layers", "run", "--role", "x=attn.ou"], "attn.out"),
    "a size": (["train", "tiny3k"], "tiny-3k"),
    "a field of the training": (["train", "tiny-3k", "--set", "step=5"], "steps"),
    "a schedule": (["train", "tiny-3k", "--set", "schedule=cosin"], "cosine"),
    "a quantity": (["forecast", "run", "--column", "los=x"], "loss"),
    "a unit": (["forecast", "run", "--unit", "nat"], "nats"),
}
MULTIPLES = {"k": 1_000, "K": 1_000, "M": 1_000_000, "b": 1_000_000_000}


@examples(200)
@given(st.integers(0, 10**9), st.sampled_from(list(MULTIPLES)))
def test_a_number_of_steps_is_read_as_people_write_it(n: int, multiple: str) -> None:
    assert whole_number(str(n)) == whole_number(f"{n:,}") == whole_number(f"{n:_}") == n
    if n:
        assert whole_number(f"{n}{multiple}") == n * MULTIPLES[multiple]
        assert whole_number(f"{n / 10}k") == 100 * n
        for wrong in (f"{n}.0005k", f"{n}x", f"{multiple}{n}", f"{n}k{n}", "nan", "inf", "1e400"):
            with pytest.raises(ValueError, match="invalid literal"):
                whole_number(wrong)


DECLARATIONS = {
    "a table": ("[[serie]]\npath = 'run'", "series"),
    "a key": ("[[series]]\npath = 'run'\nstep_patern = 'x'", "step_pattern"),
    "a key at the top": ("protocl = 'exact'\n[[series]]\npath = 'run'", "protocol"),
    "a choice": ("protocol = 'publish'\n[[series]]\npath = 'run'", "published"),
    "a probe": ("[[series]]\npath = 'run'\n[[probes]]\nname = 'rip'", "rips"),
    "an option of a probe": ("[[series]]\npath = 'run'\n[[probes]]\nname = 'rips'\nmax_dim = 1", "max_dimension"),
    "a size": ("[[runs]]\nsize = 'tiny-3K'", "tiny-3k"),
    "a key of the training": ("[training]\nlearning-rate = 1.0\n[[runs]]\nsize = 'tiny-3k'", "learning_rate"),
    "a key of a run's training": ("[[runs]]\nsize = 'tiny-3k'\ntraining = {step = 3}", "steps"),
    "a schedule": ("[training]\nschedule = 'consine'\n[[runs]]\nsize = 'tiny-3k'", "cosine"),
}


@pytest.mark.parametrize(("arguments", "meant"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_at_the_command_line(arguments: list[str], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_series(tmp_path / "run", [0, 5])
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    line = complaint_of(*arguments)
    assert "id you mean" in line
    assert f"'{meant}'" in line.partition("id you mean")[2]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("content", "meant"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_in_a_declaration(content: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text(f"name = 'a'\n{content}\n")
    monkeypatch.chdir(tmp_path)
    line = complaint_of("study", "run", "a.toml")
    assert line.startswith("Error: a.toml: ")
    assert f"did you mean '{meant}'?" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_a_table_where_a_list_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text("name = 'a'\n[series]\npath = 'run'\n")
    monkeypatch.chdir(tmp_path)
    assert complaint_of("study", "run", "a.toml") == (
        "Error: a.toml: series is a table; it must be a list, or tables in double brackets"
    )


def test_a_wrong_use_is_one_line_that_names_the_help() -> None:
    assert complaint_of("measure") == "Error: Missing argument 'SERIES...' (see toposcope measure --help)"
