"""The runs a study declares, one by one, as a population or by a pattern; errors by the names in the file."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions
from toposcope.family.corpus import CHARACTERS
from toposcope.family.run import find_size
from toposcope.seeds import derive_seed
from toposcope.typing import Vector

Fields = TypeVar("Fields", Corpus, TrainingOptions)
MAX_RUNS = 100_000
SIGNIFICANT_DIGITS = 12  # of a number drawn from a range: the last bits of a logarithm differ between machines
SEED_RANGE = 1 << 32  # seeds of runs are below it
_TRAINING: dict[str, Any] = get_type_hints(TrainingOptions)
_NUMBERS = (int, float)
_NAMES = {
    "array": "a list, or tables in double brackets",
    "object": "a table",
    "str": "text in quotes",
    "null": "nothing",
}
MAX_SERIES = 1000  # series that one path stands for
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


class DeclaredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run to train."""

    size: str | ModelSize  # a name of the family, or its dimensions
    name: str = ""  # its folder under ``runs/``; by default the name of the size
    # the source of its corpus, or the fields of `Corpus` that differ from the study's
    corpus: str | dict[str, Any] = msgspec.field(default_factory=dict)
    # fields of `TrainingOptions` that differ from the study's
    training: dict[str, Any] = msgspec.field(default_factory=dict)

    def resolve(self, corpus: Corpus, training: TrainingOptions, place: str = "runs") -> FamilyRun:
        """Return the run with what it inherits from a study filled in; `place` is where it is declared."""
        name = self.name or (self.size if isinstance(self.size, str) else "")
        if not name:
            raise ToposcopeError("runs: a run with a size of its own needs a name")
        own = {"source": self.corpus} if isinstance(self.corpus, str) else self.corpus
        corpus = _merged(corpus, own, f"{place}: {name}", "[corpus]")
        training = _merged(training, self.training, f"{place}: {name}", "[training]")
        if isinstance(self.size, ModelSize) and self.size.vocabulary not in (CHARACTERS, corpus.vocabulary):
            raise ToposcopeError(
                f"{place}: {name}: vocabulary is {self.size.vocabulary}, that of the corpus {corpus.vocabulary}; "
                "declare it with the corpus alone"
            )
        size = msgspec.structs.replace(find_size(self.size), vocabulary=corpus.vocabulary)
        return FamilyRun(name=name, size=size, corpus=corpus, training=training)


def _merged(inherited: Fields, own: dict[str, Any], place: str, whole: str) -> Fields:
    if not own:
        return inherited
    try:
        return msgspec.convert({**msgspec.to_builtins(inherited), **own}, type(inherited))
    except msgspec.ValidationError as error:
        raise ToposcopeError(f"{place}: {readable(error, type(inherited), whole)}") from error


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers from `low` to `high`, both included; with `log`, evenly spread in their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"low is {self.low} and high is {self.high}; they must be finite")
        if not self.low < self.high:
            raise ValueError(f"low is {self.low}; it must be below high = {self.high}")
        if self.log and not self.low > 0:
            raise ValueError(f"low is {self.low}; a logarithmic range must begin above 0")

    def at(self, share: float, *, whole: bool) -> float:
        """Return the number at a share, 0 to 1, of the range; with `whole`, each whole number has an equal part."""
        low, high = self.low, self.high + 1 if whole else self.high
        if self.log:
            value = math.exp((1 - share) * math.log(low) + share * math.log(high))
        else:
            value = (1 - share) * low + share * high
        number = math.floor(value) if whole else float(f"{value:.{SIGNIFICANT_DIGITS}g}")
        return type(number)(min(max(number, self.low), self.high))


def _values_of(kind: Any) -> Any:
    values = list[kind] | msgspec.UnsetType
    return values | Range if kind in _NUMBERS else values


if TYPE_CHECKING:
    Vary = Any
else:
    Vary = msgspec.defstruct(
        "Vary",
        [
            ("size", list[str | ModelSize]),
            ("corpus", list[str | dict[str, Any]] | msgspec.UnsetType, msgspec.UNSET),
            *((name, _values_of(kind), msgspec.UNSET) for name, kind in _TRAINING.items()),
        ],
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
        module=__name__,
    )
    Vary.__doc__ = (
        """What varies: ``size``, ``corpus`` and the fields of `TrainingOptions`, each a list or a `Range`."""
    )


