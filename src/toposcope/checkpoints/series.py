"""An ordered series of checkpoints, from the text that names it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from toposcope.checkpoints import roles as role_table
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import Inside, Key, inside, is_checkpoint
from toposcope.checkpoints.formats.contents import Contents, InnerSeries, text_of
from toposcope.checkpoints.formats.rank_files import CONVERT_MEGATRON, parts_of, refuse_ranks
from toposcope.checkpoints.formats.series_inside import counters_in_folder
from toposcope.checkpoints.formats.weight_names import (
    ARRAYS,
    ENDINGS,
    MEGATRON_RANK,
    PICKLES,
    SECOND_MODEL,
    SHARD,
    TORCH,
    WHOLE_OR_INDEX,
    known_foreign,
)
from toposcope.checkpoints.sources import is_remote, merged, roots
from toposcope.checkpoints.sources.local import LocalSource, escaped, linked_files, local_path
from toposcope.checkpoints.sources.source import Access, CheckpointError, Files, Source, unsupported
from toposcope.checkpoints.steps import (
    Selection,
    counted_by,
    has_odd_step,
    pattern_like,
    run_of,
    step_of,
    step_pattern,
    step_within,
    tokens_of,
)
from toposcope.errors import ToposcopeError
from toposcope.wording import examples

_SUBFOLDERS = ("checkpoints", "checkpoint")
"""Folders of a run that hold its checkpoints: ours and Lightning's; torchtitan's."""
_STATE = "state.safetensors"  # next to the checkpoints of a run of ours; holds the state to resume from
_ODD_STEP = (
    "holds no plain number of steps; rename it, such as step_1000, or give the place of its digits by --step-pattern"
)
MAX_NAMED = 5  # files that are no steps; the rest are counted
MAX_LOOKED_INTO = 1000  # files without a step in their names that are read for the step inside


@dataclass(frozen=True)
class _Options:
    """How names are read, and what every checkpoint of a series shares."""

    pattern: re.Pattern[str] | None
    roles: role_table.Rules
    key: Key = ()

    def step_of(self, stem: str) -> int | None:
        return step_of(stem, self.pattern)

    def is_odd(self, stem: str) -> bool:
        """Return whether a name holds something other than a plain number in the place of the step."""
        return self.pattern is None and has_odd_step(stem)

    def numbered(self, step: int | None, stem: str, place: str) -> int:
        """Return the step of a single checkpoint: 0 without one, unless its name has a number of another form."""
        if step is None and self.is_odd(stem):
            raise ToposcopeError(f"{place}: {stem!r} {_ODD_STEP}")
        return step or 0

    def checkpoint(self, source: Source, stem: str, step: int) -> Checkpoint:
        return Checkpoint(source, step, tokens_of(stem), self.roles, self.key)


@dataclass(frozen=True)
class Series(Sequence[Checkpoint]):
    """Checkpoints of one run, sorted by step.

    Attributes
    ----------
    name : str
        The last part of `spec`.
    spec : str
        The text that names it: a path, ``hf:owner/name@revisions``, or a URL.
    checkpoints : tuple of Checkpoint
    ignored : tuple of str
        What was left out: checkpoints without a step in their names or in another folder; names that are not UTF-8;
        dangling links and folders without permission.
    source : Source or None
        The place that `spec` names, if it is a single one; it may hold a training log.
    notes : tuple of str
        Where checkpoints and steps were found, if not in the names of files.
    """

    name: str
    spec: str
    checkpoints: tuple[Checkpoint, ...]
    ignored: tuple[str, ...] = ()
    source: Source | None = None
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> list[int]:
        """Steps, ascending."""
        return [c.step for c in self.checkpoints]

    @property
    def axis(self) -> str:
        """What the steps count by the names of the checkpoints: ``step``, ``epoch``, or ``step or epoch``."""
        kinds = {counted_by(checkpoint.source.spec, checkpoint.step) for checkpoint in self.checkpoints}
        return kinds.pop() or "step" if len(kinds) == 1 else "step"

    def select(self, selection: Selection) -> "Series":
        """Return the series of the selected checkpoints.

        Raises
        ------
        ToposcopeError
            If a selected step does not exist, or nothing is left.
        """
        chosen = set(selection.choose(self.steps, self.spec))
        return replace(self, checkpoints=tuple(c for c in self.checkpoints if c.step in chosen))

    def __repr__(self) -> str:
        steps = f"steps {self.steps[0]} to {self.steps[-1]}" if self.checkpoints else "empty"
        return f"Series({self.spec!r}, {len(self)} checkpoints, {steps})"

    def __len__(self) -> int:
        return len(self.checkpoints)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.checkpoints)

    @overload
    def __getitem__(self, index: int) -> Checkpoint: ...
    @overload
    def __getitem__(self, index: slice) -> "Series": ...
    def __getitem__(self, index: int | slice) -> "Checkpoint | Series":
        if isinstance(index, slice):
            return replace(self, checkpoints=self.checkpoints[index])
        return self.checkpoints[index]


def series(
    spec: str | Path,
    *,
    steps: Sequence[int] | None = None,
    every: int = 0,
    log_spaced: int = 0,
    pattern: str = "",
    roles: Mapping[str, str] | None = None,
    access: Access | None = None,
) -> Series:
    r"""Open a series of checkpoints, without reading any.

    Parameters
    ----------
    spec : str or Path
        A run of ours, a folder of checkpoint files (``step_000100.pt``, ``.safetensors``), a folder of model folders
        (``checkpoint-500``, ``step1000``) or of torch.distributed.checkpoint folders, or one checkpoint; the same
        under a URL that fsspec reads (``s3://``, ``gs://``, ``https://``); or revisions of a model on the Hugging Face
        hub, ``hf:owner/name@step*``; or the average of a window of checkpoints, ``merged:runs/x@1000..2000`` (see
        `merge`). ``file.pt:ema`` is the model under the key ``ema`` of each file. A file that holds
        several checkpoints of a model is a series too.
    steps, every, log_spaced
        Which checkpoints (see `Selection`); all by default.
    pattern : str
        A regular expression whose one group is the step, for names that the built-in rules do not recognise.
    roles : mapping of str to str, optional
        Regular expressions of tensor names, each with a role; they take precedence over the built-in table.
    access : Access, optional
        How remote bytes are fetched and cached.

    Returns
    -------
    Series

    Raises
    ------
    ToposcopeError
        If there are no checkpoints, two have the same step, or the place holds several runs or is unreachable.
    """
    if isinstance(steps, str) or (steps is not None and not len(steps)):
        raise ToposcopeError(f"steps is {steps!r}; name whole numbers, such as [0, 100], or omit it for all")
    rules = role_table.checked(roles or {})
    selection = Selection(steps=[*map(int, steps or ())], every=every, log_spaced=log_spaced)
    if merged.claims(str(spec)):
        inner, window, how = merged.parts_of(str(spec))
        members = series(inner, pattern=pattern, roles=roles, access=access)
        source = merged.merged_source(members, members.spec, window, how, members.source)
        average = Checkpoint(source, source.last.step, source.last.tokens, rules)
        return Series(_last_part(source.spec), source.spec, (average,)).select(selection)
    spec, key = split_key(str(spec))
    options = _Options(step_pattern(pattern) if pattern else None, rules, key)
    places = roots(spec, access or Access())
    if len(places) == 1:
        (name, root), *_ = places
        opened = _in_one_place(name, root, options)
    else:
        opened = _of_places(spec, places, options)
    opened = opened if is_remote(spec) else replace(opened, spec=str(local_path(spec)))
    if opened.ignored:
        opened = replace(opened, notes=(*opened.notes, f"not among the steps: {examples(opened.ignored, MAX_NAMED)}"))
    if key:
        opened = replace(opened, name=f"{opened.name}:{text_of(key)}", spec=f"{opened.spec}:{text_of(key)}")
    return opened.select(selection)


def split_key(spec: str) -> tuple[str, Key]:
    """Split off the key of one of several models; a path that exists as it is written has none."""
    if merged.claims(spec):
        return spec, ()
    if is_remote(spec):
        place, _, key = spec.rpartition(":")
        scheme, _, rest = place.rpartition("://")
        is_key = key and "/" not in key and ":" in place and "?" not in place and (not scheme or "/" in rest)
        if not is_key or (scheme == "file" and Path(spec.removeprefix("file://")).exists()):
            return spec, ()
        return place, (key,)
    ends = [match.start() for match in re.finditer(":", spec)]
    if ends and not LocalSource(local_path(spec)).exists():
        for end in reversed(ends):
            if spec[:end] and spec[end + 1 :] and LocalSource(local_path(spec[:end])).exists():
                return spec[:end], (spec[end + 1 :],)
    return spec, ()


def _of_places(spec: str, found: list[tuple[str, Source]], options: _Options) -> Series:
    named = {source.spec: (source, options.step_of(name), name) for name, source in found}
    stepped = [options.checkpoint(s, name, step) for s, step, name in named.values() if step is not None]
    if not stepped:
        raise ToposcopeError(f"{spec}: {len(found)} checkpoints, none with a step in its name; see --step-pattern")
    ignored = tuple(spec for spec, (_, step, _) in named.items() if step is None)
    return Series(_last_part(spec), spec, _in_order(spec, stepped), ignored)


def _in_one_place(name: str, root: Source, options: _Options) -> Series:
    """Return the series in one place: files or folders with steps in their names, or a single checkpoint."""
    _refuse_one_rank(root)
    files = root.files()
    listed, unusable = _usable(files, options.pattern)
    folder, names, left = _checkpoint_folder(root, listed, options.pattern)
    candidates = _candidates(names)
    is_one = is_checkpoint(names) and not _is_in_a_folder(names)
    if not (candidates or unusable or is_one) and (below := _runs_below(names)):
        return _only_run(root, below, options)
    steps = {part: step for part, stem in candidates.items() if (step := options.step_of(stem)) is not None}
    logs = [run for run in _runs_below(names) if run.startswith("lightning_logs")]
    if logs and not steps:
        run = _only_run(root, logs, options)
        return replace(run, ignored=(*run.ignored, *(part for part in candidates if part != "lightning_logs")))
    if options.pattern is None:
        steps = _of_one_run(folder.spec, steps, candidates)
    if ranks := [part for part in parts_of(candidates) if part in steps]:
        refuse_ranks(folder.spec, ranks)
    stepped = [options.checkpoint(folder.child(part), candidates[part], step) for part, step in steps.items()]
    if stepped and names != [name]:
        sharded = (part for part in [*names, *listed] if part in WHOLE_OR_INDEX and part.endswith(".json"))
        ignored = *(part for part in candidates if part not in steps), *sharded, *left, *unusable
        notes = tuple(_links(files))
        return Series(name, root.spec, _in_order(folder.spec, stepped), tuple(dict.fromkeys(ignored)), root, notes)
    if unusable and not candidates and not is_checkpoint(names):
        raise ToposcopeError(f"{root.spec}: no checkpoints that can be read, but {', '.join(unusable[:3])}")
    single = _single(name, root, folder, names, candidates, options)
    return replace(single, ignored=(*single.ignored, *left, *unusable), notes=(*single.notes, *_links(files)))


_CHOSEN = re.compile(
    r"(?<![a-z])(?:best|last|latest|final|init(?:ial)?)(?![a-z])"
)  # checkpoints that belong to no grid


def _of_one_run(spec: str, steps: dict[str, int], candidates: Mapping[str, str]) -> dict[str, int]:
    """Return the steps of the one run, by the beginnings of names; those of several are refused."""
    runs: dict[str, list[str]] = {}
    for part in steps:
        runs.setdefault(run_of(candidates[part]), []).append(part)
    usual = {run: parts for run, parts in runs.items() if not _CHOSEN.search(run)} or runs
    several = [parts for parts in usual.values() if len(parts) > 1]
    if len(several) == 1 or len(usual) == 1:
        (parts,) = several or usual.values()
        return {part: steps[part] for part in parts}
    if not usual:
        return steps
    named = [parts[0] for parts in usual.values()]
    raise ToposcopeError(
        f"{spec}: checkpoints of {len(named)} runs by their names, such as {examples(named, 2)}; name one by "
        f"--step-pattern '{pattern_like(candidates[named[0]])}'"
    )


def _links(files: Files) -> list[str]:
    """Say which checkpoints are links out of the folder, and where the first leads."""
    linked = linked_files({name: file for name, file in files.items() if name.endswith(ENDINGS)})
    number = "1 file is a link" if len(linked) == 1 else f"{len(linked)} files are links"
    return [f"{number} out of the folder: {linked[0].location} to {linked[0].path.resolve()}"] if linked else []


def _refuse_one_rank(root: Source) -> None:
    """Refuse the folder of one rank of Megatron-LM next to those of others, or a file in it."""
    if isinstance(root, LocalSource):
        path = root.path.absolute()
        for place in (path, path.parent):
            if (
                place.name.startswith(("mp_rank_", "tp_rank_"))
                and len(ranks := [*place.parent.glob("[mt]p_rank_*/")]) > 1
            ):
                reason = f"one of {len(ranks)} ranks of one model of Megatron-LM; {CONVERT_MEGATRON}"
                raise unsupported(root.spec, reason)


def _is_in_a_folder(names: list[str]) -> bool:
    """Return whether a lone file has a step in its name that the folder, in which it lies, has not."""
    first, _, last = names[0].rpartition("/") if len(names) == 1 else ("", "", "")
    return bool(first) and step_of(Path(last).stem) is not None and step_of(first) is None


def _runs_below(names: list[str]) -> list[str]:
    """Return the folders below that hold a run each: Lightning's versions, an output folder, one of a tracker."""
    found = []
    for folder in sorted({name.partition("/")[0] for name in names if "/" in name}):
        within = _inside(names, f"{folder}/")
        if _is_run([f"{folder}/{name}" for name in within], folder) or _holds_checkpoints(within):
            found.append(folder)
        else:
            found += [f"{folder}/{below}" for below in _runs_below(within)]
    return found


def _only_run(root: Source, below: list[str], options: _Options) -> Series:
    """Return the series of the one run below a folder; several are refused."""
    if len(below) > 1:
        raise _several_runs(root, below)
    place = root
    for part in below[0].split("/"):
        place = place.child(part)
    opened = _in_one_place(below[0].rpartition("/")[2], place, options)
    return replace(opened, notes=(f"the one run below it, in {below[0]}", *opened.notes))


def _several_runs(root: Source, runs: list[str]) -> ToposcopeError:
    return ToposcopeError(
        f"{root.spec}: a folder of {len(runs)} runs, among them {', '.join(runs[:3])}; name one, such as "
        f"{root.spec.rstrip('/')}/{runs[0]}"
    )


def _usable(files: Files, own: re.Pattern[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of readable files, and the checkpoints whose names are not UTF-8 or that are inaccessible."""
    names: list[str] = []
    unusable: dict[str, None] = {}
    for name in files:
        if escaped(name) == name and not name.endswith("/"):
            names.append(name)
            continue
        whole = name.rstrip("/")
        first = whole.partition("/")[0]
        part = first if escaped(first) != first else whole
        if is_checkpoint([whole]) or (part == first and step_of(Path(first).stem, own) is not None):
            unusable[escaped(part)] = None
    return names, tuple(unusable)


def _single(
    name: str, root: Source, folder: Source, names: list[str], candidates: dict[str, str], options: _Options
) -> Series:
    """Return a series of one checkpoint, which need not have a step in its name, or of the checkpoints inside it."""
    if names == [name] and is_checkpoint(names):
        where, stem = folder, Path(name).stem
    elif is_checkpoint(names) and (len(names) > 1 or any(map(MEGATRON_RANK.fullmatch, names))):
        where, stem = folder, name
    elif len(candidates) == 1:
        ((part, stem),) = candidates.items()
        # The folder of a lone model.safetensors may hold the step, such as step1000.
        where, stem = folder.child(part), stem if options.step_of(stem) is not None else name
    elif runs := [part for part in candidates if _is_run(_inside(names, f"{part}/"))]:
        raise _several_runs(root, runs)
    elif candidates:
        return _by_steps_inside(name, root, folder, candidates, options)
    else:
        if foreign := known_foreign(names):
            raise unsupported(root.spec, foreign)
        raise ToposcopeError(
            f"{root.spec}: no checkpoints; expected .safetensors, .pt, .pth, .bin, .ckpt files, model folders, "
            "or folders of torch.distributed.checkpoint"
        )
    return _looked_into(Series(name, root.spec, (), (), root), where, stem, options)


def _looked_into(opened: Series, where: Source, stem: str, options: _Options) -> Series:
    """Return the series in one place, by what is saved there: several checkpoints, or one and its step."""
    step = options.step_of(stem)
    is_local = isinstance(where, LocalSource)
    if not (is_local or options.key or where.spec.endswith((*TORCH, *PICKLES))):
        # Opening a model on a server moves no bytes of it; only a pickle may hold more than a model.
        step = options.numbered(step, stem, where.spec)
        return replace(opened, checkpoints=(options.checkpoint(where, stem, step),))
    try:
        found = inside(where.spec, where.files(), options.key)
    except ToposcopeError as error:
        # A key may name one of several networks in a model, which only its tensors tell.
        if options.key and not Checkpoint(where, 0, roles=options.roles, key=options.key).names_a_network():
            raise
        if not (options.key or isinstance(error, CheckpointError)):
            raise
        found = Inside()
    options = replace(options, key=found.key or options.key)
    if found.series is not None:
        return _series_inside(opened, where, found.series, found.models, options)
    if step is None and (step := _step_as_part(where, options.key)) is None:
        step = step_within(found.stated or (counters_in_folder(where) if is_local else {}))
    return replace(opened, checkpoints=(options.checkpoint(where, stem, options.numbered(step, stem, where.spec)),))


def _series_inside(opened: Series, where: Source, found: InnerSeries, models: Contents, options: _Options) -> Series:
    keys, steps = found.keys, found.steps
    origin = f"steps from {found.origin}" if steps else f"numbered 0 to {len(keys) - 1}: no steps are saved"
    note = f"a series of {len(keys)} inside the file, {origin}"
    others = [key for key in (models.chosen, *models.others) if key and key not in keys and key != keys[0][: len(key)]]
    if others:
        listed = ", ".join(f"{text_of(key)}: {where.spec}:{text_of(key)}" for key in others[:3])
        note += f"; it also holds {listed}"
    numbered = zip(keys, steps or range(len(keys)), strict=True)
    checkpoints = [Checkpoint(where, step, None, options.roles, key) for key, step in numbered]
    return replace(opened, checkpoints=_in_order(where.spec, checkpoints), notes=(note,))


def _step_as_part(where: Source, key: Key) -> int | None:
    for end in range(1, min(len(key), 2) + 1):
        series = inside(where.spec, where.files(), key[:-end]).series
        if series is not None and key in series.keys:
            place = series.keys.index(key)
            return place if series.steps is None else series.steps[place]
    return None


def _by_steps_inside(name: str, root: Source, folder: Source, candidates: dict[str, str], options: _Options) -> Series:
    """Return the series of checkpoints that hold their steps, without one in their names."""
    looked_into = candidates if len(candidates) <= MAX_LOOKED_INTO else ()
    within = {part: step_within(Checkpoint(folder.child(part), 0, key=options.key).stated) for part in looked_into}
    steps = {part: step for part, step in within.items() if step is not None}
    if not steps:
        raise ToposcopeError(
            f"{root.spec}: {len(candidates)} checkpoints, none with a step in its name; name them step_000100 and so "
            "on, or give the place of the step with --step-pattern"
        )
    checkpoints = [options.checkpoint(folder.child(part), candidates[part], step) for part, step in steps.items()]
    shapes = {part: {(e.name, e.shape) for e in c.entries} for part, c in zip(steps, checkpoints, strict=True)}
    if others := [part for part in steps if shapes[part] != shapes[next(iter(steps))]]:
        raise _several_runs(root, [next(iter(steps)), *others])
    note = "steps from inside the files: " + ", ".join(f"{part} {step}" for part, step in [*steps.items()][:5])
    ignored = tuple(part for part in candidates if part not in steps)
    return Series(name, root.spec, _in_order(folder.spec, checkpoints), ignored, root, (note,))


def _checkpoint_folder(
    root: Source, names: list[str], own: re.Pattern[str] | None
) -> tuple[Source, list[str], tuple[str, ...]]:
    """Return the folder that holds a run's checkpoints, the names in it, and the checkpoints left out elsewhere."""
    if "study.toml" in names:
        runs = sorted({p[1] for n in names if len(p := n.split("/")) > 3 and p[0] == "runs" and p[2] == "checkpoints"})
        if not runs:
            raise ToposcopeError(
                f"{root.spec}: a study that keeps no checkpoints itself (of a series, or measured while it trained); "
                "name the folder that they are saved in"
            )
        if len(runs) != 1:
            listed, folder = ", ".join(runs), root.spec.rstrip("/")
            raise ToposcopeError(f"{root.spec}: a study with {len(runs)} runs ({listed}); name one: {folder}/runs/NAME")
        inner = f"runs/{runs[0]}/checkpoints"
        return root.child(inner), _inside(names, f"{inner}/"), ()
    holders = [folder for folder in _SUBFOLDERS if _holds_checkpoints(_inside(names, f"{folder}/"))]
    if not holders:
        return root, names, ()
    beside = {part: stem for part, stem in _candidates(names).items() if part not in _SUBFOLDERS}
    if any(step_of(stem, own) is not None for stem in beside.values()):
        return root, names, tuple(holders)
    chosen, *others = holders
    left = tuple(part for part in [*beside, *others] if part != _STATE)
    return root.child(chosen), _inside(names, f"{chosen}/"), left


def _is_run(names: list[str], within: str = "") -> bool:
    prefix = f"{within}/" if within else ""
    return any(_holds_checkpoints(_inside(names, f"{prefix}{folder}/")) for folder in _SUBFOLDERS)


def _holds_checkpoints(names: list[str]) -> bool:
    return bool(names) and (is_checkpoint(names) or bool(_candidates(names)))


def _inside(names: list[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _candidates(names: list[str]) -> dict[str, str]:
    """Return the checkpoints among files, by file or folder, with the part of the name that may hold a step."""
    inside: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        inside.setdefault(first, []).append(rest)
    candidates, plain = {}, []
    for first, within in sorted(inside.items()):
        is_file = within == [""]
        stem = Path(first).stem if is_file else first
        if not is_file and _is_in_a_folder([f"{first}/{name}" for name in within]):
            continue
        if SECOND_MODEL.fullmatch(first) and {"model.safetensors", "pytorch_model.bin"} & inside.keys():
            continue
        # The number of a shard is no step.
        if not first.startswith(".") and not SHARD.search(stem) and is_checkpoint([first] if is_file else within):
            candidates[first] = stem
            # A plain pickle can be anything; next to other checkpoints it is one only if its name has a step.
            usual = [name for name in ([first] if is_file else within) if not name.endswith((*PICKLES, *ARRAYS))]
            if step_of(stem) is None and not is_checkpoint(usual):
                plain.append(first)
    if any(step_of(stem) is not None and not name.endswith(ARRAYS) for name, stem in candidates.items()):
        # Next to a series, arrays are what was measured at its steps.
        plain += [name for name in candidates if name.endswith(ARRAYS)]
    return {n: s for n, s in candidates.items() if n not in plain} or candidates


def _in_order(spec: str, checkpoints: list[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Sort checkpoints by step; two with the same step are refused."""
    seen: dict[int, Checkpoint] = {}
    for checkpoint in checkpoints:
        other = seen.setdefault(checkpoint.step, checkpoint)
        if other is not checkpoint:
            a, b = (_last_part(c.location) for c in (other, checkpoint))
            raise ToposcopeError(
                f"{spec}: {a} and {b} both have step {checkpoint.step}; move one of them away, or give the place of "
                "the step with --step-pattern"
            )
    return tuple(seen[step] for step in sorted(seen))


def _last_part(spec: str) -> str:
    return spec.rstrip("/").rpartition("/")[2] or spec
