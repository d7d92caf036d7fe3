"""Checkpoints that torch wrote, read in a process that has no torch; all codes of the floats that NumPy lacks."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.kernels.magnitudes import widened

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
PROGRAM = """
import json, sys
import installed_only
installed_only.hide({"torch", "tokenizers", "gudhi", "sklearn"})
from toposcope.checkpoints import Checkpoint
found = {}
for place in sys.argv[1:]:
    checkpoint = Checkpoint(place, 0)
    rows = {layer.name: layer.matrix().sum(axis=1, dtype="f8").tolist() for layer in checkpoint.layers()}
    found[place] = [checkpoint.content_hash(), rows]
assert "torch" not in sys.modules
print(json.dumps(found))
"""


def test_bfloat16_is_widened_as_torch_widens_it() -> None:
    """All 65,536 codes, to the bit."""
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    expected = codes.view(torch.bfloat16).to(torch.float32).numpy()
    found = widened(codes.numpy().view(DTYPES["bfloat16"]))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One model in every kind of file that torch writes, in all of its floats."""
    folder = tmp_path_factory.mktemp("written")
    dtypes = ("float64", "float32", "float16", "bfloat16", *FLOAT8)
    model = {
        f"layers.{k}.mlp.fc1.weight": torch.randn(6, 4, generator=torch.Generator().manual_seed(k)).to(
            getattr(torch, dtype)
        )
        for k, dtype in enumerate(dtypes)
    }
    save_file(model, folder / "model.safetensors")
    torch.save(model, folder / "model.pt")
    torch.save(model, folder / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"model": model, "optimizer": {"state": {}}, "step": 3}, folder / "training.pt")
    save(dict(model), checkpoint_id=folder / "distributed")
    return [folder / name for name in ("model.safetensors", "model.pt", "legacy.bin", "training.pt", "distributed")]


def test_they_are_the_same_as_with_torch(places: list[Path]) -> None:
    """Hashes of the bytes, and sums of the numbers."""
    support = str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {support!r})\n{PROGRAM}", *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for place in places:
        checkpoint = Checkpoint(place, 0)
        tensors = checkpoint.tensors()
        content_hash, rows = found[str(place)]
        assert content_hash == checkpoint.content_hash()
        assert len(rows) == len(tensors) == 8
        for name, sums in rows.items():
            assert sums == tensors[name].to(torch.float64).sum(dim=1).tolist()
    assert len({content for content, _ in found.values()}) == 1
