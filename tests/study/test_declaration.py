"""The declaration of a study: what it takes, what is filled in, and how mistakes are told."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

from toposcope.elsewhere import install
from toposcope.errors import ToposcopeError
from toposcope.family import SIZES, Corpus, ModelSize, TrainingOptions
from toposcope.study import Declaration, load_declaration, publication, run_study
from toposcope.study import declaration as declaration_module
from toposcope.study.declaration import DeclaredSeries, check_declaration, shipped_study
from toposcope.study.declared_runs import DeclaredRun
from toposcope.version import __version__

RUN: dict[str, Any] = {"size": "tiny-3k"}


def declare(folder: Path, content: dict[str, Any] | str) -> Path:
    path = folder / "declared.toml"
    path.write_text(content if isinstance(content, str) else tomli_w.dumps(content), encoding="utf-8")
    return path


def load(folder: Path, content: dict[str, Any] | str) -> Declaration:
    return load_declaration(declare(folder, content))


def refusal(folder: Path, content: dict[str, Any] | str) -> str:
    """The one line a declaration is refused with; it begins with the file."""
    path = declare(folder, content)
    with pytest.raises(ToposcopeError) as caught:
        load_declaration(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_everything_has_a_default_but_a_name_and_something_to_measure(tmp_path: Path) -> None:
    declaration = load(tmp_path, {"name": "least", "runs": [RUN]})
    (run,) = declaration.resolved_runs()
    assert (run.name, run.size) == ("tiny-3k", SIZES["tiny-3k"])
    assert run.corpus == Corpus()
    assert run.training == TrainingOptions()
    assert [probe.label() for probe in declaration.resolved_probes()] == [
        "neural_persistence",
        "rips",
        "controls",
        "distances",
    ]
    assert declaration.toposcope == __version__


def test_a_run_overrides_the_training_of_the_study(tmp_path: Path) -> None:
    declaration = load(
        tmp_path,
        {
            "name": "x",
            "training": {"steps": 500, "seed": 7},
            "runs": [RUN, {**RUN, "name": "other", "training": {"steps": 100, "warmup_steps": 10, "seed": 8}}],
        },
    )
    plain, other = declaration.resolved_runs()
    assert plain.training == TrainingOptions(steps=500, seed=7)
    # The study's 200 steps of warm-up would not fit into this run's 100 steps.
    assert other.training == TrainingOptions(steps=100, warmup_steps=10, seed=8)


def test_a_size_by_its_dials(tmp_path: Path) -> None:
    size = {"hidden": 12, "layers": 2, "heads": 3, "context": 32}
    declaration = load(tmp_path, {"name": "x", "runs": [{"size": size, "name": "mine"}]})
    assert declaration.resolved_runs()[0].size == ModelSize(**size)


def test_the_vocabulary_of_a_size_is_the_corpus_s(tmp_path: Path) -> None:
    corpus = {"tokenizer": "bpe", "vocabulary": 512}
    declaration = load(tmp_path, {"name": "x", "corpus": corpus, "runs": [RUN]})
    assert declaration.resolved_runs()[0].size.vocabulary == 512


def test_a_series_is_named_after_its_path(tmp_path: Path) -> None:
    declaration = load(tmp_path, {"name": "x", "series": [{"path": "a/first"}, {"path": "b/first", "name": "second"}]})
    assert list(declaration.named_series()) == ["first", "second"]


def test_relative_paths_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = str(tmp_path / "absolute")
    series = [{"path": "checkpoints"}, {"path": absolute}, {"name": "a", "features": "f.json"}]
    content = {"name": "x", "corpus": {"source": "../texts"}, "series": series, "runs": [RUN]}
    file = declare(tmp_path, content)
    (tmp_path / "elsewhere").mkdir()
    for folder, path in ((tmp_path / "elsewhere", file), (tmp_path, Path(file.name))):
        monkeypatch.chdir(folder)
        declaration = load_declaration(path)
        assert Path(declaration.corpus.source).resolve() == (tmp_path / "../texts").resolve()
        assert [s.path for s in declaration.series] == [str(tmp_path / "checkpoints"), absolute, ""]
        assert declaration.series[2].features == str(tmp_path / "f.json")


@pytest.mark.parametrize("source", ["python-docs", "hf:owner/name"])
def test_sources_that_are_no_paths_stay_as_they_are(tmp_path: Path, source: str) -> None:
    assert load(tmp_path, {"name": "x", "corpus": {"source": source}, "runs": [RUN]}).corpus.source == source


MISSPELLED: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "top": ({"runs": [RUN], "prbes": []}, "prbes", ["probes", "runs", "series", "training", "corpus"]),
    "corpus": ({"runs": [RUN], "corpus": {"sorce": "a"}}, "sorce", ["source", "tokenizer", "validation_fraction"]),
    "training": ({"runs": [RUN], "training": {"step": 5}}, "step", ["steps", "batch_size", "schedule", "seed"]),
    "runs": ({"runs": [{"sizes": "tiny-3k"}]}, "sizes", ["size", "name", "training"]),
    "training of a run": (
        {"runs": [{**RUN, "training": {"batchsize": 5}}]},
        "batchsize",
        ["steps", "batch_size", "schedule", "seed"],
    ),
    "dials": (
        {"runs": [{"name": "a", "size": {"hidden": 8, "layer": 1, "heads": 1}}]},
        "layer",
        ["hidden", "layers", "heads", "context"],
    ),
    "series": ({"series": [{"paht": "a"}]}, "paht", ["path", "name", "features", "optional", "steps"]),
    "probe": ({"runs": [RUN], "probes": [{"name": "ripz"}]}, "ripz", ["rips", "controls", "neural_persistence"]),
    "option of a probe": (
        {"runs": [RUN], "probes": [{"name": "rips", "max_dim": 1}]},
        "max_dim",
        ["max_dimension", "max_points", "threshold", "pooled"],
    ),
}


@pytest.mark.parametrize(("content", "field", "known"), MISSPELLED.values(), ids=MISSPELLED)
def test_a_misspelled_field_is_told_with_the_known_ones(
    tmp_path: Path, content: dict[str, Any], field: str, known: list[str]
) -> None:
    message = refusal(tmp_path, {"name": "x", **content})
    assert f"'{field}'" in message or f"`{field}`" in message
    assert [name for name in known if name not in message.replace(f"'{field}'", "").replace(f"`{field}`", "")] == []


BAD_VALUES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no name": ({"runs": [RUN]}, ["name"]),
    "nothing": ({"name": "x"}, ["[[runs]]", "[[series]]"]),
    "a type": ({"name": "x", "runs": [RUN], "training": {"steps": "many"}}, ["int", "training.steps"]),
    "a range": ({"name": "x", "runs": [RUN], "training": {"steps": 0}}, ["steps", "at least 1"]),
    "no number": ({"name": "x", "runs": [RUN], "training": {"learning_rate": float("nan")}}, ["learning_rate", "nan"]),
    "a schedule": ({"name": "x", "runs": [RUN], "training": {"schedule": "step"}}, ["'step'", "training.schedule"]),
    "a run's range": ({"name": "x", "runs": [{**RUN, "training": {"steps": 100}}]}, ["tiny-3k", "200", "100"]),
    "a run's type": ({"name": "x", "runs": [{**RUN, "training": {"seed": "a"}}]}, ["tiny-3k", "seed", "int"]),
    "a size": ({"name": "x", "runs": [{"size": "huge"}]}, ["'huge'", "tiny-3k", "xl-97k"]),
    "dials": (
        {"name": "x", "runs": [{"name": "a", "size": {"hidden": 8, "layers": 1, "heads": 3}}]},
        ["hidden = 8", "heads = 3"],
    ),
    "dials without a name": (
        {"name": "x", "runs": [{"size": {"hidden": 8, "layers": 1, "heads": 1}}]},
        ["runs", "name"],
    ),
    "a vocabulary": ({"name": "x", "runs": [RUN], "corpus": {"vocabulary": 64}}, ["vocabulary", "64", "128"]),
    "a tokenizer": ({"name": "x", "runs": [RUN], "corpus": {"tokenizer": "words"}}, ["'words'", "corpus.tokenizer"]),
    "a protocol": ({"name": "x", "runs": [RUN], "protocol": "loose"}, ["'loose'", "protocol"]),
    "a series of nothing": ({"name": "x", "series": [{"name": "a"}]}, ["series", "path", "features"]),
    "features of no name": ({"name": "x", "series": [{"features": "f.json"}]}, ["series", "name", "features"]),
    "a probe without a name": ({"name": "x", "runs": [RUN], "probes": [{"pooled": True}]}, ["probe", "rips"]),
    "an option": (
        {"name": "x", "runs": [RUN], "probes": [{"name": "rips", "max_dimension": -1}]},
        ["rips", "max_dimension"],
    ),
    "a power": (
        {"name": "x", "runs": [RUN], "probes": [{"name": "neural_persistence", "p": -1.0}]},
        ["neural_persistence", "p"],
    ),
    "a probe twice": (
        {"name": "x", "runs": [RUN], "probes": [{"name": "rips"}, {"name": "rips", "pooled": False}]},
        ["twice"],
    ),
    "distances of nothing": (
        {"name": "x", "runs": [RUN], "probes": [{"name": "distances"}]},
        ["distances", 'name = "rips"'],
    ),
    "distances of the pooled": (
        {"name": "x", "runs": [RUN], "probes": [{"name": "distances"}, {"name": "rips", "pooled": True}]},
        ["distances", 'name = "rips"'],
    ),
}


@pytest.mark.parametrize(("content", "words"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_bad_value_is_told_by_its_place(tmp_path: Path, content: dict[str, Any], words: list[str]) -> None:
    message = refusal(tmp_path, content)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    "content",
    [
        {"runs": [RUN, RUN]},
        {"runs": [RUN, {"size": "small-7k", "name": "tiny-3k"}]},
        {"series": [{"path": "a/tiny-3k"}, {"path": "b/tiny-3k"}]},
        {"runs": [RUN], "series": [{"path": "a/tiny-3k"}]},
    ],
    ids=["runs", "a named run", "series", "a run and a series"],
)
def test_equal_names_are_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    message = refusal(tmp_path, {"name": "x", **content})
    assert "2 runs or series are called 'tiny-3k'" in message


UNSAFE = ["../up", "a/b", "..", ".hidden", "-dash", "a b", "a\nb", "a|b", "naïve", "a\\b", "a\0b"]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_names_of_runs_are_refused(tmp_path: Path, name: str) -> None:
    assert repr(name) in refusal(tmp_path, {"name": "x", "runs": [{**RUN, "name": name}]})


@pytest.mark.parametrize("name", ["../up", "a/b", "..", "a\nb", "a\\b", "a\0b"])
def test_unsafe_names_of_series_are_refused(tmp_path: Path, name: str) -> None:
    # Named after folders that exist, they may hold what those may; but not lead elsewhere.
    assert repr(name) in refusal(tmp_path, {"name": "x", "series": [{"path": "a", "name": name}]})


@pytest.mark.parametrize("name", ["../up", "..", "", "a\0b"])
def test_unsafe_names_of_studies_are_refused(tmp_path: Path, name: str) -> None:
    # The folder of a study is named after it: no name may lead elsewhere, or to the folder one stands in.
    assert "name" in refusal(tmp_path, {"name": name, "runs": [RUN]})


def test_what_cannot_be_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    declaration = Declaration(name="x", runs=[DeclaredRun(size="huge")])
    with pytest.raises(ToposcopeError, match="'huge'"):
        run_study(declaration, tmp_path / "study")
    assert not (tmp_path / "study").exists()


FULL = Declaration(
    name="everything",
    corpus=Corpus(source="/texts", tokenizer="bpe", vocabulary=512, validation_fraction=0.2),
    training=TrainingOptions(steps=300, schedule="wsd", decay_steps=50),
    runs=[
        DeclaredRun(size="tiny-3k", training={"seed": 1, "learning_rate": 1e-4}),
        DeclaredRun(size=ModelSize(hidden=8, layers=1, heads=1), name="dials"),
    ],
    series=[
        DeclaredSeries(path="/checkpoints", name="found", steps=[0, 10], optional=True),
        DeclaredSeries(name="told", features="/features.json"),
    ],
    protocol="published",
    published={"source": "a paper", "intervals": {"H0.total": {"found": [-0.75, -0.25]}}},
    probes=[
        {"name": "rips", "threshold": 2.0},
        {"name": "rips", "pooled": True},
        {"name": "neural_persistence", "scale": "network"},
    ],
)


def test_a_declaration_survives_being_written(tmp_path: Path) -> None:
    assert load(tmp_path, FULL.to_toml()) == FULL


def test_defaults_are_written_out(tmp_path: Path) -> None:
    declaration = load(tmp_path, {"name": "least", "runs": [RUN]})
    written = tomllib.loads(declaration.to_toml())
    assert written["training"] == msgspec.to_builtins(TrainingOptions()) | {"checkpoint_fractions": []}
    assert written["corpus"]["validation_fraction"] == 0.1
    assert [probe["name"] for probe in written["probes"]] == ["neural_persistence", "rips", "controls", "distances"]
    assert written["toposcope"] == __version__
    assert load(tmp_path, declaration.to_toml()) == declaration


def test_an_older_declaration_is_marked_with_the_version_that_runs_it(tmp_path: Path) -> None:
    written = load(tmp_path, {"name": "x", "runs": [RUN]}).to_toml().replace(__version__, "0.0.1")
    declaration = load(tmp_path, written)
    # Measured by this version, whatever version wrote the file it was read from.
    declaration = msgspec.structs.replace(declaration, runs=[], series=[DeclaredSeries(path=str(tmp_path / "absent"))])
    run_study(declaration, tmp_path / "study", workers=1)
    assert tomllib.loads((tmp_path / "study" / "study.toml").read_text())["toposcope"] == __version__


@pytest.mark.parametrize("name", ["quickstart"])
def test_shipped_studies_can_be_run(name: str) -> None:
    declaration = shipped_study(name)
    check_declaration(declaration)
    assert declaration.name == name


def test_what_is_published_is_read_where_the_experiments_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "reader", lambda: None)
    monkeypatch.setattr(declaration_module, "reader", lambda: None)
    needed = f"read by toposcope-experiments; {install('toposcope-experiments')}"
    assert needed in refusal(tmp_path, {"name": "x", "runs": [RUN], "protocol": "published"})
    kept = load(tmp_path, {"name": "x", "series": [{"name": "a", "features": "f.json"}], "published": {"source": "y"}})
    errors = run_study(kept, tmp_path / "study", workers=1)
    assert list(errors.values()) == [f"published features: {needed}"]


TRAINED = 'name = "s"\n[[runs]]\nsize = "tiny-3k"\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("x = " + "{a = " * 60 + "1" + "}" * 60, "more than 20 deep"),
        (".".join(["a"] * 5000) + " = 1", "deep"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ('name = "x"\nruns = [\n', "not valid TOML: Invalid value (at end of document)"),
        (b"\xff\xfe\x00", "declared.toml: cannot be read"),
        (None, "declared.toml: cannot be read: No such file"),
        (TRAINED + "[training]\nlearning_rate = inf", "training.learning_rate is inf"),
        (TRAINED + "[training]\nlearning_rate = nan", "training.learning_rate is nan"),
        (TRAINED + "[training]\nlearning_rate = 1e999", "training.learning_rate is inf"),
        (TRAINED + "[training]\nlearning_rate = -1", "learning_rate is -1"),
        (TRAINED + "[training]\nsteps = 99999999999999999999999", "training.steps is too large"),
        (TRAINED + "[runs.training]\nlearning_rate = inf", "runs.training.learning_rate is inf"),
        (TRAINED + f'name = "{"n" * 300}"', "has 300 characters"),
        (f'name = "{"n" * 300}"\n[[runs]]\nsize = "tiny-3k"', "has 300 characters"),
        (f'name = "s"\n[[series]]\nname = "{"é" * 150}"\npath = "p"', "has 150 characters"),
        (f'name = "s"\n[[series]]\npath = "{"p/" * 3000}"', "cannot be accessed"),
        ('name = "s"\n[[series]]\npath = "p\\u0000q"', "cannot"),
    ],
)
def test_what_no_study_holds_is_refused_in_one_line(content: str | bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "declared.toml"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ToposcopeError) as caught:
        load_declaration(path)
    message = str(caught.value)
    assert words in message
    assert message.splitlines() == [message]
    assert len(message) - len(str(path)) < 400
