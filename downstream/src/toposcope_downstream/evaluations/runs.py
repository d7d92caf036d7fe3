"""What is known of the runs of evaluations: from tables next to them, from their names, and of public models.

``public_families.csv`` has a row for each family, ``public_models.csv`` one for each size. Parameters are those of the
published weights, embeddings included, and those that two layers share once: exact where the architecture is known,
else as rounded as the publisher has them. Of models that also see images, those of the language model count. Tokens
are those of the base model at the end of training. What is not public is empty, and mixtures of experts are not
listed: their parameters do not compare with those of other models.
"""

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec
import polars as pl

from toposcope.extend import MIN_LARGEST, MULTIPLES, join_names, plural
from toposcope_downstream.evaluations.file import SCHEMA, RawEvaluations, short_number

LATER_STAGES = 1.1  # steps until the end of training for each of its first stage: OLMo 2 and 3 have 1.01 to 1.06

MIRRORS = ("unsloth", "nousresearch", "huggyllama", "huggingface")
"""Organisations that publish other people's weights as they are, under their names."""
_FOLDER = re.compile(
    r"\.{0,2}|~|(?:.*[-_.])?(?:models?|checkpoints?|ckpts?|weights|pretrained|hub|hf|huggingface|cache)"
)
_CACHED = re.compile(r"models--([^/]+?)--([^/]+)(?:/snapshots/[0-9a-f]+)?")
_STAGE = re.compile(r"(?<![a-z])stage(\d+)-", re.IGNORECASE)
_CHECKPOINT = re.compile(
    r"(?:[ /@:,;]+(?:revision=)?main|[-_ /@:,;]+(?:revision=)?(?:stage\d+-(?:ingredient\d+-)?)?"
    r"(?P<word>step|ckpt_)[-_]?(?P<step>\d+)(?:-tokens\d+b)?(?:-seed-[-a-z0-9]+)?)$",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:[._]\d+)?)([mb])(\d?)(?![a-z0-9])", re.IGNORECASE)  # 1.3B, 350m, 1b3
_STEP = re.compile(
    r"(?<![a-z])(?:step|checkpoint|ckpt|iter|global_step)[-_=]?(\d+)(?![0-9.]*[kmbt]?[a-z])", re.IGNORECASE
)
_TOKENS = re.compile(
    r"(?:(?<![a-z])tokens?[-_=]?(\d+(?:\.\d+)?)([mbt])"
    r"|(?<![a-z0-9.])(\d+(?:\.\d+)?)([mbt])[-_ ]?(?:tokens?|toks?))(?![a-z])",
    re.IGNORECASE,
)
_CHINCHILLA = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)xC(?![a-z])")
_SEED = re.compile(r"(?<![a-z])seed[-_=]?(\d+|default|[a-z]+-[a-z0-9-]*\d)(?![a-z0-9])", re.IGNORECASE)
TOKENS_PER_PARAMETER = 20
"""Of a run named ``1xC``: the tokens of Hoffmann et al. 2022 for each parameter, as the OLMo ladder counts them."""


DATE = re.compile(r"(\d{4}-\d\d-\d\d)[T_-](\d\d)[-:](\d\d)[-:](\d\d(?:\.\d+)?)")
_OF_FILES = re.compile(
    r"(?<![a-z])(?:(?:bs)?(?:lm[-_ ]?)?eval(?:uation)?s?(?:[-_ ]?harness)?(?:files)?|harness|results?|outputs?|scores?"
    r"|metrics|agg|(?:zero|one|few|five|\d+)[-_ ]?shots?)(?![a-z])",
    re.IGNORECASE,
)
"""What names of files and folders say of evaluations, not of a model."""


@dataclass(frozen=True)
class PublicModel:
    """A public model, as its publisher declares it."""

    name: str  # family and size
    family: str  # with the data where the family has several: ``pythia-deduped``
    N: float
    tokens: float | None = None  # None where the model was trained further, too
    tokens_per_step: float | None = None  # of the first stage, as the next; None if no checkpoints are published
    last_step: float | None = None
    # what stands before the number in the names of published checkpoints within training; empty without any
    checkpoints: str = ""
    every: int = 1  # steps between published checkpoints; earlier ones are at powers of two
    later_stages: bool = False  # whether training has stages after the first, whose steps are counted anew in revisions
    source: str = ""  # where the figures stand: a paper or a model card
    fine_tuned: bool = False  # whether the publisher trained it further, for chats or instructions

    def has_step(self, step: int) -> bool:
        """Return whether a checkpoint of this step may be one of those published."""
        power_of_two = step < self.every and step & (step - 1) == 0
        within = self.last_step is None or step <= self.last_step * (LATER_STAGES if self.later_stages else 1)
        return bool(self.checkpoints) and within and (step % self.every == 0 or power_of_two)

    def tokens_at(self, step: int | None) -> float | None:
        """Return the tokens seen at a step of the first stage of training; without one, at the end."""
        if step is None:
            return self.tokens
        if self.tokens_per_step is None or (self.last_step is not None and step > self.last_step):
            return None
        return float(step * self.tokens_per_step)


