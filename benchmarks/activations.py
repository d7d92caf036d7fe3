"""The cost of each statistic of a monitor's fixed batch, as a share of a plain forward pass of that batch.

    python benchmarks/activations.py [--quick]

Each is measured alone, in turn with the forward pass: what it adds to it, and what the monitor's thread does later. All
of them watch the operations of the pass and put the model's state back, which has a row of its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, nn
from transformers import OlmoeConfig, OlmoeForCausalLM

from bench import Column, command, ratio, show, write
from result_files import Spread
from toposcope.family.model import GPT
from toposcope.family.run import ModelSize
from toposcope.monitor.activations import Activations, FixedBatch
from toposcope.probes.activations import (
    ATTENTION,
    HIDDEN_STATES,
    KURTOSIS,
    ROUTING,
    STATISTICS,
    UNITS,
    ActivationsProbe,
)
from toposcope.probes.probe import ProbeInput

Row = dict[str, object]

VOCABULARY = 500  # of the small models; all tokens are below
TITLE = "Cost of a fixed batch of 4 x 256 tokens"
PLAIN = "plain forward pass"
CHOICES: dict[str, tuple[str, ...]] = {
    "watching alone": (),
    ", ".join(ATTENTION): ATTENTION,
    ", ".join(ROUTING): ROUTING,
    ", ".join(UNITS): UNITS,
    KURTOSIS: (KURTOSIS,),
    HIDDEN_STATES: (HIDDEN_STATES,),
    "all": STATISTICS,
}
COLUMNS = (
    Column("model", "model"),
    Column("statistics", "statistics"),
    Column("s", "seconds"),
    Column("time / plain forward pass", "ratio"),
    Column("later, on the monitor's thread, s", "later"),
)


def experts() -> nn.Module:
    """Return a mixture of experts with random weights."""
    made: nn.Module = OlmoeForCausalLM(
        OlmoeConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=4, num_experts=16, num_experts_per_tok=2,
        )
    )  # fmt: skip
    return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT": partial(GPT, ModelSize(hidden=128, layers=5, heads=4, vocabulary=VOCABULARY, context=256)),
    "mixture of experts": experts,
    "GPT-2 small": partial(GPT, ModelSize(hidden=768, layers=12, heads=12, vocabulary=50_257, context=1024)),
}
QUICK = ("GPT",)


@command("activations", "one model, twice", 5)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure the cost of the statistics of a fixed batch, and write the results."""
    rows = [row for name in (QUICK if quick else MODELS) for row in costs(name, 2 if quick else repeats)]
    show(rows, COLUMNS, TITLE)
    facts = {
        "samples": f"{repeats} of each contestant in turn, in processor time; median (lowest-highest)",
        "batch": "4 sequences of 256 random tokens",
        "threads": str(torch.get_num_threads()),
    }
    write(
        "activations",
        out,
        facts,
        {TITLE: (rows, COLUMNS)},
        ["torch", "transformers"],
    )


def costs(name: str, repeats: int) -> list[Row]:
    """Measure one model."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    tokens = torch.randint(VOCABULARY, (4, 256))
    batches = {label: FixedBatch(model, tokens, wanted) for label, wanted in CHOICES.items()}
    contestants: dict[str, Callable[[], object]] = {PLAIN: partial(forward, model, tokens)}
    contestants |= {label: batch.run for label, batch in batches.items()}
    processor_time(contestants, 1)
    seconds = processor_time(contestants, repeats)
    later = {
        label: processor_time({label: partial(measure, batch.run())}, repeats)[label]
        for label, batch in batches.items()
    }
    n = sum(parameter.numel() for parameter in model.parameters())
    return [
        {
            "model": f"{name}, {n / 1e6:.3g}M",
            "statistics": label,
            "seconds": str(Spread.of(of)),
            "ratio": str(ratio(of, seconds[PLAIN])),
            "later": str(Spread.of(later[label])) if label in later else "",
        }
        for label, of in seconds.items()
    ]


def processor_time(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time contestants in turn, in seconds of the processor, on which other programs weigh less than on the clock."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            begin = process_time()
            run()
            seconds[name].append(process_time() - begin)
    return seconds


@torch.no_grad()
def forward(model: nn.Module, tokens: Tensor) -> object:
    """Run the model."""
    return model(tokens)


def measure(activations: Activations) -> list[object]:
    """Do what the monitor's thread does with the results."""
    return list(ActivationsProbe().measure(ProbeInput([], frozenset(), inputs={"training": activations}, step=0)))


if __name__ == "__main__":
    main()
