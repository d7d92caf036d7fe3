"""Families of tiny GPT-NeoX models, trained here from nine seeds each, behind a stand-in of the hub.

    PYTHONPATH=tests/support python experiments/tests/support/polypythias_stand_in.py --out FOLDER [--nothing-planted]

trains them, runs the shipped study ``polypythias`` on them as it is, but for its text, and writes the report. Two runs
are disturbed: one by a few updates with a large learning rate, one by a learning rate that stays somewhat too high.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hub_stand_in import hub_of
from small_models import some_lines
from tiny_models import byte_tokenizer

from toposcope.models import Text
from toposcope.study import Declaration
from toposcope_experiments import shipped_study

OWNER = "EleutherAI"
SIZES = {"14m": (16, 1), "31m": (24, 1), "70m": (32, 2)}
"""Width and depth of what stands in for each size."""
SEEDS = range(1, 10)
VOCABULARY, CONTEXT, BATCH, UPDATES = 280, 32, 16, 240
LEARNING_RATE, WARM_UP = 3e-3, 24
PLANTED = {"pythia-70m-seed3": "spike", "pythia-70m-seed4": "drift"}
"""What happens to which run."""
SPIKE, DRIFT = (0.6, 0.62, 30.0), (0.4, 1.0, 2.5)
"""From and to which share of the updates, and the factor of the learning rate."""


def repository(size: str, seed: int) -> str:
    """Name of a run."""
    return f"pythia-{size}-seed{seed}"


def lines(seed: int) -> str:
    return some_lines(200, seed)


def text_file(folder: Path) -> Path:
    """A text that no run was trained on."""
    path = folder / "text.txt"
    path.write_text(lines(1000)[:4000])
    return path


def train(folder: Path, size: str, seed: int, steps: Sequence[int], planted: str = "") -> None:
    """Train one run; its checkpoints are saved under the names of some steps, evenly spread over the updates."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    width, depth = SIZES[size]
    tokenizer = byte_tokenizer(vocabulary=VOCABULARY)
    data = torch.tensor(tokenizer.encode(lines(1)).ids)
    with torch.random.fork_rng():
        torch.manual_seed(1000 * width + seed)
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=VOCABULARY,
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=2,
                intermediate_size=4 * width,
                max_position_embeddings=CONTEXT,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
        at = {round(i / (len(steps) - 1) * UPDATES): step for i, step in enumerate(steps)}
        for update in range(UPDATES + 1):
            if update in at:
                save(model, tokenizer, folder / f"step{at[update]}")
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(update / UPDATES, planted)
            starts = torch.randint(len(data) - CONTEXT, (BATCH,))
            batch = torch.stack([data[start : start + CONTEXT] for start in starts.tolist()])
            loss = model(input_ids=batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def learning_rate(share: float, planted: str) -> float:
    """Warm up, then decay as a cosine to a tenth, with what is planted."""
    warm_up = WARM_UP / UPDATES
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * max(0.0, share - warm_up) / (1 - warm_up)))
    begin, end, factor = {"spike": SPIKE, "drift": DRIFT}.get(planted, (2.0, 2.0, 1.0))
    return LEARNING_RATE * min(1.0, (share + 1 / UPDATES) / warm_up) * decay * (factor if begin <= share <= end else 1)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a checkpoint as the hub has it, in half precision."""
    folder.mkdir(parents=True)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict={name: tensor.half() for name, tensor in weights.items()})
    tokenizer.save(str(folder / "tokenizer.json"))


def train_all(
    folder: Path, steps: Sequence[int], sizes: Sequence[str], planted: Mapping[str, str], seeds: Sequence[int] = SEEDS
) -> None:
    """Train the runs of some sizes that are not there yet."""
    for size in sizes:
        for seed in seeds:
            name = repository(size, seed)
            if not (folder / OWNER / name / f"step{steps[-1]}").exists():
                train(folder / OWNER / name, size, seed, steps, planted.get(name, ""))


def models_in(folder: Path) -> dict[str, Path]:
    """All models of a folder, by their names on the hub."""
    return {f"{OWNER}/{path.name}": path for path in sorted((folder / OWNER).iterdir())}


def declaration(text: Path) -> Declaration:
    """The shipped study, which reads a text of this machine."""
    return msgspec.structs.replace(shipped_study("polypythias"), text=Text(source=str(text)))


def main() -> None:
    from toposcope.checkpoints import Access
    from toposcope.report import write_report
    from toposcope.study import Study, run_study

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nothing-planted", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    declared = declaration(text_file(folder))
    train_all(folder / "hub", declared.series[0].steps, list(SIZES), {} if options.nothing_planted else PLANTED)
    with pytest.MonkeyPatch.context() as patch, hub_of(folder / "hub", patch, models_in(folder / "hub")):
        for unit, message in run_study(declared, folder / "study", access=Access(folder=folder / "cache")).items():
            sys.stderr.write(f"{unit}: {message}\n")
    page, _ = write_report(Study.load(folder / "study"))
    sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main()
