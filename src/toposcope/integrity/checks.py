"""The checks of the doctor, by name, in the order in which a page lists them."""

from typing import NamedTuple


class Check(NamedTuple):
    """What a check looks for; a deep one needs every tensor."""

    looks_for: str
    deep: bool = False


CHECKS = {
    "duplicate": Check("checkpoints that are the same under two steps"),
    "final weights": Check("the weights of the last checkpoint under early steps"),
    "still": Check("a tensor that is the same under two steps while others changed"),
    "frozen": Check("a tensor that is the same from first to last, or over one end of training"),
    "missing steps": Check("steps that the series' own grid would have"),
    "extra steps": Check("steps that are off the series' own grid"),
    "missing shard": Check("shards that the index names and that are absent"),
    "index": Check("an index that disagrees with its shards"),
    "truncated": Check("files that end early"),
    "unsafe": Check("files that would run code when loaded"),
    "unsupported": Check("files that are whole and cannot be read: packed in an unknown way, flat, or parts of others"),
    "damaged": Check("files that cannot be read, or do not match their checksums"),
    "step inside": Check("a step in a name that differs from the counter saved in the file, or from the others'"),
    "optimizer": Check("the state of an optimizer or a scheduler that does not fit the step or the weights"),
    "changed": Check("files that changed while they were read"),
    "unreachable": Check("files that cannot be reached"),
    "change of plan": Check("a step from which on tensors are added, gone, or of another shape or dtype for good"),
    "tensors": Check("tensors that other checkpoints have, or do not have"),
    "shape": Check("tensors of another shape than in most checkpoints"),
    "dtype": Check("tensors of another dtype than in most checkpoints"),
    "non-finite": Check("values that are NaN or infinite", deep=True),
    "manifest": Check("tensors that differ from the manifest written when they were saved"),
    "dead": Check("matrices of zeros, and vectors and parts of matrices that became zero", deep=True),
    "copied rows": Check("rows of a matrix that became copies of others", deep=True),
    "outlier": Check("one value far larger than all others", deep=True),
    "rounded": Check("checkpoints in float32 with values of 16 bits, or of 8", deep=True),
    "off path": Check("checkpoints that are off the path of training", deep=True),
    "scaled": Check("tensors that are a multiple of their neighbours", deep=True),
    "order": Check("checkpoints that are swapped", deep=True),
    "break": Check("a step from which on the weights are another run's", deep=True),
    "average": Check("a checkpoint, or a step from which on a run goes on, that is a mean of earlier ones", deep=True),
    "leap": Check("an interval in which the weights move much further than in any other", deep=True),
    "initialisation": Check("a step 0 that is not an initialisation", deep=True),
    "log": Check("a training log beside the series that is another run's, or cannot be understood"),
}
