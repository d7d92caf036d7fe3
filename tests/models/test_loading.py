"""Where a checkpoint's configuration and tokenizer are found, what a model depends on, and what without them."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import byte_tokenizer, opened, saved

from toposcope import series
from toposcope.errors import ToposcopeError
from toposcope.models import Origin, Reader, load_model, load_tokenizer, token_losses, windows
from toposcope.models.loading import model_key
from toposcope.models.texts import read_saved_text

TEXT = "the cat sat on the mat — and ran off to see what lay beyond\n" * 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with its tokenizer."""
    pytest.importorskip("transformers")
    saved(tmp_path / "model")
    byte_tokenizer(prefix=True).save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def loss(spec: Path | str, **origin: str) -> float:
    """The loss on a text, of the last checkpoint of a series."""
    reader = Reader(*opened(spec, **origin), str)
    return token_losses(reader.model(), windows(TEXT, reader.tokenizer(), 3, 20)).total


def test_in_the_folder_of_the_model(model: Path) -> None:
    assert loss(model) > 0


@pytest.mark.parametrize("place", ["run", "run/checkpoints", "run/checkpoints/step7"])
def test_where_the_series_begins_or_anywhere_on_the_way(place: str, model: Path, tmp_path: Path) -> None:
    expected = loss(model)
    where = tmp_path / "run" / "checkpoints" / "step7"
    where.mkdir(parents=True)
    shutil.move(model / "model.safetensors", where)
    for name in ("config.json", "tokenizer.json"):
        shutil.move(model / name, tmp_path / place / name)
    assert loss(tmp_path / "run") == expected


def test_the_nearest_counts(model: Path, tmp_path: Path) -> None:
    expected = loss(model)
    (tmp_path / "run").mkdir()
    shutil.move(model, tmp_path / "run" / "step7")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "run" / name).write_text("not read")
    assert loss(tmp_path / "run") == expected


@pytest.mark.parametrize("spec", ["run", "run/step_7.safetensors"])
def test_beside_a_checkpoint_of_one_file(spec: str, model: Path, tmp_path: Path) -> None:
    expected = loss(model)
    (tmp_path / "run").mkdir()
    shutil.move(model / "model.safetensors", tmp_path / "run" / "step_7.safetensors")
    for name in ("config.json", "tokenizer.json"):
        shutil.move(model / name, tmp_path / "run")
    assert loss(tmp_path / spec) == expected


def test_beside_a_folder_that_was_named_lies_what_belongs_to_others(model: Path, tmp_path: Path) -> None:
    shutil.move(model / "config.json", tmp_path)
    with pytest.raises(ToposcopeError, match=r"model: no config.json with it, and a model neither of the family"):
        load_model(*opened(model))


def test_a_tokenizer_that_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = loss(model)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(model / "tokenizer.json", tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (f"{tmp_path}/elsewhere", f"{tmp_path}/elsewhere/tokenizer.json", "~/elsewhere"):
        assert loss(model, tokenizer=name) == expected
    assert load_tokenizer(*opened(model, tokenizer="characters")).encode("ab").ids == [97, 98]
    with pytest.raises(
        ToposcopeError, match=r"model: no tokenizer.json with it; .*--tokenizer FOLDER, FILE or hf:owner.* tokenizer = "
    ):
        loss(model)
    with pytest.raises(
        ToposcopeError, match=r"tokenizer \S+/nowhere: no such file; name a tokenizer.json, or a folder"
    ):
        loss(model, tokenizer=f"{tmp_path}/nowhere")


def test_a_tokenizer_of_another_model(model: Path) -> None:
    (model / "tokenizer.json").write_text(byte_tokenizer(vocabulary=257).to_str().replace('"a":', '"a":9', 1))
    with pytest.raises(
        ToposcopeError, match=r"model: the tokenizer gave token 9\d+, and the model's vocabulary has 300"
    ):
        loss(model)


def test_files_that_are_damaged(model: Path) -> None:
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ToposcopeError, match=r"model/tokenizer.json: not a tokenizer"):
        loss(model)
    for content, told in (
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 10**5, "not JSON"),
        ("\x00", "not JSON"),
    ):
        (model / "config.json").write_text(content)
        with pytest.raises(ToposcopeError, match=f"model/config.json: {told}"):
            load_model(*opened(model))


