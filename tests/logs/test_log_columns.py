"""Columns are identified by their names."""

import pytest

from toposcope.logs.columns import identify_columns, identify_facts


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("step", ["step", "Step", "_step", "global_step", "trainer/global_step", "iter", "Iteration", "iter_num"]),
        (
            "learning_rate",
            ["lr", "LR", "learning_rate", "train/lr", "train/learning_rate", "optim/learning_rate_group0"],
        ),
        ("learning_rate", ["lr-AdamW", "lr-AdamW/pg1", "learning-rate/learning-rate", "lr-DecoupledAdamW/group0"]),
        (
            "grad_norm",
            ["grad_norm", "train/grad_norm", "optim/total_grad_norm", "grad-norm/grad-norm", "gradient_norm"],
        ),
        ("weight_norm", ["param_norm", "weight_norm", "params-norm/params-norm", "weight_norm_total"]),
        ("tokens", ["tokens", "train/tokens_seen", "throughput/total_tokens", "num_input_tokens_seen", "time/token"]),
        ("last_step", ["T", "max_steps", "total_steps"]),
        ("parameters", ["N", "n_params", "num_parameters"]),
        ("tokens_per_step", ["tps", "tokens_per_step"]),
        ("schedule", ["sched", "lr_scheduler_type"]),
        ("run", ["run", "run_name", "run_id"]),
        ("family", ["family"]),
    ],
)
def test_names_of_a_column(what: str, names: list[str]) -> None:
    for name in names:
        assert identify_columns([name]).named == {what: [name]}, name


@pytest.mark.parametrize(
    ("name", "unit", "validation"),
    [
        ("loss", "nats", False),
        ("train/loss", "nats", False),
        ("train_loss_step", "nats", False),
        ("lm loss", "nats", False),
        ("lm-loss-training/lm loss", "nats", False),
        ("train/CrossEntropyLoss", "nats", False),
        ("loss/train/total", "nats", False),
        ("metrics/train/LanguageCrossEntropy", "nats", False),
        ("loss_metrics/global_avg_loss", "nats", False),
        ("eval_loss", "nats", True),
        ("val/loss", "nats", True),
        ("validation_loss", "nats", True),
        ("lm-loss-validation/lm loss validation", "nats", True),
        ("eval/c4_en-validation/CrossEntropyLoss", "nats", True),
        ("metrics/eval/LanguageCrossEntropy", "nats", True),
        ("eval_wikitext_loss", "nats", True),
        ("train/bpb", "bits per byte", False),
        ("val_bpb", "bits per byte", True),
        ("bits_per_byte", "bits per byte", False),
        ("loss_nats_per_byte", "nats per byte", False),
        ("loss (bits)", "bits", False),
        ("bits_per_token", "bits", False),
        ("train/Perplexity", "perplexity", False),
        ("eval/ppl", "perplexity", True),
    ],
)
def test_names_of_a_loss(name: str, unit: str, validation: bool) -> None:
    (loss,) = identify_columns([name]).losses
    assert (loss.name, loss.unit, loss.validation) == (name, unit, validation)


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
    assert identify_facts(facts) == {"last_step": "max_steps", "parameters": "num_params"}
    assert identify_facts({"steps": 5}) == {"last_step": "steps"}
