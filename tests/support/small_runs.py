"""A text, a corpus and a run that train in a fraction of a second."""

import random
from pathlib import Path
from typing import Any

import msgspec

from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions
from toposcope.family.corpus import prepare

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "off", "to", "see", "what", "lay", "beyond"]
SIZE = ModelSize(hidden=8, layers=1, heads=2, context=16)
TRAINING: dict[str, Any] = {
    "steps": 40,
    "batch_size": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 4,
    "checkpoint_every": 10,
    "seed": 3,
}


def some_text(n_words: int = 3000, seed: int = 0) -> str:
    """Words in an order that only the seed decides."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(n_words))


def small_corpus(folder: Path, **options: Any) -> Corpus:
    """A corpus from a text file in a folder."""
    path = folder / "text.txt"
    if not path.exists():
        path.write_text(some_text(), encoding="utf-8")
    return Corpus(source=str(path), **options)


def small_run(corpus: Corpus, *, name: str = "small", size: ModelSize = SIZE, **training: Any) -> FamilyRun:
    """A run of a few dozen steps; fields of its training may be given."""
    return FamilyRun(
        name=name,
        size=msgspec.structs.replace(size, vocabulary=corpus.vocabulary),
        corpus=corpus,
        training=TrainingOptions(**{**TRAINING, **training}),
    )


def prepared(folder: Path, **options: Any) -> tuple[Corpus, Path]:
    """A corpus and the file of its tokens."""
    corpus = small_corpus(folder, **options)
    path = folder / "corpus.safetensors"
    prepare(corpus, path)
    return corpus, path


def contents(directory: Path) -> dict[str, bytes]:
    """Every file a run leaves, by its path in the run's directory; the lock holds nothing."""
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != ".lock")
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}
