"""An ordered series of checkpoints, from the text that names it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from toposcope.checkpoints import roles as role_table
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import is_checkpoint, model_folder
from toposcope.checkpoints.formats.weight_names import SHARD
from toposcope.checkpoints.selection import Selection
from toposcope.checkpoints.sources import Access, Files, Source, is_remote, roots
from toposcope.checkpoints.sources.local import escaped, local_path
from toposcope.checkpoints.steps import step_of, step_pattern, tokens_of
from toposcope.errors import ToposcopeError

_KEEPERS = ("checkpoints", "checkpoint")
"""Folders in which a run keeps its checkpoints: ours, Lightning; torchtitan."""
_STATE = "state.pt"
"""What a run of ours goes on from lies beside its checkpoints, and is none."""


@dataclass(frozen=True)
class Series(Sequence[Checkpoint]):
    """Checkpoints of one run, sorted by step.

    Attributes
    ----------
    name : str
        The last part of what names it.
    spec : str
        What names it: a path, ``hf:owner/name@revisions``, or a URL.
    checkpoints : tuple of Checkpoint
    ignored : tuple of str
        What was left out: checkpoints that tell no step or lie in another folder, beside those of the series; names
        that are not UTF-8; links that lead nowhere and folders that may not be read.
    source : Source or None
        What `spec` names, where that is one place; a training log would lie there.
    """

    name: str
    spec: str
    checkpoints: tuple[Checkpoint, ...]
    ignored: tuple[str, ...] = ()
    source: Source | None = None

    @property
    def steps(self) -> list[int]:
        """Steps, ascending."""
        return [c.step for c in self.checkpoints]

    def select(self, selection: Selection) -> "Series":
        """Return the series of the wanted checkpoints.

        Raises
        ------
        ToposcopeError
            If a step is wanted that is not there, or nothing is left.
        """
        chosen = set(selection.choose(self.steps, self.spec))
        return replace(self, checkpoints=tuple(c for c in self.checkpoints if c.step in chosen))

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
    r"""Open a series of checkpoints; nothing of them is read.

    Parameters
    ----------
    spec : str or Path
        A run of ours, a folder of checkpoint files (``step_000100.pt``, ``.safetensors``), a folder of model folders
        (``checkpoint-500``, ``step1000``) or of torch.distributed.checkpoint folders, or one checkpoint; the same
        under a URL that fsspec reads (``s3://``, ``gs://``, ``https://``); or revisions of a model on the Hugging Face
        hub, ``hf:owner/name@step*``.
    steps, every, log_spaced
        Which checkpoints; see `Selection`. None is all.
    pattern : str
        A regular expression whose one group is the step, for names the built-in rules do not know.
    roles : mapping of str to str, optional
        Regular expressions of tensor names and the role of each, before the built-in table.
    access : Access, optional
        How remote bytes are come by, and what of them is kept.

    Returns
    -------
    Series

    Raises
    ------
    ToposcopeError
        If there are no checkpoints, two claim one step, the place holds several runs or cannot be reached.
    """
    rules = role_table.checked(roles or {})
    own = step_pattern(pattern) if pattern else None
    spec = str(spec)
    found = roots(spec, access or Access())
    if len(found) == 1:
        (name, root), *_ = found
        opened = _in_one_place(name, root, own, rules)
    else:
        opened = _of_places(spec, found, own, rules)
    opened = opened if is_remote(spec) else replace(opened, spec=str(local_path(spec)))
    return opened.select(Selection(steps=_wanted(steps), every=every, log_spaced=log_spaced))


def _wanted(steps: Sequence[int] | None) -> list[int]:
    """Refuse what was meant as a choice of steps and is none."""
    if isinstance(steps, str) or (steps is not None and not len(steps)):
        raise ToposcopeError(f"steps is {steps!r}; name whole numbers, such as [0, 100], or leave it out for all")
    return [] if steps is None else [int(step) for step in steps]


def _of_places(
    spec: str, found: list[tuple[str, Source]], own: re.Pattern[str] | None, rules: role_table.Rules
) -> Series:
    """Return a series of several places, each of them one checkpoint."""
    named = {source.spec: (source, step_of(name, own), tokens_of(name)) for name, source in found}
    stepped = [Checkpoint(s, step, tokens, rules) for s, step, tokens in named.values() if step is not None]
    if not stepped:
        raise ToposcopeError(f"{spec}: {len(found)} checkpoints, none with a step in its name; see --step-pattern")
    ignored = tuple(spec for spec, (_, step, _) in named.items() if step is None)
    return Series(_last_part(spec), spec, _in_order(spec, stepped), ignored)


def _in_one_place(name: str, root: Source, own: re.Pattern[str] | None, rules: role_table.Rules) -> Series:
    """Return the series of what lies in one place: files or folders that tell steps, or a single checkpoint."""
    listed, unusable = _usable(root.files(), own)
    folder, names, left = _checkpoint_folder(root, listed, own)
    candidates = _candidates(names)
    steps = {part: step_of(stem, own) for part, stem in candidates.items()}
    stepped = [
        Checkpoint(folder.child(part), step, tokens_of(candidates[part]), rules)
        for part, step in steps.items()
        if step is not None
    ]
    if stepped and names != [name]:
        sharded = (part for part in [*names, *listed] if part in model_folder.NAMES and part.endswith(".json"))
        ignored = *(part for part, step in steps.items() if step is None), *sharded, *left, *unusable
        return Series(name, root.spec, _in_order(folder.spec, stepped), tuple(dict.fromkeys(ignored)), root)
    if unusable and not candidates and not is_checkpoint(names):
        raise ToposcopeError(f"{root.spec}: no checkpoints that can be read, but {', '.join(unusable[:3])}")
    single = _single(name, root, folder, names, candidates, own, rules)
    return replace(single, ignored=(*left, *unusable))


def _usable(files: Files, own: re.Pattern[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of files, and what would be a checkpoint if its name were text or it could be looked at."""
    names: list[str] = []
    unusable: dict[str, None] = {}
    for name in files:
        if escaped(name) == name and not name.endswith("/"):
            names.append(name)
            continue
        whole = name.rstrip("/")
        first = whole.partition("/")[0]
        part = first if escaped(first) != first else whole
        if is_checkpoint([whole]) or (part == first and step_of(_stem(first), own) is not None):
            unusable[escaped(part)] = None
    return names, tuple(unusable)


def _single(
    name: str,
    root: Source,
    folder: Source,
    names: list[str],
    candidates: dict[str, str],
    own: re.Pattern[str] | None,
    rules: role_table.Rules,
) -> Series:
    """Return a series of one checkpoint, which need not tell its step."""
    if names == [name] and is_checkpoint(names):
        where, stem = folder, _stem(name)
    elif is_checkpoint(names) and len(names) > 1:
        where, stem = folder, name
    elif len(candidates) == 1:
        ((part, stem),) = candidates.items()
        # Of model.safetensors alone in a folder called step1000, the folder tells the step.
        where, stem = folder.child(part), stem if step_of(stem, own) is not None else name
    elif candidates:
        raise ToposcopeError(
            f"{root.spec}: {len(candidates)} checkpoints, none with a step in its name; call them step_000100 and so "
            "on, or tell where the step stands with --step-pattern"
        )
    else:
        raise ToposcopeError(
            f"{root.spec}: no checkpoints; expected .safetensors, .pt, .pth, .bin or .ckpt files, model folders, or "
            "folders of torch.distributed.checkpoint"
        )
    return Series(name, root.spec, (Checkpoint(where, step_of(stem, own) or 0, tokens_of(stem), rules),), (), root)


def _checkpoint_folder(
    root: Source, names: list[str], own: re.Pattern[str] | None
) -> tuple[Source, list[str], tuple[str, ...]]:
    """Go down to where a run keeps its checkpoints; the last of what is returned are checkpoints left out by that."""
    if "study.toml" in names:
        runs = sorted({p[1] for n in names if len(p := n.split("/")) > 3 and p[0] == "runs" and p[2] == "checkpoints"})
        if len(runs) != 1:
            told = ", ".join(runs) or "none yet"
            raise ToposcopeError(
                f"{root.spec}: a study with {len(runs)} runs ({told}); name one: {root.spec.rstrip('/')}/runs/NAME"
            )
        return *_below(root, names, f"runs/{runs[0]}/checkpoints/"), ()
    keepers = [keeper for keeper in _KEEPERS if _keeps(_inside(names, f"{keeper}/"))]
    if not keepers:
        return root, names, ()
    beside = {part: stem for part, stem in _candidates(names).items() if part not in _KEEPERS}
    if any(step_of(stem, own) is not None for stem in beside.values()):
        return root, names, tuple(keepers)
    chosen, *others = keepers
    return *_below(root, names, f"{chosen}/"), tuple(part for part in [*beside, *others] if part != _STATE)


def _keeps(names: list[str]) -> bool:
    return bool(names) and (is_checkpoint(names) or bool(_candidates(names)))


def _below(root: Source, names: list[str], prefix: str) -> tuple[Source, list[str]]:
    return root.child(prefix.removesuffix("/")), _inside(names, prefix)


def _inside(names: list[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _candidates(names: list[str]) -> dict[str, str]:
    """Return the whole checkpoints among files, by file or folder, with the part of the name that may tell a step."""
    inside: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        inside.setdefault(first, []).append(rest)
    found = {}
    for first, within in sorted(inside.items()):
        is_file = within == [""]
        stem = _stem(first) if is_file else first
        # The 00001 of a shard is no step.
        if not first.startswith(".") and not SHARD.search(stem) and is_checkpoint([first] if is_file else within):
            found[first] = stem
    return found


def _in_order(spec: str, checkpoints: list[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Sort checkpoints by step, each of which only one may claim."""
    seen: dict[int, Checkpoint] = {}
    for checkpoint in checkpoints:
        other = seen.setdefault(checkpoint.step, checkpoint)
        if other is not checkpoint:
            a, b = (_last_part(c.location) for c in (other, checkpoint))
            raise ToposcopeError(
                f"{spec}: {a} and {b} both claim step {checkpoint.step}; move one of them away, or tell where the step "
                "stands with --step-pattern"
            )
    return tuple(seen[step] for step in sorted(seen))


def _last_part(spec: str) -> str:
    return spec.rstrip("/").rpartition("/")[2] or spec


def _stem(name: str) -> str:
    return Path(name).stem
