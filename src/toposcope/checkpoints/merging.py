"""Averages of the checkpoints of a run, read like a checkpoint and saved as a model folder."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.averaging import Average
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import flattened
from toposcope.checkpoints.formats.safetensors_file import DTYPES
from toposcope.checkpoints.series import Series
from toposcope.checkpoints.series import series as open_series
from toposcope.checkpoints.sources.local import local_path, refuse_linked
from toposcope.checkpoints.sources.merged import MergedFile, MergedSource, merged_source
from toposcope.checkpoints.sources.source import StoredFile
from toposcope.errors import ToposcopeError
from toposcope.files import write_folder
from toposcope.version import __version__

CONFIG, MANIFEST = "config.json", "merged.json"
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_DTYPE = ("dtype", "torch_dtype")  # under which transformers keeps the dtype that it loads weights in


class MergedCheckpoint(Checkpoint):
    """The weighted average of checkpoints of one run: a `Checkpoint` with the step of the last that went into it.

    Its tensors are averaged when they are read; `save` writes them.
    """

    source: MergedSource

    def save(self, folder: Path | str) -> Path:
        """Write the average as a folder that ``transformers`` loads, whole or not at all.

        Holds ``model.safetensors`` in float32, the configuration and tokenizer of the last checkpoint, and
        ``merged.json``: each checkpoint with its step, weight and the SHA-256 of its content, and what was copied. In
        the configuration the dtype becomes float32, so that loading rounds nothing.

        Parameters
        ----------
        folder : Path or str
            A new folder.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        ToposcopeError
            If the folder exists or cannot be written, a checkpoint changes or cannot be read, or an average is not
            finite.
        """
        place = local_path(folder)
        if place.exists() or place.is_symlink():
            raise ToposcopeError(f"{place}: exists; name a new folder")
        files, average = self.source.files(), self.source.average()
        writers: dict[str, Callable[[Path], object]] = {}
        for name, file in files.items():
            is_merged = isinstance(file, MergedFile)
            writers[name] = partial(_write_weights, average) if is_merged else partial(_write_companion, file)
        if CONFIG in files:
            writers[CONFIG] = partial(_write_json, _in_float32(self._configuration(CONFIG)))
        write_folder(place, writers | {MANIFEST: lambda path: _write_json(self._manifest(average), path)})
        return place

    def _manifest(self, average: Average) -> dict[str, Any]:
        members = [
            {"place": member.location, "step": member.step, "weight": weight, "sha256": member.content_hash()}
            for member, weight in zip(average.members, self.source.weights, strict=True)
        ]
        return {
            "toposcope": __version__,
            "merged": self.location,
            "step": self.step,
            "decay_or_weights": self.source.how,
            "checkpoints": members,
            "notes": self.source.notes,
        }


def merge(
    series: Series | Path | str,
    *,
    window: tuple[int, int] | None = None,
    decay: str = "linear",
    weights: Sequence[float] | None = None,
) -> MergedCheckpoint:
    """Average the checkpoints of a run: nearly the model that a cool-down over their window would have given.

    Holds for a learning rate that is constant over the window (WSM, arXiv 2507.17634). Tensors are averaged in double
    precision when they are read, and have float32 (float64 if a checkpoint has it); masks, fixed tables and counters
    are copied from the last checkpoint. ``toposcope.series(average.location)`` opens the same.

    Parameters
    ----------
    series : Series, Path or str
        Of one run; all its checkpoints in the window are averaged.
    window : tuple of int, optional
        First and last step; from the first checkpoint to the last by default.
    decay : {"linear", "1-sqrt", "cosine", "ema"}
        Which decay of the learning rate the weights stand for (see `decay_weights`).
    weights : sequence of float, optional
        One for each checkpoint of the window, in place of a decay; divided by their sum.

    Returns
    -------
    MergedCheckpoint

    Raises
    ------
    ToposcopeError
        If the window holds fewer than two checkpoints; or when it is read, naming the checkpoint and the tensor, if
        tensors differ in name, shape or ties, are quantised, or are statistics of a batch norm.

    Examples
    --------
    >>> average = toposcope.merge("runs/small-1", window=(1000, 2000))  # doctest: +SKIP
    >>> average.save("runs/small-1-merged")  # doctest: +SKIP
    """
    found = series if isinstance(series, Series) else open_series(series)
    steps = [step for step in found.steps if window is None or window[0] <= step <= window[1]]
    text = f"{window[0]}..{window[1]}" if window else f"{steps[0]}..{steps[-1]}" if steps else "0..0"
    if len(steps) > 1 and found is series and _steps_between(found.spec, steps) != steps:
        text = "+".join(map(str, steps))  # some of the run's checkpoints were selected
    how = decay if weights is None else " ".join(str(float(weight)) for weight in weights)
    source = merged_source(found, found.spec, text, how, found.source)
    return MergedCheckpoint(source, source.last.step, source.last.tokens, source.last.roles)


def _steps_between(spec: str, steps: Sequence[int]) -> list[int]:
    """Return the steps of a series in a window; none if it cannot be opened by its text alone."""
    try:
        return [step for step in open_series(spec).steps if steps[0] <= step <= steps[-1]]
    except ToposcopeError:
        return []


def _write_weights(average: Average, path: Path) -> None:
    """Write a file of safetensors a few rows at a time, unless a number of an average is not finite."""
    entries = sorted(average.entries, key=lambda entry: -itemsize(entry.dtype))  # so that all are aligned
    first, last = average.members[0].step, average.members[-1].step
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(last)}}
    end = 0
    for entry in entries:
        begin, end = end, end + entry.n_bytes
        header[entry.name] = {"dtype": _CODES[entry.dtype], "shape": entry.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            for rows in entry.blocks():
                if entry.name not in average.copied and not np.isfinite(rows).all():
                    raise ToposcopeError(
                        f"{entry.name}: its average over steps {first} to {last} is not finite; find the step: "
                        "toposcope doctor --deep"
                    )
                file.write(flattened(rows).view(np.uint8).data)


def _write_companion(file: StoredFile, path: Path) -> None:
    """Copy a file that describes the model."""
    refuse_linked(file)
    path.write_bytes(file.read(0, file.size).tobytes())


def _write_json(content: Any, path: Path) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _in_float32(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    return {key: "float32" if key in _DTYPE and value else _in_float32(value) for key, value in content.items()}
