"""Several studies read as one: all their runs, under names that are distinct."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.homology import Diagram
from toposcope.progress import Progress, silent
from toposcope.study.declaration import Declaration, DeclaredSeries
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.study import FRAME_SCHEMA, Schema, Study
from toposcope.wording import counted, joined

Place = tuple[Study, str]
"""A study, and the name that a run has in it."""


class JoinedStudy(Study):
    """All runs of several studies, read-only.

    A run keeps its name unless runs of two studies share it: then each is ``study/run``. What a study did not measure
    is absent for its runs, as it is within a study for runs without it.

    Attributes
    ----------
    studies : dict of Study
        By name: as declared, or of its folder where two are declared alike, or the folder's path.
    """

    def __init__(self, studies: Sequence[Study]) -> None:
        self.studies = dict(zip(_names(studies), studies, strict=True))
        names = [run for study in studies for run in study.run_names()]
        self._shared = {run for run, count in Counter(names).items() if count > 1}
        super().__init__(Path(), self._declared())

    @cached_property
    def _places(self) -> dict[str, Place]:
        return {
            self._name(title, run): (study, run)
            for title, study in self.studies.items()
            for run in study.run_names()
        }  # fmt: skip

    def _name(self, title: str, run: str) -> str:
        return f"{title}/{run}" if run in self._shared else run

    def _declared(self) -> Declaration:
        """Return one declaration of all runs and probes; each study has its own, with what it read and trained."""
        runs, series, probes = list[DeclaredRun](), list[DeclaredSeries](), dict[str, dict[str, Any]]()
        for title, study in self.studies.items():
            declared = study.declaration
            for run in declared.resolved_runs():
                own = {name: msgspec.to_builtins(getattr(run, name)) for name in ("corpus", "training")}
                runs.append(DeclaredRun(name=self._name(title, run.name), size=run.size, **own))
            named = declared.named_series().items()
            series += [msgspec.structs.replace(of, name=self._name(title, name)) for name, of in named]
            probes |= {
                probe.label(): of for probe, of in zip(declared.resolved_probes(), declared.probes or [], strict=True)
            }
        protocols = self._protocols()
        return Declaration(
            name=joined(list(self.studies)),
            runs=runs,
            series=series,
            probes=list(probes.values()),
            protocol=protocols.pop() if len(protocols) == 1 else "exact",
        )

    def _protocols(self) -> set[Literal["exact", "published"]]:
        return {study.declaration.protocol for study in self.studies.values()}

    def run_names(self) -> list[str]:
        """Return the names of the runs, study by study."""
        return list(self._places)

    def _joined(self, read: Callable[[Study], pl.DataFrame]) -> pl.DataFrame:
        frames = [self._renamed(title, read(study)) for title, study in self.studies.items()]
        return pl.concat(frames, how="diagonal_relaxed")

    def _renamed(self, title: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the study's own runs, under the names that these have here."""
        if "run" not in frame.columns:
            return frame
        names = {run: self._name(title, run) for run in self.studies[title].run_names()}
        return frame.filter(pl.col("run").is_in(list(names))).with_columns(pl.col("run").replace(names))

    def frames(self, progress: Progress = silent) -> Iterator[pl.DataFrame]:
        """Yield the rows of `frame`, study by study."""
        for title, study in self.studies.items():
            yield from (self._renamed(title, part).select(*FRAME_SCHEMA) for part in study.frames(progress))

    def labels(self) -> pl.DataFrame:
        """Return the labels of the probes of all studies, each once."""
        return pl.concat([study.labels() for study in self.studies.values()]).unique(maintain_order=True)

    def log(self) -> pl.DataFrame:
        """Return the training logs of all studies."""
        return self._joined(Study.log)

    def _query(self, query: str, schema: Schema) -> pl.DataFrame:
        return self._joined(lambda study: study._query(query, schema))  # noqa: SLF001 - a study asks another

    def examined(self) -> list[str]:
        """Return the runs whose checkpoints the doctor examined."""
        return [self._name(title, run) for title, study in self.studies.items() for run in study.examined()]

    def notes(self) -> list[str]:
        """Return how the runs are named, and what each study passed over."""
        notes = ["losses of the studies are set side by side as measured; on different texts they do not compare"]
        if self._shared:
            named = counted(len(self._shared), "name")
            notes.append(f"{named} of runs in more than one study: these runs are called study/run")
        if len(self._protocols()) > 1:
            notes.append("the studies follow different protocols: here all follow the exact one")
        published = [title for title, study in self.studies.items() if study.declaration.published is not None]
        notes += [f"{title}: what was published of it is compared on its own page" for title in published]
        return notes + [f"{title}: {note}" for title, study in self.studies.items() for note in study.notes()]

    def declarations(self) -> dict[str, Declaration]:
        """Return the declaration of each study, by its name."""
        return {title: study.declaration for title, study in self.studies.items()}

    def coverage(self) -> str:
        """Return which share of the parameters was measured, by study."""
        known = {title: text for title, study in self.studies.items() if (text := study.coverage())}
        return " ".join(f"{title}: {text}" for title, text in known.items())

    def meta(self, key: str) -> str:
        """Return one fact about each study, those that differ one after another."""
        return ", ".join(dict.fromkeys(filter(None, (study.meta(key) for study in self.studies.values()))))

    def diagrams(self, run: str, step: int, probe: str = "rips") -> dict[str, dict[str, Diagram]]:
        """Return the diagrams of a probe that the run's study declares."""
        study, name = self._places[run]
        return study.diagrams(name, step, probe)

    def states(self, run: str, step: int, probe: str) -> dict[str, NDArray[np.float32]]:
        """Return the points that a probe stored that the run's study declares."""
        study, name = self._places[run]
        return study.states(name, step, probe)


def _names(studies: Sequence[Study]) -> list[str]:
    """Return a name of each study that no other has."""
    folders = [study.directory.resolve() for study in studies]
    declared = [study.declaration.name for study in studies]
    for names in (declared, [folder.name for folder in folders]):
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
