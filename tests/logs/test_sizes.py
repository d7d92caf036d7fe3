"""Parameters and tokens of a run are read from what lies next to its log, in the layouts that trainers leave."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from toposcope.cli import toposcope
from toposcope.logs import read_log, read_logs
from toposcope.logs.run import Run
from toposcope.logs.sizes import with_sizes

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
V, E, C = 50, 8, 16  # vocabulary, width, context


def weights(width: int = E, *, tied: bool = True) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(width)
    tensors = {
        "transformer.wte.weight": torch.randn(V, width, generator=draw),
        "transformer.wpe.weight": torch.randn(C, width, generator=draw),
        "transformer.h.0.attn.c_attn.weight": torch.randn(3 * width, width, generator=draw),
        "transformer.h.0.mlp.c_fc.weight": torch.randn(4 * width, width, generator=draw),
        "transformer.h.0.mlp.c_fc.bias": torch.zeros(4 * width),
    }
    embedding = tensors["transformer.wte.weight"]
    return {**tensors, "lm_head.weight": embedding if tied else torch.randn(V, width, generator=draw)}


def count(tensors: dict[str, Any]) -> int:
    return sum({id(tensor): tensor.numel() for tensor in tensors.values()}.values())


def log(folder: Path, name: str = "log.txt", end: float = 3.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"iter {i * 10}: loss {end + 3 / i:.4f}, time 3.10ms\n" for i in range(1, 41)]
    (folder / name).write_text("".join(lines))
    return folder / name


def nanogpt(folder: Path, width: int = E, batch: int = 4, end: float = 3.0) -> int:
    log(folder, end=end)
    args = {"n_layer": 1, "n_head": 2, "n_embd": width, "block_size": C, "vocab_size": V}
    config = {"batch_size": batch, "block_size": C, "gradient_accumulation_steps": 5, "dataset": "char"}
    saved = {"model": weights(width), "model_args": args, "iter_num": 400, "config": config}
    torch.save(saved, folder / "ckpt.pt")
    return count(weights(width))


def sized(path: Path) -> Run:
    return with_sizes(read_log(path))


@pytest.mark.parametrize("tied", [True, False])
def test_nanogpt_counts_a_tied_head_once(tied: bool, tmp_path: Path) -> None:
    nanogpt(tmp_path / "out")
    saved = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    torch.save({**saved, "model": weights(tied=tied)}, tmp_path / "out" / "ckpt.pt")
    found = sized(tmp_path / "out" / "log.txt")
    assert found.parameters == count(weights(tied=tied))
    assert found.tokens_per_step == 4 * C * 5
    words = "320 tokens per step, batch_size 4 x block_size 16 x gradient_accumulation_steps 5 of the checkpoint's"
    assert any(words in remark for remark in found.remarks)


def test_lightning_states_hyperparameters(tmp_path: Path) -> None:
    folder = tmp_path / "lightning_logs" / "version_0"
    (folder / "checkpoints").mkdir(parents=True)
    rows = "".join(f"{i},{i * 10},{3 + 3 / (i + 1):.4f}\n" for i in range(40))
    (folder / "metrics.csv").write_text(f"epoch,step,train_loss\n{rows}")
    settings = "batch_size: 8  # of a device\nseq_len: 32\naccumulate_grad_batches: 2\ndevices: 2\n"
    (folder / "hparams.yaml").write_text(settings)
    state = {f"model.{name}": tensor for name, tensor in weights(tied=False).items()}
    torch.save({"state_dict": state, "global_step": 390}, folder / "checkpoints" / "epoch=0-step=390.ckpt")
    found = sized(folder)
    assert (found.parameters, found.tokens_per_step) == (count(weights(tied=False)), 8 * 32 * 2 * 2)
    assert not any("one device" in remark for remark in found.remarks)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("counted", ["num_input_tokens_seen", "total_flos"])
def test_the_trainer_of_hugging_face(counted: str, tied: bool, tmp_path: Path) -> None:
    folder, tensors = tmp_path / "out" / "checkpoint-40", weights(tied=tied)
    folder.mkdir(parents=True)
    stored = {name: tensor for name, tensor in tensors.items() if not (tied and name == "lm_head.weight")}
    safetensors.save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_ctx": C, "tie_word_embeddings": tied}))
    tokens, outside = 40 * 384, (V + C) * E
    state = {"num_input_tokens_seen": tokens, "total_flos": 6.0 * tokens * (count(tensors) - outside)}
    history = [{"step": i, "loss": 3 + 3 / i} for i in range(1, 41)]
    document = {"global_step": 40, "max_steps": 40, "log_history": history, "train_batch_size": 4}
    (folder / "trainer_state.json").write_text(json.dumps({**document, counted: state[counted]}))
    found = sized(tmp_path / "out")
    assert found.parameters == count(tensors)
    assert found.tokens_per_step == pytest.approx(384)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_configuration_alone_declares_the_parameters(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": V, "n_embd": E, "n_layer": 1, "n_head": 2, "n_positions": C, "tie_word_embeddings": tied}
    config = transformers.GPT2Config(**sizes)
    config.save_pretrained(tmp_path)
    log(tmp_path)
    expected = sum(p.numel() for p in transformers.GPT2LMHeadModel(config).parameters())
    assert sized(tmp_path / "log.txt").parameters == expected
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    found = sized(tmp_path / "log.txt")
    assert math.isnan(found.parameters)
    assert any("a model that transformers cannot build" in remark for remark in found.remarks)


def test_what_lies_next_to_several_logs_is_of_none(tmp_path: Path) -> None:
    nanogpt(tmp_path)
    log(tmp_path, "other.txt")
    assert all(math.isnan(with_sizes(each).parameters) for each in read_logs(tmp_path).logs)


def test_a_damaged_checkpoint_and_configuration_are_remarks(tmp_path: Path) -> None:
    log(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00")
    (tmp_path / "config.json").write_text("{")
    found = sized(tmp_path / "log.txt")
    assert math.isnan(found.parameters)
    assert any("its checkpoints say nothing of its size: " in remark for remark in found.remarks)
    assert any("config.json cannot be read: " in remark for remark in found.remarks)


def test_decide_reads_them_and_names_the_options_that_are_missing(tmp_path: Path) -> None:
    """Nine runs of nanoGPT, and one whose log is all that is left."""

    def told(*arguments: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(toposcope, ["decide", "--siblings", str(tmp_path), "--budget", "1e12", *arguments])
        return done.exit_code, done.stdout, done.stderr

    for i, (width, batch) in enumerate(product((8, 16, 32), (4, 8, 16))):
        nanogpt(tmp_path / f"run {i}", width, batch, end=2 + 30 * count(weights(width)) ** -0.4 + 3 * batch**-0.4)
    log(tmp_path / "lost")
    code, printed, notes = told()
    assert code == 0, notes
    assert "lost/log: left out, parameters and tokens unknown" in notes
    assert "; give --parameters lost/log=N and --tokens lost/log=D" in notes
    assert "run 0/log: 320 tokens per step, " in notes
    assert printed.splitlines()[1] == "By a law fitted to 9 points of 9 runs."
    code, printed, notes = told("--parameters", "lost/log=5e3", "--tokens", "lost/log=1e5")
    assert (code, "10 points of 10 runs" in printed, "lost/log: left out" in notes) == (0, True, False)
    code, _, notes = told("--parameters", "lots/log=5e3")
    assert (code, "--parameters lots/log=...: no such run; did you mean 'lost/log'?" in notes) == (2, True)
    code, _, notes = told("--tokens", "lost=many")
    assert (code, "--tokens lost=many: expected a number" in notes) == (2, True)


def test_sizes_that_the_log_states_stay(tmp_path: Path) -> None:
    nanogpt(tmp_path / "a")
    (tmp_path / "a" / "log.txt").unlink()
    rows = "".join(f"{i},{3 + 1 / i},123,456\n" for i in range(1, 30))
    (tmp_path / "a" / "log.csv").write_text(f"step,loss,n_params,tokens_per_step\n{rows}")
    found = sized(tmp_path / "a")
    assert (found.parameters, found.tokens_per_step) == (123, 456)
    assert np.isfinite(found.loss).all()
