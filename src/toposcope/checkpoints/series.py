"""An ordered series of checkpoints, from the text that names it."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from toposcope.checkpoints import roles as role_table
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import Inside, Key, inside, is_checkpoint
from toposcope.checkpoints.formats.contents import text_of
from toposcope.checkpoints.formats.counters import counters_in_folder
from toposcope.checkpoints.formats.rank_files import CONVERT_MEGATRON, parts_of, refuse_ranks
from toposcope.checkpoints.formats.weight_names import (
    ARRAYS,
    ENDINGS,
    MEGATRON_RANK,
    PICKLES,
    SECOND_MODEL,
    SHARD,
    TORCH,
    WHOLE_OR_INDEX,
    is_other,
    known_foreign,
)
from toposcope.checkpoints.sources import is_remote, merged, roots
from toposcope.checkpoints.sources.local import LocalSource, escaped, linked_files, local_path
from toposcope.checkpoints.sources.source import Access, CheckpointError, Files, Source, unsupported
from toposcope.checkpoints.steps import (
    Selection,
    counted_by,
    has_odd_step,
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
_LIGHTNING = "lightning_logs"
_STATE = "state.safetensors"  # next to the checkpoints of a run of ours; holds the state to resume from
MAX_NAMED = 5  # kinds of files that are no steps; the rest are counted
MAX_LOOKED_INTO = 1000  # files without a step in their names that are read for the step inside


@dataclass(frozen=True)
class _Options:
    """How names are read, and what every checkpoint of a series shares."""

    pattern: re.Pattern[str] | None
    roles: role_table.Rules
    key: Key = ()

    def step_of(self, stem: str) -> int | None:
        return step_of(stem, self.pattern)

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
        listed = examples([name_alike(names) for names in alike(opened.ignored)], MAX_NAMED)
        opened = replace(opened, notes=(*opened.notes, f"not among the steps: {listed}"))
    if key:
        opened = replace(opened, name=f"{opened.name}:{text_of(key)}", spec=f"{opened.spec}:{text_of(key)}")
    return opened.select(selection)


def alike(names: Sequence[str]) -> list[list[str]]:
    """Group names that differ in their numbers alone, such as those of the moving average at each step."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"\d+", "0", name), []).append(name)
    return [*groups.values()]


def name_alike(names: Sequence[str]) -> str:
    """Name the first of a group."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} like it"


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
    parts = spec.split(":")
    for end in range(len(parts), 0, -1):
        place, key = ":".join(parts[:end]), ":".join(parts[end:])
        if place and (key or place == spec) and LocalSource(local_path(place)).exists():
            return place, (key,) if key else ()
    return spec, ()


def _of_places(spec: str, found: list[tuple[str, Source]], options: _Options) -> Series:
    """Return the series of several places, such as revisions."""
    places = dict(found)
    steps = {name: step for name in places if (step := options.step_of(name)) is not None}
    if not steps:
        raise ToposcopeError(f"{spec}: {len(found)} checkpoints, none with a step in its name; see --step-pattern")
    checkpoints = [options.checkpoint(places[name], name, step) for name, step in steps.items()]
    ignored = tuple(source.spec for name, source in places.items() if name not in steps)
    return Series(_last_part(spec), spec, _in_order(spec, checkpoints), ignored)


@dataclass(frozen=True)
class _Place:
    """What lies in one place."""

    opened: Series  # its name, text and source; without checkpoints
    folder: Source  # that holds the checkpoints: the place itself, or a folder in it
    names: list[str]  # of the files in it
    candidates: dict[str, str]  # the checkpoints in it, by file or folder, with the text that may hold a step
    left: tuple[str, ...]  # checkpoints elsewhere, and those whose names are not UTF-8 or that are inaccessible


def _in_one_place(name: str, root: Source, options: _Options) -> Series:
    """Return the series in one place: by the steps in names, else the one run below, else one checkpoint."""
    _refuse_one_rank(root)
    files = root.files()
    usable, unusable = _usable(files, options.pattern)
    folder, names, left = _checkpoint_folder(root, usable, options.pattern)
    opened = Series(name, root.spec, (), (), root)
    place = _Place(opened, folder, names, _candidates(names), (*left, *unusable))
    is_file, is_one = names == [name], is_checkpoint(names) and not _is_in_a_folder(names)
    if steps := {} if is_file else _steps_by_names(place, options):
        # An index stands for the shards of a model, which are no candidates.
        indices = tuple(part for part in usable if part in WHOLE_OR_INDEX and part.endswith(".json"))
        found = _by_names(place, steps, indices, options)
    elif runs := _runs_below(names, only_lightning=is_one or bool(place.candidates)):
        return _only_run(place, runs, options)
    elif unusable and not (place.candidates or is_checkpoint(names)):
        raise ToposcopeError(f"{root.spec}: no checkpoints that can be read, but {', '.join(unusable[:3])}")
    else:
        found = _single(place, options)
    ignored = dict.fromkeys([*found.ignored, *place.left])
    return replace(found, ignored=tuple(ignored), notes=(*found.notes, *_links(files)))


def _usable(files: Files, own: re.Pattern[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of readable files, and the checkpoints whose names are not UTF-8 or that are inaccessible."""
    names = [name for name in files if escaped(name) == name and not name.endswith("/")]
    unusable: dict[str, None] = {}
    for name in files.keys() - names:
        whole = name.rstrip("/")
        first = whole.partition("/")[0]
        part = whole if escaped(first) == first else first
        if is_checkpoint([whole]) or (part == first and step_of(Path(first).stem, own) is not None):
            unusable[escaped(part)] = None
    return names, tuple(sorted(unusable))


