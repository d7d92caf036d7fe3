"""Reading sequences: batches, padding and order do not matter, a memory that is too small does not either."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCABULARY, FakeModel, made
from torch.nn import functional

from toposcope.engine.pool import one_thread
from toposcope.errors import ToposcopeError
from toposcope.family import ModelSize
from toposcope.family.model import build
from toposcope.models import LanguageModel, TokenSequence, hidden_states, running, token_losses
from toposcope.models.family_model import FamilyModel
from toposcope.models.running import pooled
from toposcope.models.texts import passage
from toposcope.models.tokenizers import CharacterTokenizer
from toposcope.probes.hidden_states import gather

CPU = torch.device("cpu")
SIZE = ModelSize(hidden=16, layers=2, heads=2, context=48)


def sequences(n: int = 12, vocabulary: int = 128, n_prefix: int = 1) -> list[TokenSequence]:
    """Sequences of many lengths."""
    draw = random.Random(n)
    lengths = [draw.randrange(n_prefix + 2, 40) for _ in range(n)]
    return [TokenSequence(tuple(draw.randrange(vocabulary) for _ in range(m)), n_prefix) for m in lengths]


def of_family(dtype: torch.dtype = torch.float64) -> LanguageModel:
    return FamilyModel(build(SIZE, seed=3).to(dtype).eval(), "family", CPU)


def of_transformers(dtype: torch.dtype = torch.float64, kind: str = "gpt_neox") -> LanguageModel:
    pytest.importorskip("transformers")
    from toposcope.models.transformers_model import TransformersModel

    return TransformersModel(made(kind, dtype=dtype), kind, CPU)


every_model = pytest.mark.parametrize("make", [of_family, of_transformers])


def by_place(model: LanguageModel, read: list[TokenSequence], wanted: list[int]) -> list[list[torch.Tensor]]:
    """For each sequence, the states of its text's tokens."""
    found: dict[int, list[torch.Tensor]] = {}
    for block in hidden_states(model, read, wanted):
        for row, place in enumerate(block.places):
            assert place not in found
            found[place] = [states[row][block.measured[row]] for states in block.states]
    return [found[place] for place in range(len(read))]


def same(first: list[list[torch.Tensor]], second: list[list[torch.Tensor]], tolerance: float) -> None:
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


