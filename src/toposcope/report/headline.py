"""The features that the report names in its text and charts; the tables hold all of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toposcope.analysis.efficiency import NP_SPEED, PER_STEP, PER_TOKEN
from toposcope.analysis.trajectory import SCALE, STATES, WEIGHT_NORM, Trajectory, cloud_feature
from toposcope.analysis.verdict import LEVEL
from toposcope.probes.feature import TOPOLOGY, Feature, options_of, split_label
from toposcope.study.kinds import PUBLISHED, feature_named


@dataclass(frozen=True)
class Headline:
    """A feature, its name in the text, and its axis label."""

    feature: Feature
    name: str
    axis: str

    @property
    def key(self) -> str:
        """The feature as tables write it."""
        return str(self.feature)


def _headline(key: str, name: str, axis: str = "") -> Headline:
    return Headline(feature_named(key), name, axis)


NP = _headline("neural_persistence np_mean", "Mean neural persistence", "mean neural persistence (0 to 1)")
H0 = _headline("rips H0.total", "H0 total", "H0 total persistence (weight units)")
H1 = _headline("rips H1.total", "H1 total", "H1 total persistence (weight units)")
GRADIENT_H0 = _headline("gradient_rips H0.total", "H0 total of gradients", "H0 total of gradients (gradient units)")
GRADIENT_H1 = _headline("gradient_rips H1.total", "H1 total of gradients", "H1 total of gradients (gradient units)")
GRADIENT_NORM = feature_named("gradient_rips gradient_norm")

TRAJECTORIES = (NP, H0, H1)

HEADLINES = (
    *TRAJECTORIES,
    _headline("rips:pooled=true H0.total", "H0 total, pooled"),
    _headline("rips:pooled=true H1.total", "H1 total, pooled"),
    _headline("rips H0.entropy", "H0 entropy"),
    GRADIENT_H0,
    _headline("distances H0.wasserstein_2", "H0 change (Wasserstein-2)"),
    Headline(WEIGHT_NORM, "Weight norm (control)", ""),
    _headline("log grad_norm_mean", "Gradient norm (control)"),
    _headline("controls stable_rank", "Stable rank (control)"),
)

TARGETS = {
    "validation_loss": "validation loss",
    "text_loss": "loss on the text",
    "smoothed_loss": "smoothed training loss",
    "batch_loss": "loss of the last batch",
    PER_STEP: "loss gained per step",
    PER_TOKEN: "loss gained per token",
}
NAMES: dict[str, str] = {**TARGETS, **{h.key: h.name for h in HEADLINES}}

CLOUD_STATISTICS = {
    "H0.total": "H0 total",
    "H1.total": "H1 total",
    "H1.entropy": "H1 entropy",
    "rankme": "RankMe",
    "effective_rank": "Effective rank",
    "top_eigenvalue": "Top eigenvalue",
    "anisotropy": "Anisotropy",
    "two_nn": "Intrinsic dimension",
}
"""Statistics of a cloud of hidden states that the report names in its text; topology first."""
CHANGES = {
    str(NP_SPEED): "Speed of mean neural persistence",
    "similarity rtd.previous": "Divergence of hidden states from the checkpoint before (RTD)",
    "distances:of=hidden_states H1.wasserstein_2": "H1 change of hidden states (Wasserstein-2)",
}
_IMMATERIAL = ("layers", "keep", "scales", "draws")  # options of a cloud that do not affect the last hidden state
_WORDS = {
    "points=texts": "texts",
    "cut=lines": "lines",
    "sample=random": "sampled",
    "metric=cosine": "cosine",
    "normalize=true": "normalised",
}


def named(text: str) -> str:
    """Return the name of a feature, target or quantity in the text; the options of a cloud follow its name."""
    if text in NAMES or text in CHANGES:
        return NAMES.get(text) or CHANGES[text]
    feature = feature_named(text)
    if feature.probe not in (PUBLISHED, STATES) or feature.statistic not in CLOUD_STATISTICS:
        return text
    name, control = CLOUD_STATISTICS[feature.statistic], [] if feature.kind == TOPOLOGY else ["control"]
    if feature.probe == PUBLISHED:
        name = f"Published {uncapitalised(name)}"
        return _with(name, control)
    return _with(f"{name} of hidden states", [*control, *_options(feature.label)])


def uncapitalised(name: str) -> str:
    """Write a name within a sentence: "mean neural persistence", but "H0 total" and "RankMe"."""
    keeps = name[1:2].isdigit() or name[1:2].isupper() or name.startswith("RankMe")
    return name if keeps else name[:1].lower() + name[1:]


def cloud_named(label: str, noun: str = "hidden states") -> str:
    """Return the name of a cloud of hidden states in the text: a noun and the options."""
    return f"published {noun}" if label == PUBLISHED else _with(noun, _options(label))


def _with(name: str, options: Sequence[str]) -> str:
    return f"{name} ({', '.join(options)})" if options else name


def _options(label: str) -> list[str]:
    """Return the options of a cloud in short words: how many texts, or tokens of how many texts, come first."""
    options = {k: v for k, v in options_of(label).items() if k not in _IMMATERIAL}
    if "texts" in options:
        of_texts = options.pop("points", "") == "texts"
        options = {"": f"{'' if of_texts else 'tokens of '}{options.pop('texts')} texts", **options}
    words = {"": "{}", "pca": "{} components"}
    return [words[k].format(v) if k in words else _WORDS.get(f"{k}={v}", f"{k}={v}") for k, v in options.items()]


def headline_features(features: Iterable[str]) -> list[str]:
    """Return those features, targets or quantities that the report names, in its order."""
    present = list(dict.fromkeys(features))
    clouds = dict.fromkeys(f.label for text in present if (f := feature_named(text)).probe == STATES)
    if {f"{PUBLISHED} {SCALE}", f"{PUBLISHED} effective_rank"} & set(present):
        clouds[PUBLISHED] = None
    of_clouds = (str(cloud_feature(cloud, statistic)) for cloud in clouds for statistic in CLOUD_STATISTICS)
    wanted = [*NAMES, *of_clouds, *CHANGES]
    return [text for text in wanted if text in set(present)]


def clouds_of(trajectories: Sequence[Trajectory]) -> list[str]:
    """Return the clouds that charts and sentences describe: the first declared one, and a published one."""
    labels = dict.fromkeys(label for t in trajectories for label, cloud in t.clouds.items() if label == cloud)
    first = [label for label in labels if split_label(label)[0] == STATES][:1]
    return first + ([PUBLISHED] if PUBLISHED in labels else [])


def headlines_of(trajectories: Sequence[Trajectory], statistics: Iterable[str]) -> list[Headline]:
    """Return headlines of statistics of hidden states, for the clouds that `clouds_of` returns."""
    return [
        Headline(of_cloud, named(str(of_cloud)), CLOUD_STATISTICS[name])
        for cloud in clouds_of(trajectories)
        for name in statistics
        if any((of_cloud := cloud_feature(cloud, name)) in t.features for t in trajectories)
    ]


def describe_rank_test(row: Mapping[str, float]) -> str:
    """Give the exact p of the rank correlation with size in a row of the scaling table, and the lowest p possible."""
    lowest = row["min_p"]
    text = f"the exact p of the ranks is {row['p_exact']:.3f}"
    if lowest >= LEVEL:
        return f"{text}, and {row['n_sizes']:g} sizes allow none below {lowest:.3f}"
    return f"{text} ({row['n_sizes']:g} sizes allow {lowest:.3f} at best)" if lowest > LEVEL / 10 else text
