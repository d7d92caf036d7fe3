"""The loss on a text against the model read by hand, one window after another."""

import math
from pathlib import Path

import pytest
import torch
from small_models import SIZE, characters, family_model, measured, save, some_lines
from torch.nn import functional

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.family.model import GPT
from toposcope.family.run import SIZES
from toposcope.probes.language_modelling import LanguageModellingProbe

TEXT = some_lines(6)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return save(family_model(), tmp_path_factory.mktemp("family"))


def loss_by_hand(model: GPT, ids: list[int], length: int) -> tuple[float, int]:
    """Nats and tokens: windows share one token, which the first has predicted and the second begins with."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, length - 1):
        window = torch.tensor(ids[start : start + length])
        with torch.no_grad():
            logits = model(window[None])[0]
        total += float(functional.cross_entropy(logits[:-1], window[1:], reduction="sum"))
        count += len(window) - 1
    return total, count


@pytest.mark.parametrize("length", [2, 33, 128, 512])
def test_every_token_but_the_first_is_predicted_once(checkpoint: Checkpoint, length: int) -> None:
    found = measured(LanguageModellingProbe(length=length), checkpoint, TEXT)["network"]
    total, count = loss_by_hand(family_model(), characters(TEXT), min(length, SIZES[SIZE].context))
    assert count == len(TEXT) - 1
    loss = total / count
    expected = {
        "loss": loss,
        "perplexity": math.exp(loss),
        "bits_per_byte": total / math.log(2) / len(TEXT[1:].encode()),
        "n_tokens": count,
        "n_bytes": len(TEXT) - 1,
    }
    assert found.statistics == pytest.approx(expected, rel=1e-9)
    less = "only 128 of 512 tokens in a window" if length == 512 else ""
    assert (found.role, found.diagrams, found.flag) == ("network", {}, less)


def test_bytes_are_those_of_utf_8(checkpoint: Checkpoint) -> None:
    text = "žlu" * 50
    found = measured(LanguageModellingProbe(), checkpoint, text)["network"].statistics
    assert (found["n_tokens"], found["n_bytes"]) == (149, 4 * 50 - 2)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * 149 / 198 / math.log(2))


def test_a_model_that_knows_nothing(tmp_path: Path) -> None:
    model = family_model()
    with torch.no_grad():
        model.token_emb.weight.zero_()
    found = measured(LanguageModellingProbe(), save(model, tmp_path), TEXT)["network"].statistics
    assert found["perplexity"] == pytest.approx(128)


def test_a_perplexity_beyond_the_range_is_absent(tmp_path: Path) -> None:
    model = family_model()
    with torch.no_grad():
        model.token_emb.weight *= 1e6
    found = measured(LanguageModellingProbe(), save(model, tmp_path), TEXT)["network"].statistics
    assert found["loss"] > 700
    assert "perplexity" not in found


def test_a_loss_that_is_not_finite_is_told(tmp_path: Path) -> None:
    model = family_model()
    with torch.no_grad():
        model.ln_f.bias[0] = float("nan")
    with pytest.raises(ToposcopeError, match="loss on the text is nan"):
        measured(LanguageModellingProbe(), save(model, tmp_path), TEXT)
