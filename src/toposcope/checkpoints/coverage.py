"""Which share of a checkpoint's parameters is measured, and what the rest is."""

from collections.abc import Mapping, Sequence

import msgspec

NAMED_SHARE = 0.05
"""Where more than this share of the parameters is not measured, the rest is named."""
MAX_NAMES = 3
PLAIN_KINDS = ("embeddings", "positions", "biases, norms and other vectors")
"""Kinds of parameters that need no names: everybody knows them."""


class Coverage(msgspec.Struct, frozen=True):
    """Parameters of a checkpoint, counted as stored.

    Attributes
    ----------
    measured : int
        Of the analysed layers.
    layers : int
        How many they are.
    rest : dict of int
        Parameters that are not measured, by kind.
    names : dict of str
        Some tensors of the kinds that are not plain, by kind, for the sentence.
    """

    measured: int
    layers: int
    rest: dict[str, int]
    names: dict[str, str]

    @classmethod
    def of(cls, measured: Sequence[int], rest: Mapping[str, tuple[str, int]]) -> "Coverage":
        """Count from the sizes of the analysed layers, and kind and size of each other tensor by name."""
        counts: dict[str, int] = {}
        names: dict[str, list[str]] = {}
        for name, (kind, size) in rest.items():
            counts[kind] = counts.get(kind, 0) + size
            if kind not in PLAIN_KINDS:
                names.setdefault(kind, []).append(name)
        ordered = dict(sorted(counts.items(), key=lambda pair: -pair[1]))
        return cls(sum(measured), len(measured), ordered, {kind: _some(of_kind) for kind, of_kind in names.items()})

    @property
    def total(self) -> int:
        """All parameters."""
        return self.measured + sum(self.rest.values())

    @property
    def share(self) -> float:
        """The measured share, 0 to 1."""
        return self.measured / self.total if self.total else 0.0

    def sentence(self) -> str:
        """Say which share is measured, and name the rest where it is over `NAMED_SHARE`."""
        matrices = "1 matrix" if self.layers == 1 else f"{self.layers:,} matrices"
        said = f"{percent(self.share)} of the parameters are measured, in {matrices}"
        if 1 - self.share <= NAMED_SHARE:
            return said
        kinds = [
            f"{kind} {percent(size / self.total)}{self.names.get(kind, '')}" for kind, size in self.rest.items() if size
        ]
        return f"{said}; the rest: {', '.join(kinds)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f" ({', '.join(names[:MAX_NAMES])}{more})"


def percent(share: float) -> str:
    """Return a share in percent; not 100% nor 0% where it is less or more."""
    text = f"{100 * share:.1f}%"
    if text == "100.0%" and share < 1:
        return "over 99.9%"
    return "under 0.1%" if text == "0.0%" and share > 0 else text.replace(".0%", "%")
