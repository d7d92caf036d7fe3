"""A population, run from its ten lines: corpora of its own, losses on the other one, and what is stored of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl
import pytest
from commands import called
from property_examples import repeated

from toposcope.checkpoints.sources.packed import POINTER
from toposcope.family import Corpus, FamilyRun
from toposcope.family import corpus as corpora
from toposcope.family.batched import training
from toposcope.family.batched.packs import begun_packs
from toposcope.files import write_bytes
from toposcope.study import Study, load_declaration, run_study
from toposcope.study.corpora import StudyCorpora

PROSE = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 400
NUMBERS = "".join(f"{i} times {i} is {i * i}; " for i in range(2500))
TOML = """
name = "small"
corpus = { source = "prose.txt" }
training = { steps = 8, batch_size = 2, warmup_steps = 2, checkpoint_fractions = [0.5] }
probes = [{ name = "neural_persistence" }]
[population]
runs = 6
[population.vary]
size = [{ hidden = 4, layers = 1, heads = 1, context = 16 }]
corpus = ["prose.txt", "numbers.txt"]
learning_rate = { low = 1e-3, high = 1e-2, log = true }
"""


def written(folder: Path, toml: str = TOML) -> Path:
    (folder / "prose.txt").write_text(PROSE)
    (folder / "numbers.txt").write_text(NUMBERS)
    (folder / "small.toml").write_text(toml)
    return folder / "small.toml"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("population")
    done = called("study", "run", written(folder), "--out", folder / "study", "--workers", "1")
    assert done.code == 0, done.err
    return Study.load(folder / "study")


def test_every_run_is_trained_and_measured(study: Study) -> None:
    names = [f"hidden-4-layers-1-{i:04d}" for i in range(1, 7)]
    runs = study.runs()
    assert runs["run"].to_list() == names
    assert set(runs["status"]) == {"complete"}
    assert set(study.checkpoints().group_by("run").agg(pl.col("step").sort())["step"].to_list()[0]) == {0, 4, 8}
    assert study.frame().filter(layer="network").select("run", "step").n_unique() == 6 * 3
    assert study.errors().is_empty()


def test_the_settings_of_each_run_are_known(study: Study) -> None:
    population = study.population()
    assert population["run"].to_list() == study.runs()["run"].to_list()
    assert population["learning_rate"].n_unique() == 6
    assert population["batch_size"].unique().to_list() == [2]
    assert sorted(Path(source).name for source in population["corpus"]) == ["numbers.txt"] * 3 + ["prose.txt"] * 3
    log = study.log().join(population.select("run", peak="learning_rate"), on="run")
    top = log.group_by("run").agg(pl.col("learning_rate").max(), pl.col("peak").first())
    assert top["learning_rate"].to_list() == pytest.approx(top["peak"].to_list())


def test_each_run_is_judged_on_the_other_corpus(study: Study) -> None:
    targets = study.targets().join(study.population().select("run", "corpus"), on="run")
    on = {name: set(rows["target"]) for (name,), rows in targets.group_by(pl.col("corpus").str.split("/").list.last())}
    assert on == {"prose.txt": {"validation_loss_numbers"}, "numbers.txt": {"validation_loss_prose"}}
    assert len(targets) == 6 * 3
    assert targets["value"].is_between(1, 8).all()
    assert set(targets["unit"]) == {"nats"}


def test_the_loss_on_another_corpus_is_measured_as_the_run_s_own(study: Study) -> None:
    """On its own corpus, the same function gives the loss that the training logged."""
    from toposcope.checkpoints import series
    from toposcope.family.evaluation import validation_losses

    (run, *_) = study.declaration.resolved_runs()
    used = StudyCorpora.of(study.directory, study.declaration.corpus, study.declaration.resolved_runs())
    tokens = corpora.load(used.path(run.corpus))
    logged = dict(study.log().filter(run=run.name).select("step", "validation_loss").drop_nulls().iter_rows())
    for checkpoint in series(str(study.directory / "runs" / run.name)):
        (loss,) = validation_losses(run, checkpoint.tensors(), [tokens])
        assert loss == pytest.approx(logged[checkpoint.step], rel=1e-5)


def test_again_nothing_is_done_and_a_longer_population_keeps_its_runs(study: Study, tmp_path: Path) -> None:
    toml = TOML.replace("runs = 6", 'runs = 3\ndesign = "random"')
    file = written(tmp_path, toml)
    assert not run_study(load_declaration(file), tmp_path / "study", workers=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "runs").rglob("*.json")}
    losses = Study.load(tmp_path / "study").targets()
    file.write_text(toml.replace("runs = 3", "runs = 5"))
    assert not run_study(load_declaration(file), tmp_path / "study", workers=1)
    assert len(Study.load(tmp_path / "study").runs()) == 5
    assert {path: path.stat().st_mtime_ns for path in before} == before
    kept = Study.load(tmp_path / "study").targets().filter(pl.col("run").is_in(losses["run"].unique().to_list()))
    assert kept.equals(losses)


def test_a_corpus_that_cannot_be_read_fails_its_own_runs_only(tmp_path: Path) -> None:
    file = written(tmp_path, TOML.replace("numbers.txt", "absent.txt"))
    errors = run_study(load_declaration(file), tmp_path / "study", workers=1)
    study = Study.load(tmp_path / "study")
    failed = study.runs().filter(status="failed")["run"].to_list()
    expected = study.population().filter(pl.col("corpus").str.ends_with("absent.txt"))["run"].to_list()
    assert failed == expected
    assert len(expected) == 3
    assert {unit.run for unit in errors} == set(expected)
    assert all("absent.txt" in message for message in errors.values())
    assert study.targets().is_empty()


def test_a_population_for_a_gpu_says_so_where_there_is_none(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    file = written(tmp_path, TOML.replace("runs = 6", 'runs = 2\ndevice = "cuda"'))
    errors = run_study(load_declaration(file), tmp_path / "study", workers=1)
    assert len(errors) == 2
    assert all("no GPU" in message for message in errors.values())


@pytest.mark.parametrize("name", ["accuracy.txt", "bits.txt", "a b/c ppl.md", "plain.txt"])
def test_a_loss_on_a_corpus_is_a_loss_in_nats_whatever_its_name(name: str, tmp_path: Path) -> None:
    from toposcope.logs.columns import target_of

    own, other = Corpus(), Corpus(source=name)
    found = StudyCorpora(tmp_path, own, [own, other], {own: "1", other: "2"}).others(own)
    (target,) = found
    assert target_of(target).unit == "nats"
    assert target_of(target).validation
    assert found[target] == other


def test_corpora_of_one_name_are_told_apart(tmp_path: Path) -> None:
    used = [Corpus(source=place) for place in ("a/text.txt", "b/text.txt", "python-docs")]
    study_corpora = StudyCorpora(tmp_path, used[2], used, dict.fromkeys(used, "x"))
    assert len({study_corpora.path(corpus) for corpus in used}) == 3
    assert len(study_corpora.others(used[2])) == 2
    assert study_corpora.path(used[2]) == tmp_path / "corpus.safetensors"


def test_a_trained_tokenizer_belongs_to_its_corpus(tmp_path: Path) -> None:
    used = [Corpus(source=s, tokenizer="bpe", vocabulary=300) for s in ("a.txt", "b.txt")]
    assert StudyCorpora(tmp_path, used[0], used, dict.fromkeys(used, "x")).others(used[0]) == {}


@pytest.mark.slow
def test_python_source_is_the_same_each_time() -> None:
    text = corpora.read_text(Corpus(source="python-source"))
    assert text == corpora.read_text(Corpus(source="python-source"))
    assert 1_000_000 < len(text) <= corpora.MAX_SOURCE_CHARACTERS + 10_000
    assert text.count("\n    def ") > 1000


def test_stored_losses_of_another_text_are_measured_again(study: Study) -> None:
    from toposcope.study.corpora import FILE, stored_losses

    directory = study.directory / "runs" / study.runs()["run"][0]
    content = json.loads((directory / FILE).read_bytes())
    ((name, known),) = content.items()
    assert len(stored_losses(directory, {name: known["sha256"]}).steps) == 3
    assert len(stored_losses(directory, {name: "0" * 64}).steps) == 0
    assert msgspec.json.decode((directory / FILE).read_bytes())[name]["sha256"] == known["sha256"]


def test_a_run_that_fails_does_not_take_those_along_that_train_with_it(tmp_path: Path) -> None:
    vary = "data_share = [1.0, 1e-4]\n"  # a ten thousandth of the text is shorter than a sequence
    file = written(tmp_path, TOML + vary)
    errors = run_study(load_declaration(file), tmp_path / "study", workers=1)
    study = Study.load(tmp_path / "study")
    short = study.population().filter(data_share=1e-4)["run"].to_list()
    assert len(short) == 3
    assert sorted({unit.run for unit in errors}) == sorted(short)
    assert all("training part" in message for message in errors.values())
    assert set(study.runs().filter(~pl.col("run").is_in(short))["status"]) == {"complete"}


def trained_bytes(directory: Path) -> dict[str, bytes]:
    """What training left of each run and pack."""
    files = [path for place in ("runs", "packs") for path in (directory / place).rglob("*.*")]
    return {str(p.relative_to(directory)): p.read_bytes() for p in files if p.is_file() and p.name != ".lock"}


def in_pairs(runs: Sequence[FamilyRun], *_: object) -> list[list[int]]:
    """Other packs, as another number of processes makes them."""
    return [[*range(len(runs))[i : i + 2]] for i in range(0, len(runs), 2)]


@pytest.mark.slow
@pytest.mark.parametrize("other_packs", [False, True])
@pytest.mark.parametrize("at", repeated([4, 0, 1, 7, 11], 2))
def test_killed_while_the_logs_of_a_pack_are_written_nothing_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, other_packs: bool
) -> None:
    declaration = load_declaration(written(tmp_path))
    assert not run_study(declaration, tmp_path / "undisturbed", workers=1, measured=False)
    left = [at]

    def dying(path: Path, content: bytes) -> None:
        if path.name in ("log.csv", POINTER):
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        write_bytes(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(training, "write_bytes", dying)
        with pytest.raises(KeyboardInterrupt):
            run_study(declaration, tmp_path / "killed", workers=1, measured=False)
    with monkeypatch.context() as patched:
        patched.setattr(training.PackTrainer, "advance", lambda *_: pytest.fail("trained again"))
        if other_packs:
            patched.setattr("toposcope.family.batched.group_runs", in_pairs)
        assert not run_study(declaration, tmp_path / "killed", workers=1, measured=False)
    assert trained_bytes(tmp_path / "killed") == trained_bytes(tmp_path / "undisturbed")


def test_a_pack_of_another_declaration_is_not_gone_on_with(study: Study) -> None:
    runs, packs = study.declaration.resolved_runs(), study.directory / "packs"
    known = StudyCorpora.of(study.directory, study.declaration.corpus, runs)
    for corpus in known.used:
        known.load_digest(corpus)
    assert begun_packs(runs, known.sha256, packs) == [[0, 1, 2, 3, 4, 5]]
    assert begun_packs(runs[::-1], known.sha256, packs) == [[5, 4, 3, 2, 1, 0]]
    other = msgspec.structs.replace(runs[0], training=msgspec.structs.replace(runs[0].training, dropout=0.5))
    assert begun_packs([other, *runs[1:]], known.sha256, packs) == []
    assert begun_packs(runs[1:], known.sha256, packs) == []
    assert begun_packs(runs, dict.fromkeys(known.sha256, "another text"), packs) == []
    assert begun_packs(runs, {}, packs) == []


def test_settings_are_a_table_of_the_export_too(study: Study) -> None:
    population = study.population()
    assert population.columns[:4] == ["run", "size", "n_parameters", "corpus"]
    assert len(population.unique("seed")) == 6
