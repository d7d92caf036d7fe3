"""``toposcope layers``: what is shown of one checkpoint, for people and for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from toposcope.checkpoints import series
from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError

WEIGHTS = {
    "transformer.wte.weight": torch.ones(10, 4),
    "transformer.wpe.weight": torch.ones(6, 4),
    "transformer.h.0.ln_1.weight": torch.ones(4),
    "transformer.h.0.attn.c_attn.weight": torch.ones(4, 12, dtype=torch.bfloat16),
    "transformer.h.0.attn.c_attn.bias": torch.ones(12),
    "transformer.h.0.attn.bias": torch.ones(1, 1, 6, 6),
    "transformer.h.0.mlp.c_fc.weight": torch.ones(4, 16).to(torch.float8_e4m3fn),
    "transformer.h.0.mystery.weight": torch.ones(4, 4),
    "lm_head.weight": torch.ones(10, 4),
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(toposcope, ["layers", *map(str, arguments)])


def told(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    save_file({"head.weight": torch.ones(3, 2)}, path / "step100-tokens2M.safetensors")
    save_file(WEIGHTS, path / "step2000-tokens40M.safetensors")
    return path


def test_a_table_for_people(folder: Path) -> None:
    done = run(folder)
    assert done.exit_code == 0
    assert "Layers of step 2000" in done.stdout
    assert f"{folder}/step2000-tokens40M.safetensors" in done.stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if "│" in line]
    assert rows == [
        ["lm_head.weight", "head", "name", "10 x 4", "float32", "160 bytes", "yes", ""],
        [
            *("transformer.h.0.attn.c_attn.weight", "attn.qkv", "name", "4 x 12", "bfloat16", "96 bytes"),
            *("yes", "transposed"),
        ],
        [
            *("transformer.h.0.mlp.c_fc.weight", "mlp.in", "name", "4 x 16", "float8_e4m3fn", "64 bytes"),
            *("yes", "transposed"),
        ],
        ["transformer.h.0.mystery.weight", "other", "unknown", "4 x 4", "float32", "64 bytes", "yes", ""],
        ["transformer.wpe.weight", "pos_embed", "name", "6 x 4", "float32", "96 bytes", "no", ""],
        ["transformer.wte.weight", "embed", "name", "10 x 4", "float32", "160 bytes", "no", ""],
    ]
    # The mask is no parameter, and a head equal to the embedding counts once.
    assert "6 layers, 640 bytes; 208 parameters stored in all" in done.stdout
    assert "roles: attn.qkv 1, embed 1, head 1, mlp.in 1, other 1, pos_embed 1" in done.stdout
    assert "1 x mask (transformer.h.0.attn.bias)" in done.stdout
    assert "unknown: 1, measured as other: transformer.h.0.mystery.weight; give a role with --role" in done.stdout
    assert "80.8% of the parameters are measured, in 4 matrices; the rest: " in done.stdout
    assert done.stderr == "note: weights of 8-bit floats without a scale, read as stored: 1\n"


def test_the_same_for_programs(folder: Path) -> None:
    found = told(folder)
    checkpoint = series(folder)[-1]
    assert [row["name"] for row in found["layers"]] == [layer.name for layer in checkpoint.layers()]
    assert [row["name"] for row in found["layers"] if row["measured"]] == [x.name for x in checkpoint.analysed()]
    assert [row["name"] for row in found["layers"] if row["transposed"]] == [
        layer.name for layer in checkpoint.layers() if layer.transposed
    ]
    assert (found["step"], found["tokens"]) == (2000, 40_000_000)
    assert found["bytes"] == sum(row["bytes"] for row in found["layers"]) == 640
    assert found["unknown"] == ["transformer.h.0.mystery.weight"]
    assert sorted([row["name"] for row in found["layers"]] + [row["name"] for row in found["others"]]) == sorted(
        WEIGHTS
    )


def test_of_which_checkpoint(folder: Path) -> None:
    assert told(folder, "--step", "100")["step"] == 100
    assert told(folder / "step100-tokens2M.safetensors")["step"] == 100
    with pytest.raises(ToposcopeError, match="no checkpoint at step 7"):
        raise run(folder, "--step", "7").exception or AssertionError


def test_roles_of_ones_own(folder: Path) -> None:
    found = told(folder, "--role", r"mystery=attn.k", "--role", "wpe=other")
    by_name = {row["name"]: (row["role"], row["recognised"], row["measured"]) for row in found["layers"]}
    assert by_name["transformer.h.0.mystery.weight"] == ("attn.k", "your rule", True)
    assert by_name["transformer.wpe.weight"] == ("other", "your rule", True)
    assert found["unknown"] == []


def test_no_weights_are_read(tmp_path: Path) -> None:
    # What lies behind the headers is not there: a hole of 40 GB.
    header = json.dumps({"head.weight": {"dtype": "F32", "shape": [100_000, 100_000], "data_offsets": [0, 4 * 10**10]}})
    path = tmp_path / "step_1.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + 4 * 10**10)
    assert told(path)["bytes"] == 4 * 10**10


@pytest.mark.parametrize(
    "arguments", [("--role", "head"), ("--role", "head=brain"), ("--role", "(=head"), ("--step-pattern", r"it\d+")]
)
def test_an_option_that_makes_no_sense_is_bad_use(folder: Path, arguments: tuple[str, ...]) -> None:
    done = run(folder, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_what_is_not_there_is_bad_use(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere")
    assert (done.exit_code, done.stderr) == (2, f"Error: {tmp_path}/nowhere: no such file or folder\n")


def test_a_damaged_checkpoint_is_one_line(folder: Path) -> None:
    (folder / "step2000-tokens40M.safetensors").write_bytes(b"\0" * 30)
    with pytest.raises(ToposcopeError, match="step2000-tokens40M") as caught:
        raise run(folder).exception or AssertionError
    assert "\n" not in str(caught.value)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    # What looks like the markup of a table is a name.
    names = ["[bold]a[/]", "[/x]", ":smile:"]
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "step_1.safetensors")
    done = run(tmp_path)
    assert done.exit_code == 0
    assert all(f"│ {name} " in done.stdout for name in names)
    assert f"unknown: 3, measured as other: {', '.join(sorted(names))}; give" in done.stdout


def test_many_unknown_names_are_cut_short(tmp_path: Path) -> None:
    save_file({f"mystery.{k}.foo": torch.ones(2, 2) for k in range(7)}, tmp_path / "step_1.safetensors")
    named = ", ".join(f"mystery.{k}.foo" for k in range(5))
    assert f"unknown: 7, measured as other: {named} and 2 more;" in run(tmp_path).stdout
