"""Names of features and layers as pages show them."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

LOG = "log"  # in place of a probe: what a training loop logged
PROBES = {
    "neural_persistence": "Neural persistence",
    "deep_graph": "Deep graph persistence",
    "rips": "",
    "controls": "",
    "training": "",
    LOG: "",
    "distances": "Change",
    "activations": "Activations",
}
"""Probes whose statistics are named in words; a name that is empty goes without saying."""
NAMES = {
    "training weight_norm": "Weight norm, measured",  # it may be logged, too
    "activations attention_logit_max": "Largest attention logit",
    "activations attention_entropy": "Attention entropy (nats)",
    "activations activation_kurtosis": "Kurtosis of activations",
    "activations query_norm": "Query norm",
    "activations key_norm": "Key norm",
    "activations dead_experts": "Dead experts (share)",
    "activations routing_entropy": "Routing entropy (nats)",
}
"""Features with a name that does not follow from those of their probe and statistic."""
MEASURED = (
    *("training update_ratio", "training gradient_norm", "training weight_norm", "training update_norm"),
    *("training dead_units", *(key for key in NAMES if key.startswith("activations"))),
)
"""Quantities that a monitor measures at each step, or on the fixed batch, in display order."""
STATISTICS = {
    **{"loss": "training loss", "validation_loss": "validation loss", "learning_rate": "learning rate"},
    **{"grad_norm": "gradient norm", "tokens": "tokens", "update_ratio": "update / weight ratio"},
    **{"gradient_norm": "gradient norm, measured", "weight_norm": "weight norm", "update_norm": "update norm"},
    **{"nonfinite": "weights not finite", "nonfinite_gradients": "gradients not finite", "dead_units": "dead units"},
    **{"alpha": "tail exponent of the spectrum", "max_abs": "largest weight", "mean": "mean weight"},
    **{"std": "spread of the weights", "norm_p1": "L1 norm", "norm_p4": "L4 norm", "rankme": "RankMe"},
    **{"singular_entropy": "entropy of the singular values", "two_nn": "intrinsic dimension"},
    **{"np_mean": "mean", "np_norm": "norm", "np_normalized": "normalised"},
    **{"dgp_mean": "mean", "dgp_norm": "norm", "dgp_normalized": "normalised"},
}
_DIAGRAM = {
    **{"count": "bars", "max": "longest bar", "mean": "mean bar", "std": "spread of the bars", "n_zero": "empty bars"},
    **{"n_essential": "unbounded bars", "n_significant": "significant bars", "n_truncated": "truncated bars"},
    **{"entropy_normalized": "entropy, normalised", "total_p2": "total of squares", "wasserstein_2": "Wasserstein-2"},
}
_ENDS = {"_max": "largest layer", "_min": "smallest layer", "_std": "spread over layers"}


def feature_words(key: str) -> str:
    """Return the name of a feature that is written as ``probe:options statistic``; empty if the probe has none."""
    label, _, statistic = key.rpartition(" ")
    probe, _, options = label.partition(":")
    if key in NAMES or probe not in PROBES:
        return NAMES.get(key, "")
    if probe == LOG:
        words = STATISTICS.get(statistic, statistic)
    else:
        words = ", ".join(filter(None, [PROBES[probe], _statistic_words(statistic), options.removesuffix("=true")]))
    return f"{words[:1].upper()}{words[1:]}"


def _statistic_words(statistic: str) -> str:
    if statistic in STATISTICS:
        return STATISTICS[statistic]
    diagram = re.fullmatch(r"(H\d)\.(.+)", statistic)
    if diagram:
        return f"{diagram[1]} {_DIAGRAM.get(diagram[2]) or diagram[2].replace('_', ' ')}"
    for end, words in _ENDS.items():
        if (name := statistic.removesuffix(end)) in STATISTICS and name != statistic:
            return f"{STATISTICS[name]}, {words}"
    return statistic.replace("_", " ").replace(".", ", ")


MIN_SHARED = 0.7  # share of the layers that must have the first or last part of a name in common for it to be dropped
MAX_LABEL = 26  # characters of a label; of a longer one, parts in the middle are dropped


def layer_labels(names: Sequence[str]) -> list[str]:
    """Return short labels of layers: names without the parts that most share, so that no two become alike."""
    labels = _changed(
        [name.replace("/", ".") for name in names], lambda parts: parts[:-1] if len(parts) > 1 else parts, ends=-1
    )
    while len(labels) > 1:
        shorter = _changed(labels, lambda parts: parts[1:] if len(parts) > 1 and not parts[1].isdigit() else parts)
        if shorter == labels:
            break
        labels = shorter
    return _if_distinct(labels, [_fitted(label) for label in labels])


def _changed(labels: list[str], change: Callable[[list[str]], list[str]], ends: int = 0) -> list[str]:
    """Change those labels that have the most frequent first or last part, if most have it."""
    parts = [label.split(".") for label in labels]
    shared, n = Counter(part[ends] for part in parts).most_common(1)[0] if parts else ("", 0)
    if n < MIN_SHARED * len(labels):
        return labels
    return _if_distinct(labels, [".".join(change(part) if part[ends] == shared else part) for part in parts])


def _if_distinct(labels: list[str], shorter: list[str]) -> list[str]:
    return shorter if len(set(shorter)) == len(set(labels)) and all(shorter) else labels


def _fitted(label: str) -> str:
    """Drop whole parts in the middle of a long label: those after the number of a block."""
    parts = label.split(".")
    start = next((place + 1 for place, part in enumerate(parts) if part.isdigit()), 1)
    for end in range(start, len(parts)):
        if len(label) <= MAX_LABEL:
            break
        label = ".".join([*parts[:start], "…", *parts[end + 1 :]]).replace(".….", ".…")
    return label
