"""What features are called in texts and charts."""

import dataclasses

import numpy as np
import pytest
from made_up_material import material
from made_up_states import LABEL, with_states
from named_features import by_feature

from toposcope.report.headline import clouds_of, headline_features, headlines_of, named, uncapitalised


def test_the_first_cloud_is_spoken_of_and_options_are_told() -> None:
    (t,) = with_states(material(1)).trajectories
    second = "hidden_states:points=texts,pca=50"
    more = dataclasses.replace(t, clouds={LABEL: LABEL, second: second, "published": "published"})
    assert clouds_of([more]) == [LABEL, "published"]
    assert [h.name for h in headlines_of([t], ["H1.entropy"])] == ["H1 entropy of hidden states"]
    assert named(f"{LABEL} H1.entropy") == "H1 entropy of hidden states"
    assert named("hidden_states:layers=[0.5,1.0],points=texts,pca=50 rankme") == (
        "RankMe of hidden states (control, texts, 50 components)"
    )
    assert named("hidden_states:points=texts,cut=lines,texts=200,pca=50 H0.total") == (
        "H0 total of hidden states (200 texts, lines, 50 components)"
    )
    assert named("hidden_states:texts=9,sample=random,metric=cosine,normalize=true,seed=1 H0.total") == (
        "H0 total of hidden states (tokens of 9 texts, sampled, cosine, normalised, seed=1)"
    )
    renamed = dataclasses.replace(
        t, features=by_feature({f"{second} H1.entropy": t.steps.astype(np.float64)}), clouds={second: second}
    )
    (first,) = headlines_of([renamed], ["H1.entropy"])
    assert first.name == named(first.key) == "H1 entropy of hidden states (texts, 50 components)"
    assert named("published H0.total") == "Published H0 total"
    assert named("hidden_states H1.betti_max") == "hidden_states H1.betti_max"


def test_published_features_of_weights_are_not_spoken_of() -> None:
    assert headline_features(["published H0.total", "published np_mean"]) == []
    assert headline_features(["published H0.total", "published effective_rank"]) == [
        "published H0.total",
        "published effective_rank",
    ]


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("Mean neural persistence", "mean neural persistence"),
        ("H0 total", "H0 total"),
        ("RankMe of hidden states", "RankMe of hidden states"),
        ("RTD", "RTD"),
        ("", ""),
    ],
)
def test_a_name_within_a_sentence(name: str, within: str) -> None:
    assert uncapitalised(name) == within
