"""The hot loops under `toposcope.homology`: one algorithm a file, arrays in, arrays out, inputs already checked."""

import hashlib
from pathlib import Path


def _forget_other_sources() -> None:
    """Remove the compiled code of other sources, as after an update of a clone.

    Numba's cache on disk notices a change of a function's own file, but not of the files it calls.
    """
    folder = Path(__file__).parent
    compiled = folder / "__pycache__"
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()
    stamp = compiled / "sources.sha256"
    try:
        if stamp.exists() and stamp.read_text(encoding="ascii") == sources:
            return
        for path in compiled.glob("*.nb[ic]"):
            path.unlink(missing_ok=True)
        compiled.mkdir(exist_ok=True)
        stamp.write_text(sources, encoding="ascii")
    except OSError:  # a folder that cannot be written holds nothing that Numba wrote
        return


_forget_other_sources()
