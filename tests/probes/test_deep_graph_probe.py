"""Which layers chain, and what the probe reports of a chain."""

from pathlib import Path

import numpy as np
import pytest
import torch
from probe_cases import as_layer, measured
from torch import Tensor, nn

from toposcope.checkpoints import Checkpoint
from toposcope.homology import deep_graph_persistence, weight_variance
from toposcope.probes import Failure, Measurement, ProbeInput
from toposcope.probes.deep_graph import DeepGraphProbe, predecessors
from toposcope.probes.feature import NETWORK
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries

STATISTICS = ["dgp_mean", "dgp_norm", "dgp_normalized", "weight_variance", "depth"]


def chains(*names_and_shapes: tuple[str, int, int]) -> dict[str, str]:
    layers = [as_layer(name, torch.zeros(m, n)) for name, m, n in names_and_shapes]
    return {name: before.name for name, before in predecessors(layers).items()}


def test_which_layers_of_a_transformer_chain() -> None:
    block = "layers.0."
    fused = [(f"{block}attn.qkv.weight", 24, 8), (f"{block}attn.proj.weight", 8, 8)]
    mlp = [(f"{block}mlp.fc1.weight", 32, 8), (f"{block}mlp.fc2.weight", 8, 32)]
    assert chains(("head.weight", 50, 8), *fused, *mlp) == {
        f"{block}attn.proj.weight": f"{block}attn.qkv.weight",
        f"{block}mlp.fc2.weight": f"{block}mlp.fc1.weight",
    }
    llama = "model.layers.3."
    attention = [(f"{llama}self_attn.{part}_proj.weight", 8, 8) for part in "qkvo"]
    gated = [(f"{llama}mlp.{part}_proj.weight", *shape) for part, shape in (("gate", (20, 8)), ("up", (20, 8)))]
    assert chains(*attention, *gated, (f"{llama}mlp.down_proj.weight", 8, 20)) == {
        f"{llama}self_attn.o_proj.weight": f"{llama}self_attn.v_proj.weight",
        f"{llama}mlp.down_proj.weight": f"{llama}mlp.up_proj.weight",
    }
    bert = "bert.encoder.layer.11."
    parts = ("attention.self.query", "attention.self.value", "attention.output.dense")
    assert chains(*((f"{bert}{part}.weight", 8, 8) for part in parts)) == {
        f"{bert}attention.output.dense.weight": f"{bert}attention.self.value.weight"
    }


def test_what_cannot_be_told_does_not_chain() -> None:
    grouped = [("layers.0.attn.v_proj.weight", 4, 8), ("layers.0.attn.o_proj.weight", 8, 8)]  # shared by heads
    interleaved = [("layers.1.attention.query_key_value.weight", 24, 8), ("layers.1.attention.dense.weight", 8, 8)]
    factors = [(f"layers.2.feed_forward.{part}.weight", 20, 8) for part in ("w1", "w3")]
    experts = [(f"layers.3.mlp.experts.w1[{k}]", 20, 8) for k in range(2)]
    down = [("layers.2.feed_forward.w2.weight", 8, 20), *((f"layers.3.mlp.experts.w2[{k}]", 8, 20) for k in range(2))]
    assert chains(*grouped, *interleaved, *factors, *experts, *down) == {}


def test_layers_of_a_plain_network_follow_each_other() -> None:
    assert chains(("0.weight", 5, 3), ("2.weight", 4, 5), ("4.weight", 2, 4), ("other.weight", 7, 3)) == {
        "2.weight": "0.weight",
        "4.weight": "2.weight",
    }


def checkpoint(folder: Path, step: int, weights: dict[str, Tensor]) -> Checkpoint:
    path = folder / f"step_{step}.pt"
    torch.save(weights, path)
    return Checkpoint(path, step)


def values(found: Measurement) -> list[float]:
    return [found.statistics[name] for name in STATISTICS]