class Family(NamedTuple):
    """The models of a family, by the size in their names."""

    pattern: re.Pattern[str]  # the group ``variant`` is other data; ``tuned`` stands in names of models trained further
    publishers: frozenset[str]
    publisher_required: bool  # whether a name without its publisher may be anybody's
    models: Mapping[str, PublicModel]


@cache
def public_families() -> tuple[Family, ...]:
    """Return the families that are listed."""

    def rows(name: str) -> list[dict[str, str]]:
        with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    families, sizes = [], rows("public_models.csv")
    for row in rows("public_families.csv"):
        models = {}
        for size in (size for size in sizes if size["family"] == row["key"]):
            name = "-".join(filter(None, (row["name"], size["size"].strip("-"))))
            stated = {field: text for field, text in (row | size).items() if text}
            stated |= {"name": name, "family": row["name"]}
            models[_folded(size["size"])] = msgspec.convert(stated, PublicModel, strict=False)
        either = "|".join(map(re.escape, sorted(models, key=len, reverse=True)))
        publishers = row["publishers"].lower().split()
        owners = "|".join(re.escape(_folded(owner)) for owner in publishers)
        pattern = row["pattern"].replace("{}", f"(?P<size>{either})")
        pattern = f"(?:(?P<owner>{owners})-)?(?:{pattern})(?:-hf)?"
        required = bool(row["publisher_required"])
        families.append(Family(re.compile(pattern), frozenset((*publishers, *MIRRORS)), required, models))
    return tuple(families)


def public_model(name: str) -> PublicModel | None:
    """Return the public model of a name as its publisher writes it, perhaps with a published checkpoint."""
    path = _CACHED.sub(r"\1/\2", name.strip().replace("\\", "/")).replace("__", "/").rstrip("/")
    checkpoint = _CHECKPOINT.search(path)
    folder, _, tail = path[: checkpoint.start() if checkpoint else None].rpartition("/")
    parent = folder.rpartition("/")[2].lower()
    model = next((found for family in public_families() if (found := _member(family, parent, tail))), None)
    if model is None or checkpoint is None or checkpoint["step"] is None:
        return model
    published = checkpoint["word"].lower() == model.checkpoints and model.has_step(int(checkpoint["step"]))
    return model if published else None


def is_later_stage(name: str) -> bool:
    """Return whether a checkpoint is of a stage of training after the first: its steps and tokens count anew."""
    stage = _STAGE.search(name)
    return stage is not None and int(stage[1]) > 1


def _member(family: Family, parent: str, tail: str) -> PublicModel | None:
    """Return the model of a family that has this name, below this organisation or folder."""
    match = family.pattern.fullmatch(_folded(tail))
    if match is None:
        return None
    known = match["owner"] or parent in family.publishers
    if not known and (family.publisher_required or not _FOLDER.fullmatch(parent)):
        return None
    model, groups = family.models[match["size"]], match.groupdict()
    if groups.get("variant"):
        variant = f"{model.family}-{tail[slice(*match.span('variant'))]}"
        model = replace(model, name=variant + model.name.removeprefix(model.family), family=variant)
    if groups.get("tuned") is None:
        return model
    untrained = replace(model, tokens=None, tokens_per_step=None, last_step=None, checkpoints="")
    return replace(untrained, family=f"{model.family} fine-tuned", fine_tuned=True)


def _folded(text: str) -> str:
    """Return a name in lower case with one sign for those that people exchange; as long as it was."""
    return re.sub(r"[._ ]", "-", text.lower())


