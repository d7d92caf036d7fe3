"""Columns are identified by their names."""

import pytest

from toposcope.logs.columns import identify_columns, identify_facts

QUANTITIES = """
step: step | Step | _step | global_step | trainer/global_step | iter | Iteration | iter_num
learning_rate: lr | LR | learning_rate | train/lr | train/learning_rate | optim/learning_rate_group0 | lr-AdamW
learning_rate: lr-AdamW/pg1 | learning-rate/learning-rate | lr-DecoupledAdamW/group0
grad_norm: grad_norm | train/grad_norm | optim/total_grad_norm | grad-norm/grad-norm | gradient_norm
weight_norm: param_norm | weight_norm | params-norm/params-norm | weight_norm_total
tokens: tokens | train/tokens_seen | throughput/total_tokens | num_input_tokens_seen | time/token
last_step: T | max_steps | total_steps
parameters: N | n_params | num_parameters
tokens_per_step: tps | tokens_per_step
schedule: sched | lr_scheduler_type
run: run | run_name | run_id
family: family
"""
TRAINING = """
nats: loss | train/loss | train_loss_step | lm loss | lm-loss-training/lm loss | train/CrossEntropyLoss
nats: loss/train/total | metrics/train/LanguageCrossEntropy | loss_metrics/global_avg_loss
bits per byte: train/bpb | bits_per_byte
nats per byte: loss_nats_per_byte
bits: loss (bits) | bits_per_token
perplexity: train/Perplexity
"""
VALIDATION = """
nats: eval_loss | val/loss | validation_loss | lm-loss-validation/lm loss validation | eval_wikitext_loss
nats: eval/c4_en-validation/CrossEntropyLoss | metrics/eval/LanguageCrossEntropy
bits per byte: val_bpb
bits per character: valid_bpc | val_bits_per_char
perplexity: eval/ppl
"""


def pairs(text: str) -> list[tuple[str, str]]:
    """Return what stands before the colon of each line, with each name behind it."""
    lines = [line.partition(": ")[::2] for line in text.strip().split("\n")]
    return [(what, name) for what, names in lines for name in names.split(" | ")]


@pytest.mark.parametrize(("what", "name"), pairs(QUANTITIES))
def test_names_of_a_column(what: str, name: str) -> None:
    assert identify_columns([name]).named == {what: [name]}


@pytest.mark.parametrize(("unit", "name"), pairs(TRAINING + VALIDATION.lstrip()))
def test_names_of_a_loss(unit: str, name: str) -> None:
    (loss,) = identify_columns([name]).losses
    assert (loss.name, loss.unit, loss.validation) == (name, unit, (unit, name) in pairs(VALIDATION))


@pytest.mark.parametrize(
    "name", ["aux_loss", "train/z_loss", "loss_scale", "loss__MAX", "loss_metrics/global_max_loss"]
)
def test_losses_that_are_not_the_models_own(name: str) -> None:
    assert identify_columns([name]).losses == []


def test_the_likeliest_comes_first() -> None:
    names = ["train/perplexity", "train_loss", "aux_loss", "loss", "eval_loss", "train/ce_bits"]
    assert [loss.name for loss in identify_columns(names).losses] == [
        "loss",
        "train_loss",
        "train/ce_bits",
        "train/perplexity",
        "eval_loss",
    ]
    assert identify_columns(["_step", "train/global_step"]).named["step"] == ["train/global_step", "_step"]
    assert identify_columns(["my_loss", "other"]).losses[0].name == "my_loss"
    assert identify_columns(["my_loss", "your_loss"]).losses == []


def test_facts_of_a_tool() -> None:
    facts = {"steps": 5, "max_steps": 10, "optimizer/lr": 1, "num_params": "1B", "batch": 3}
    assert identify_facts(facts) == {"last_step": ["max_steps", "steps"], "parameters": ["num_params"]}
    assert identify_facts({"steps": 5}) == {"last_step": ["steps"]}