def expected(*matrices: Tensor) -> list[float]:
    arrays = [W.double().numpy().T for W in matrices]
    found = deep_graph_persistence(arrays)
    return [found.mean, found.norm, found.normalized, weight_variance(arrays), len(arrays)]


def test_each_layer_has_the_chain_that_ends_in_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    first, second, third = (layer.weight.detach() for layer in net if isinstance(layer, nn.Linear))
    subject = ProbeInput.of(checkpoint(tmp_path, 1, net.state_dict()))
    found = measured(list(DeepGraphProbe().measure(subject)))
    assert values(found["0.weight"]) == pytest.approx(expected(first))
    assert values(found["2.weight"]) == pytest.approx(expected(first, second))
    whole = expected(first, second, third)
    assert values(found["4.weight"]) == pytest.approx(whole)
    assert values(found[NETWORK]) == pytest.approx(whole)
    assert found[NETWORK].statistics["n_chains"] == 1


def gpt2(seed: int, width: int = 6) -> dict[str, Tensor]:
    """GPT-2's names and layout, (inputs, outputs); one block."""
    rng = np.random.default_rng(seed)
    shapes = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    found = {
        f"h.0.{name}.weight": torch.from_numpy(rng.normal(size=(width * a, width * b)))
        for name, (a, b) in shapes.items()
    }
    return {"wte.weight": torch.ones(20, width), **found}


def test_values_and_output_of_gpt2_and_the_order_of_hidden_units(tmp_path: Path) -> None:
    weights = gpt2(0)
    found = measured(list(DeepGraphProbe().measure(ProbeInput.of(checkpoint(tmp_path, 1, weights)))))
    values_of_heads = weights["h.0.attn.c_attn.weight"].T[12:]
    assert values(found["h.0.attn.c_proj.weight"]) == pytest.approx(
        expected(values_of_heads, weights["h.0.attn.c_proj.weight"].T)
    )
    assert found[NETWORK].statistics["n_chains"] == 2
    assert found[NETWORK].statistics["depth"] == 2
    order = torch.randperm(24)
    weights["h.0.mlp.c_fc.weight"] = weights["h.0.mlp.c_fc.weight"][:, order]
    weights["h.0.mlp.c_proj.weight"] = weights["h.0.mlp.c_proj.weight"][order]
    again = measured(list(DeepGraphProbe().measure(ProbeInput.of(checkpoint(tmp_path, 2, weights)))))
    for layer, measurement in found.items():
        assert again[layer].statistics == pytest.approx(measurement.statistics)


def test_a_failed_layer_is_named_where_a_chain_needs_it(tmp_path: Path) -> None:
    weights = gpt2(0)
    weights["h.0.mlp.c_fc.weight"][0, 0] = torch.nan
    results = list(DeepGraphProbe().measure(ProbeInput.of(checkpoint(tmp_path, 1, weights))))
    failed = {result.layer: result.message for result in results if isinstance(result, Failure)}
    assert failed.keys() == {"h.0.mlp.c_fc.weight", "h.0.mlp.c_proj.weight", NETWORK}
    assert all("h.0.mlp.c_fc.weight" in message for message in failed.values())


def test_a_study_measures_a_chain_again_if_any_layer_of_it_changed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    checkpoint(folder, 1, gpt2(0))
    declared = Declaration(name="chains", series=[DeclaredSeries(path=str(folder))], probes=[{"name": "deep_graph"}])

    def chain() -> float:
        assert run_study(declared, tmp_path / "study", workers=1) == {}
        frame = Study.load(tmp_path / "study").frame()
        return float(frame.filter(layer="h.0.mlp.c_proj.weight", statistic="dgp_mean")["value"][0])

    before = chain()
    checkpoint(folder, 1, gpt2(0) | {"h.0.mlp.c_fc.weight": gpt2(1)["h.0.mlp.c_fc.weight"]})
    assert chain() != before
