"""Checkpoints of other frameworks, which are not read: what each is, and what converts it."""

import re
from collections.abc import Iterable

_TO_NPZ = "save its variables by name with numpy.savez"
_KERAS = (
    f"load it with keras.models.load_model and {_TO_NPZ}; of transformers 4, use from_pretrained(..., from_tf=True)"
)
_ORBAX = "restore it with orbax.checkpoint and save its params with flax.serialization.to_bytes or numpy.savez"
_KNOWN = (
    (
        r"(_CHECKPOINT_METADATA|_METADATA|manifest\.ocdbt|_sharding|array_metadatas|.*\.zarray)",
        "an Orbax checkpoint",
        _ORBAX,
    ),
    (
        r".*ckpt.*\.index|.*\.data-\d{5}-of-\d{5}",
        "a TensorFlow checkpoint",
        f"open it with tf.train.load_checkpoint and {_TO_NPZ}",
    ),
    (r"saved_model\.pb(txt)?", "a TensorFlow SavedModel", f"open it with tf.saved_model.load and {_TO_NPZ}"),
    (r".*\.(h5|hdf5|keras)", "a file of Keras or HDF5", _KERAS),
    (r".*\.tflite", "a TensorFlow Lite model", "name the checkpoint that it was made from"),
    (
        r".*\.onnx(_data|\.data)?",
        "an ONNX graph",
        "take its initializers with onnx.numpy_helper.to_array and numpy.savez",
    ),
    (
        r".*\.(mlmodel|mlmodelc|mlpackage)|coremldata\.bin",
        "a Core ML model",
        "name the checkpoint that it was made from",
    ),
    (r".*\.pdparams", "a PaddlePaddle checkpoint", f"open it with paddle.load and {_TO_NPZ}"),
    (r".*\.params", "an MXNet checkpoint", f"open it with mxnet.nd.load and {_TO_NPZ}"),
    (r".*\.nemo", "an archive of NeMo", "unpack it with tar and name the checkpoint in it"),
    (r".*\.(engine|plan|trt)", "a TensorRT engine", "name the checkpoint that it was made from"),
    (r".*\.(ggml|ggmf|ggjt)", "a model of llama.cpp from before GGUF", "convert it with convert_llama_ggml_to_gguf.py"),
    (r".*\.(tar|tgz|tar\.gz|zip|7z|gz|xz|bz2|zst)", "an archive", "unpack it and name what was in it"),
)
"""Patterns of a file or folder, what holds it, and what to do; the most certain first."""
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), what, fix) for pattern, what, fix in _KNOWN]


def known_foreign(names: Iterable[str]) -> str:
    """Return what files of another framework are and what converts them, or an empty text.

    Examples
    --------
    >>> known_foreign(["config.json", "model.nemo"])
    'an archive of NeMo (model.nemo), which is not read; unpack it with tar and name the checkpoint in it'
    >>> known_foreign(["config.json"])
    ''
    """
    parts = [(part, name) for name in names for part in name.split("/")]
    for pattern, what, fix in _PATTERNS:
        found = next((name for part, name in parts if pattern.fullmatch(part)), "")
        if found:
            shown = found if found.isprintable() else ascii(found)
            return f"{what} ({shown[:80]}), which is not read; {fix}"
    return ""
