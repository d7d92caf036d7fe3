"""A feature is a value: its written form, what makes two of them equal, and options that hold lists."""

from hypothesis import given
from hypothesis import strategies as st

from toposcope.probes.feature import KINDS, Feature, split_options

NAMES = st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True)
SCALARS = st.from_regex(r"[a-z0-9_.]+", fullmatch=True)
VALUES = SCALARS | st.lists(SCALARS, max_size=3).map(lambda values: f"[{','.join(values)}]")
OPTIONS = st.dictionaries(NAMES, VALUES, max_size=4)
STATISTICS = st.from_regex(r"[A-Za-z0-9_.@]+", fullmatch=True)


@st.composite
def features(draw: st.DrawFn) -> Feature:
    options = ",".join(f"{name}={value}" for name, value in draw(OPTIONS).items())
    group = draw(st.sampled_from(["network", "attention", "layers.0.mlp.fc1.weight"]))
    return Feature(draw(NAMES), options, draw(STATISTICS), draw(st.sampled_from(KINDS)), group)


@given(features())
def test_the_written_form_is_read_back(feature: Feature) -> None:
    read = Feature.parse(str(feature), feature.kind, feature.group)
    assert read == feature
    assert (read.kind, read.label) == (feature.kind, feature.label)
    assert str(read) == str(feature)
    assert Feature.of_label(feature.label, feature.statistic, feature.kind, feature.group) == feature


@given(NAMES, OPTIONS, STATISTICS)
def test_options_are_read_by_name(probe: str, options: dict[str, str], statistic: str) -> None:
    text = ",".join(f"{name}={value}" for name, value in options.items())
    assert Feature(probe, text, statistic, "control").option_values() == options
    assert ",".join(split_options(text)) == text


@given(features(), st.sampled_from(KINDS))
def test_the_kind_follows_and_makes_no_difference(feature: Feature, kind: str) -> None:
    other = Feature.parse(str(feature), kind, feature.group)  # type: ignore[arg-type]
    assert other == feature
    assert hash(other) == hash(feature)


@given(features(), features())
def test_features_are_equal_where_probe_options_statistic_and_group_are(first: Feature, second: Feature) -> None:
    assert (first == second) == ((str(first), first.group) == (str(second), second.group))
    assert first != first.of_group("another group")
    assert first.of_group("another group").of_group(first.group) == first
    assert first != first.with_statistic(f"{first.statistic}.noise")
    assert first.with_statistic("x").kind == first.kind
