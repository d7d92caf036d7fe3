"""The step a name tells."""

import pytest

from toposcope.checkpoints.steps import step_of


@pytest.mark.parametrize(
    ("stem", "step"),
    [
        # ours and the published study's
        ("step_000000", 0),
        ("step_000100", 100),
        # Hugging Face: the Trainer, Pythia
        ("checkpoint-500", 500),
        ("step1000", 1000),
        ("pythia-14m-step143000", 143000),
        ("checkpoint-step-7", 7),
        # Lightning, nanoGPT, Megatron, DeepSpeed
        ("epoch=3-step=120", 120),
        ("step=120-epoch=3", 120),
        ("ckpt_0005", 5),
        ("ckpt12", 12),
        ("iter_0000250", 250),
        ("global_step4000", 4000),
        ("model_30", 30),
        ("model-30", 30),
        ("STEP_5", 5),
        ("0042", 42),
        ("step_123456789012345", 123456789012345),
        # a step beside another number
        ("checkpoint-2-step-300", 300),
        ("run7_step_10", 10),
        ("gpt2-checkpoint-30", 30),
        # no step
        ("config", None),
        ("epoch_3", None),
        ("gpt2", None),
        ("pythia-14m", None),
        ("model", None),
        ("model_v2", None),
        ("step", None),
        ("step_final", None),
        # a unit is not guessed at
        ("step_10k", None),
        ("step1e4", None),
        ("best", None),
        ("42b", None),
        ("", None),
    ],
)
def test_steps(stem: str, step: int | None) -> None:
    assert step_of(stem) == step