def _checkpoint_folder(
    root: Source, names: list[str], own: re.Pattern[str] | None
) -> tuple[Source, list[str], tuple[str, ...]]:
    """Return the folder that holds a run's checkpoints, the names in it, and the checkpoints left out elsewhere."""
    if "study.toml" in names:
        # What else a study keeps, such as the state to resume from, is no checkpoint.
        deep = [parts for name in names if len(parts := name.split("/")) > 3]
        runs = sorted({f"runs/{parts[1]}" for parts in deep if (parts[0], parts[2]) == ("runs", "checkpoints")})
        if not runs:
            raise ToposcopeError(
                f"{root.spec}: a study that keeps no checkpoints itself; name the folder of its series"
            )
        if len(runs) > 1:
            raise _several_runs(root, runs)
        inner = f"{runs[0]}/checkpoints"
        return root.child(inner), _inside(names, f"{inner}/"), ()
    holders = _holders(names)
    if not holders:
        return root, names, ()
    beside = {part: stem for part, stem in _candidates(names).items() if part not in _SUBFOLDERS}
    if any(step_of(stem, own) is not None for stem in beside.values()):
        return root, names, tuple(holders)
    chosen, *others = holders
    left = tuple(part for part in [*beside, *others] if part != _STATE)
    return root.child(chosen), _inside(names, f"{chosen}/"), left


def _holders(names: list[str]) -> list[str]:
    """Return the folders of a run that hold its checkpoints; of any other folder none."""
    return [folder for folder in _SUBFOLDERS if _holds_checkpoints(_inside(names, f"{folder}/"))]


def _holds_checkpoints(names: list[str]) -> bool:
    return bool(names) and (is_checkpoint(names) or bool(_candidates(names)))


