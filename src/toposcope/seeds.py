"""Random seeds derived by name, so that no two choices share a stream and no state is global."""

import hashlib

SEED = 42  # from which every random choice of the analyses derives its own


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for one named random choice.

    Parameters
    ----------
    seed : int
        The declared seed of a run or study.
    *names : str or int
        What the randomness is for, for example ``("batches", 3)``.

    Returns
    -------
    int
        In [0, 2^63), the same on every machine and Python version.
    """
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