def test_a_file_too_large_to_be_what_it_is_called(model: Path) -> None:
    with (model / "tokenizer.json").open("r+b") as file:
        file.truncate(201_000_000)
    with pytest.raises(ToposcopeError, match=r"tokenizer.json: too long for a file of this name"):
        loss(model)


def test_weights_of_an_unknown_code(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(3, 3)}, tmp_path / "step_1.safetensors")
    checkpoint, origin = opened(tmp_path)
    with pytest.raises(ToposcopeError, match=r"step_1.safetensors: no config.json with it, .*; save the configuration"):
        load_model(checkpoint, origin)
    with pytest.raises(ToposcopeError, match=r"no config.json with it"):
        model_key(checkpoint, origin)


def test_a_key_changes_with_configuration_and_tokenizer_and_with_nothing_else(model: Path, tmp_path: Path) -> None:
    def key(**origin: str) -> str:
        return model_key(*opened(model, **origin))

    keys = [key()]
    (model / "README.md").write_text("about it")
    assert key() == keys[0]
    moved = tmp_path / "moved"
    shutil.copytree(model, moved)
    assert model_key(*opened(moved)) == keys[0]
    keys.append(key(tokenizer="characters"))
    byte_tokenizer(vocabulary=280).save(str(model / "tokenizer.json"))
    keys.append(key())
    (model / "config.json").write_text(
        json.dumps(json.loads((model / "config.json").read_text()) | {"rope_theta": 5.0})
    )
    keys.append(key())
    assert len(set(keys)) == len(keys)
    (model / "tokenizer.json").unlink()
    with pytest.raises(ToposcopeError, match=r"no tokenizer.json with it"):
        key()


def total(reader: Reader) -> float:
    """What another process makes of a reader."""
    torch.set_num_threads(1)
    return token_losses(reader.model(), windows(reader.text(), reader.tokenizer(), 3, 20)).total


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_reader_in_another_process_reads_the_same(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    reader = Reader(*opened(model), partial(read_saved_text, tmp_path / "text"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(total, reader).result() == total(reader)


def test_every_step_of_a_series(tmp_path: Path) -> None:
    """Of one configuration where the run begins; each has weights of its own."""
    pytest.importorskip("transformers")
    for step in (1, 2):
        saved(tmp_path / "run" / f"checkpoint-{step}", "llama", seed=step)
        shutil.move(tmp_path / "run" / f"checkpoint-{step}" / "config.json", tmp_path / "run" / "config.json")
    byte_tokenizer().save(str(tmp_path / "run" / "tokenizer.json"))
    found = series(tmp_path / "run")
    assert found.steps == [1, 2]
    origin = Origin(found.source)
    first, second = (
        token_losses(load_model(c, origin), windows(TEXT, load_tokenizer(c, origin), 2, 20)).total for c in found
    )
    assert first != second
    assert len({model_key(c, origin) for c in found}) == 1


def test_embeddings_that_no_name_identifies(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(5, 3), "b.weight": torch.ones(3, 3)}, tmp_path / "step_1.safetensors")
    with pytest.raises(
        ToposcopeError, match=r"step_1.safetensors: 0 input and 0 output embeddings, .* give them roles"
    ):
        opened(tmp_path)[0].embeddings()
    told = series(tmp_path, roles={"^a": "embed", "^b": "head"})[0]
    assert [layer.name for layer in told.embeddings()] == ["a.weight", "b.weight"]
    told = series(tmp_path, roles={"^a": "head"})[0]
    assert [layer.name for layer in told.embeddings()] == ["a.weight", "a.weight"]  # the head is tied
