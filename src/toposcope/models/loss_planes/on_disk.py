"""Points of a path and losses of unfinished planes, on disk."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.files import write_whole
from toposcope.models.loss_planes.directions import Axes, Sample
from toposcope.typing import Matrix

if TYPE_CHECKING:
    from torch import Tensor


SECONDS_BETWEEN_WRITES = 5.0  # what a kill can lose, besides the points that are being evaluated


def points_on_disk(points: Iterable[Tensor]) -> list[Tensor]:
    """Write points to a temporary file, one after the other, and return them as views of it.

    The file has no name and is gone with the last view.
    """
    import torch

    n, shape, dtype = 0, (0,), np.dtype(np.float32)
    with tempfile.TemporaryFile() as file:
        for point in points:
            values = point.detach().cpu().numpy()
            n, shape, dtype = n + 1, values.shape, values.dtype
            try:
                file.write(values.data)
            except OSError as error:
                raise ToposcopeError(
                    f"{tempfile.gettempdir()}: cannot hold the checkpoints of a path, {values.nbytes * n / 1e9:.3g} GB "
                    f"so far ({error.strerror}); name another folder in TMPDIR, or a series of fewer steps"
                ) from error
        if not n:
            return []
        file.flush()
        # private: torch takes no read-only memory
        rows = np.memmap(file, dtype, "c", shape=(n, *shape))
    return [torch.from_numpy(row) for row in rows]


@dataclass(frozen=True)
class Unfinished:
    """A folder for what is known of planes."""

    folder: Path
    key: str  # digest of everything that the loss depends on besides its point: model, tokenizer, text, versions

    def axes(self, point: Tensor, name: str, make: Callable[[], Axes]) -> Axes:
        """Return what spans planes through a point, from the folder if it is there; `name` is of how it is made."""
        import torch
        from safetensors.torch import save_file

        path = self.folder / f"axes-{self._digest(name.encode(), point)}.safetensors"
        found = _read(path)
        if found is None:
            axes = make()
            numbers = torch.tensor([axes.eigenvalues, axes.residuals], dtype=torch.float64)
            found = {"vectors": axes.vectors.cpu(), "numbers": numbers, "converged": torch.tensor(axes.converged)}
            write_whole(path, lambda place: save_file(found, place))
        eigenvalues, residuals = (tuple(row) for row in found["numbers"].tolist())
        return Axes(found["vectors"].to(point), eigenvalues, residuals, bool(found["converged"]))

    def points(self, point: Tensor, directions: Tensor, sample: Sample, batches: int) -> KeptPoints:
        """Return the losses that are known at the points of a plane: of these weights, on this text."""
        options = np.array([batches], np.int64).tobytes() + np.ascontiguousarray(sample.coordinates).tobytes()
        path = self.folder / f"points-{self._digest(options, point, *directions)}.safetensors"
        found = _read(path)
        if found is None:
            return KeptPoints(path, np.full((len(sample), batches), np.nan), np.zeros(len(sample), np.bool_))
        return KeptPoints(path, found["totals"].numpy(), found["known"].numpy())

    def _digest(self, options: bytes, *vectors: Tensor) -> str:
        digest = hashlib.sha256(self.key.encode() + hashlib.sha256(options).digest())
        for vector in vectors:
            digest.update(vector.detach().cpu().numpy().data)
        return digest.hexdigest()[:32]

    def discard(self) -> None:
        """Delete the files, and the folder if it holds no others."""
        for path in self.folder.glob("*-*.safetensors*"):
            if path.name.lstrip(".").partition("-")[0] in ("axes", "points"):  # a dot begins one that was cut off
                path.unlink()
        with suppress(OSError):
            self.folder.rmdir()


@dataclass
class KeptPoints:
    """The losses that are known at the points of a plane, and the file that keeps them."""

    path: Path
    totals: Matrix  # shape (n, batches)
    known: NDArray[np.bool_]  # shape (n,)
    written: float = 0.0

    def add(self, points: slice, *, last: bool) -> None:
        """Note that the losses of some points are in `totals`, and write all now and then."""
        self.known[points] = True
        if last or monotonic() - self.written >= SECONDS_BETWEEN_WRITES:
            from safetensors.numpy import save_file

            # points that are being evaluated may be in the array already; none counts before it is noted
            content = {"totals": np.where(self.known[:, None], self.totals, np.nan), "known": self.known}
            write_whole(self.path, lambda place: save_file(content, place))
            self.written = monotonic()


def _read(path: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if there is none, or it is damaged and is made again."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path)) if path.exists() else None
    except (SafetensorError, OSError):
        return None