def known_runs(table: pl.DataFrame, facts: Sequence[RawEvaluations], remarks: list[str]) -> pl.DataFrame:
    """Return the table with N, D, step, seed and recipe from tables of runs, then from the names."""
    nameless = table["run"].null_count()
    if nameless:
        remarks.append(f"{plural(nameless, 'row names', 'rows name')} no run: ignored")
        table = table.filter(pl.col("run").is_not_null())
    table = _without_common_folder(table)
    for fact in facts:
        table = _with_facts(table, fact, remarks)
    table = table.with_columns(D=pl.coalesce("D", pl.col("step") * pl.col("tokens_per_step")))
    table = _from_names(table, remarks).with_columns(recipe=pl.col("recipe").fill_null(""))
    table = _apart(table, "recipe", pl.format("{} {}", pl.col("recipe"), pl.col("run")), "recipes", remarks)
    table = _apart(table, "N", pl.format("{} N={}", pl.col("run"), short_number("N")), "sizes N", remarks)
    table = _apart(table, "seed", pl.format("{} seed {}", pl.col("run"), pl.col("seed")), "seeds", remarks)
    return _along_steps(table, remarks)


def _apart(table: pl.DataFrame, column: str, renamed: pl.Expr, what: str, remarks: list[str]) -> pl.DataFrame:
    """Return the table with runs that differ in a column under names that differ."""
    several = table.group_by("run").agg(pl.col(column).drop_nulls().n_unique()).filter(pl.col(column) > 1)["run"].sort()
    if several.is_empty():
        return table
    remarks.append(f"run {several[0]} has several {what}: each is a run of its own")
    again = pl.col("run").is_in(several.implode()) & pl.col(column).is_not_null()
    return table.with_columns(run=pl.when(again).then(renamed).otherwise("run"))


