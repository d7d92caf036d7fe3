"""The declaration of a study: one TOML file, every field checked, unknown fields refused."""

import hashlib
import math
import re
from collections import Counter
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from toposcope.checkpoints import Access, Series, series
from toposcope.checkpoints.roles import checked
from toposcope.checkpoints.sources import is_remote, local_path, refuse_credentials_anywhere
from toposcope.checkpoints.sources.merged import with_path
from toposcope.checkpoints.steps import Selection, step_pattern
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, TrainingOptions
from toposcope.family.corpus import BUILT_IN
from toposcope.models import Text
from toposcope.models.tokenizers import BY_CHARACTERS
from toposcope.probes import Probe, declarations, make_probes
from toposcope.probes.needs import needs_of
from toposcope.study.declared_runs import DeclaredRun, Population, expanded, is_pattern, readable
from toposcope.study.publication import needed_reader, reader
from toposcope.untrusted import toml_value
from toposcope.version import __version__

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_NAME_BYTES = 200  # of a run, a series or a study; most file systems allow 255
MAX_WHOLE_NUMBER = (1 << 63) - 1

DEFAULT_PROBES: list[dict[str, Any]] = [
    {"name": name} for name in ("neural_persistence", "rips", "controls", "distances")
]


class DeclaredSeries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run that exists: a series of checkpoints, features of it that were published, or both.

    Attributes
    ----------
    path : str
        A path, relative to the TOML file; ``hf:owner/name@revisions``; or a URL. Empty for
        published features without checkpoints. With braces it stands for several series, as in a shell:
        ``hf:owner/name-seed{1..9}@step*`` (`toposcope.study.declared_runs.expanded`).
    name : str
        By default the last part of the path.
    log : str
        A training log in any format that `toposcope.logs.read_log` reads, in place of the one next to the checkpoints;
        a relative path starts at the TOML file. ``{name}`` in it stands for the name of the series; of a log of
        several runs, the one of that name is meant.
    features : str
        A JSON file of published features (see ``experiments/docs/import.md``); a relative path starts at the TOML file.
    optional : bool
        If the series cannot be opened, or has no checkpoint at one of `steps`, the study continues with a note instead
        of an error.
    steps : list of int
        Only these; all if empty.
    every : int
        Only one in so many, from the first on.
    log_spaced : int
        Only this many, evenly spaced in the logarithm of the step.
    step_pattern : str
        A regular expression whose one group is the step.
    roles : dict of str
        Regular expressions of tensor names and their roles, before the built-in ones.
    tokenizer : str
        A tokenizer to use instead of the one with the checkpoints: a ``tokenizer.json``, a folder with one,
        ``hf:owner/name``, or ``characters``; a relative path starts at the TOML file.
    tokens_per_step : int
        Tokens per update, where no log has them; 0 if unknown.
    live : bool
        A monitor measures it while it trains: there is nothing to read, and what is stored stays.
    """

    path: str = ""
    name: str = ""
    log: str = ""
    features: str = ""
    optional: bool = False
    steps: list[int] = []
    every: int = 0
    log_spaced: int = 0
    step_pattern: str = ""
    roles: dict[str, str] = {}
    tokenizer: str = ""
    tokens_per_step: int = 0
    live: bool = False

    def __post_init__(self) -> None:
        if self.tokens_per_step < 0:
            raise ValueError(f"tokens_per_step is {self.tokens_per_step}; it must be at least 0")

    def resolved_name(self) -> str:
        """Return the name, or the last part of the path."""
        if self.name:
            return self.name
        return self.path.partition("@")[0].rpartition("/")[2] if self.path.startswith("hf:") else Path(self.path).name

    def is_selection(self) -> bool:
        """Return whether only some of the checkpoints are read."""
        return bool(self.steps or self.every or self.log_spaced)

    def open(self, access: Access) -> Series:
        """Open the series; of an optional one, those of its steps that exist."""
        opened = series(self.path, pattern=self.step_pattern, roles=self.roles, access=access)
        there = [step for step in self.steps if step in opened.steps]
        steps = there if self.optional and there else self.steps
        return opened.select(Selection(steps=steps, every=self.every, log_spaced=self.log_spaced))

    def expanded(self) -> list["DeclaredSeries"]:
        """Return the series that a path with braces stands for, unless it exists as it is.

        ``{name}`` in the log of each is filled in.

        Raises
        ------
        ToposcopeError
            If the braces are wrong, or several series are to have one name.
        """
        declared = [self]
        if is_pattern(self.path) and (is_remote(self.path) or not Path(local_path(self.path)).exists()):
            if self.name:
                raise ToposcopeError(
                    f"series: {self.path!r} stands for several, and name is {self.name!r}; leave it out: each has the "
                    "last part of its path"
                )
            declared = [msgspec.structs.replace(self, path=path) for path in expanded(self.path)]
        if "{name}" not in self.log:
            return declared
        return [msgspec.structs.replace(s, log=s.log.replace("{name}", s.resolved_name())) for s in declared]


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """What a study trains, reads and measures.

    Attributes
    ----------
    name : str
    corpus : Corpus
    text : Text
        What models read for their hidden states and losses.
    training : TrainingOptions
        Of every run that does not override it.
    runs : list of DeclaredRun
    population : Population, optional
        More runs, by what varies between them.
    series : list of DeclaredSeries
    probes : list of dict
        ``name`` and options of each; by default `DEFAULT_PROBES`, or those of the published study where the
        protocol is ``published``.
    protocol : "exact" or "published"
        The choices behind the headline numbers: all rows, all deaths and a trusted loss, or those of the published
        study.
    published : dict, optional
        Published numbers of these runs, which `toposcope-experiments` sets next to those that were measured.
    toposcope : str
        Version that ran the study; filled in by the runner.
    """

    name: str
    corpus: Corpus = Corpus()
    text: Text = Text()
    training: TrainingOptions = TrainingOptions()
    runs: list[DeclaredRun] = []
    population: Population | None = None
    series: list[DeclaredSeries] = []
    probes: list[dict[str, Any]] | None = None
    protocol: Literal["exact", "published"] = "exact"
    published: dict[str, Any] | None = None
    toposcope: str = __version__

    def __post_init__(self) -> None:
        if self.probes is None:
            published = needed_reader('protocol = "published"').PROBES if self.protocol == "published" else None
            msgspec.structs.force_setattr(self, "probes", list(published or DEFAULT_PROBES))
        msgspec.structs.force_setattr(
            self, "series", [each for declared in self.series for each in declared.expanded()]
        )

    def resolved_runs(self) -> list[FamilyRun]:
        """Return the runs with all inherited options filled in: those declared one by one, then the population."""
        return list(self._resolved_runs)

    @cached_property
    def _resolved_runs(self) -> list[FamilyRun]:
        drawn = self.population.declared_runs() if self.population else []
        places = (*((run, "runs") for run in self.runs), *((run, "population") for run in drawn))
        return [declared.resolve(self.corpus, self.training, place) for declared, place in places]

    def resolved_probes(self) -> list[Probe]:
        """Return the probes."""
        return make_probes(self.probes or [])

    def named_series(self) -> dict[str, DeclaredSeries]:
        """Return the series by name."""
        return {s.resolved_name(): s for s in self.series}

    def to_toml(self) -> str:
        """Return the declaration with every default written out."""
        return tomli_w.dumps(_without_none(msgspec.to_builtins(msgspec.structs.replace(self, toposcope=__version__))))


def load_declaration(path: str | Path) -> Declaration:
    """Read and check a declaration.

    Raises
    ------
    ToposcopeError
        Naming the file, the wrong field and what it accepts.
    """
    path = Path(path)
    try:
        content = toml_value(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ToposcopeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:  # also an integer of more digits than Python reads
        raise ToposcopeError(f"{path}: not valid TOML: {' '.join(str(error).split())[:200]}") from error
    try:
        _check_numbers({name: value for name, value in content.items() if name not in ("probes", "published")})
        _refuse_credentials(content)
        if isinstance(content.get("probes"), str | dict | list):
            content["probes"] = declarations(content["probes"])
        if content.get("cooled") is False:  # as older versions wrote it out
            del content["cooled"]
        declaration = msgspec.convert(content, Declaration)
        declaration = _anchored(declaration, path.resolve().parent)
        check_declaration(declaration)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ToposcopeError(f"{path}: {readable(error, Declaration)}") from error
    except ToposcopeError as error:
        raise ToposcopeError(f"{path}: {error}") from error
    return declaration


def check_declaration(declaration: Declaration) -> None:
    """Refuse a declaration that cannot be run: credentials, wrong options, equal or unsafe names, nothing to do."""
    content = msgspec.to_builtins(declaration)
    _refuse_credentials(content)
    _check_numbers({name: value for name, value in content.items() if name not in ("probes", "published")})
    if declaration.published is not None and (known := reader()) is not None:
        known.check_published(declaration.published)
    declaration.resolved_probes()
    names = [run.name for run in declaration.resolved_runs()] + [s.resolved_name() for s in declaration.series]
    if not names:
        raise ToposcopeError("no [[runs]], [population] or [[series]]: there is nothing to measure")
    for name, count in Counter(names).items():
        if count > 1:
            raise ToposcopeError(f"{count} runs or series are called {name!r}; give each a name of its own")
    for name in [declaration.name, *(run.name for run in declaration.resolved_runs())]:
        _check_length(name)
        if not _SAFE_NAME.fullmatch(name):
            raise ToposcopeError(
                f"the name {name!r} cannot name a folder; use letters, digits, dots, dashes, underscores"
            )
    reading = [
        probe.name() for probe in declaration.resolved_probes() if any(need.reads_text for need in needs_of(probe))
    ]
    if reading and not declaration.text.source and not declaration.resolved_runs():
        raise ToposcopeError(f'{reading[0]} reads a text with the models: name one with source = "FILE" under [text]')
    for declared in declaration.series:
        if not declared.path and not (declared.name and (declared.features or declared.live)):
            raise ToposcopeError("series: neither a path nor a name with features: there is nothing to read")
        if declared.log and is_remote(declared.log):
            raise ToposcopeError(f"series: log is {declared.log!r}; a training log is a file of this machine")
        checked(declared.roles)
        if declared.step_pattern:
            step_pattern(declared.step_pattern)
    for name in declaration.named_series():  # taken from folders that exist
        check_series_name(name)


def check_series_name(name: str) -> None:
    """Refuse a name of a series that cannot name a folder."""
    _check_length(name)
    if not name.isprintable() or not name.strip(". ") or set(name) & set("/\\"):
        raise ToposcopeError(f"the name {name!r} of a series cannot name a folder; give it another name")


def shortened_name(name: str) -> str:
    """Return a name of a series that a folder can have: of a longer one, its start and a hash."""
    written = name.encode(errors="replace")
    if len(written) <= MAX_NAME_BYTES:
        return name
    return f"{written[:100].decode(errors='ignore')}-{hashlib.sha256(written).hexdigest()[:8]}"


def _check_length(name: str) -> None:
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise ToposcopeError(
            f"the name {name[:40]!r}... has {len(name)} characters and cannot name a folder; give a shorter one"
        )


def _check_numbers(content: Any, place: str = "") -> None:
    """Refuse numbers that are not finite, and whole numbers of more than 64 bits."""
    if isinstance(content, dict):
        for name, value in content.items():
            _check_numbers(value, f"{place}.{name}".lstrip("."))
    elif isinstance(content, list | tuple):
        for value in content:
            _check_numbers(value, place)
    elif isinstance(content, float) and not math.isfinite(content):
        raise ToposcopeError(f"{place} is {content}; it must be finite")
    elif isinstance(content, int) and abs(content) > MAX_WHOLE_NUMBER:
        raise ToposcopeError(f"{place} is too large a number; it must be below {MAX_WHOLE_NUMBER:.3g}")


def _refuse_credentials(content: Any) -> None:
    """Refuse credentials in any text of a declaration, before it is stored or shown."""
    refuse_credentials_anywhere(content, without_query=("published.source",))


def _without_none(content: Any) -> Any:
    """Leave out None, which TOML cannot express."""
    if isinstance(content, dict):
        return {key: _without_none(value) for key, value in content.items() if value is not None}
    return [_without_none(value) for value in content] if isinstance(content, list | tuple) else content


def _anchored(declaration: Declaration, folder: Path) -> Declaration:
    """Make paths absolute; relative ones start at the TOML file."""

    def anchored(path: str) -> str:
        return with_path(path, lambda named: str(folder / named)) if path else path

    def of_text(source: str) -> str:
        named = source in ("", *BUILT_IN) or source.startswith("hf:")
        return source if named else str(folder / Path(source).expanduser())

    def of_corpus(corpus: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(corpus, str):
            return of_text(corpus)
        source = corpus.get("source")
        return {**corpus, "source": of_text(source)} if isinstance(source, str) else corpus

    series = [
        msgspec.structs.replace(
            s,
            path=anchored(s.path),
            log=anchored(s.log),
            features=anchored(s.features),
            tokenizer=s.tokenizer if s.tokenizer == BY_CHARACTERS else anchored(s.tokenizer),
        )
        for s in declaration.series
    ]
    runs = [msgspec.structs.replace(run, corpus=of_corpus(run.corpus)) for run in declaration.runs]
    population = declaration.population
    if population is not None and population.vary.corpus is not msgspec.UNSET:
        vary = msgspec.structs.replace(population.vary, corpus=[of_corpus(each) for each in population.vary.corpus])
        population = msgspec.structs.replace(population, vary=vary)
    corpus, text = declaration.corpus, declaration.text
    return msgspec.structs.replace(
        declaration,
        runs=runs,
        population=population,
        series=series,
        corpus=msgspec.structs.replace(corpus, source=of_text(corpus.source)),
        text=msgspec.structs.replace(text, source=of_text(text.source)),
    )


def shipped_study(name: str) -> Declaration:
    """Return a shipped declaration by name: from the package, or from the repository of an editable install."""
    packaged = Path(str(resources.files("toposcope"))) / "studies"
    folder = packaged if packaged.is_dir() else Path(__file__).parents[3] / "studies"
    return load_declaration(folder / f"{name}.toml")
