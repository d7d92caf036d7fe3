"""An ordered series of checkpoints, from the text that names it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from toposcope.checkpoints import roles as role_table
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import is_checkpoint
from toposcope.checkpoints.selection import Selection
from toposcope.checkpoints.sources import Access, Source, is_remote, roots
from toposcope.checkpoints.steps import step_of, step_pattern, tokens_of
from toposcope.errors import ToposcopeError

_SHARD = re.compile(r"-\d+-of-\d+$")
_KEEPERS = ("checkpoints", "checkpoint")
"""Folders in which a run keeps its checkpoints: ours, Lightning; torchtitan."""

Rules = tuple[tuple[str, str], ...]


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
        Checkpoints that tell no step, beside others that do.
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
    steps: Sequence[int] = (),
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
        Which checkpoints; see `Selection`.
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
    opened = opened if is_remote(spec) else replace(opened, spec=str(Path(spec).expanduser()))
    return opened.select(Selection(steps=list(steps), every=every, log_spaced=log_spaced))


def _of_places(spec: str, found: list[tuple[str, Source]], own: re.Pattern[str] | None, rules: Rules) -> Series:
    """Return a series of several places, each of them one checkpoint."""
    named = {source.spec: (source, step_of(name, own), tokens_of(name)) for name, source in found}
    stepped = [Checkpoint(s, step, tokens, rules) for s, step, tokens in named.values() if step is not None]
    if not stepped:
        raise ToposcopeError(f"{spec}: {len(found)} checkpoints, none with a step in its name; see --step-pattern")
    ignored = tuple(spec for spec, (_, step, _) in named.items() if step is None)
    return Series(_last_part(spec), spec, _in_order(spec, stepped), ignored)


def _in_one_place(name: str, root: Source, own: re.Pattern[str] | None, rules: Rules) -> Series:
    """Return the series of what lies in one place: files or folders that tell steps, or a single checkpoint."""
    names = list(root.files())
    folder, names = _checkpoint_folder(root, names)
    candidates = _candidates(names)
    steps = {part: step_of(stem, own) for part, stem in candidates.items()}
    stepped = [
        Checkpoint(folder.child(part), step, tokens_of(candidates[part]), rules)
        for part, step in steps.items()
        if step is not None
    ]
    if stepped and names != [name]:
        ignored = tuple(part for part, step in steps.items() if step is None)
        return Series(name, root.spec, _in_order(folder.spec, stepped), ignored, root)
    return _single(name, root, folder, names, candidates, own, rules)


def _single(
    name: str,
    root: Source,
    folder: Source,
    names: list[str],
    candidates: dict[str, str],
    own: re.Pattern[str] | None,
    rules: Rules,
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


def _checkpoint_folder(root: Source, names: list[str]) -> tuple[Source, list[str]]:
    """Go down to where a run keeps its checkpoints."""
    if "study.toml" in names:
        runs = sorted({p[1] for n in names if len(p := n.split("/")) > 3 and p[0] == "runs" and p[2] == "checkpoints"})
        if len(runs) != 1:
            told = ", ".join(runs) or "none yet"
            raise ToposcopeError(
                f"{root.spec}: a study with {len(runs)} runs ({told}); name one: {root.spec}/runs/NAME"
            )
        return _below(root, names, f"runs/{runs[0]}/checkpoints/")
    for keeper in _KEEPERS:
        if any(name.startswith(f"{keeper}/") for name in names):
            return _below(root, names, f"{keeper}/")
    return root, names


def _below(root: Source, names: list[str], prefix: str) -> tuple[Source, list[str]]:
    return root.child(prefix.removesuffix("/")), [n.removeprefix(prefix) for n in names if n.startswith(prefix)]


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
        if not first.startswith(".") and not _SHARD.search(stem) and is_checkpoint([first] if is_file else within):
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