def _without_common_folder(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with runs that are folders on a disk named without the part of their path that all share."""
    runs = [run for run in table["run"].unique() if run.startswith(("/", "./", "../"))]
    if not runs:
        return table
    folder = os.path.commonpath([str(PurePosixPath(run).parent) for run in runs])
    short = {run: str(PurePosixPath(run).relative_to(folder)) for run in runs}
    if not set(short.values()).isdisjoint(set(table["run"]) - set(runs)):
        return table
    if any(public_model(name) and not public_model(run) for run, name in short.items()):
        return table
    return table.with_columns(run=pl.col("run").replace(short))


def _with_facts(table: pl.DataFrame, fact: RawEvaluations, remarks: list[str]) -> pl.DataFrame:
    """Return the table with what a table of runs says, where it says something; of a checkpoint, if it has steps."""
    facts = fact.table.filter(pl.col("run").is_not_null())
    runs, names = sorted(table["run"].unique()), sorted(facts["run"].unique())
    matches = _matches(runs, names)
    where, others = fact.source.name, [run for run in runs if run not in matches]
    unused = [name for name in names if name not in matches.values()]
    if not matches:
        remarks.append(
            f"{where} matches no run: it names {join_names(unused, 3)}, the evaluations {join_names(runs, 3)}; write "
            "its column run as the evaluations do"
        )
    elif others:
        rest = f"; {where} names {join_names(unused, 3)} besides" if unused else ""
        remarks.append(f"{len(matches)} of {len(runs)} runs are in {where}, without {join_names(others, 4)}{rest}")
    elif unused:
        remarks.append(f"{plural(len(unused), 'run', 'runs')} of {where} without evaluations: {join_names(unused, 4)}")
    table = table.with_columns(matched=pl.col("run").replace_strict(matches, default=None, return_dtype=pl.String))
    of_run, of_step = ["recipe", "N", "tokens_per_step", "seed"], ["D"]
    if facts["step"].null_count():
        of_run, of_step = [*of_run, *of_step], []
    for key, said in ((["run"], of_run), (["run", "step"], of_step)):
        unique = facts.group_by(key, maintain_order=True).agg(pl.col(said).drop_nulls().first())
        unique = unique.rename({"run": "matched", **{name: f"{name}_said" for name in said}})
        on = ["matched", *key[1:]]
        table = table.join(unique, on=on, how="left", maintain_order="left")
        table = table.with_columns(pl.coalesce(f"{name}_said", name).alias(name) for name in said)
    return table.drop("matched", pl.selectors.ends_with("_said"))


def _matches(runs: list[str], names: list[str]) -> dict[str, str]:
    """Return which name in a table of runs is each run's: the same, or the only one that ends like it."""

    def by_end(texts: list[str]) -> dict[str, list[str]]:
        ends: dict[str, list[str]] = {}
        for text in texts:
            ends.setdefault(text.replace("__", "/").rpartition("/")[2].lower(), []).append(text)
        return ends

    same = {run: run for run in runs if run in names}
    ends = by_end(names)
    others = by_end([run for run in runs if run not in same])
    alike = {found[0]: ends[end][0] for end, found in others.items() if len(found) == len(ends.get(end, [])) == 1}
    return {**same, **alike}


def _from_names(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with what the names of runs say, where nothing else does."""
    runs = table.group_by("run").agg(pl.col("step").unique()).sort("run")
    names = [read_name(run) for run in runs["run"]]
    schema = {field: SCHEMA.get(field, pl.String) for field in ("run", "N", "D", "step", "family")}
    rows = [(run, n.N, n.D, n.step, n.family) for run, n in zip(runs["run"], names, strict=True)]
    said = pl.DataFrame(rows, schema, orient="row")
    joined = table.join(said, on="run", how="left", suffix="_said", maintain_order="left")
    public = {
        run: name.public
        for run, name, steps in zip(runs["run"], names, runs["step"], strict=True)
        if name.public and all(step is None or name.public.has_step(step) for step in steps)
    }
    joined = _from_publishers(joined.with_columns(step=pl.coalesce("step", "step_said")), public, remarks)
    for field, what in (("N", "parameters N are"), ("D", "tokens D are")):
        used = joined.filter(pl.col(field).is_null() & pl.col(f"{field}_said").is_not_null())["run"].unique().sort()
        if len(used):
            remarks.append(f"{what} read from the names of {plural(len(used), 'run', 'runs')} such as {used[0]}")
    families = (joined["named"] | joined["family_public"].is_not_null()) & joined["recipe"].is_null()
    members = joined.filter(families).select("family", size=pl.coalesce("N", "N_said")).unique()
    # a family of one size each would leave no ladder at all
    if len(members) > members["family"].n_unique() and not members["family"].null_count():
        joined = joined.with_columns(recipe=pl.when(families).then("family").otherwise("recipe"))
    return joined.with_columns(pl.coalesce(f, f"{f}_said").alias(f) for f in ("N", "D")).select(table.columns)


def _from_publishers(table: pl.DataFrame, models: Mapping[str, PublicModel], remarks: list[str]) -> pl.DataFrame:
    """Return the table with sizes, tokens and families of public models, where neither file nor name states them."""
    keys = [(run, step) for run, step in table.select("run", "step").unique().rows() if run in models]
    rows = [(run, step, (of := models[run]).N, of.tokens_at(step), of.family) for run, step in keys]
    types = {**dict.fromkeys(("N_public", "D_public"), pl.Float64), "family_public": pl.String}
    declared = pl.DataFrame(rows, {"run": SCHEMA["run"], "step": SCHEMA["step"], **types}, orient="row")
    joined = table.join(declared, on=["run", "step"], how="left", nulls_equal=True, maintain_order="left")
    joined = joined.with_columns(D_public=pl.when(pl.col("D_said").is_null()).then("D_public"))
    used = joined.filter(pl.any_horizontal(pl.col(f).is_null() & pl.col(f"{f}_public").is_not_null() for f in "ND"))
    if runs := sorted(used["run"].unique()):
        what = f"sizes and tokens of {plural(len(runs), 'run', 'runs')} such as {runs[0]}"
        remarks.append(f"{what} are those that their publishers declare")
    if tuned := [run for run in runs if models[run].fine_tuned]:
        what = f"{plural(len(tuned), 'run', 'runs')} such as {tuned[0]}"
        remarks.append(f"N of {what}, trained further by the publisher, is the base model's; tokens D are unknown")
    return joined.with_columns(
        N=pl.coalesce("N", "N_public"), D=pl.coalesce("D", "D_public"), family=pl.coalesce("family_public", "family")
    )


def _along_steps(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with tokens by step, where a run states those of its end alone."""
    last, several = pl.col("step").max().over("run"), pl.col("step").n_unique().over("run") > 1
    same = (pl.col("D").n_unique().over("run") == 1) & pl.col("D").is_not_null().all().over("run")
    of_end = several & same & (last > 0) & pl.col("step").is_not_null().all().over("run")
    runs = table.filter(of_end)["run"].unique().sort()
    if len(runs):
        remarks.append(
            f"tokens D of {join_names([*runs], 4)} are stated for the run as a whole: taken at its last step, and in "
            "proportion before"
        )
    return table.with_columns(D=pl.when(of_end).then(pl.col("D") * pl.col("step") / last).otherwise("D"))


def missing_sizes(table: pl.DataFrame, remarks: list[str]) -> None:
    """Add a remark on runs without parameters or tokens, and on sizes that look like millions and billions."""
    largest = [float(known.max()) for name in ("N", "D") if len(known := table[name].drop_nulls().to_numpy())]
    if len(largest) == 2 and max(largest) < MIN_LARGEST:
        remarks.append(
            f"N up to {largest[0]:.4g} and D up to {largest[1]:.4g} look like millions and billions; give parameters "
            "and tokens themselves"
        )
    elif len(sizes := table["N"].drop_nulls().to_numpy()) and sizes.max() < MIN_LARGEST:
        remarks.append(f"N up to {sizes.max():.4g} looks like millions or billions; give parameters themselves")
    for column, what in (("N", "parameters N"), ("D", "tokens D")):
        runs = table.filter(pl.col(column).is_null())["run"].unique().sort()
        if len(runs):
            remarks.append(
                f"{plural(len(runs), 'run states', 'runs state')} no {what} ({join_names([*runs], 4)}): give a table "
                f"runs.csv (run, N, D) next to the files"
            )


class Name(NamedTuple):
    """What a name says; None where it says nothing."""

    N: float | None  # parameters, as rounded as the name has them
    D: float | None  # tokens seen, the same
    step: int | None
    seed: str | None
    family: str | None  # the name without these; None where no size stands in it
    public: PublicModel | None  # the public model of this name, with what its publisher declares


def read_name(name: str) -> Name:
    """Return what a model's or a run's name says."""
    rest = name
    tokens, step, seed, chinchilla = (pattern.search(name) for pattern in (_TOKENS, _STEP, _SEED, _CHINCHILLA))
    for pattern in (_TOKENS, _STEP, _SEED, _CHINCHILLA):
        rest = pattern.sub("", rest)
    size = _SIZE.search(rest)
    N = (
        float(f"{size[1].replace('_', '.')}{'.' * bool(size[3])}{size[3]}") * MULTIPLES[size[2].upper()]
        if size
        else None
    )
    number, sign = (tokens[1] or tokens[3], tokens[2] or tokens[4]) if tokens else ("", "")
    D = float(number) * MULTIPLES[sign.upper()] if tokens else None
    if D is None and chinchilla and N and not step:
        D = TOKENS_PER_PARAMETER * float(chinchilla[1]) * N
    public, at = public_model(name), int(step[1]) if step else None
    if is_later_stage(name):  # its steps and tokens are those of the stage alone
        last = int(public.last_step) if public and public.last_step else None
        before = public.tokens_at(last) if public and last else None
        D = before + D if before and D else None
        at = last + at if last and at is not None else at
    family = _without_gaps(rest[: size.start()] + rest[size.end() :]) if size else None
    return Name(N, D, at, seed[1] if seed else None, family, public)


def _without_gaps(rest: str) -> str:
    """Return what is left of a name without the signs at its gaps."""
    rest = re.sub(r"[-_ ]*stage\d+[-_ ]*$", "", rest)
    return re.sub(r"(?<=[-_ ])[-_ ]+|[-_ ]+$|^[-_ ]+|[-_ ]+(?=/)", "", rest)


def run_of_file(path: Path, tasks: Iterable[str]) -> str:
    """Return the run of a file that names none: by its name without dates and tasks, else by that of its folder."""
    named = sorted((re.escape(task) for task in tasks if len(task) > 1), key=len, reverse=True)
    of_tasks = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(named)})(?![a-z0-9])", re.IGNORECASE) if named else None
    for name in (path.stem, *(folder.name for folder in path.parents[:3])):
        rest = DATE.sub("", name)
        rest = _OF_FILES.sub("", of_tasks.sub("", rest) if of_tasks else rest)
        rest = _without_gaps(re.sub(r"(?<=[-_ ])[-_ ]+", "", rest))
        if re.search(r"[^\W\d_]", rest):
            return rest
    return path.stem


def without_checkpoint(name: str) -> str:
    """Return the name of a model without its checkpoint: step, tokens and stage."""
    short = name
    for pattern in (_TOKENS, _STEP):
        short = pattern.sub("", short)
    short = _without_gaps(short).rstrip("/")
    if public_model(short) and not public_model(name):  # a checkpoint of one's own: not as the publisher declares
        return re.sub(r"[-_=/ ]*([a-z_]+?)[-_=]*\d+/?$", r"-\1", name, flags=re.IGNORECASE)
    return short
