"""The sizes of the family: three dials, and the five published settings of them."""

import msgspec

from toposcope.errors import ToposcopeError, choices

MIN_HEAD_WIDTH = 16
"""Width of an attention head below which the CPU kernel is slow."""


class ModelSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One member of the family.

    Attributes
    ----------
    hidden : int
        Width of the residual stream.
    layers : int
        Number of blocks.
    heads : int
        Attention heads a block; must divide `hidden`.
    vocabulary : int
        Number of tokens.
    context : int
        Longest sequence.
    """

    hidden: int
    layers: int
    heads: int
    vocabulary: int = 128
    context: int = 128

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}")

    @property
    def n_parameters(self) -> int:
        """Trainable parameters, the tied head counted once."""
        d = self.hidden
        block = 12 * d * d + 13 * d
        return (self.vocabulary + self.context) * d + self.layers * block + 2 * d


SIZES: dict[str, ModelSize] = {
    "tiny-3k": ModelSize(hidden=8, layers=1, heads=1),
    "small-7k": ModelSize(hidden=16, layers=1, heads=2),
    "med-21k": ModelSize(hidden=24, layers=2, heads=2),
    "large-46k": ModelSize(hidden=32, layers=3, heads=4),
    "xl-97k": ModelSize(hidden=48, layers=3, heads=4),
}
"""The published family; parameters 2,936 / 7,408 / 20,640 / 46,368 / 97,200."""


def find_size(size: str | ModelSize) -> ModelSize:
    """Return the declaration of a named size, or a declaration as it is.

    Raises
    ------
    ToposcopeError
        For a name that is not in `SIZES`.
    """
    if isinstance(size, ModelSize):
        return size
    if size not in SIZES:
        raise ToposcopeError(f"size {size!r} is not known; {choices(size, SIZES)}, or give hidden, layers and heads")
    return SIZES[size]
