"""A task that dies is a row of the study, whatever it dies of; the others go on, and the report is written."""

import json
from pathlib import Path

import pytest
import safetensors.torch
from click.testing import CliRunner
from small_runs import some_text
from small_studies import CONTROLS, NEURAL_PERSISTENCE, frame, series_study, write_series

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError
from toposcope.family.model import GPT
from toposcope.family.run import find_size
from toposcope.models.tokenizers import FastTokenizer
from toposcope.probes.controls import ControlsProbe
from toposcope.study import Study, run_study

EXPLODES = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "(?=(a+)+b)"},
        "behavior": "Isolated",
        "invert": False,
    },
    "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"},
}
"""A tokenizer whose regular expression takes too long on many letters a: the library panics."""


class Panic(BaseException):
    """What compiled code raises, which is no Exception."""


def test_a_panic_of_the_library_is_an_error_of_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ToposcopeError, match=r"^here: not a tokenizer \(.*retry-limit") as caught:
        FastTokenizer("here", json.dumps(EXPLODES).encode()).encode("a" * 40 + "!")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_study_goes_on_after_a_panic(tmp_path: Path) -> None:
    for step in (0, 10):
        (tmp_path / "run").mkdir(exist_ok=True)
        weights = {name: tensor.clone() for name, tensor in GPT(find_size("tiny-3k")).state_dict().items()}
        safetensors.torch.save_file(weights, tmp_path / f"run/step_{step}.safetensors")
    (tmp_path / "panics.json").write_text(json.dumps(EXPLODES))
    (tmp_path / "text.txt").write_text("a" * 40 + "! " + some_text()[:1000])
    (tmp_path / "declared.toml").write_text(
        'name = "panics"\nprobes = [{name = "language_modelling", length = 6}, {name = "neural_persistence"}]\n'
        '[text]\nsource = "text.txt"\n[[series]]\npath = "run"\ntokenizer = "panics.json"\n'
    )
    out = tmp_path / "out"
    command = ["study", "run", str(tmp_path / "declared.toml"), "--out", str(out), "--workers", "2"]
    result = CliRunner().invoke(toposcope, command)
    assert result.exit_code == 1
    assert "retry-limit" in result.output
    assert "Traceback" not in result.output
    assert set(frame(out)["probe"]) == {"neural_persistence"}
    assert [(row["step"], row["probe"]) for row in Study.load(out).errors().to_dicts()] == [
        (0, "language_modelling"),
        (10, "language_modelling"),
    ]
    assert (out / "report/index.html").is_file()
    status = CliRunner().invoke(toposcope, ["study", "status", str(out)])
    assert (status.exit_code, "retry-limit" in status.output) == (1, True)


@pytest.mark.parametrize("error", [Panic("so"), SystemExit(0), MemoryError(), RecursionError("deep")])
def test_whatever_a_probe_raises_is_a_row(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_series(tmp_path / "run", [0, 10])

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ControlsProbe, "measure", fail)
    errors = run_study(series_study(tmp_path / "run", [CONTROLS, NEURAL_PERSISTENCE]), tmp_path / "study", workers=1)
    assert {unit.probe for unit in errors} == {"controls"}
    assert set(frame(tmp_path / "study")["probe"]) == {"neural_persistence"}


def test_a_series_is_complete_only_when_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_series(tmp_path / "run", [0, 10])
    declared, out = series_study(tmp_path / "run", [NEURAL_PERSISTENCE]), tmp_path / "study"
    with monkeypatch.context() as patched:
        patched.setattr("toposcope.study.survey.Survey._measure", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_study(declared, out, workers=1)
    assert Study.load(out).runs()["status"].to_list() == ["running"]
    assert run_study(declared, out, workers=1) == {}
    assert Study.load(out).runs()["status"].to_list() == ["complete"]
