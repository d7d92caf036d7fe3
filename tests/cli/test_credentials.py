"""A secret in an address reaches no file and no message, whichever command it is given to."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_studies import write_series

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, load_declaration, measure, run_study
from toposcope.study.declaration import DeclaredSeries

CANARY = "cAnArYsEcReT"
ADDRESSES = [
    f"http://user:{CANARY}@127.0.0.1:9/run/",
    f"http://127.0.0.1:9/run/?token={CANARY}",
    f"http://127.0.0.1:9/run/a.pt?X-Amz-Signature={CANARY}",
    f"http://127.0.0.1:9/run/a.pt?x={CANARY}",
    f"s3://key:{CANARY}@bucket/run",
    f"s3://key:half/{CANARY}@bucket/run",
    f"hf://{CANARY}@owner/name",
    f"hf:user:{CANARY}@owner/name",
    f"http:/user:{CANARY}@127.0.0.1/run",
]
PLACES = {
    "path": '[[series]]\nname = "run"\npath = "{}"\n',
    "path without a name": '[[series]]\npath = "{}"\n',
    "tokenizer": '[[series]]\npath = "run"\ntokenizer = "{}"\n',
    "features": '[[series]]\nname = "a"\nfeatures = "{}"\n',
    "text": '[text]\nsource = "{}"\n[[series]]\npath = "run"\n',
    "corpus": '[corpus]\nsource = "{}"\n[[runs]]\nsize = "tiny-3k"\n',
    "probe": '[[series]]\npath = "run"\n[[probes]]\nname = "{}"\n',
    "unknown field": '[[series]]\npath = "run"\n[log]\nplace = "{}"\n',
    "name of a field": '[[series]]\npath = "run"\n[series.roles]\n"{}" = "head"\n',
    "publication": '[[series]]\npath = "run"\n[published]\nsource = "{}"\n',
}
COMMANDS = [
    ["measure", "{}"],
    ["measure", "{}", "--out", "table.csv"],
    ["measure", "run", "--text", "{}", "--probe", "language_modelling"],
    ["measure", "run", "--text=run/step_000000.safetensors", "--probe", "language_modelling", "--tokenizer={}"],
    ["doctor", "{}", "--deep"],
    ["layers", "{}"],
    ["forecast", "{}"],
    ["report", "{}"],
    ["study", "run", "{}"],
    ["study", "import", "{}"],
    ["train", "tiny-3k", "--corpus", "{}"],
    ["measure", "run", "--engine", "ray://user:" + CANARY + "@127.0.0.1"],
    ["measure", "run", "--out", "{}/a.csv"],
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a series in it, which is the working folder, the home and the place of the cache."""
    write_series(tmp_path / "run", [0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def assert_hidden(home: Path, output: str, *own: Path) -> None:
    assert CANARY not in output
    for path in home.rglob("*"):
        assert CANARY not in path.name
        assert path in own or not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def combined(places: Iterable[Any]) -> list[tuple[Any, str]]:
    """Each place with two addresses, and the first with all."""
    first, *others = places
    return [*((first, address) for address in ADDRESSES), *((p, address) for p in others for address in ADDRESSES[:2])]


@pytest.mark.parametrize(("command", "address"), combined(COMMANDS))
def test_no_command_stores_or_shows_a_secret(command: list[str], address: str, home: Path) -> None:
    arguments = [part.replace("{}", address) for part in command]
    result = CliRunner().invoke(toposcope, arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "holds a" in result.output or "hf:owner/name" in result.output
    assert_hidden(home, result.output)


@pytest.mark.parametrize(("place", "address"), combined(PLACES))
def test_no_declaration_stores_or_shows_a_secret(place: str, address: str, home: Path) -> None:
    file = home / "declared.toml"
    file.write_text(f'name = "s"\n{PLACES[place].format(address)}')
    result = CliRunner().invoke(toposcope, ["study", "run", str(file), "--out", str(home / "out")])
    assert result.exit_code == 2
    assert not (home / "out").exists()
    assert_hidden(home, result.output, file)


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_function_stores_or_shows_a_secret(address: str, home: Path) -> None:
    with pytest.raises(ToposcopeError) as first:
        measure(address)
    with pytest.raises(ToposcopeError) as second:
        run_study(Declaration(name="s", series=[DeclaredSeries(path=address)]), home / "out", workers=1)
    assert_hidden(home, f"{first.value} {second.value}")
    assert not (home / "out").exists()


@pytest.mark.slow
def test_a_note_of_an_import_shows_no_secret(home: Path) -> None:
    rows = [{"model": f"https://user:{CANARY}@host/a/b", "step": step, "np_mean": 0.5 + step} for step in range(3)]
    (home / "published").mkdir()
    (home / "published/features.json").write_text(json.dumps(rows))
    result = CliRunner().invoke(toposcope, ["study", "import", "published", "--out", "out"])
    assert_hidden(home, result.output, home / "published/features.json")


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8080/run@2/step_10.pt",
        "http://[::1]:8080/run/",
        "s3://bucket/run@main/step=10,tokens=4B/",
        "hf:gpt2@step-?",
        "hf:owner/name@design=3",
        "file:///data/a:b@c?d",
    ],
)
def test_other_addresses_are_no_secrets(address: str, tmp_path: Path) -> None:
    path = tmp_path / "declared.toml"
    path.write_text(
        f'name = "s"\n[published]\nsource = "https://host/forum?id=1"\n[[series]]\nname = "a"\npath = "{address}"\n'
    )
    load_declaration(path)