class Population(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Runs that differ in what varies; everything else is the study's.

    Each varied field has random numbers of its own, derived from `seed` by its name: varying one more field changes no
    other value, and a random design with more `runs` begins with the same ones.
    """

    # ``size``, and ``corpus`` and fields of `TrainingOptions` as needed: each a list of values, or a `Range`. If
    # ``seed`` is not among them, every run has a training seed of its own
    vary: Vary
    # ``grid``: every combination of the listed values. ``random``: each value drawn by itself. ``latin-hypercube``:
    # each range cut into as many equal parts as there are runs, with one value in each, and each listed value used
    # equally often
    design: Literal["latin-hypercube", "random", "grid"] = "latin-hypercube"
    runs: int = 0  # how many; a grid has as many as there are combinations
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"  # where the runs are trained

    def __post_init__(self) -> None:
        for name, values in self._varied():
            if isinstance(values, list):
                _check_list(name, values)
            elif _TRAINING[name] is int and not (values.low.is_integer() and values.high.is_integer()):
                raise ValueError(f"vary.{name} is a whole number; low and high must be whole too")
        if self.design != "grid":
            if not 1 <= self.runs <= MAX_RUNS:
                raise ValueError(f"runs is {self.runs}; a {self.design} design needs how many, at most {MAX_RUNS}")
            return
        ranges = [name for name, values in self._varied() if isinstance(values, Range)]
        if ranges:
            raise ValueError(f'vary.{ranges[0]} is a range; list its values, or choose design = "latin-hypercube"')
        if self.runs:
            raise ValueError("a grid has as many runs as there are combinations; leave out runs")
        combinations = math.prod(len(values) for values in self._lists())
        if combinations > MAX_RUNS:
            raise ValueError(
                f'the grid has {combinations} combinations, more than {MAX_RUNS}; choose design = "latin-hypercube"'
            )

    def declared_runs(self) -> list[DeclaredRun]:
        """Return the runs, named by size and number."""
        return [self._run(number, chosen) for number, chosen in enumerate(self._chosen(), 1)]

    def _varied(self) -> list[tuple[str, list[Any] | Range]]:
        values = ((name, getattr(self.vary, name)) for name in self.vary.__struct_fields__)
        return [(name, value) for name, value in values if value is not msgspec.UNSET]

    def _chosen(self) -> Iterator[dict[str, Any]]:
        """Yield the values of what varies, run by run."""
        names = [name for name, _ in self._varied()]
        rows: Iterable[tuple[Any, ...]]
        if self.design == "grid":
            rows = itertools.product(*self._lists())
        else:
            rows = zip(*(self._drawn(name, values) for name, values in self._varied()), strict=True)
        return (dict(zip(names, row, strict=True)) for row in rows)

    def _lists(self) -> list[list[Any]]:
        return [values for _, values in self._varied() if isinstance(values, list)]

    def _drawn(self, name: str, values: list[Any] | Range) -> list[Any]:
        """Return the value of one field for each run."""
        shares = self._shares(name).tolist()
        if isinstance(values, Range):
            return [values.at(share, whole=_TRAINING[name] is int) for share in shares]
        if self.design == "latin-hypercube":  # by the rank of each share, so that values are used equally often
            shares = [min(int(share * self.runs), self.runs - 1) / self.runs for share in shares]
        # A rank times a count, divided by the runs, can come out just below the whole number that it is.
        return [values[min(int(share * len(values) + 1e-9), len(values) - 1)] for share in shares]

    def _shares(self, name: str) -> Vector:
        """Return a number from 0 to 1 for each run."""
        generator = np.random.default_rng(derive_seed(self.seed, "population", name))
        if self.design == "random":
            return generator.random(self.runs)
        from scipy.stats import qmc  # slow to import

        shares: Vector = qmc.LatinHypercube(1, seed=generator).random(self.runs)[:, 0]
        return shares

    def _run(self, number: int, chosen: dict[str, Any]) -> DeclaredRun:
        size, corpus = chosen.pop("size"), chosen.pop("corpus", {})
        chosen.setdefault("seed", derive_seed(self.seed, "population", "seed of run", number) % SEED_RANGE)
        label = size if isinstance(size, str) else f"hidden-{size.hidden}-layers-{size.layers}"
        return DeclaredRun(size=size, name=f"{label}-{number:04d}", corpus=corpus, training=chosen)


def _check_list(name: str, values: Sequence[Any]) -> None:
    if not values:
        raise ValueError(f"vary.{name} is empty; list its values, or leave it out")
    seen = set()
    for value in values:
        key = msgspec.json.encode(value)
        if key in seen:
            raise ValueError(f"vary.{name} holds {value!r} twice; list each value once")
        seen.add(key)


def readable(error: Exception, kind: type[msgspec.Struct], whole: str = "top level") -> str:
    """Return what is wrong and a hint, from the message of a conversion into `kind`, called `whole`."""
    message, _, place = str(error).partition(" - at `$")
    path = re.sub(r"\[(?:\d*|\.\.\.)\]", "", place).strip("`.")
    parts = path.split(".") if path else []
    hint = _hint(kind, parts)
    if unknown := re.search(r"unknown field `(.+?)`", message):
        fields = [name for struct in _structs(hint) for name in struct.__struct_fields__]
        where = f"[{path}]" if path else whole
        return f"unknown field {unknown[1]!r} at {where}; {choices(unknown[1], fields)}"
    if wrong := re.search(r"Invalid enum value '?(.*?)'?$", message):
        allowed = [str(value) for part in _parts(hint) if get_origin(part) is Literal for value in get_args(part)]
        return f"{path} is {wrong[1]!r}; {choices(wrong[1], allowed)}"
    if types := re.fullmatch(r"Expected `(.+)`, got `(.+)`", message):
        expected = " or ".join(_NAMES.get(name, name) for name in types[1].split(" | "))
        return f"{path or 'the file'} is {_NAMES.get(types[2], types[2])}; it must be {expected}"
    return f"{path}: {message}" if path else message


def _hint(kind: Any, parts: list[str]) -> Any:
    """Return the type of a field, by its path."""
    for part in parts:
        fields = [get_type_hints(struct).get(part) for struct in _structs(kind)]
        kind = next((field for field in fields if field is not None), None)
    return kind


def _structs(hint: Any) -> list[type[msgspec.Struct]]:
    return [part for part in _parts(hint) if isinstance(part, type) and issubclass(part, msgspec.Struct)]


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint is made of, through unions and lists."""
    if get_origin(hint) is Literal or not get_args(hint):
        yield hint
    else:
        for part in get_args(hint):
            yield from _parts(part)


def is_pattern(text: str) -> bool:
    """Return whether a text has braces with a list or a range in them."""
    return any("," in inner or ".." in inner for inner in _BRACES.findall(text))


def expanded(text: str) -> list[str]:
    """Return the texts that one with braces stands for, the last braces varying first."""
    if re.search(r"\{[^{}]*\{[^{}]*(,|\.\.)", text):
        raise ToposcopeError(
            f"{text!r}: braces within braces; write one list {{a,b}} or range {{1..9}} next to the other"
        )
    texts = [""]
    for literal, inner in _literals_and_braces(text):
        choices = _choices(text, inner)
        if len(texts) * len(choices) > MAX_SERIES:
            raise ToposcopeError(f"{text!r}: stands for more than {MAX_SERIES:,} series; declare fewer")
        texts = [f"{begun}{literal}{choice}" for begun in texts for choice in choices]
    return texts


def _literals_and_braces(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before each pair of braces, and what is in it; at the end, the rest and nothing."""
    end = 0
    for found in _BRACES.finditer(text):
        yield text[end : found.start()], found[1] if is_pattern(found[0]) else f"{{{found[1]}}}"
        end = found.end()
    yield text[end:], ""


def _choices(text: str, inner: str) -> list[str]:
    if inner.startswith("{") or not inner:
        return [inner]
    if "," in inner:
        return [choice.strip() for choice in inner.split(",")]
    found = _RANGE.fullmatch(inner.strip())
    if not found:
        raise ToposcopeError(f"{text!r}: {{{inner}}} is no range of whole numbers, such as {{1..9}}")
    first, last = int(found[1]), int(found[2])
    if abs(last - first) >= MAX_SERIES:
        raise ToposcopeError(f"{text!r}: {{{inner}}} stands for more than {MAX_SERIES:,} series; declare fewer")
    padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-").startswith("0") for end in found.groups())
    width = max(map(len, found.groups())) if padded else 0
    way = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + way, way)]
