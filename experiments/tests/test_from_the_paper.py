"""The page from the paper to the command: what it names exists, and the terms of the literature are on it."""

import re
import shlex
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope as ts
from toposcope import homology
from toposcope.cli import toposcope
from toposcope.probes import declarations, make_probes, probe_types

PAGE = (Path(__file__).parents[2] / "docs" / "appendices" / "from-the-paper.md").read_text()
SPANS = dict.fromkeys(re.findall(r"`([^`\n]+)`", PAGE))
COMMANDS = [span for span in SPANS if span.startswith("toposcope ")]
FUNCTIONS = [span for span in SPANS if re.fullmatch(r"(ts|toposcope)\.\w+(\.\w+)*", span)]
WORDS = [span for span in SPANS if re.fullmatch(r"\w+(\.\w+)?", span) and span not in FUNCTIONS]
OTHER_WORDS = {"layer", "role", "points.csv", "tasks.parquet"}  # columns and files
TERMS = """
    phase transition, scaling prediction, continue training, persistent entropy, per-layer, attention head, Hessian,
    gradient persistence, dashboard, two-stage, p-norm, compute savings, leave-one-model-out, WikiText, PHATE, TTK,
    PyHessian, Xie, Isik, Gadre, Ballarin, Porian, Rieck, Hoffmann, Kaplan, Biderman, Horoi, Guss, Birdal, Bucarelli,
    Geniesse, Barannikov, Garrido, Tissue, Luo, Besiroglu, Caballero, Chinchilla, OLMo 2, PolyPythias, barcode,
    Vietoris-Rips, Wasserstein, bottleneck, Betti, persistence image, grokking, early stopping, WSD, isoFLOP
"""


@pytest.mark.parametrize("written", COMMANDS)
def test_a_command_and_its_options_exist(written: str) -> None:
    command: click.Command = toposcope
    _, *words = shlex.split(written)
    context = click.Context(toposcope, **toposcope.context_settings)  # a command keeps the names of its first help
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context)
    options, *_ = command.make_parser(context).parse_args(list(words))
    probes = [word for option, word in pairwise(words) if option == "--probe"]
    assert len(make_probes(declarations([declared_probe(probe) for probe in probes]))) == len(
        options.get("probes") or []
    )


def declared_probe(text: str) -> dict[str, object]:
    from toposcope.cli.options import parse_options

    name, _, given = text.partition(":")
    return {"name": name, **parse_options(given, name)}


@pytest.mark.parametrize("written", FUNCTIONS)
def test_a_function_exists(written: str) -> None:
    place, _, name = written.replace("ts.", "toposcope.", 1 if written.startswith("ts.") else 0).rpartition(".")
    assert getattr(import_module(place), name) is not None


def test_a_word_is_a_function_a_probe_or_a_statistic(tmp_path: Path) -> None:
    save_file({"weight": np.random.default_rng(0).normal(size=(60, 50))}, tmp_path / "step_1.safetensors")
    measured = ts.measure(tmp_path, probes=["neural_persistence", "rips", "controls"])["statistic"]
    assert set(WORDS) <= {*homology.__all__, *probe_types(), *measured, *OTHER_WORDS}


@pytest.mark.parametrize("term", [term.strip() for term in TERMS.split(",")])
def test_a_term_is_on_the_page(term: str) -> None:
    assert term.casefold() in PAGE.casefold()
