"""Models of the family, from what a run of ours leaves, and from the published checkpoints."""

import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import opened

from toposcope import series
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions
from toposcope.family.corpus import load, prepare
from toposcope.family.model import GPT, build
from toposcope.family.training import train
from toposcope.models import Origin, load_model, load_tokenizer, token_losses
from toposcope.models.family_model import FamilyModel
from toposcope.models.texts import TokenSequence
from toposcope.models.tokenizers import FastTokenizer

TEXT = "the cat sat on the mat and ran off to see what lay beyond. " * 60


@pytest.fixture(params=["characters", "bpe"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A run of a few steps, and its corpus."""
    (tmp_path / "text.txt").write_text(TEXT)
    options = {"tokenizer": "bpe", "vocabulary": 300} if request.param == "bpe" else {}
    corpus = Corpus(source=str(tmp_path / "text.txt"), **options)  # type: ignore[arg-type]
    path = tmp_path / "corpus.safetensors"
    prepare(corpus, path)
    size = ModelSize(hidden=8, layers=2, heads=2, context=16, vocabulary=corpus.vocabulary)
    training = TrainingOptions(steps=4, batch_size=2, warmup_steps=1, checkpoint_every=2, seed=1)
    run = FamilyRun(name="small", size=size, corpus=corpus, training=training)
    train(run, path, tmp_path / "small")
    return tmp_path / "small", path


def test_a_run_of_ours(trained: tuple[Path, Path]) -> None:
    directory, corpus = trained
    found = series(directory)
    origin = Origin(found.source, "", corpus)
    model, tokenizer = load_model(found[-1], origin), load_tokenizer(found[-1], origin)
    assert isinstance(model, FamilyModel)
    assert (model.context, model.width, model.n_states) == (16, 8, 3)
    assert isinstance(tokenizer, FastTokenizer) == (model.vocabulary == 300)
    # Tokens are those it was trained on.
    validation = load(corpus).validation
    whole = tokenizer.encode(TEXT[round(len(TEXT) * 0.9) :]).ids
    assert whole == validation.tolist()
    reference = build(ModelSize(hidden=8, layers=2, heads=2, context=16, vocabulary=model.vocabulary))
    weights = found[-1].tensors()
    reference.load_state_dict(weights | {"head.weight": weights["token_emb.weight"]})
    chunk = validation[:17].long()
    with torch.inference_mode():
        tokens = chunk[None, :16]
        logits = reference(tokens)
        assert torch.equal(model.logits(tokens), logits)
        first, middle, last = model.states(tokens, [0, 1, 2])
        assert torch.equal(first, reference.token_emb(tokens) + reference.pos_emb.weight)
        assert torch.equal(middle, reference.layers[0](first))
        assert torch.equal(last, reference.ln_f(reference.layers[1](middle)))
        own = reference.loss(chunk[None]).item()
    short = token_losses(model, [TokenSequence(tuple(chunk[:16].tolist()))])
    assert short.n_tokens == 15
    assert own > 0


def test_a_vocabulary_whose_tokenizer_is_elsewhere(trained: tuple[Path, Path]) -> None:
    directory, corpus = trained
    checkpoint, origin = opened(directory)
    if load_model(checkpoint, origin).vocabulary == 128:
        assert load_tokenizer(checkpoint, origin).location == "characters"
        return
    with pytest.raises(ToposcopeError, match=r"trained on a vocabulary of 300, but its tokenizer is missing; name"):
        load_tokenizer(checkpoint, origin)
    named = load_tokenizer(*opened(directory, tokenizer=str(corpus.with_suffix(".tokenizer.json"))))
    assert named.encode("the cat") == load_tokenizer(checkpoint, Origin(origin.root, "", corpus)).encode("the cat")


def stored(folder: Path, size: ModelSize, dtype: torch.dtype = torch.float32) -> GPT:
    """A checkpoint alone, without its run."""
    model = build(size, seed=5).to(dtype)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "head.weight"}
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "step_7.safetensors")
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_published_size_needs_no_run(dtype: torch.dtype, tmp_path: Path) -> None:
    model = stored(tmp_path / "run", ModelSize(hidden=24, layers=2, heads=2), dtype)
    before = torch.get_rng_state()
    found = load_model(*opened(tmp_path / "run"))
    assert torch.equal(torch.get_rng_state(), before)
    tokens = torch.arange(40)[None] * 3
    with torch.inference_mode():
        logits = found.logits(tokens)
        assert torch.equal(logits, model(tokens))
    assert logits.dtype == dtype
    assert found.itemsize == logits.itemsize


def test_another_size_without_its_run(tmp_path: Path) -> None:
    stored(tmp_path / "run", ModelSize(hidden=24, layers=5, heads=2))
    with pytest.raises(ToposcopeError, match=r"step_7.safetensors: no run.json with it, and not a published size"):
        load_model(*opened(tmp_path / "run"))


def test_a_head_of_its_own(tmp_path: Path) -> None:
    model = stored(tmp_path / "run", ModelSize(hidden=24, layers=2, heads=2))
    path = tmp_path / "run" / "step_7.safetensors"
    save_file(load_file(path) | {"head.weight": torch.ones(128, 24)}, path)
    found = load_model(*opened(tmp_path / "run"))
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        *_, last = model.residual_stream(tokens)
        assert torch.equal(found.states(tokens, [2])[0], last)
        torch.testing.assert_close(found.logits(tokens), last.sum(-1, keepdim=True).expand(-1, -1, 128))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", r"run.json: not JSON"),
        (b"[]", r"run.json: not a JSON object"),
        (b"{}", r"run.json: not a run of the family \('run'\); restore it"),
        (b'{"run": 3}', r"run.json: not a run of the family"),
        (b'{"run": {"size": {"hidden": 24, "layers": 2, "heads": 5}}}', r"hidden = 24 is not a multiple of heads = 5"),
        (b'{"run": {"size": {"hidden": 24, "layers": 3, "heads": 2}}}', r"step_7.safetensors: not the weights of its "),
        (b'{"run": {"size": {"hidden": 48, "layers": 2, "heads": 2}}}', r"step_7.safetensors: not the weights of its "),
    ],
)
def test_a_run_that_is_damaged_or_another(content: bytes, told: str, tmp_path: Path) -> None:
    stored(tmp_path, ModelSize(hidden=24, layers=2, heads=2))
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ToposcopeError, match=told) as raised:
        load_model(*opened(tmp_path))
    assert "\n" not in str(raised.value)


def test_the_run_is_found_from_the_folder_of_checkpoints_and_from_one_of_them(tmp_path: Path) -> None:
    size = ModelSize(hidden=24, layers=5, heads=3)
    model = stored(tmp_path / "checkpoints", size)
    declared = msgspec.json.encode({"run": {"size": size}})
    (tmp_path / "run.json").write_bytes(declared)
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        expected = model(tokens)
        assert torch.equal(load_model(*opened(tmp_path)).logits(tokens), expected)
        shutil.move(tmp_path / "run.json", tmp_path / "checkpoints" / "run.json")
        for spec in (tmp_path / "checkpoints", tmp_path / "checkpoints" / "step_7.safetensors"):
            assert torch.equal(load_model(*opened(spec)).logits(tokens), expected)


@pytest.mark.reference
def test_the_published_checkpoints(published_study: Path) -> None:
    """Their runs' losses fell from that of a guess to about 2 nats a character; so do those on an English text."""
    for name in ("tiny-3k", "med-21k"):
        found = series(published_study / "checkpoints" / name)
        losses = []
        for checkpoint in (found[0], found[-1]):
            origin = Origin(found.source)
            model, tokenizer = load_model(checkpoint, origin), load_tokenizer(checkpoint, origin)
            ids = tokenizer.encode(TEXT[: model.context]).ids
            told = token_losses(model, [TokenSequence(tuple(ids))])
            losses.append(told.total / told.n_tokens)
        assert losses[0] > 4.5
        assert losses[1] < 3.5
