"""Models whose weights, configuration and tokenizer lie elsewhere: over HTTP, and at revisions on the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import Hub, hub_of
from range_server import RangeServer, running
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from toposcope import series
from toposcope.checkpoints import Access
from toposcope.checkpoints.sources import hub
from toposcope.errors import ToposcopeError
from toposcope.models import Origin, load_model, load_tokenizer, token_losses, windows
from toposcope.models.loading import model_key

transformers = pytest.importorskip("transformers")

TEXT = "the cat sat on the mat and ran off to see what lay beyond " * 5


def write_model(folder: Path) -> None:
    """A tiny GPT-NeoX with its tokenizer."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.GPTNeoXConfig(vocab_size=60, max_position_embeddings=32, **sizes)
    model = transformers.GPTNeoXForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(config.to_json_string())
    words = {word: k for k, word in enumerate(["?", *sorted(set(TEXT.split()))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def losses(spec: str | Path, access: Access, tokenizer: str = "") -> list[float]:
    """The loss of each checkpoint of a series on a text."""
    found = series(spec, access=access)
    origin = Origin(found.source, tokenizer, access=access)
    return [token_losses(load_model(c, origin), windows(TEXT, load_tokenizer(c, origin), 3, 10)).total for c in found]


@pytest.mark.slow
def test_a_run_over_http(served: Path, access: Access) -> None:
    for step in (1, 2):
        write_model(served / "run" / "checkpoints" / f"step{step}")
    for name in ("config.json", "tokenizer.json"):
        (served / "run" / "checkpoints" / "step1" / name).rename(served / "run" / name)
        (served / "run" / "checkpoints" / "step2" / name).rename(served / "run" / "checkpoints" / name)
    expected = losses(served / "run", access)
    with running(RangeServer(served)) as server:
        assert losses(f"{server.url}/run/", access) == expected
        # The address of a tokenizer, and of the folder it lies in.
        for place in ("run/tokenizer.json", "run/checkpoints/"):
            assert losses(f"{server.url}/run/", access, f"{server.url}/{place}") == expected


@pytest.fixture
def model(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A model at two revisions, and one without its tokenizer."""
    for step in (1, 2):
        write_model(served / f"step{step}")
    write_model(served / "main")
    (served / "step2" / "tokenizer.json").unlink()
    with hub_of(served, monkeypatch) as server:
        yield server


def test_revisions_of_a_model_on_the_hub(model: Hub, served: Path, access: Access) -> None:
    (expected,) = losses(served / "step1", access)
    assert losses("hf:owner/name@step1", access) == [expected]
    with pytest.raises(ToposcopeError, match=r"step2: no tokenizer.json with it; name the model's with --tokenizer"):
        losses("hf:owner/name@step*", access)
    both = losses("hf:owner/name@step*", access, "hf:owner/name")
    assert len(both) == 2
    assert both[0] == expected
    assert model.requests
    # All of it was kept.
    hub._tree.cache_clear()
    before = len(model.requests)
    assert losses("hf:owner/name@step*", Access(offline=True, folder=access.folder), "hf:owner/name") == both
    assert len(model.requests) == before


def test_the_key_of_a_model_moves_no_weights(model: Hub, access: Access) -> None:
    found = series("hf:owner/name@step1", access=access)
    keys = {model_key(c, Origin(found.source, access=access)) for c in found}
    assert len(keys) == 1
    assert not [request for request in model.requests if "model.safetensors" in request]
