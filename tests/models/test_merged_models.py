"""Averages of checkpoints as models: by transformers from what is saved, and here from what is not."""

from pathlib import Path

import pytest
import torch
from small_checkpoints import OPTIMIZER
from small_runs import prepared, small_run
from tiny_models import byte_tokenizer, made, opened

from toposcope import merge, series
from toposcope.checkpoints import Checkpoint
from toposcope.family import train
from toposcope.models import Origin, load_model, load_tokenizer
from toposcope.models.running import token_losses
from toposcope.models.texts import TokenSequence

STEPS = (100, 200, 300)


def loss(checkpoint: Checkpoint, ids: list[int], origin: Origin | None = None) -> float:
    """Nats per token that the model of a checkpoint has on some tokens."""
    losses = token_losses(load_model(checkpoint, origin or Origin()), [TokenSequence(tuple(ids))])
    return losses.total / losses.n_tokens


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_transformers_loads_it_with_the_loss_that_is_read_here(tmp_path: Path, kind: str) -> None:
    """Of weights saved in bfloat16, to which their average must not be rounded again."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for step in STEPS:
        folder = tmp_path / f"checkpoint-{step}"
        made(kind, seed=step, dtype=torch.bfloat16).save_pretrained(folder)
        torch.save(OPTIMIZER, folder / "optimizer.pt")
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    average = merge(tmp_path)
    saved = average.save(tmp_path / "average")
    assert sorted(path.name for path in saved.iterdir()) == [
        *("config.json", "generation_config.json", "merged.json", "model.safetensors", "tokenizer.json"),
        "tokenizer_config.json",
    ]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    assert model.dtype == torch.float32
    ids = tokenizer("the cat sat on the mat and ran off to see")["input_ids"]
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    for place in (average, series(average.location)[0], series(saved)[0]):
        assert loss(place, ids) == pytest.approx(theirs, abs=1e-6)
        assert load_tokenizer(place, Origin()).encode("the cat").ids == ids[: len(tokenizer("the cat")["input_ids"])]


def test_an_average_of_a_run_of_ours_is_a_model_of_it(tmp_path: Path) -> None:
    """The description of a run lies above its checkpoints."""
    corpus, path = prepared(tmp_path)
    train(small_run(corpus), path, tmp_path / "runs" / "x")
    checkpoint, origin = opened(f"merged:{tmp_path / 'runs' / 'x'}@10..40")
    saved = merge(tmp_path / "runs" / "x", window=(10, 40)).save(tmp_path / "average")
    assert loss(checkpoint, [*range(15)], origin) == loss(series(saved)[0], [*range(15)])
    by_hand = {
        name: sum(
            w * c.tensors()[name].double()
            for w, c in zip((1, 2, 2, 1), series(tmp_path / "runs" / "x")[1:], strict=True)
        )
        / 6
        for name in checkpoint.tensors()
    }
    for name, tensor in checkpoint.tensors().items():
        torch.testing.assert_close(tensor.double(), by_hand[name], rtol=1e-6, atol=1e-7)
