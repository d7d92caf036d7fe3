"""What files are by their names: weights, parts of them, files of other frameworks, pointers of Git LFS."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from toposcope.checkpoints.sources.source import Files, is_relative_name, unsupported

File = TypeVar("File")
TORCH = (".pt", ".pth", ".bin", ".ckpt")
PICKLES = (".pkl", ".pickle")  # of torch.save or of anything; taken for weights only where nothing else is
ARRAYS = (".npz",)  # of NumPy, the same
_BY_KIND = ((".safetensors", ".distcp"), TORCH, PICKLES, ARRAYS)
ENDINGS = tuple(ending for endings in _BY_KIND for ending in endings)
WHOLE_OR_INDEX = (
    *("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"),
)
"""Files of a folder of transformers, the one that is read first in front."""
NUMBERED_SHARD = re.compile(r"(model|pytorch_model)-(\d+)-of-(\d+)\.(safetensors|bin)")
_OTHER_WORDS = (
    "optim(izer)?s?|(lr_?)?schedulers?|(grad_?)?scaler|rng|rng_states?|random_states?|training_args|"
    "train(er)?(_state)?|dataloader|custom_checkpoint"
)
_OTHER = re.compile(rf"(^|/)({_OTHER_WORDS})([._-][^/]*)?$|optim_states\.pt$", re.IGNORECASE)
MEGATRON_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?/(?:model_optim_rng|model_rng|model)\.pt")
"""What a tensor-parallel rank saves, in a pipeline stage, of some experts."""
SHARD = re.compile(r"-(?!0*1-of-0*1$)\d+-of-\d+$")
"""End of the stem of a shard, unless it is the only one; its number is no step."""
SECOND_MODEL = re.compile(r"(?:model|pytorch_model)_\d+\.(?:safetensors|bin)")
"""What accelerate writes for the second and later models next to the first, which has no number."""
_TO_NPZ = "save its variables by name with numpy.savez"
_KERAS = (
    f"load it with keras.models.load_model and {_TO_NPZ}; of transformers 4, use from_pretrained(..., from_tf=True)"
)
_FLAX = "load it and save its params by dotted names with safetensors.flax.save_file or numpy.savez"
_ORBAX = "restore it with orbax.checkpoint and save its params by dotted names with numpy.savez"
_MADE_FROM = "name the checkpoint that it was made from"
_ONNX = "take its initializers with onnx.numpy_helper.to_array and numpy.savez"
_TF_FILES = r".*ckpt.*\.index|.*\.data-\d{5}-of-\d{5}"
_ORBAX_FILES = r"(_CHECKPOINT_METADATA|_METADATA|manifest\.ocdbt|_sharding|array_metadatas|.*\.zarray)"
_KNOWN = (
    (_ORBAX_FILES, "an Orbax checkpoint", _ORBAX),
    (_TF_FILES, "a TensorFlow checkpoint", f"open it with tf.train.load_checkpoint and {_TO_NPZ}"),
    (r"saved_model\.pb(txt)?", "a TensorFlow SavedModel", f"open it with tf.saved_model.load and {_TO_NPZ}"),
    (r".*\.(h5|hdf5|keras)", "a file of Keras or HDF5", _KERAS),
    (r".*\.onnx(_data|\.data)?", "an ONNX graph", _ONNX),
    (r".*\.(mlmodelc?|mlpackage|tflite|engine|plan|trt)", "a model of Core ML, TF Lite or TensorRT", _MADE_FROM),
    (r".*\.pdparams", "a PaddlePaddle checkpoint", f"open it with paddle.load and {_TO_NPZ}"),
    (r".*\.params", "an MXNet checkpoint", f"open it with mxnet.nd.load and {_TO_NPZ}"),
    (r".*\.msgpack", "a checkpoint of Flax", _FLAX),
    (r".*\.nemo", "an archive of NeMo", "unpack it with tar and name the checkpoint in it"),
    (r".*\.(gguf|ggml|ggmf|ggjt)", "a GGUF file of llama.cpp", _MADE_FROM),
    (r".*\.(tar|tgz|tar\.gz|zip|7z|gz|xz|bz2|zst)", "an archive", "unpack it and name what was in it"),
)
"""Patterns of a file or folder, what holds it, and what to do; the most certain first."""
_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\s")
_SIZE = re.compile(rb"^size (\d{1,18})\s*$", re.MULTILINE)
MAX_BYTES = 1024  # of a pointer, by its specification
MAX_FILE_NAME = 255


def is_other(name: str) -> bool:
    """Return whether a name is one of optimizers, random states and the like."""
    return _OTHER.search(name) is not None


def is_transformers_folder(names: Collection[str]) -> bool:
    """Return whether names are those of a folder of transformers; shards without an index are an incomplete one."""
    return any(name in names for name in WHOLE_OR_INDEX) or any(map(NUMBERED_SHARD.fullmatch, names))


def is_file_name(name: str) -> bool:
    """Return whether a name that a checkpoint gives can only be a file of its folder."""
    return "/" not in name and is_relative_name(name) and len(name) <= MAX_FILE_NAME


def of_weights(files: Mapping[str, File]) -> dict[str, File]:
    """Return the files of weights of a checkpoint; safetensors rather than torch's, if it has both."""
    for endings in _BY_KIND:
        chosen = {n: f for n, f in files.items() if n.endswith(endings) and not is_other(n)}
        if chosen:
            return chosen
    return {}


def known_foreign(names: Iterable[str]) -> str:
    """Return what files of another framework are and what converts them, or an empty text."""
    parts = [(part, name) for name in names for part in name.split("/")]
    for pattern, what, fix in _KNOWN:
        found = next((name for part, name in parts if re.fullmatch(pattern, part, re.IGNORECASE)), "")
        if found:
            shown = found if found.isprintable() else ascii(found)
            return f"{what} ({shown[:80]}), which is not read; {fix}"
    return ""


def refuse_pointers(files: Files) -> None:
    """Refuse files of which one is a pointer of Git LFS; only files below 1 KiB are read."""
    for file in files.values():
        if not 0 < file.size < MAX_BYTES:
            continue
        text = file.read(0, file.size).tobytes()
        if _POINTER.match(text):
            size = _SIZE.search(text)
            where = f"{int(size[1]):,} bytes are elsewhere" if size else "the file itself is elsewhere"
            raise unsupported(file, f"a Git LFS pointer, not the weights ({where}); run git lfs pull")
