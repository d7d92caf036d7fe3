"""The study of Pythia's hidden states: a tiny GPT-NeoX at the nineteen published steps, from a stand-in of the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
import torch
from hub_stand_in import Hub, hub_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from toposcope.checkpoints import Access
from toposcope.models import Text
from toposcope.report import write_report
from toposcope.study import Declaration, Study, run_study
from toposcope_experiments import shipped_study

STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10000, 33000, 66000, 100000, 143000]
SIZE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
SENTENCE = "the cat sat on the mat and ran off to see what lay beyond the mat, where nobody had been before"


def save(folder: Path, step: int) -> None:
    """A model that drifts with the step, with its tokenizer, as the hub has it."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZE))
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter) * (step / 1000) ** 0.3
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
    model.half().save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [SENTENCE], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "model"
    for step in [*STEPS, 3000]:
        save(folder / f"step{step}", step)
    with hub_of(folder, monkeypatch) as server:
        yield server


def _smaller(probe: dict[str, Any]) -> dict[str, Any]:
    """The same of a tenth of the texts and of the points that are drawn or kept."""
    less: dict[str, Any] = {k: max(2, probe[k] // 10) for k in ("texts", "keep") if k in probe}
    if probe.get("max_points") == 200:
        less["max_points"] = 20
    return {**probe, **less, **({"n_batches": 0} if probe["name"] == "similarity" else {})}


def of_pythia(folder: Path) -> Declaration:
    """The shipped study, its smallest model moved to the stand-in, the others to where nothing is; of fewer points."""
    shipped = shipped_study("pythia")
    paths = [f"hf:EleutherAI/pythia-{size}@step*" for size in ("70m", "160m", "410m")]
    assert [series.path for series in shipped.series] == paths
    assert all(series.steps == STEPS and series.optional for series in shipped.series)
    assert all(series.tokens_per_step == 1024 * 2048 for series in shipped.series)
    places = ["hf:owner/name@step*", "hf:owner/absent@step*", "hf:owner/absent@step*"]
    moved = [
        msgspec.structs.replace(series, path=place, name=series.resolved_name())
        for series, place in zip(shipped.series, places, strict=True)
    ]
    text = folder / "text.txt"
    text.write_text(
        "\n".join(f"{k}: {k**2} {SENTENCE}" for k in range(60))
    )  # so the first tokens of each tell it apart
    assert shipped.probes
    probes = [_smaller(probe) for probe in shipped.probes]
    return msgspec.structs.replace(shipped, series=moved, text=Text(source=str(text), characters=8000), probes=probes)


@pytest.mark.slow
def test_nineteen_steps_of_a_model_on_the_hub(model: Hub, tmp_path: Path) -> None:
    declaration = of_pythia(tmp_path)
    assert run_study(declaration, tmp_path / "study", workers=1, access=Access(folder=tmp_path / "kept")) == {}
    study = Study.load(tmp_path / "study")
    statuses = study.runs().select("run", "status").rows()
    assert statuses == [("pythia-70m", "complete"), ("pythia-160m", "unreachable"), ("pythia-410m", "unreachable")]
    subjects = [note.partition(":")[0] for note in study.notes()]
    assert subjects == ["pythia-160m", "pythia-410m", "hidden_states", "language_modelling"]
    # a tiny model has a shorter context, and fewer components, than the study asks for
    assert all("at 19 of 19 checkpoints; " in note and " only " in note for note in study.notes()[2:])
    measured = study.frame().join(study.labels(), on=["probe", "options"])
    assert measured["value"].is_finite().all()
    assert set(measured["run"]) == {"pythia-70m"}
    for probe in declaration.resolved_probes():
        steps = STEPS[1:] if probe.name() == "distances" else STEPS
        rows = measured.filter(label=probe.label())
        assert sorted(set(rows["step"])) == steps, probe.label()
        layers = {"hidden_states": {"network"}, "embeddings": {"embedding.input", "embedding.output"}}
        assert set(rows["layer"]) >= layers.get(probe.name(), set())
    page, _ = write_report(study)
    assert "Published: the published study of the hidden states of Pythia-70m." in page.read_text()
    beside = pl.read_csv(page.parent / "tables" / "reproduction.csv", infer_schema_length=None)
    mine = beside.filter(run="pythia-70m")
    for quantity in ("step", "H0.total", "H1.entropy", "effective_rank", "top_eigenvalue", "H1.entropy given step"):
        (row,) = mine.filter(table="correlation", quantity=quantity).rows(named=True)
        assert np.isfinite([row["published"], row["published_protocol"], row["exact"]]).all(), quantity
    # The step is that of the loss on the text, whichever cloud is looked at.
    (row,) = mine.filter(table="correlation", quantity="step").rows(named=True)
    assert row["published_protocol"] == row["exact"]
    traced = mine.filter(table="trace").filter(pl.col("quantity").str.starts_with("H0.total"))
    assert traced["published"].to_list()[0] == 1015.712178
    cloud = measured.filter(
        label="hidden_states:points=texts,cut=lines,texts=20,max_points=1000,sample=random,pca=50",
        layer="network",
        statistic="H0.total",
    )
    assert traced["published_protocol"].to_list() == pytest.approx(cloud.sort("step")["value"].to_list(), rel=1e-12)
    # Claims are those of the study of hidden states, not of that of weights.
    claims = pl.read_csv(page.parent / "tables" / "claims.csv")
    assert len(claims) == 4
    assert not claims["claim"].str.contains("weight").any()
