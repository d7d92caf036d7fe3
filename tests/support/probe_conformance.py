"""What every probe keeps to. A new probe's file is enough: it is found, and so are its options.

A test file of a distribution imports all of it, and names its package as `PACKAGE`.
"""

import dataclasses
import json
import math
import re
import typing
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from probe_cases import (
    ALL,
    CHECKPOINT_PROBES,
    NAMES,
    SHAPES,
    assert_close,
    assert_one_line,
    assert_same,
    cases,
    covered,
    generic,
    measure,
    measured,
    option_types,
    results_of,
    subject_of,
    with_each_option,
)
from safetensors.torch import save_file
from torch import Tensor

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.roles import role_of
from toposcope.cli.options import parse_options
from toposcope.errors import ToposcopeError
from toposcope.probes import Failure, Measurement, Probe, ProbeInput, make_probes, probe_types
from toposcope.probes.feature import KINDS, NETWORK
from toposcope.probes.hidden_states import hidden
from toposcope.probes.probe import NOISE, POOLED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every probe of the package that the file with the test names."""
    of_package = f"{metafunc.module.PACKAGE}."
    kinds = {name: kind for name, kind in CHECKPOINT_PROBES.items() if kind.__module__.startswith(of_package)}
    arguments = set(metafunc.fixturenames)
    if {"kind", "option", "value"} <= arguments:
        metafunc.parametrize(("kind", "option", "value"), bad_values(kinds.values()))
    elif {"name", "option", "value"} <= arguments:
        out_of_range = [case for case in (*BELOW_THE_LEAST, *OUT_OF_RANGE) if case[0] in kinds]
        metafunc.parametrize(("name", "option", "value"), out_of_range)
    elif "probe" in arguments:
        metafunc.parametrize("probe", cases(kinds.values()))
    elif "kind" in arguments:
        metafunc.parametrize("kind", kinds.values(), ids=list(kinds))


# What is reported


def test_every_layer_it_covers_is_measured(probe: Probe) -> None:
    # All is wanted, as of a checkpoint alone; what the probe does not cover is left out.
    wanted = frozenset(covered(probe) if compares_states(probe) else [*NAMES, *PSEUDO_LAYERS])
    found = measured(list(probe.measure(subject_of(probe, generic(seed=0), generic(seed=1), wanted=wanted))))
    assert list(found) == covered(probe)
    for layer, measurement in found.items():
        assert measurement.role == (role_of(layer) if layer in NAMES else layer.partition(".")[0])
        assert measurement.statistics
        combined = layer == NETWORK and probe.name() != "hidden_states"
        assert measurement.flag == ("" if combined else flag_of(probe)) or re.search(
            " planes|border|^only |^no (finite bar|estimate|minimum)", measurement.flag
        )


PSEUDO_LAYERS = [NETWORK, POOLED, hidden(0), hidden(1), "embedding.input", "embedding.output"]


def compares_states(probe: Probe) -> bool:
    return "states" in probe.REQUIRES or getattr(probe, "of", "") == "hidden_states"


def flag_of(probe: Probe) -> str:
    """The flag of every layer; all have more than 10 rows."""
    if (getattr(probe, "max_points", None) or math.inf) > 10:
        return ""
    return "random rows" if getattr(probe, "sample", "") == "random" else "landmarks"


def test_the_network_is_its_layers_combined(probe: Probe) -> None:
    found = measure(probe, generic(seed=0))
    layers = [found[name].statistics for name in NAMES if name in found]
    if NETWORK in found and layers:
        # A Hessian has more than the blocks of layers.
        assert "text_loss" in probe.REQUIRES or probe.combine(layers) == found[NETWORK].statistics
        for row in layers:
            # One layer by itself: a role may have no more.
            combined = probe.combine([row])
            shared = combined.keys() & row.keys()
            assert shared
            assert {name: combined[name] for name in shared} == pytest.approx({name: row[name] for name in shared})


def test_the_same_statistics_of_every_layer(probe: Probe) -> None:
    found = measure(probe, generic(seed=0))
    names = [measurement.statistics.keys() for layer, measurement in found.items() if layer in NAMES]
    assert all(n == names[0] for n in names)


def test_only_what_is_wanted_is_measured(probe: Probe) -> None:
    weights, earlier = generic(seed=0), generic(seed=1)
    whole = measure(probe, weights, earlier)
    for wanted in covered(probe):
        known = {layer: m.statistics for layer, m in whole.items() if layer != wanted}
        subject = subject_of(probe, weights, earlier, wanted=frozenset([wanted]), known=known)
        assert_same(measured(list(probe.measure(subject))), {wanted: whole[wanted]})
    assert list(probe.measure(subject_of(probe, weights, earlier, wanted=frozenset()))) == []


def test_twice_is_the_same_and_weights_are_left_alone(probe: Probe) -> None:
    weights, earlier = generic(seed=0), generic(seed=1)
    first = measure(probe, weights, earlier)
    # The global generators are not what a result depends on, nor are they moved.
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert_same(measure(probe, weights, earlier), first)
    assert torch.equal(torch.get_rng_state(), state)
    for seed, matrices in enumerate((weights, earlier)):
        assert all(torch.equal(matrices[name], w) for name, w in generic(seed).items())


# Invariance


def test_the_order_of_neurons_does_not_matter(probe: Probe) -> None:
    if probe.name() in ("random_projections", "landscape", "degeneracy", "curvature"):
        pytest.skip("random numbers are of the entries where they are")
    if probe.name() == "attention_maps":
        pytest.skip("tokens have an order")
    if probe.ACROSS_LAYERS:
        pytest.skip("the neurons of a layer are the inputs of the next: see tests/probes/test_deep_graph_probe.py")
    rng = np.random.default_rng(2)
    order = {name: rng.permutation(shape[0]) for name, shape in SHAPES.items()}
    plain = [generic(seed=0), generic(seed=1)]
    permuted = [{name: w[order[name]] for name, w in weights.items()} for weights in plain]
    assert_close(measure(probe, *permuted), measure(probe, *plain), rtol=1e-9)


def test_the_way_round_a_matrix_is_stored_does_not_matter(probe: Probe) -> None:
    if "gradients" in probe.REQUIRES:
        pytest.skip("gradients are of runs of ours, which store no matrix transposed")
    if compares_states(probe):
        pytest.skip("compares what a model gave")
    plain, stored = (
        measured(list(probe.measure(subject_of(probe, generic(seed=0), generic(seed=1), transposed=transposed))))
        for transposed in (False, True)
    )
    assert_close(stored, plain, rtol=1e-9)


DEGREES = {
    **dict.fromkeys(("total", "mean", "max", "std", "cover_radius"), 1),
    **dict.fromkeys(("wasserstein_1", "wasserstein_2", "bottleneck"), 1),
    **dict.fromkeys(("frobenius_norm", "spectral_norm", "max_abs", "norm_p1", "norm_p4", "gradient_norm"), 1),
    **dict.fromkeys(("distance_first", "distance_previous"), 1),
    **dict.fromkeys(("path_length", "displacement", "step_length"), 1),
    **dict.fromkeys(("rms_radius", "mean_norm", "circuit_norm"), 1),
    **dict.fromkeys(("total_p2", "top_eigenvalue"), 2),
    **dict.fromkeys(("sharpness", "smallest_eigenvalue", "trace"), -2),
}
"""The power of the scale of the weights each statistic grows by; others do not depend on it."""


def degree_of(probe: Probe, statistic: str) -> int:
    diagram, _, name = statistic.removesuffix(".noise").partition("@head.")[0].rpartition(".")
    if diagram and (getattr(probe, "normalize", False) or getattr(probe, "metric", "") == "cosine"):
        return 0
    if statistic.startswith(("distance@", "eigenvalue_")):
        return 1 if statistic.startswith("distance@") else -2
    # Neural persistence is scale-free, and so is what is said of its diagrams, of loops of weights, or of shapes alone.
    if name.startswith("projection_"):
        return 1
    is_free = diagram in ("NP", "loops") or probe.name() in ("dowker", "attention_maps") or probe.ONCE
    return 0 if is_free else DEGREES.get(name, 0)


def test_twice_the_weights(probe: Probe) -> None:
    once = measure(probe, generic(seed=0), generic(seed=1))
    twice = measure(
        probe, {n: 2 * w for n, w in generic(seed=0).items()}, {n: 2 * w for n, w in generic(seed=1).items()}
    )
    assert list(twice) == list(once)
    for layer, measurement in once.items():
        assert twice[layer].statistics.keys() == measurement.statistics.keys()
        if getattr(probe, "threshold", None) is not None or flag_of(probe) == "random rows":
            continue  # A cap is a length; of other weights other rows are drawn.
        for name, value in measurement.statistics.items():
            if "@" in name and probe.name() == "hidden_states":
                continue  # Told at a fixed length.
            power = 2 if probe.name() == "attention_circuits" else 1  # products of two matrices
            expected = 2 ** (power * degree_of(probe, name)) * value
            assert twice[layer].statistics[name] == pytest.approx(expected, rel=1e-9, abs=0), name


def test_the_degree_it_tells_is_that_of_the_scale(probe: Probe) -> None:
    for measurement in measure(probe, generic(seed=0)).values():
        for name in measurement.statistics:
            # A norm is what others are divided by, and has no twin.
            control = probe.name() in ("controls", "random_projections") or name.startswith(probe.NORM)
            assert probe.degree(name) == (0 if control else degree_of(probe, name)), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_dtype_of_a_value_does_not_matter(probe: Probe, dtype: torch.dtype) -> None:
    narrow, wide = ([generic(seed, kind, coarse=True) for seed in (0, 1)] for kind in (dtype, torch.float64))
    for a, b in zip(narrow, wide, strict=True):
        assert all(torch.equal(a[name].double(), b[name]) for name in NAMES)
    assert_close(measure(probe, *narrow), measure(probe, *wide), rtol=1e-6)


# Hard matrices

HARD: dict[str, Callable[[tuple[int, int]], Tensor]] = {
    "ties": lambda shape: torch.full(shape, -0.75),
    "signs": lambda shape: torch.from_numpy(np.random.default_rng(0).choice([-0.5, 0.5], shape)),
    "equal rows": lambda shape: torch.arange(1.0, shape[1] + 1).repeat(shape[0], 1),
    "one entry": lambda shape: torch.nn.functional.pad(torch.ones(1, 1), (0, shape[1] - 1, 0, shape[0] - 1)),
    "zeros": torch.zeros,
    "negative zeros": lambda shape: -torch.zeros(shape),
    "tiny": lambda shape: 1e-30 * torch.from_numpy(np.random.default_rng(0).normal(size=shape)),
    "huge": lambda shape: 1e30 * torch.from_numpy(np.random.default_rng(0).normal(size=shape)),
    "subnormal": lambda shape: torch.full(shape, 1e-45),
}
hard = pytest.mark.parametrize("make", HARD.values(), ids=HARD)


@hard
def test_hard_matrices(probe: Probe, make: Callable[[tuple[int, int]], Tensor]) -> None:
    for shape in ((1, 1), (1, 13), (13, 1), (12, 15)):
        assert_measured_or_refused(probe, make, shape)


def assert_measured_or_refused(probe: Probe, make: Callable[[tuple[int, int]], Tensor], shape: tuple[int, int]) -> None:
    weights = {name: make(shape) for name in NAMES}
    earlier = {name: torch.from_numpy(np.random.default_rng(3).normal(size=shape)) for name in NAMES}
    of_lines = getattr(probe, "cut", "") == "lines"  # each of which is there twice
    if shape[0] == 1 and (probe.name() == "hidden_states" or compares_states(probe)) and not of_lines:
        with pytest.raises(ToposcopeError, match="1 point"):  # which is no cloud
            results_of(probe, weights, earlier)
        return
    if getattr(probe, "metric", "") == "cosine" and any((w == 0).all(dim=1).any() for w in weights.values()):
        for result in results_of(probe, weights, earlier):
            assert isinstance(result, Failure)  # Zero vectors have no direction.
            assert_one_line(result.message, "zero")
        return
    for before in (earlier, weights):
        assert list(measure(probe, weights, before)) == covered(probe)
    assert list(measure(probe, earlier, weights)) == covered(probe)


@pytest.mark.parametrize("shape", [(1, 13), (13, 1), (1, 1)], ids=str)
def test_one_row_or_column(probe: Probe, shape: tuple[int, int]) -> None:
    """One hard shape among ordinary ones: the layers differ in what can be said of them."""
    weights, earlier = generic(seed=0), generic(seed=1)
    for matrices in (weights, earlier):
        matrices[NAMES[1]] = matrices[NAMES[1]].flatten()[: math.prod(shape)].reshape(shape)
    assert list(measure(probe, weights, earlier)) == covered(probe)


def test_zeros_are_flagged_where_they_leave_a_ratio_undefined(kind: type[Probe]) -> None:
    weights = generic(seed=0)
    weights[NAMES[1]] = torch.zeros(SHAPES[NAMES[1]])
    found = measure(kind(), weights)
    if kind.name() in "neural_persistence controls clustering gradient_rips placebo_twin deep_graph dowker".split():
        assert [layer for layer, measurement in found.items() if measurement.flag] == [NAMES[1]]
        assert found[NAMES[1]].flag == "degenerate"


# What cannot be measured


def results_or_failures(probe: Probe, subject: ProbeInput, wanted: Collection[str]) -> list[Measurement | Failure]:
    """What a probe yields; an error it raises is one of everything wanted, as a study has it."""
    try:
        return list(probe.measure(subject))
    except ToposcopeError as error:
        return [Failure(layer, str(error)) for layer in wanted]


def assert_fails_alone(probe: Probe, results: list[Measurement | Failure], bad: str, *words: str) -> None:
    """Failures that name it of this layer and of what is taken over all of them; the others are measured."""
    assert sorted(result.layer for result in results) == sorted(covered(probe))
    # With a scale of the whole network every layer depends on every other.
    shared = getattr(probe, "scale", "layer") == "network" or "text_loss" in probe.REQUIRES
    # A model tells of its hidden states which are bad, or of its loss.
    named = "model" if probe.REQUIRES & {"model", "text_loss"} or compares_states(probe) else bad
    for result in results:
        if probe.ACROSS_LAYERS and result.layer in (NAMES[1], NETWORK):
            continue  # It is chained with a part of the layer: see tests/probes/test_deep_graph_probe.py.
        if shared or result.layer in (bad, NETWORK, POOLED, hidden(0), hidden(1), "embedding.input"):
            assert isinstance(result, Failure)
            assert_one_line(result.message, *([bad] if named == bad else []), *(words if result.layer == bad else ()))
        else:
            measured([result])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_layer_that_is_not_finite_fails_alone(probe: Probe, value: float) -> None:
    bad = NAMES[2]
    weights = generic(seed=0)
    weights[bad][3, 5] = value
    if probe.ONCE:
        assert_same(measure(probe, weights), measure(probe, generic(seed=0)))  # It looks at shapes alone.
    else:
        wanted = covered(probe)
        subject = subject_of(probe, weights, generic(seed=1), wanted=frozenset(wanted))
        assert_fails_alone(probe, results_or_failures(probe, subject, wanted), bad)


def test_a_layer_that_cannot_be_read_fails_alone(probe: Probe) -> None:
    def read(start: int, stop: int) -> NDArray[Any]:
        raise OSError("the disk is gone")

    bad = NAMES[2]
    subject = subject_of(probe, generic(seed=0), generic(seed=1), wanted=frozenset(covered(probe)))
    broken = Layer(bad, role_of(bad), False, "step_1.pt", Entry(bad, SHAPES[bad], "float64", read))
    layers = [broken if layer.name == bad else layer for layer in subject.layers]
    embeddings = [broken if layer.name == bad else layer for layer in subject.embeddings]
    inputs = {**subject.inputs, **({"embeddings": embeddings} if embeddings else {})}
    results = list(probe.measure(dataclasses.replace(subject, layers=layers, inputs=inputs)))
    elsewhere = probe.ONCE or probe.REQUIRES & {"attention", "gradients", "diagrams", "model", "states", "text_loss"}
    if elsewhere and not any(isinstance(result, Failure) for result in results):
        return  # It looks at something else than the weights.
    assert_fails_alone(probe, results, bad, "the disk is gone")


def test_without_layers_nothing_is_measured(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "step_1.safetensors"
    save_file({"wpe.weight": torch.ones(3, 2), "ln.weight": torch.ones(2)}, path)
    with pytest.raises(ToposcopeError) as caught:
        list(probe.measure(ProbeInput.of(Checkpoint(path, 1))))
    assert_one_line(str(caught.value), str(path), "nothing to measure")


# Options


def test_options_come_back_from_a_declaration(probe: Probe) -> None:
    declared = json.loads(probe.options())
    kept = {name: getattr(probe, name) for name in probe.__struct_fields__}
    assert declared == {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
    needed = [] if probe.source(ALL) is None else [msgspec.to_builtins(probe.source(ALL))]
    (found, *_) = make_probes([{"name": probe.name(), **declared}, *needed])
    assert found == probe
    assert hash(found) == hash(probe)
    assert found.options() == probe.options()
    assert list(declared) == sorted(declared)


def test_a_label_is_what_the_command_line_takes(probe: Probe) -> None:
    name, _, text = probe.label().partition(":")
    options = parse_options(text, name)
    assert options.keys() == {n for n in probe.__struct_fields__ if getattr(probe, n) != getattr(type(probe)(), n)}
    needed = [] if probe.source(ALL) is None else [msgspec.to_builtins(probe.source(ALL))]
    (found, *_) = make_probes([{"name": name, **options}, *needed])
    assert found == probe


def test_unknown_options_are_refused(kind: type[Probe]) -> None:
    with pytest.raises(ToposcopeError) as caught:
        make_probes([{"name": kind.name(), "colour": 1}])
    assert_one_line(str(caught.value), kind.name(), "colour", *kind.__struct_fields__)


def bad_values(kinds_of_probe: Iterable[type[Probe]]) -> list[Any]:
    """What is of no option's type, NaN among it; a number of the right type is the probe's own to judge."""
    found = []
    for kind in kinds_of_probe:
        for option, hint in option_types(kind).items():
            kinds = (hint, *typing.get_args(hint))
            is_list = any(typing.get_origin(one) is tuple for one in kinds)
            values: list[Any] = [["neither"] if is_list else [], {}, "neither"]
            values += [math.nan] if float in kinds else [1.5] if int in kinds else []
            values += [None] if int in kinds and NoneType not in kinds else []
            for value in values:
                found.append(pytest.param(kind, option, value, id=f"{kind.name()}-{option}-{value}"))
    return found


def test_values_that_no_option_takes_are_refused(kind: type[Probe], option: str, value: Any) -> None:
    with pytest.raises(ToposcopeError) as caught:
        make_probes([{"name": kind.name(), option: value}])
    assert_one_line(str(caught.value), kind.name(), option)


LEAST = {
    "curvature": {"top": 1, "sequences": 1, "length": 2, "draws": 2, "steps": 2},
    "degeneracy": {"sequences": 1, "length": 3, "seed": 0, "chains": 2, "draws": 4, "leapfrog": 1},
    "landscape": {"resolution": 5, "draws": 1, "sequences": 1, "length": 2, "batches": 1},
    "dowker": {"draws": 5},
    "embeddings": {"max_dimension": 0, "max_points": 1},
    "placebo_twin": {"max_dimension": 0, "max_points": 1},
    "rips": {"max_dimension": 0, "max_points": 1, "draws": 1},
    "gradient_rips": {"max_dimension": 0, "max_points": 1, "batches": 1},
    "hidden_states": {"max_dimension": 0, "max_points": 1, "texts": 1, "length": 2, "draws": 1, "pca": 0, "keep": 0},
    "random_matrices": {"draws": 3},
    "random_projections": {"count": 1},
    "language_modelling": {"length": 2},
    "trajectory": {"window": 50, "seed": 0},
    "similarity": {"batch_size": 3, "n_batches": 0},
}
POSITIVE = [("landscape", "span"), ("degeneracy", "localisation")]
BELOW_THE_LEAST = [(name, option, least - 1) for name, options in LEAST.items() for option, least in options.items()]
OUT_OF_RANGE: list[tuple[str, str, Any]] = [
    ("rips", "threshold", -1.0),
    *[(name, "max_dimension", 3) for name in ("rips", "hidden_states", "embeddings")],
    *[(name, "draws", 2) for name in ("rips", "hidden_states")],
    *[("hidden_states", "layers", [value]) for value in (1.5, math.nan)],
    *[("hidden_states", "scales", values) for values in ([-1.0], [math.inf], [0.5, 0.5000000001])],
    *[(name, option, value) for name, option in POSITIVE for value in (0.0, math.inf)],
    *[("neural_persistence", "p", value) for value in (0.5, math.inf)],
]


def test_values_out_of_range_are_refused_when_declared(name: str, option: str, value: float) -> None:
    with pytest.raises(ToposcopeError) as caught:
        make_probes([{"name": name, option: value}])
    assert_one_line(str(caught.value), name, option)
    if (name, option, value) in BELOW_THE_LEAST:
        compared = [{"name": "hidden_states", "keep": 9}] if name != "hidden_states" else []
        make_probes([{"name": name, option: value + 1}, *compared])


def test_a_probe_declared_twice_is_refused(kind: type[Probe]) -> None:
    declared = [{"name": name, **({"keep": 9} if name == "hidden_states" else {})} for name in probe_types()]
    assert {probe.name() for probe in make_probes(declared)} == probe_types().keys()
    with pytest.raises(ToposcopeError, match="twice"):
        make_probes([*declared, *(again for again in declared if again["name"] == kind.name())])
    # With other options it is another probe.
    for probe in with_each_option(kind)[1:]:
        assert len(make_probes([*declared, {"name": kind.name(), **json.loads(probe.options())}])) == len(declared) + 1


def test_a_probe_states_its_name_and_version(kind: type[Probe]) -> None:
    assert kind.name() == kind().name()
    assert kind.VERSION >= 1
    assert kind.__doc__
    assert kind().label() == kind.name()


def test_every_statistic_has_a_kind(probe: Probe) -> None:
    """The noise of a statistic is counted as the statistic is."""
    assert probe.KIND in KINDS
    for found in measure(probe, generic(seed=2)).values():
        for name in found.statistics:
            assert probe.kind(name) in KINDS
            assert probe.kind(name) == probe.kind(name.removesuffix(NOISE))