@every_model
def test_neither_batches_nor_order_nor_padding_matter(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = make(), sequences()
    wanted = [0, 1, 2]
    together = by_place(model, read, wanted)
    losses = token_losses(model, read)
    backwards = by_place(model, read[::-1], wanted)[::-1]
    for place, sequence in enumerate(read):
        assert len(together[place][0]) == len(sequence.ids) - 1
        alone = by_place(model, [sequence], wanted)
        same(alone, [together[place]], 1e-13)
    same(backwards, together, 1e-13)
    monkeypatch.setattr(running, "BATCH_BYTES", 1)
    blocks = list(hidden_states(model, read, wanted))
    assert [len(block.places) for block in blocks] == [1] * len(read)
    assert [block.batch for block in blocks] == [0] * len(read)
    same(by_place(model, read, wanted), together, 1e-13)
    again = token_losses(model, read)
    assert again.total == pytest.approx(losses.total, rel=1e-13)
    assert (again.n_tokens, again.batch) == (losses.n_tokens, 0) == (sum(len(s.ids) - 1 for s in read), 0)


@every_model
def test_the_same_call_gives_the_same_bytes(make: Any) -> None:
    model, read = make(torch.float32), sequences()
    same(by_place(model, read, [2]), by_place(model, read, [2]), 0)
    assert token_losses(model, read) == token_losses(model, read)


@every_model
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_pooled_text_equals_it_alone(make: Any, dtype: torch.dtype, tolerance: float) -> None:
    model, read = make(dtype), sequences()
    found = np.empty((len(read), model.width))
    for block in hidden_states(model, read, [2]):
        found[block.places] = pooled(block.states[0], block.measured)
    for sequence, mean in zip(read, found, strict=True):
        tokens = torch.tensor([sequence.ids])
        with torch.inference_mode():
            (alone,) = model.states(tokens, [2])
        np.testing.assert_allclose(mean, alone[0, 1:].double().mean(0).numpy(), rtol=0, atol=tolerance)


def test_nothing_is_padded_and_the_prefix_is_not_measured() -> None:
    model = FakeModel()
    read = [TokenSequence((9, 5, 6), 1), TokenSequence((9, 1, 2, 3, 4), 1), TokenSequence((7, 8, 9))]
    longest, others = hidden_states(model, read, [0, 1])
    assert (longest.places, others.places) == ([1], [0, 2])
    assert longest.measured.int().tolist() == [[0, 1, 1, 1, 1]]
    assert others.measured.int().tolist() == [[0, 1, 1], [1, 1, 1]]
    tokens, places = others.states[0].unbind(-1)
    assert tokens[others.measured].tolist() == [5, 6, 7, 8, 9]
    assert places[others.measured].tolist() == [1, 2, 0, 1, 2]
    assert torch.equal(others.states[1][..., 0], tokens + 1000)


def test_sixteen_bits_see_nothing_of_longer_texts() -> None:
    """Padded, a text would take another way through the attention, with roundings of a thousandth."""
    pytest.importorskip("transformers")
    from toposcope.models.transformers_model import TransformersModel

    model = TransformersModel(made("llama").to(torch.bfloat16), "llama", CPU)
    read = [TokenSequence(tuple(range(1, n))) for n in (6, 9, 14)]
    together = by_place(model, read, [0, 2])
    for place, sequence in enumerate(read):
        same(by_place(model, [sequence], [0, 2]), [together[place]], 0)


def test_the_loss_of_the_family_is_that_it_trains_on() -> None:
    read = [TokenSequence(tuple(range(k, k + 30))) for k in range(10)]
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        model = build(SIZE, seed=3).to(dtype)
        own = model.loss(torch.tensor([s.ids for s in read]))
        found = token_losses(FamilyModel(model, "family", CPU), read)
        assert found.n_tokens == 290
        assert found.total / found.n_tokens == pytest.approx(own.item(), rel=tolerance)


@pytest.mark.parametrize("kind", ["gpt_neox", "llama"])
def test_the_loss_is_that_of_transformers(kind: str) -> None:
    pytest.importorskip("transformers")
    model = made(kind)
    from toposcope.models.transformers_model import TransformersModel

    read = sequences(8, VOCABULARY, n_prefix=0)
    length = max(len(s.ids) for s in read)
    labels = torch.tensor([[*s.ids, *[-100] * (length - len(s.ids))] for s in read])
    with torch.inference_mode():
        own = model(input_ids=labels.clamp(min=0), attention_mask=(labels >= 0).long(), labels=labels).loss
    found = token_losses(TransformersModel(model, kind, CPU), read)
    assert found.total / found.n_tokens == pytest.approx(float(own), rel=1e-6)


def test_the_loss_of_a_passage_is_that_of_each_token_given_those_before_it_in_its_window() -> None:
    model = build(SIZE, seed=3).double()
    tokenizer, text = CharacterTokenizer(prefix=(7,)), "how well a model predicts a text, in windows"
    found = passage(text, tokenizer, 12)
    ids, expected = tokenizer.encode(text).ids, 0.0
    for k in range(1, len(ids)):
        window = [7, *ids[(k - 1) // 10 * 10 : k]]
        with torch.inference_mode():
            last = model(torch.tensor([window]))[0, -1]
        expected += float(functional.cross_entropy(last, torch.tensor(ids[k])))
    losses = token_losses(FamilyModel(model, "family", CPU), found.sequences)
    assert losses.n_tokens == len(ids) - 1
    assert losses.total == pytest.approx(expected, rel=1e-12)


def test_bits_per_byte_of_one_distribution_over_two_tokenizers() -> None:
    """A uniform guess over 128 characters, and over all 16,384 pairs of them, are one distribution of the text."""
    text = "".join(chr(33 + k * k % 90) for k in range(400))
    one, other = text.encode()[::2], text.encode()[1::2]
    bits = []
    for vocabulary, ids in ((128, text.encode()), (128**2, [128 * a + b for a, b in zip(one, other, strict=True)])):
        found = token_losses(FakeModel(vocabulary=vocabulary, context=1000), [TokenSequence((0, *ids), 1)])
        bits.append(found.total / math.log(2) / len(text))
    assert bits == pytest.approx([7, 7], rel=1e-12)


def test_a_model_that_has_diverged() -> None:
    model = build(SIZE, seed=3)
    with torch.no_grad():
        model.ln_f.weight[0] = math.nan
    with pytest.raises(ToposcopeError, match=r"here/step_7.pt: the loss on the text is nan; its weights are out of ra"):
        token_losses(FamilyModel(model, "here/step_7.pt", CPU), sequences())


def test_what_cannot_be_read() -> None:
    model = FakeModel(vocabulary=5, context=4)
    for read, told in (
        ([], "fake: no text to read; give a longer one"),
        ([TokenSequence((1, 2)), TokenSequence(())], "fake: a text without tokens"),
        ([TokenSequence((1, 2), 2)], "fake: a text without tokens"),
        ([TokenSequence((1,) * 5)], "fake: a text of 5 tokens, but its context is 4; give a smaller length"),
        (
            [TokenSequence((1, 4)), TokenSequence((1, 5))],
            "fake: the tokenizer gave token 5, and the model's vocabulary has 5; name",
        ),
    ):
        with pytest.raises(ToposcopeError, match=told):
            list(hidden_states(model, read, [0]))
        with pytest.raises(ToposcopeError, match=told):
            token_losses(model, read)
    assert model.batches == []


ERRORS: list[tuple[type[Exception], str]] = [
    (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB."),
    (MemoryError, ""),
    (RuntimeError, "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory: you tried to allocate"),
    (RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes. Error code 12"),
]


@pytest.mark.parametrize(("error", "message"), ERRORS)
def test_a_batch_that_does_not_fit_is_halved(error: type[Exception], message: str) -> None:
    read = [TokenSequence(tuple(range(k, k + 9))) for k in range(11)]
    wide, narrow = FakeModel(), FakeModel(fits=3, error=error, message=message)
    same(by_place(narrow, read, [0, 1]), by_place(wide, read, [0, 1]), 0)
    assert wide.batches == [11]
    assert narrow.batches == [11, 5, 2, 2, 2, 2, 2, 1]  # later ones go on with what did fit
    assert {block.batch for block in hidden_states(narrow, read, [0])} == {2}
    assert {block.batch for block in hidden_states(wide, read, [0])} == {0}
    assert token_losses(narrow, read).batch == 2
    assert token_losses(narrow, read).total == pytest.approx(token_losses(wide, read).total, rel=1e-14)
    assert gather(narrow, read, {"last": 1}, pooled=True, selected=None)[1] == "batch halved to 2"


def test_a_text_that_does_not_fit_alone() -> None:
    model = FakeModel(fits=0)
    with pytest.raises(
        ToposcopeError, match=r"fake: a text of \d\d tokens does not fit into memory; give a smaller len"
    ):
        list(hidden_states(model, [TokenSequence(tuple(range(k, k + 10))) for k in range(5)], [0]))
    assert model.batches == [5, 2, 1]


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    model = FakeModel(fits=1, error=RuntimeError, message="shape mismatch")
    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(hidden_states(model, [TokenSequence((k, k + 1)) for k in range(4)], [0]))
    assert model.batches == [4]


def test_a_task_reads_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@every_model
def test_on_a_gpu_the_same_to_rounding_and_results_on_the_cpu(make: Any) -> None:
    here, there, read = make(), make(), sequences()
    there.module.to("cuda")
    there.device = torch.device("cuda")
    for block in hidden_states(there, read, [0, 2]):
        assert {t.device for t in (*block.states, block.measured)} == {CPU}
    # transformers rotates by angles in float32, whatever the dtype of the model
    tolerance = 1e-8 if make is of_transformers else 1e-10
    same(by_place(there, read, [0, 2]), by_place(here, read, [0, 2]), tolerance)
    assert token_losses(there, read).total == pytest.approx(token_losses(here, read).total, rel=tolerance)
