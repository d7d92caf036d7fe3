"""An ordered series of checkpoints, from a path."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import is_checkpoint
from toposcope.checkpoints.steps import step_of
from toposcope.errors import ToposcopeError

_SHARD = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True)
class Series(Sequence[Checkpoint]):
    """Checkpoints of one run, sorted by step.

    Attributes
    ----------
    name : str
        The last part of the path.
    path : Path
    checkpoints : tuple of Checkpoint
    ignored : tuple of Path
        Checkpoint files that tell no step, beside others that do.
    """

    name: str
    path: Path
    checkpoints: tuple[Checkpoint, ...]
    ignored: tuple[Path, ...] = ()

    @property
    def steps(self) -> list[int]:
        """Steps, ascending."""
        return [c.step for c in self.checkpoints]

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
            return Series(self.name, self.path, self.checkpoints[index], self.ignored)
        return self.checkpoints[index]


def series(path: str | Path) -> Series:
    """Open a series of checkpoints.

    Parameters
    ----------
    path : str or Path
        A run of ours, a folder of checkpoint files (``step_000100.pt``, ``.safetensors``), a folder of model folders
        (``checkpoint-500``, ``step1000``), or one checkpoint.

    Returns
    -------
    Series

    Raises
    ------
    ToposcopeError
        If there are no checkpoints, two claim one step, or the path holds several runs.
    """
    root = Path(path).expanduser()
    if not root.exists():
        raise ToposcopeError(f"{root}: no such file or folder")
    name = root.resolve().name
    folder = _checkpoint_folder(root)
    found = [] if folder.is_file() else [p for p in sorted(folder.iterdir()) if _is_candidate(p)]
    steps = {p: step_of(_stem(p)) for p in found}
    stepped = [Checkpoint(p, step) for p, step in steps.items() if step is not None]
    if not stepped:
        return _single(root, folder, name, found)
    _refuse_equal_steps(stepped)
    ignored = tuple(p for p, step in steps.items() if step is None)
    return Series(name, root, tuple(sorted(stepped, key=lambda c: c.step)), ignored)


def _is_candidate(path: Path) -> bool:
    """Tell whether a path is a whole checkpoint; the 00001 of a shard is no step."""
    return not path.name.startswith(".") and not _SHARD.search(path.stem) and is_checkpoint(path)


def _checkpoint_folder(root: Path) -> Path:
    """Go down to where a run of ours keeps its checkpoints."""
    if (root / "runs").is_dir() and (root / "study.toml").is_file():
        runs = sorted(p for p in (root / "runs").iterdir() if (p / "checkpoints").is_dir())
        if len(runs) != 1:
            names = ", ".join(p.name for p in runs) or "none yet"
            raise ToposcopeError(f"{root}: a study with {len(runs)} runs ({names}); name one: {root / 'runs'}/NAME")
        root = runs[0]
    return root / "checkpoints" if (root / "checkpoints").is_dir() else root


def _single(root: Path, folder: Path, name: str, found: list[Path]) -> Series:
    """Return a series of one checkpoint, which need not tell its step."""
    if is_checkpoint(folder):
        found = [folder]
    if len(found) == 1:
        return Series(name, root, (Checkpoint(found[0], step_of(_stem(found[0].resolve())) or 0),))
    if found:
        raise ToposcopeError(
            f"{root}: {len(found)} checkpoints, none with a step in its name; call them step_000100 and so on"
        )
    raise ToposcopeError(
        f"{root}: no checkpoints; expected .safetensors, .pt, .pth, .bin or .ckpt files, or model folders"
    )


def _refuse_equal_steps(checkpoints: list[Checkpoint]) -> None:
    seen: dict[int, Path] = {}
    for checkpoint in checkpoints:
        if checkpoint.step in seen:
            raise ToposcopeError(
                f"{checkpoint.path.parent}: {seen[checkpoint.step].name} and {checkpoint.path.name} both claim "
                f"step {checkpoint.step}; move one of them away"
            )
        seen[checkpoint.step] = checkpoint.path


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.stem
