"""Models of transformers, made of a checkpoint's weights, against transformers' own loading of the same folder."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored_tensors import tensor_of
from tiny_models import CONTEXT, KINDS, PLAIN, VOCABULARY, made, opened, saved

from toposcope.errors import ToposcopeError
from toposcope.models import LanguageModel, load_model
from toposcope.models.transformers_model import TransformersModel

transformers = pytest.importorskip("transformers")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def batch(seed: int = 1) -> torch.Tensor:
    """Tokens of three sequences of one length."""
    return torch.randint(0, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(seed))


def check_same(model: LanguageModel, reference: Any) -> None:
    """The same bits as the model itself, which is told that nothing is padded."""
    tokens = batch()
    mask = torch.ones_like(tokens)
    with torch.inference_mode():
        wanted = reference(input_ids=tokens, attention_mask=mask, output_hidden_states=True, use_cache=False)
        logits, states = model.logits(tokens), model.states(tokens, range(model.n_states))
    assert model.n_states == len(wanted.hidden_states)
    assert logits.dtype == wanted.logits.dtype
    assert torch.equal(logits, wanted.logits)
    assert all(torch.equal(*pair) for pair in zip(states, wanted.hidden_states, strict=True))
    assert {s.shape[-1] for s in states} == {model.width}


def load(folder: Path) -> LanguageModel:
    return load_model(*opened(folder))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_as_transformers(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if kind == "mixtral" and dtype == torch.float64:
        pytest.skip("transformers itself has no experts in float64")
    saved(tmp_path / "m", kind, dtype=dtype)
    model = load(tmp_path / "m")
    assert model.vocabulary == VOCABULARY
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=dtype).eval()
    check_same(model, reference)
    checkpoint, _ = opened(tmp_path / "m")
    held = (reference.get_input_embeddings().weight, reference.get_output_embeddings().weight)
    for layer, weight in zip(checkpoint.embeddings(), held, strict=True):
        assert torch.equal(tensor_of(layer), weight)


def test_how_long_sequences_may_be(tmp_path: Path) -> None:
    for kind, context in {"gpt_neox": CONTEXT, "gpt2": CONTEXT, "mpt": CONTEXT, "bloom": 1 << 30}.items():
        saved(tmp_path / kind, kind)
        assert load(tmp_path / kind).context == context


def test_shards_and_files_of_torch(tmp_path: Path) -> None:
    model = made("llama")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    (tmp_path / "bin").mkdir()
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    (tmp_path / "pt").mkdir()
    torch.save({"model_state_dict": model.state_dict()}, tmp_path / "pt" / "step_7.pt")
    for name in ("bin", "pt"):
        shutil.copy(tmp_path / "sharded" / "config.json", tmp_path / name)
    for name in ("sharded", "bin", "pt"):
        check_same(load(tmp_path / name), model)
    check_same(load(tmp_path / "pt" / "step_7.pt"), model)


def rewritten(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_as_wrappers_leave_them(prefix: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    rewritten(tmp_path / "m", lambda weights: {prefix + name: tensor for name, tensor in weights.items()})
    check_same(load(tmp_path / "m"), model)


def test_an_old_file_of_gpt_neox_with_masks_and_rotary_tables(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", dtype=torch.float16)
    old = {}
    for k in range(2):
        old[f"gpt_neox.layers.{k}.attention.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril().bool()
        old[f"gpt_neox.layers.{k}.attention.masked_bias"] = torch.tensor(-1e9)
        old[f"gpt_neox.layers.{k}.attention.rotary_emb.inv_freq"] = torch.ones(2, dtype=torch.float16)
    rewritten(tmp_path / "m", lambda weights: weights | old)
    check_same(load(tmp_path / "m"), model)


def test_names_without_that_of_the_whole_as_in_the_first_gpt2(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", "gpt2")
    rewritten(tmp_path / "m", lambda weights: {n.removeprefix("transformer."): t for n, t in weights.items()})
    check_same(load(tmp_path / "m"), model)


@pytest.mark.parametrize("kind", ["gpt_neox", "llama"])
def test_tied_embeddings(kind: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "m", kind, tie_word_embeddings=True)
    found = load(tmp_path / "m")
    check_same(found, model)
    assert isinstance(found, TransformersModel)
    assert found.module.get_input_embeddings().weight is found.module.get_output_embeddings().weight
    first, last = opened(tmp_path / "m")[0].embeddings()
    assert first.name == last.name


def test_nothing_is_said_drawn_or_left_changed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging = transformers.utils.logging
    for kind in ("gpt_neox", "mamba", "falcon"):
        saved(tmp_path / kind, kind)
    rewritten(tmp_path / "falcon", lambda weights: weights | {"left.over": torch.ones(2)})
    capfd.readouterr()
    # As HF_HUB_DISABLE_PROGRESS_BARS=0 sets it, the hub's library warns of every change.
    monkeypatch.setattr(sys.modules["huggingface_hub.utils.tqdm"], "HF_HUB_DISABLE_PROGRESS_BARS", False)
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    before, dtype = torch.get_rng_state(), torch.get_default_dtype()
    try:
        for enable in (logging.enable_progress_bar, logging.disable_progress_bar):
            enable()
            logging.set_verbosity_info()
            recwarn.clear()
            for kind in ("gpt_neox", "mamba", "falcon"):
                load(tmp_path / kind).logits(batch())
            assert not list(recwarn)
            assert logging.get_verbosity() == logging.INFO
            assert logging.is_progress_bar_enabled() == (enable is logging.enable_progress_bar)
    finally:
        logging.set_verbosity(level)
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == dtype
    assert tuple(capfd.readouterr()) == ("", "")


def reconfigured(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_code_that_a_configuration_names_is_not_run(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    mark = tmp_path / "was_run"
    (tmp_path / "m" / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Model: pass\n")
    named = {"AutoConfig": "evil.Model", "AutoModelForCausalLM": "evil.Model"}
    reconfigured(tmp_path / "m", auto_map=named, attn_implementation="owner/kernel", _attn_implementation="o/k")
    check_same(load(tmp_path / "m"), model)
    reconfigured(tmp_path / "m", model_type="evil")
    with pytest.raises(ToposcopeError, match="model_type 'evil', not a causal model of transformers"):
        load(tmp_path / "m")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model_type": None}, "model_type None"),
        ({"model_type": ["gpt_neox"]}, r"model_type \['gpt_neox'\]"),
        (
            {"vocab_size": 301},
            r"embed\w*.weight has shape \(300, 16\), its configuration requires \(301, 16\) \(and 1 mo",
        ),
        ({"num_hidden_layers": 3}, r"no weight gpt_neox.layers.2\S+, which its configuration requires \(and 11 more\)"),
        ({"intermediate_size": 25}, r"has shape \(16, 24\), its configuration requires \(16, 25\)"),
        ({"hidden_size": "wide"}, "cannot build the gpt_neox"),
        ({"hidden_size": 17}, "cannot build the gpt_neox|has shape"),
        ({"model_type": "t5"}, "model_type 't5', not a causal model"),
    ],
)
def test_a_configuration_of_another_model(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    saved(tmp_path / "m")
    reconfigured(tmp_path / "m", **changed)
    with pytest.raises(ToposcopeError, match=told) as raised:
        load(tmp_path / "m")
    assert str(raised.value).startswith(str(tmp_path / "m"))
    assert "\n" not in str(raised.value)


def test_a_missing_weight(tmp_path: Path) -> None:
    saved(tmp_path / "m")
    rewritten(tmp_path / "m", lambda weights: {n: t for n, t in weights.items() if "final_layer_norm.bias" not in n})
    with pytest.raises(ToposcopeError, match=r"/m: no weight gpt_neox.final_layer_norm.bias, which its .*; fetch or"):
        load(tmp_path / "m")


def test_a_model_that_sees_what_comes_later(tmp_path: Path) -> None:
    model = transformers.BertLMHeadModel(transformers.BertConfig(**PLAIN, is_decoder=True))
    model.save_pretrained(tmp_path / "m")
    check_same(load(tmp_path / "m"), model.eval())
    reconfigured(tmp_path / "m", is_decoder=False)
    with pytest.raises(ToposcopeError, match=r"a model of masked tokens \(bert\), which attends to later tokens"):
        load(tmp_path / "m")


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ToposcopeError, match=r"needs transformers.*pip install '.*\[hf\]'"):
        load(tmp_path / "m")
