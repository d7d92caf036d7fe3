"""Features in words, and layers without the parts of their names that most share."""

import pytest

from toposcope.report.naming import feature_words, layer_labels

GPT = [f"transformer.h.{i}.{name}.weight" for i in range(2) for name in ("attn.c_attn", "mlp.c_fc")]
SHORT = ["h.0.attn.c_attn", "h.0.mlp.c_fc", "h.1.attn.c_attn", "h.1.mlp.c_fc"]
LLAMA = [f"model.layers.{i}.self_attn.{name}.weight" for i in (0, 11) for name in ("q_proj", "o_proj")]
BERT = [f"bert.encoder.layer.{i}.attention.self.{name}.weight" for i in range(2) for name in ("query", "value")]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ([*GPT, "transformer.wte.weight"], [*SHORT, "wte"]),
        ([*GPT, "lm_head.weight"], [*SHORT, "lm_head"]),
        (LLAMA, [f"layers.{i}.self_attn.{name}" for i in (0, 11) for name in ("q_proj", "o_proj")]),
        (BERT, [f"layer.{i}.…self.{name}" for i in range(2) for name in ("query", "value")]),
        (["fc1.weight"], ["fc1"]),
        (["0.weight", "2.weight"], ["0", "2"]),
        (["encoder.a.weight", "decoder.a.weight", "b.weight", "x"], ["encoder.a", "decoder.a", "b", "x"]),
        (["a.x.weight", "a.x.kernel", "a.x.v"], ["weight", "kernel", "v"]),
        (["params/block_0/kernel", "params/block_1/kernel"], ["block_0", "block_1"]),
        (["constructor", "__proto__", ""], ["constructor", "__proto__", ""]),
        (["a", "a"], ["a", "a"]),
        ([], []),
    ],
)  # fmt: skip
def test_labels_are_short_and_differ(names: list[str], labels: list[str]) -> None:
    assert layer_labels(names) == labels


def test_every_statistic_of_the_monitor_has_words() -> None:
    from toposcope.probes import probe_types

    words = {
        "neural_persistence np_mean": "Neural persistence, mean",
        "neural_persistence np_mean_max": "Neural persistence, mean, largest layer",
        "rips:pooled=true H0.total": "H0 total, pooled",
        "controls stable_rank": "Stable rank",
        "training gradient_norm": "Gradient norm, measured",
        "log grad_norm": "Gradient norm",
        "log eval/loss_of_mine": "Eval/loss_of_mine",
        "log weight_norm": "Weight norm",
        "training weight_norm": "Weight norm, measured",
        "activations attention_logit_max": "Largest attention logit",
        "other:x=1 y": "",
    }
    assert {key: feature_words(key) for key in words} == words
    assert {"neural_persistence", "rips", "controls", "training"} <= probe_types().keys()
