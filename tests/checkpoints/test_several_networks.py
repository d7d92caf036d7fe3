"""Several networks in one file are told from the parts of one, and are measured one by one."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.errors import ToposcopeError


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def of(**parts: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(parts)


POLICY = {  # as PPO of Stable-Baselines3 names them
    "mlp_extractor": of(policy_net=mlp(5, 16, 8), value_net=mlp(5, 16, 8)),
    "action_net": nn.Linear(8, 3),
    "value_net": nn.Linear(8, 1),
}
CASES: dict[str, tuple[nn.Module, dict[str, int]]] = {
    "policy and value": (of(**POLICY), {"policy": 3, "value": 3}),
    "heads on a trunk": (of(features_extractor=mlp(9, 5), **POLICY), {}),
    "adversaries": (of(netG=mlp(10, 20, 784), netD=mlp(784, 20, 1)), {"netG": 2, "netD": 2}),
    "actor and two critics": (
        of(actor=mlp(5, 9, 2), critic=of(qf0=mlp(7, 9, 1), qf1=mlp(7, 9, 1))),
        {"actor": 2, "critic.qf0": 2, "critic.qf1": 2},
    ),
    "an ensemble": (nn.ModuleList([mlp(4, 9, 1), mlp(4, 9, 1)]), {"0": 2, "1": 2}),
    "blocks": (nn.ModuleList([mlp(8, 32, 8), mlp(8, 32, 8)]), {}),
    "a variational autoencoder": (of(encoder=mlp(784, 40, 20), decoder=mlp(20, 40, 784)), {}),
    "sequence to sequence": (nn.Transformer(16, 2, 1, 1, 32, batch_first=True), {}),
    "two towers": (of(text=mlp(40, 64, 32), vision=mlp(40, 64, 32), scale=nn.ParameterList([torch.ones(1)])), {}),
    "attention by hand": (of(query=mlp(8, 8), key=mlp(8, 8), value=mlp(8, 8), out=mlp(8, 8)), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_how_many_networks_there_are(case: str) -> None:
    module, right = CASES[case]
    checkpoint = CheckpointInMemory("module", module.state_dict(), {})
    counts = {name: sum(n.endswith("weight") for n in inside) for name, inside in checkpoint.weights.networks.items()}
    assert counts == right
    if right:
        with pytest.raises(ToposcopeError, match=f"holds {len(right)} networks: .*; measure one by its key"):
            checkpoint.one_network()
    else:
        assert len(checkpoint.one_network()) == len([layer for layer in checkpoint.layers() if layer.role != "embed"])


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_key_names_one_of_them(ending: str, tmp_path: Path) -> None:
    for step in (1, 2):
        path, tensors = tmp_path / f"step_{step}.{ending}", of(**POLICY).state_dict()
        (save_file if ending == "safetensors" else torch.save)(tensors, path)
    opened = series(f"{tmp_path}:policy")
    assert opened.steps == [1, 2]
    names = ["action_net.weight", "mlp_extractor.policy_net.0.weight", "mlp_extractor.policy_net.1.weight"]
    for checkpoint in (*opened, *series(f"{path}:policy")):
        assert [layer.name for layer in checkpoint.analysed()] == names
    assert Checkpoint(path, 2).notes == ["holds 2 networks: policy (3 matrices), value (3 matrices)"]
    with pytest.raises(ToposcopeError, match="nothing"):
        series(f"{path}:nothing")[0].layers()