def _inside(names: list[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _is_in_a_folder(names: list[str]) -> bool:
    """Return whether a lone file has a step in its name that the folder, in which it lies, has not."""
    first, _, last = names[0].rpartition("/") if len(names) == 1 else ("", "", "")
    return bool(first) and step_of(Path(last).stem) is not None and step_of(first) is None


def _candidates(names: list[str]) -> dict[str, str]:
    """Return the checkpoints among files, by file or folder, with the part of the name that may hold a step."""
    files: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        files.setdefault(first, []).append(rest)
    found: dict[str, str] = {}
    usual = set()  # those that are checkpoints by more than a plain pickle or array
    for first, within in sorted(files.items()):
        is_folder = within != [""]
        stem, within = (first, within) if is_folder else (Path(first).stem, [first])
        is_second = SECOND_MODEL.fullmatch(first) and not {"model.safetensors", "pytorch_model.bin"}.isdisjoint(files)
        # The number of a shard is no step.
        if first.startswith(".") or SHARD.search(stem) or is_second or not is_checkpoint(within):
            continue
        if is_folder and _is_in_a_folder([f"{first}/{name}" for name in within]):
            continue
        found[first] = stem
        if step_of(stem) is not None or is_checkpoint([n for n in within if not n.endswith((*PICKLES, *ARRAYS))]):
            usual.add(first)
    if any(step_of(found[name]) is not None and not name.endswith(ARRAYS) for name in usual):
        # Next to a series, arrays are what was measured at its steps.
        usual = {name for name in usual if not name.endswith(ARRAYS)}
    # A plain pickle can be anything; next to other checkpoints it is one only if its name has a step.
    return {name: stem for name, stem in found.items() if name in usual} or found


def _links(files: Files) -> list[str]:
    """Say which checkpoints are links out of the folder, and where the first leads."""
    linked = linked_files({name: file for name, file in files.items() if name.endswith(ENDINGS)})
    number = "1 file is a link" if len(linked) == 1 else f"{len(linked)} files are links"
    return [f"{number} out of the folder: {linked[0].location} to {linked[0].path.resolve()}"] if linked else []


def _refuse_one_rank(root: Source) -> None:
    """Refuse the folder of one rank of Megatron-LM next to those of others, or a file in it."""
    path = root.path.absolute() if isinstance(root, LocalSource) else Path()
    for place in (path, path.parent):
        ranks = [*place.parent.glob("[mt]p_rank_*/")] if place.name.startswith(("mp_rank_", "tp_rank_")) else []
        if len(ranks) > 1:
            raise unsupported(root.spec, f"one of {len(ranks)} ranks of one model of Megatron-LM; {CONVERT_MEGATRON}")


_ASIDE = re.compile(
    r"(?<![a-z])(?:best|ema|swa|avg|averaged?|optim(?:izer)?s?|(?:lr_)?sched(?:uler)?s?|scaler|rng|train(?:ing)?_state"
    r"|rank_?\d+)(?![a-z])"
)
"""What lies next to the steps of a run under names with steps."""
_RANK = re.compile(r"rank_?0+(?!\d)")
_AGAIN = re.compile(
    r"(?<![a-z])(?:last|latest|final|init(?:ial)?|copy|backup|bak|old|tmp|fp16|bf16)(?![a-z])|-v\d+$|\(\d+\)$"
)
"""A step once more, or else a step: the final one need not be saved under a plain name too."""


def _steps_by_names(place: _Place, options: _Options) -> dict[str, int]:
    """Return the step in the name of each checkpoint of one run; the names of several runs are refused."""
    stems = {part: stem.lower() for part, stem in place.candidates.items()}
    steps = {part: n for part, stem in place.candidates.items() if (n := options.step_of(stem)) is not None}
    if plain := {part for part in steps if not (_ASIDE.search(stems[part]) or _AGAIN.search(stems[part]))}:
        once = {steps[part] for part in plain}
        # Composer names the rank of a file also where it writes but one.
        n_ranks = Counter(step for part, step in steps.items() if _RANK.search(stems[part]))
        steps = {
            part: step
            for part, step in steps.items()
            if part in plain
            or (
                step not in once
                and (not _ASIDE.search(stems[part]) or (_RANK.search(stems[part]) and n_ranks[step] == 1))
            )
        }
    by_epoch = [part for part, step in steps.items() if counted_by(place.candidates[part], step) == "epoch"]
    if options.pattern is None and 0 < len(by_epoch) < len(steps):
        chosen = {*by_epoch} if 2 * len(by_epoch) > len(steps) else steps.keys() - by_epoch
        steps = {part: step for part, step in steps.items() if part in chosen}
    if ranks := parts_of(steps):
        refuse_ranks(place.folder.spec, ranks)
    runs: dict[str, list[str]] = {}
    for part in steps if options.pattern is None else ():
        runs.setdefault(run_of(place.candidates[part])[0], []).append(part)
    aside = {run for run in runs if _ASIDE.search(run) or _AGAIN.search(run)}
    usual = [parts for run, parts in runs.items() if run not in aside] or [*runs.values()]
    # A single one beside a run is not another run.
    usual = [parts for parts in usual if len(parts) > 1] if sum(len(p) > 1 for p in usual) == 1 else usual
    if len(usual) > 1:
        named = [parts[0] for parts in usual]
        _, pattern = run_of(place.candidates[named[0]])
        raise ToposcopeError(
            f"{place.folder.spec}: checkpoints of {len(named)} runs by their names, such as {examples(named, 2)}; name "
            f"one by --step-pattern '{pattern}'"
        )
    return {part: steps[part] for part in usual[0]} if usual else steps


def _by_names(place: _Place, steps: Mapping[str, int], indices: tuple[str, ...], options: _Options) -> Series:
    stems = place.candidates
    checkpoints = [options.checkpoint(place.folder.child(part), stems[part], step) for part, step in steps.items()]
    # The optimizer's of each step; a folder of a trainer has one without a number too, which says nothing.
    states = (n for n in place.names if "/" not in n and n.endswith(ENDINGS) and is_other(n) and re.search(r"\d", n))
    ignored = (*(part for part in stems if part not in steps), *indices, *states)
    return replace(place.opened, checkpoints=_in_order(place.folder.spec, checkpoints), ignored=ignored)


def _runs_below(names: list[str], *, only_lightning: bool = False) -> list[str]:
    """Return the folders below that hold a run each: Lightning's versions, an output folder, one of a tracker."""
    found = []
    for folder in sorted({name.partition("/")[0] for name in names if "/" in name}):
        within = _inside(names, f"{folder}/")
        if only_lightning and folder != _LIGHTNING:
            continue
        if _holders(within) or _holds_checkpoints(within):
            found.append(folder)
        else:
            found += [f"{folder}/{below}" for below in _runs_below(within)]
    return found


def _only_run(place: _Place, runs: list[str], options: _Options) -> Series:
    """Return the series of the one run below a folder; several are refused."""
    if len(runs) > 1:
        raise _several_runs(place.folder, runs)
    opened = _in_one_place(_last_part(runs[0]), place.folder.child(runs[0]), options)
    beside = (part for part in place.candidates if part not in (_LIGHTNING, runs[0]))
    notes = (f"the one run below it, in {runs[0]}", *opened.notes)
    return replace(opened, ignored=(*opened.ignored, *beside, *place.left), notes=notes)


def _several_runs(root: Source, runs: list[str]) -> ToposcopeError:
    return ToposcopeError(
        f"{root.spec}: a folder of {len(runs)} runs, among them {', '.join(runs[:3])}; name one, such as "
        f"{root.spec.rstrip('/')}/{runs[0]}"
    )


def _single(place: _Place, options: _Options) -> Series:
    """Return a series of one checkpoint, which need not have a step in its name."""
    names, folder, name = place.names, place.folder, place.opened.name
    if names == [name] and is_checkpoint(names):
        return _looked_into(place.opened, folder, Path(name).stem, options)
    if is_checkpoint(names) and (len(names) > 1 or any(map(MEGATRON_RANK.fullmatch, names))):
        return _looked_into(place.opened, folder, name, options)
    if len(names) > 1 and any(_holders(_inside(names, f"{part}/")) for part in place.candidates):
        return _only_run(place, _runs_below(names), options)
    if len(place.candidates) == 1:
        # The folder of a lone model.safetensors may hold the step, such as step1000.
        ((part, stem),) = place.candidates.items()
        stem = name if options.step_of(stem) is None else stem
        return _looked_into(place.opened, folder.child(part), stem, options)
    if place.candidates:
        return _by_steps_inside(place, options)
    if foreign := known_foreign(names):
        raise unsupported(place.opened.spec, foreign)
    raise ToposcopeError(
        f"{place.opened.spec}: no checkpoints; expected .safetensors, .pt, .pth, .bin, .ckpt files, model folders, "
        "or folders of torch.distributed.checkpoint"
    )


def _by_steps_inside(place: _Place, options: _Options) -> Series:
    """Return the series of checkpoints that hold their steps, without one in their names."""
    found: dict[str, Checkpoint] = {}
    for part, stem in place.candidates.items() if len(place.candidates) <= MAX_LOOKED_INTO else ():
        source = place.folder.child(part)
        step = step_within(Checkpoint(source, 0, key=options.key).stated)
        if step is not None:
            found[part] = options.checkpoint(source, stem, step)
    if not found:
        raise ToposcopeError(
            f"{place.opened.spec}: {len(place.candidates)} checkpoints, none with a step in its name; name them "
            "step_000100 and so on, or give the place of the step with --step-pattern"
        )
    shapes = {part: {(e.name, e.shape) for e in checkpoint.entries} for part, checkpoint in found.items()}
    first, *_ = found
    if others := [part for part in found if shapes[part] != shapes[first]]:
        raise _several_runs(place.folder, [first, *others])
    listed = ", ".join(f"{part} {checkpoint.step}" for part, checkpoint in [*found.items()][:MAX_NAMED])
    return replace(
        place.opened,
        checkpoints=_in_order(place.folder.spec, [*found.values()]),
        ignored=tuple(part for part in place.candidates if part not in found),
        notes=(f"steps from inside the files: {listed}",),
    )


def _looked_into(opened: Series, where: Source, stem: str, options: _Options) -> Series:
    """Return the series of the one checkpoint in a place, with the step that is saved there if no name has one."""
    step = options.step_of(stem)
    found = _saved_in(where, options)
    options = replace(options, key=found.key or options.key)
    if step is None and options.key:
        step = step_of(str(options.key[-1]))
    if step is None:
        beside = counters_in_folder(where) if isinstance(where, LocalSource) else {}
        step = step_within(found.stated or beside)
    if step is None and options.pattern is None and has_odd_step(stem):
        raise ToposcopeError(
            f"{where.spec}: {stem!r} holds no plain number of steps; rename it, such as step_1000, or give the place "
            "of its digits by --step-pattern"
        )
    return replace(opened, checkpoints=(options.checkpoint(where, stem, step or 0),))


def _saved_in(where: Source, options: _Options) -> Inside:
    """Return what a checkpoint holds besides one model; nothing if it is damaged, as reading it will say."""
    if not (isinstance(where, LocalSource) or options.key or where.spec.endswith((*TORCH, *PICKLES))):
        # Opening a model on a server moves no bytes of it; only a pickle may hold more than a model.
        return Inside()
    try:
        return inside(where.spec, where.files(), options.key)
    except ToposcopeError as error:
        if options.key:
            # A key may name one of several networks in a model, which only its tensors tell.
            _ = Checkpoint(where, 0, roles=options.roles, key=options.key).entries
        elif not isinstance(error, CheckpointError):
            raise
        return Inside()


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
